//! `cargo xtask tidy`: the rules of the house that a program can check.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The longest line of prose or code, in characters. Tables and links cannot be broken.
const LONGEST_LINE: usize = 150;
/// The longest source file, in lines: beyond it nobody reads top-down.
const LONGEST_FILE: usize = 2_000;

/// The only files that may say `unsafe`: raw system calls, what shares memory with a process, and the hostile test program.
const UNSAFE_MODULES: &[&str] = &[
    "crates/sandbox-guest/init/monitor.rs",
    "crates/sandbox-guest/init/sys.rs",
    "crates/sandbox-native/tests/it/hostile.rs",
];

/// Checks the whole work tree and prints what it finds.
pub(crate) fn main() -> ExitCode {
    let findings = findings();
    for finding in &findings {
        eprintln!("tidy: {finding}");
    }
    if findings.is_empty() {
        println!("tidy: nothing found");
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} findings", findings.len());
        ExitCode::FAILURE
    }
}

/// Everything in the work tree that breaks a rule.
pub(crate) fn findings() -> Vec<String> {
    let root = root();
    let tree = Tree::read(&root);
    let mut findings = Vec::new();
    findings.extend(manifests(&tree));
    findings.extend(dependencies(&tree));
    findings.extend(decisions(&tree));
    findings.extend(example(&tree));
    for file in &tree.files {
        let found = [
            unfinished(file),
            unsafe_code(file),
            lengths(file),
            links(file, |path| root.join(path).exists()),
        ];
        findings.extend(found.into_iter().flatten());
    }
    for module in UNSAFE_MODULES {
        if !tree
            .text(module)
            .is_some_and(|text| text.contains("unsafe"))
        {
            findings.push(format!("{module}: named as unsafe in xtask, and is not"));
        }
    }
    findings
}

/// The root of the work tree.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .parent()
        .expect("xtask lies in the workspace")
        .to_owned()
}

struct File {
    /// Relative to the root.
    path: String,
    text: String,
}

struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// The text files that are under version control, or would be at the next `git add`.
    fn read(root: &Path) -> Tree {
        let output = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root)
            .output()
            .expect("git is installed");
        assert!(
            output.status.success(),
            "git ls-files failed: the rules hold for a work tree"
        );
        let mut paths: Vec<String> = output
            .stdout
            .split(|byte| *byte == 0)
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .filter(|path| is_text(path))
            .collect();
        paths.sort();
        paths.dedup();
        let files = paths
            .into_iter()
            .filter_map(|path| {
                // A file that was deleted and not yet committed is no file any more.
                let text = fs::read_to_string(root.join(&path)).ok()?;
                Some(File { path, text })
            })
            .collect();
        Tree { files }
    }

    fn text(&self, path: &str) -> Option<&str> {
        let file = self.files.iter().find(|file| file.path == path)?;
        Some(&file.text)
    }
}

fn is_text(path: &str) -> bool {
    path == ".ci/run"
        || [".rs", ".md", ".toml", ".sh"]
            .iter()
            .any(|end| path.ends_with(end))
}

/// Every crate says what it is, has a README, the workspace's licence and its lints, and the name of its folder.
fn manifests(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(name) = file
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        for wanted in [
            format!("name = \"{name}\""),
            "description = \"".into(),
            "license.workspace = true".into(),
            "rust-version.workspace = true".into(),
            "readme = \"README.md\"".into(),
            "[lints]\nworkspace = true".into(),
        ] {
            if !file.text.contains(&wanted) {
                findings.push(format!("{}: lacks {wanted:?}", file.path));
            }
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            if tree.text(licence) != tree.text(&format!("crates/{name}/{licence}")) {
                findings.push(format!("crates/{name}: does not carry {licence}"));
            }
        }
        let readme = format!("crates/{name}/README.md");
        if tree
            .text(&readme)
            .is_none_or(|text| text.lines().count() < 3)
        {
            findings.push(format!("{readme}: is missing or says nothing"));
        }
    }
    findings
}

/// Every dependency of every crate has its reason written down.
fn dependencies(tree: &Tree) -> Vec<String> {
    const REASONS: &str = "docs/adr/0015-dependencies.md";
    let reasons = tree.text(REASONS).unwrap_or_default();
    let mut findings = Vec::new();
    for file in &tree.files {
        if !file.path.ends_with("Cargo.toml") {
            continue;
        }
        for section in file.text.split("\n[") {
            let mut lines = section.lines();
            if !lines
                .next()
                .is_some_and(|header| header.ends_with("dependencies]"))
            {
                continue;
            }
            let names = lines.filter_map(|line| line.split(['.', ' ']).next());
            let known = |name: &str| {
                name.is_empty()
                    || name.starts_with(['#', '['])
                    || name.starts_with("sandbox-")
                    || reasons
                        .lines()
                        .any(|row| row.starts_with('|') && names_crate(row, name))
            };
            findings.extend(
                names
                    .filter(|name| !known(name))
                    .map(|name| format!("{}: {name} has no reason in {REASONS}", file.path)),
            );
        }
    }
    findings
}

/// Whether the first cell of a table's row names the crate.
fn names_crate(row: &str, name: &str) -> bool {
    let cell = row.split('|').nth(1).unwrap_or_default();
    cell.split([' ', ',']).any(|word| word == name)
}

/// Decisions are numbered without gaps, and say their number, status and consequences.
fn decisions(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    let decisions = tree
        .files
        .iter()
        .filter(|file| file.path.starts_with("docs/adr/"));
    for (file, number) in decisions.zip(1..) {
        if !file.path.starts_with(&format!("docs/adr/{number:04}-")) {
            findings.push(format!(
                "{}: number {number:04} was expected next",
                file.path
            ));
        }
        let title = format!("# {number}. ");
        for wanted in [
            &title,
            "\nStatus: ",
            "\n## Context\n",
            "\n## Decision\n",
            "\n## Consequences\n",
        ] {
            if !file.text.contains(wanted) {
                findings.push(format!("{}: lacks {wanted:?}", file.path));
            }
        }
    }
    findings
}

/// The program that the README shows is the one that the documentation tests of `sandbox-native` run.
fn example(tree: &Tree) -> Option<String> {
    const SHOWN: &str = "README.md";
    const TESTED: &str = "crates/sandbox-native/README.md";
    let program = |path| between(tree.text(path)?, "```rust\n", "```").next();
    match (program(SHOWN), program(TESTED)) {
        (Some(shown), Some(tested)) if shown == tested => None,
        _ => Some(format!(
            "{SHOWN}: its first program is not that of {TESTED}"
        )),
    }
}

/// Nothing is left to do, and nothing prints what only its author wanted to see.
fn unfinished(file: &File) -> Vec<String> {
    // Put together, so that this file does not hold them.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("dbg", "!("),
        concat!("todo", "!("),
        concat!("unimpl", "emented!("),
        concat!("#[ig", "nore"),
    ];
    lines(file, |line| {
        // What only other tests start is no test that was given up.
        if line.contains("other tests start") {
            return None;
        }
        let word = words.iter().find(|word| line.contains(*word))?;
        Some(format!("{word} is left"))
    })
}

/// `unsafe` only in the named modules, and there never without its reasons.
fn unsafe_code(file: &File) -> Vec<String> {
    if !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let named = UNSAFE_MODULES.contains(&file.path.as_str());
    let texts: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in texts.iter().enumerate() {
        if !says_unsafe(line) {
            continue;
        }
        let place = format!("{}:{}", file.path, index + 1);
        if !named {
            findings.push(format!("{place}: unsafe outside the named modules"));
        }
        let opens = ["unsafe {", "unsafe impl"];
        if opens.iter().any(|open| line.contains(open)) && !has_reasons(&texts[..=index]) {
            findings.push(format!("{place}: no SAFETY comment right above"));
        }
    }
    findings
}

fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Neither the lint's name nor a text is the keyword.
    [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "unsafe trait",
    ]
    .iter()
    .any(|keyword| code.contains(keyword) && !code.contains(&format!("\"{keyword}")))
}

/// Whether the last line, or the comment that leads to it, gives the reasons. A statement may begin some lines above its block.
fn has_reasons(lines: &[&str]) -> bool {
    lines
        .iter()
        .rev()
        .take(9)
        .any(|line| line.contains("SAFETY:"))
}

fn lengths(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    if file.path.ends_with(".rs") && file.text.lines().count() > LONGEST_FILE {
        findings.push(format!("{}: over {LONGEST_FILE} lines", file.path));
    }
    findings.extend(lines(file, |line| {
        let unbreakable = line.trim_start().starts_with('|')
            // One rule, one line: so a change shows which.
            || file.path == "docs/CONTRACT.md"
            || line.contains("://")
            || file.path.ends_with(".toml")
            || (file.path.ends_with(".rs") && line.contains('"'));
        (line.chars().count() > LONGEST_LINE && !unbreakable)
            .then(|| format!("over {LONGEST_LINE} characters"))
    }));
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(format!("{}: the last line does not end", file.path));
    }
    findings.extend(lines(file, |line| {
        (line.ends_with([' ', '\t']) || line.contains('\r')).then(|| "blanks at the end".into())
    }));
    findings
}

/// What a document names is there: links, and paths in code spans.
fn links(file: &File, exists: impl Fn(&str) -> bool) -> Vec<String> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let directory = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for target in between(&file.text, "](", ")") {
        let target = target.split('#').next().unwrap_or_default();
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let path = directory.join(target);
        if !exists(&path.to_string_lossy()) {
            findings.push(format!(
                "{}: links to {target}, which is not there",
                file.path
            ));
        }
    }
    for span in between(&file.text, "`", "`") {
        let is_path = ["crates/", "docs/", "xtask/", ".ci/", ".cargo/"]
            .iter()
            .any(|start| span.starts_with(start));
        let is_pattern = span.contains(['<', '*', ' ', '{', '\n']);
        if is_path && !is_pattern && !exists(span) {
            findings.push(format!("{}: names {span}, which is not there", file.path));
        }
    }
    findings
}

/// The texts between an opening and the next closing mark.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find(open)? + open.len();
        let length = rest[start..].find(close)?;
        let found = &rest[start..start + length];
        rest = &rest[start + length + close.len()..];
        Some(found)
    })
}

fn lines(file: &File, check: impl Fn(&str) -> Option<String>) -> Vec<String> {
    file.text
        .lines()
        .zip(1..)
        .filter_map(|(line, number)| {
            check(line).map(|finding| format!("{}:{number}: {finding}", file.path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn the_work_tree_is_tidy() {
        assert_eq!(findings(), Vec::<String>::new());
    }

    #[test]
    fn what_is_left_to_do_is_found() {
        let text = format!("fn f() {{}}\n// {} later\n", concat!("TO", "DO"));
        assert_eq!(unfinished(&file("a.rs", &text)).len(), 1);
        assert!(unfinished(&file("a.rs", "fn f() {}\n")).is_empty());
    }

    #[test]
    fn unsafe_code_is_found() {
        let text = format!("fn f() {{\n    {} {{ g() }}\n}}\n", "unsafe");
        assert_eq!(
            unsafe_code(&file("a.rs", &text)).len(),
            2,
            "outside, and without reasons"
        );
        assert!(unsafe_code(&file("a.rs", "#![deny(unsafe_code)]\n// unsafe { }\n")).is_empty());
    }

    #[test]
    fn reasons_stand_right_above() {
        assert!(has_reasons(&["// SAFETY: it is so.", "unsafe { g() }"]));
        assert!(!has_reasons(&["unsafe { g() }"]));
    }

    #[test]
    fn long_lines_and_files_are_found() {
        let long = format!("{}\n", "x".repeat(LONGEST_LINE + 1));
        assert_eq!(lengths(&file("a.md", &long)).len(), 1);
        assert_eq!(
            lengths(&file("a.rs", &"\n".repeat(LONGEST_FILE + 1))).len(),
            1
        );
        assert_eq!(lengths(&file("a.md", "no end")).len(), 1);
        assert_eq!(lengths(&file("a.md", "blank \n")).len(), 1);
        assert!(lengths(&file("a.md", "fine\n")).is_empty());
    }

    #[test]
    fn missing_files_are_found() {
        let text =
            "[a](gone.md) [b](there.md#part) [c](https://example.org) `crates/gone` `crates/<x>`\n";
        let found = links(&file("docs/a.md", text), |path| path == "docs/there.md");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_gap_between_decisions_is_found() {
        let text = |number| {
            format!(
                "# {number}. Title\n\nStatus: accepted\n\n## Context\n\n## Decision\n\n## Consequences\n"
            )
        };
        let tree = |second: &str, number| Tree {
            files: vec![
                file("docs/adr/0001-a.md", &text(1)),
                file(second, &text(number)),
            ],
        };
        assert!(decisions(&tree("docs/adr/0002-b.md", 2)).is_empty());
        assert_eq!(decisions(&tree("docs/adr/0003-b.md", 2)).len(), 1);
    }

    #[test]
    fn an_example_that_is_not_tested_is_found() {
        let program = |text| format!("```rust\n{text}```\n");
        let tree = |shown, tested| Tree {
            files: vec![
                file("README.md", &program(shown)),
                file("crates/sandbox-native/README.md", &program(tested)),
            ],
        };
        assert_eq!(example(&tree("a();\n", "a();\n")), None);
        assert!(example(&tree("a();\n", "b();\n")).is_some());
        assert!(example(&Tree { files: Vec::new() }).is_some());
    }

    #[test]
    fn a_bare_manifest_is_found() {
        let tree = Tree {
            files: vec![file("crates/a/Cargo.toml", "[package]\nname = \"b\"\n")],
        };
        assert!(manifests(&tree).len() >= 5);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let tree = Tree {
            files: vec![
                file(
                    "Cargo.toml",
                    "[workspace.dependencies]\nleftpad = \"1\"\ntar = \"1\"\n",
                ),
                file("docs/adr/0015-dependencies.md", "| tar, untar | core |\n"),
            ],
        };
        assert_eq!(dependencies(&tree).len(), 1);
    }
}
