//! `cargo xtask conformance`: the cases of the contract against one backend.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use sandbox_conformance::{Factory, Options, Report};
use sandbox_core::{Backend, Result};

const USAGE: u8 = 2;

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 every case that applies passed; 1 a case failed, or a required one did not run; 2 wrong command line;
3 nothing passed; 4 incomplete, a case could not be tried here; 5 the suite itself failed.")]
pub(crate) struct Arguments {
    /// The backend under test
    #[arg(value_enum, required_unless_present = "list")]
    backend: Option<Name>,
    /// Run the cases whose id matches: a pattern with *, or a part of the id (repeatable)
    #[arg(long = "case", value_name = "PATTERN")]
    cases: Vec<String>,
    /// List the selected cases with their rules and conditions, and run nothing
    #[arg(long)]
    list: bool,
    /// How to report
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// How many cases run at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    jobs: usize,
    /// How often each case runs; the worst counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    repeat: usize,
    /// Count it as a failure if a case whose id matches is skipped or unavailable (repeatable)
    #[arg(long, value_name = "PATTERN")]
    require: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Linux namespaces on this machine
    Native,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line per case as it ends, and a summary
    Text,
    /// One JSON document at the end
    Json,
}

fn at_least_one(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a number above zero".into()),
    }
}

pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    match run(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(USAGE)
        }
    }
}

fn run(arguments: &Arguments) -> std::result::Result<u8, String> {
    let scratch = tempfile::Builder::new()
        .prefix("conformance-")
        .tempdir()
        .map_err(|error| format!("cannot make a scratch directory: {error}"))?;
    let mut options = Options::new(scratch.path());
    options.select = arguments.cases.clone();
    options.require = arguments.require.clone();
    options.jobs = arguments.jobs;
    options.repeat = arguments.repeat;
    if arguments.list {
        list(&options);
        return Ok(0);
    }
    Err("no backend is built in yet".into())
}

fn list(options: &Options) {
    for case in sandbox_conformance::all() {
        if options.selects(case.id) {
            let needs: Vec<String> = case.needs.iter().map(ToString::to_string).collect();
            println!("{} [{}] {}", case.id, case.rules.join(", "), needs.join(", "));
        }
    }
}
