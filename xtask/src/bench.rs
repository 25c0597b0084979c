//! `cargo xtask bench`: speed and memory as ratios against peers, measured in turns in the same run.

mod files;
mod many;
mod memory;
mod peers;
mod report;
mod start;
mod stream;

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sandbox_core::{
    Backend, Bind, Checked, ContainerName, ContainerSpec, Handle, Result, SandboxPath,
};
use sandbox_native::Native;
use tempfile::TempDir;

use peers::Peers;
use report::{Report, Row};

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 every selected row was measured (whatever its verdict); 1 a row could not be; 2 wrong command line.
Run it on a quiet machine: medians of small figures move by a third on a busy one.")]
pub(crate) struct Arguments {
    /// Measure only the rows whose name contains this (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Measure the median of creating and removing a sandbox, and print it in nanoseconds (for the bench itself)
    #[arg(long, hide = true)]
    create_median: bool,
}

/// A group of rows and what measures it.
type Measure = fn(&Bench) -> Result<Vec<Row>>;
const GROUPS: [(&str, Measure); 10] = [
    ("exec", start::exec),
    ("exec-one-thread", start::exec_one_thread),
    ("exec-parallel", start::exec_parallel),
    ("exec-large-host", start::exec_large_host),
    ("create", start::create),
    ("create-parallel", start::create_parallel),
    ("stream", stream::stream),
    ("file", files::files),
    ("memory", memory::idle),
    ("many", many::many),
];

pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    if cfg!(debug_assertions) {
        return again_in_release();
    }
    let bench = match Bench::new() {
        Ok(bench) => bench,
        Err(error) => {
            eprintln!("bench: no sandbox can be made here: {error}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.create_median {
        return match bench.runtime.block_on(many::create_median(&bench)) {
            Ok(median) => {
                println!("{}", median.as_nanos());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("bench: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut report = Report::new(&bench);
    for (name, measure) in GROUPS {
        let selected = arguments.only.is_empty()
            || arguments
                .only
                .iter()
                .any(|only| name.contains(only.as_str()));
        if selected {
            eprintln!("bench: {name}");
            report.add(name, measure(&bench));
        }
    }
    report.print(arguments.json);
    report.exit_code()
}

/// Figures of an unoptimised build say nothing.
fn again_in_release() -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .current_dir(crate::tidy::root())
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(code)) => ExitCode::from(code as u8),
        _ => ExitCode::FAILURE,
    }
}

/// What all rows share.
struct Bench {
    runtime: tokio::runtime::Runtime,
    backend: Arc<dyn Backend>,
    peers: Peers,
    /// Where sandboxes keep their files, and where the plain files of the peers lie.
    state: TempDir,
    on_tmpfs: bool,
}

impl Bench {
    fn new() -> Result<Bench> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| sandbox_core::Error::io("starting the runtime", error))?;
        // In memory, so that a disk's journal and its delayed frees are not what is measured.
        let shared_memory = std::path::Path::new("/dev/shm");
        let on_tmpfs = free_bytes(shared_memory) > 2 << 30;
        let state = if on_tmpfs {
            tempfile::tempdir_in(shared_memory)
        } else {
            tempfile::tempdir()
        }
        .map_err(|error| sandbox_core::Error::io("making the state directory", error))?;
        let builder = Native::builder().state_dir(state.path().join("state"));
        let backend = Arc::new(runtime.block_on(builder.build())?);
        Ok(Bench {
            runtime,
            backend,
            peers: Peers::new(),
            state,
            on_tmpfs,
        })
    }

    fn name(&self, name: &str) -> Result<ContainerName> {
        ContainerName::new(name)
    }

    /// A sandbox in which the peers' static program is at hand.
    fn spec(&self, name: &str) -> Result<ContainerSpec> {
        let mut spec = ContainerSpec::workdir(self.name(name)?);
        let directory = self.peers.directory();
        spec.binds = vec![Bind::read_only(directory, SandboxPath::new("/bench")?)];
        Ok(spec)
    }

    /// A backend of the current runtime, with its files in the same place.
    async fn another_backend(&self) -> Result<Checked<Native>> {
        let state = self.state.path().join("state");
        Native::builder().state_dir(state).build().await
    }

    async fn sandbox(&self, name: &str) -> Result<Handle> {
        self.backend.create(self.spec(name)?).await
    }
}

/// Bytes free on a file system, as `df` says; 0 if it does not.
fn free_bytes(path: &std::path::Path) -> u64 {
    let output = Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(path)
        .output();
    output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.lines().nth(1)?.trim().parse().ok())
        .unwrap_or(0)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The median of figures that are no times.
fn middle(figures: &mut [f64]) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}
