//! `docs/CONTRACT.md` and the cases say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sandbox_conformance::all;

const BEGIN: &str = "<!-- rules and cases: begin -->";
const END: &str = "<!-- rules and cases: end -->";

fn page() -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONTRACT.md");
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

/// The ids of the page's rules: lines that begin with `- LIFE-1 `.
fn rules(page: &str) -> Vec<&str> {
    page.lines()
        .filter_map(|line| line.strip_prefix("- "))
        .filter_map(|line| line.split_once(' ').map(|(first, _)| first))
        .filter(|id| {
            let (group, number) = id.split_once('-').unwrap_or_default();
            !group.is_empty()
                && group.bytes().all(|byte| byte.is_ascii_uppercase())
                && number.parse::<u32>().is_ok()
        })
        .collect()
}

/// The rules that other tests prove, or that later backends bring: rows `| rule | where |` below the heading.
fn elsewhere(page: &str) -> BTreeMap<String, String> {
    let (_, rest) = page.split_once("## Proved elsewhere or later").unwrap();
    rest.lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            let rule = cells.next().unwrap_or_default().to_owned();
            (rule, cells.next().unwrap_or_default().to_owned())
        })
        .collect()
}

fn table(rules: &[&str]) -> String {
    let mut text = String::from("| rule | cases |\n|---|---|\n");
    for rule in rules {
        let cases: Vec<String> = all()
            .iter()
            .filter(|case| case.rules.contains(rule))
            .map(|case| format!("`{}`", case.id))
            .collect();
        if !cases.is_empty() {
            text.push_str(&format!("| {rule} | {} |\n", cases.join(", ")));
        }
    }
    text
}

#[test]
fn every_case_names_rules_of_the_page() {
    let (_, page) = page();
    let known: BTreeSet<&str> = rules(&page).into_iter().collect();
    for case in all() {
        for rule in case.rules {
            assert!(
                known.contains(rule),
                "{} names the unknown rule {rule}",
                case.id
            );
        }
    }
}

#[test]
fn every_rule_has_a_case_or_is_said_to_be_proved_elsewhere() {
    let (_, page) = page();
    let proved: BTreeSet<&str> = all().iter().flat_map(|case| case.rules).copied().collect();
    let elsewhere = elsewhere(&page);
    let rules = rules(&page);
    assert_eq!(
        rules.len(),
        rules.iter().collect::<BTreeSet<_>>().len(),
        "a rule is there twice"
    );
    for rule in &rules {
        let listed = elsewhere.get(*rule).is_some_and(|place| !place.is_empty());
        assert!(
            proved.contains(rule) || listed,
            "{rule} has no case and is not listed as proved elsewhere"
        );
    }
    for rule in elsewhere.keys() {
        assert!(
            rules.contains(&rule.as_str()),
            "{rule} is listed as proved elsewhere, but is no rule"
        );
    }
}

/// With `UPDATE_CONTRACT=1` it writes the table instead of comparing.
#[test]
fn the_pages_table_of_cases_is_up_to_date() {
    let (path, page) = page();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (now, after) = rest.split_once(END).unwrap();
    let expected = format!("\n{}", table(&rules(&page)));
    if std::env::var_os("UPDATE_CONTRACT").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert!(
        now == expected,
        "the table is out of date: run this test with UPDATE_CONTRACT=1 and look at the difference"
    );
}
