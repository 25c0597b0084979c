#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod doctor;
mod failure;
mod quantity;
mod run;
mod signals;
mod stdio;
mod terminal;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::{Failure, NOT_RUN};

fn main() {
    let code = match Cli::try_parse() {
        Ok(cli) => execute(cli.command),
        Err(error) => usage(&error),
    };
    terminal::restore();
    // Not by returning: a thread that reads standard input or writes to a stuck reader would be waited for.
    std::process::exit(code.into());
}

fn execute(command: Command) -> u8 {
    let outcome = match command {
        Command::Run(options) => run(&options),
        Command::Doctor(options) => doctor::doctor(&options),
    };
    outcome.unwrap_or_else(|failure| {
        terminal::restore();
        eprintln!("{failure}");
        failure.code
    })
}

fn run(options: &args::Run) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(
                "the command could not be started",
                error.to_string(),
                "the machine may be short of descriptors; try again",
            )
        })?;
    let outcome = runtime.block_on(run::run(options));
    runtime.shutdown_background();
    outcome
}

/// Help and version go to standard output and are a success; everything else was no command.
fn usage(error: &clap::Error) -> u8 {
    // A closed stream is no reason to fail differently.
    let _ = error.print();
    if error.use_stderr() { NOT_RUN } else { 0 }
}
