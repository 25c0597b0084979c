//! The project's own tasks: `cargo xtask <task>`.

mod bench;
mod ci;
mod conformance;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure speed and memory against peers
    Bench(bench::Arguments),
    /// Run everything that CI runs
    Ci,
    /// Prove that a backend keeps the contract
    Conformance(conformance::Arguments),
    /// Check the rules of the house
    Tidy,
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Bench(arguments) => bench::main(&arguments),
        Task::Ci => ci::main(),
        Task::Conformance(arguments) => conformance::main(&arguments),
        Task::Tidy => tidy::main(),
    }
}
