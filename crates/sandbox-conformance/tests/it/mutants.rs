//! Planted faults: each fails exactly the cases that are there for it, and no other of the chosen ones.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_conformance::{Options, Report, Status, Verdict, run};
use sandbox_core::{
    Backend, ByteStream, Caps, CapturedFile, Cmd, ContainerName, ContainerSpec, DirEntry,
    DuplexStream, Error, ExecResult, Execution, ExitStatus, FileStat, Handle, InputFile,
    OutputStream, PathRole, Result, SandboxId, SandboxPath, SnapshotRef, Support,
};

use crate::plain::plain;

/// What the good backend passes, and the faults are tried on.
const CHOSEN: [&str; 16] = [
    "caps::answer_is_the_same_for_the_backends_life",
    "caps::undeclared_dial_is_refused",
    "life::handle_carries_the_name_of_the_spec",
    "life::name_of_a_live_sandbox_is_taken",
    "life::destroyed_handle_is_unknown_to_every_operation",
    "exec::exit_code_is_kept",
    "exec::output_streams_are_separate_and_exact",
    "exec::result_follows_last_chunk",
    "exec::nothing_carries_over_between_commands",
    "env::later_value_wins",
    "limits::one_byte_more_is_truncated",
    "file::write_replaces_the_whole_content",
    "file::captured_files_come_in_order",
    "file::list_shows_one_level_with_kinds",
    "file::delete_removes_a_file_or_the_link_itself",
    "file::absent_is_not_found",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    CapsChange,
    DialWithoutCapability,
    OtherName,
    SharedName,
    DeadHandleIsNotFound,
    ExitCodeIsLost,
    StderrBecomesStdout,
    ChunkAfterResult,
    CommandEnvIsLost,
    TruncationIsSilent,
    WriteAppends,
    CaptureIsReversed,
    HiddenFilesAreNotListed,
    DeleteFollowsLinks,
    AbsentIsEmpty,
    DestroyDoesNothing,
    DestroyFails,
    StatPanics,
    ReadHangs,
    DeclaredDialIsUnsupported,
}

#[derive(Debug)]
struct Mutant {
    inner: Arc<dyn Backend>,
    fault: Fault,
    created: std::sync::atomic::AtomicBool,
}

impl Mutant {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

/// The same execution with something done to its chunks and its result.
fn altered(mut inner: Execution, fault: Fault) -> Execution {
    let limits = sandbox_core::OutputLimits::default();
    let (execution, mut sink) = Execution::channel(limits, None);
    tokio::spawn(async move {
        while let Some(chunk) = inner.next_chunk().await {
            let stream = match fault {
                Fault::StderrBecomesStdout => OutputStream::Stdout,
                _ => chunk.stream,
            };
            sink.send(stream, chunk.data).await;
        }
        let result = inner.wait().await;
        let status = match fault {
            Fault::ExitCodeIsLost => Some(ExitStatus::Code(0)),
            _ => result.status,
        };
        sink.finish(ExecResult::new(status, result.ended_by));
    });
    execution
}

/// A result that does not carry what the chunks did.
fn without_the_last_chunk(mut inner: Execution) -> Execution {
    let (execution, mut sink) = Execution::channel(sandbox_core::OutputLimits::default(), None);
    tokio::spawn(async move {
        let mut held = None;
        while let Some(chunk) = inner.next_chunk().await {
            if let Some(chunk) = held.replace(chunk) {
                let sandbox_core::Chunk { stream, data } = chunk;
                sink.send(stream, data).await;
            }
        }
        let result = inner.wait().await;
        sink.finish(ExecResult::new(result.status, result.ended_by));
    });
    execution
}

#[async_trait]
impl Backend for Mutant {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Caps {
        let mut caps = self.inner.capabilities();
        if self.is(Fault::CapsChange) && self.created.load(std::sync::atomic::Ordering::Relaxed) {
            caps.stdin = Support::Yes;
        }
        if self.is(Fault::DeclaredDialIsUnsupported) {
            caps.dial = Support::Yes;
        }
        caps
    }

    async fn create(&self, mut spec: ContainerSpec) -> Result<Handle> {
        self.created
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let name = spec.name.clone();
        if self.is(Fault::SharedName) {
            let taken = self
                .inner
                .list()
                .await?
                .iter()
                .any(|handle| handle.name == name);
            if taken {
                spec.name = ContainerName::new(format!("{name}-again"))?;
            }
        }
        let mut handle = self.inner.create(spec).await?;
        if self.is(Fault::OtherName) {
            handle.name = ContainerName::new("another")?;
        }
        Ok(handle)
    }

    async fn exec(&self, handle: &Handle, mut cmd: Cmd) -> Result<Execution> {
        if self.is(Fault::CommandEnvIsLost) {
            cmd.env = sandbox_core::Env::new();
        }
        let limits = cmd.limits;
        let execution = self.inner.exec(handle, cmd).await?;
        Ok(match self.fault {
            Fault::ExitCodeIsLost | Fault::StderrBecomesStdout => altered(execution, self.fault),
            Fault::TruncationIsSilent if limits.stdout < 10_000 => altered(execution, self.fault),
            Fault::ChunkAfterResult => without_the_last_chunk(execution),
            _ => execution,
        })
    }

    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>> {
        let mut files = self.inner.capture_files(handle, paths).await?;
        if self.is(Fault::CaptureIsReversed) {
            files.reverse();
        }
        Ok(files)
    }

    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
        self.inner.copy_to(handle, files).await
    }

    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream> {
        if self.is(Fault::ReadHangs) {
            std::future::pending::<()>().await;
        }
        match self.inner.read_file_at(handle, path).await {
            Err(Error::NotFound { .. }) if self.is(Fault::AbsentIsEmpty) => {
                Ok(ByteStream::from_bytes(""))
            }
            Err(Error::UnknownHandle { .. }) if self.is(Fault::DeadHandleIsNotFound) => {
                Err(Error::NotFound {
                    role: PathRole::Path,
                    path: path.to_text(),
                })
            }
            other => other,
        }
    }

    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()> {
        let content = content.collect(1 << 30).await?;
        let mut all = Vec::new();
        if self.is(Fault::WriteAppends)
            && let Ok(old) = self.inner.read_file_at(handle, path).await
        {
            all.extend_from_slice(&old.collect(1 << 30).await?);
        }
        all.extend_from_slice(&content);
        let content = ByteStream::from_bytes(all);
        self.inner.write_file_at(handle, path, content).await
    }

    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
        assert!(!self.is(Fault::StatPanics), "a planted panic");
        self.inner.stat_at(handle, path).await
    }

    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        let mut entries = self.inner.list_dir_at(handle, dir).await?;
        if self.is(Fault::HiddenFilesAreNotListed) {
            entries.retain(|entry| !entry.name.starts_with(b"."));
        }
        Ok(entries)
    }

    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
        if self.is(Fault::DeleteFollowsLinks) && path.as_bytes() == b"link" {
            return self
                .inner
                .delete_file_at(handle, &SandboxPath::new("target")?)
                .await;
        }
        self.inner.delete_file_at(handle, path).await
    }

    async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream> {
        // The small backend has no trees; that an absent directory is not found it can say all the same.
        match self.inner.stat_at(handle, dir).await {
            Err(error) => Err(error),
            Ok(_) => self.inner.read_tree_at(handle, dir).await,
        }
    }

    async fn write_tree_at(
        &self,
        handle: &Handle,
        dir: &SandboxPath,
        tree: ByteStream,
    ) -> Result<()> {
        self.inner.write_tree_at(handle, dir, tree).await
    }

    async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream> {
        if self.is(Fault::DialWithoutCapability) {
            return Ok(DuplexStream::new(tokio::io::duplex(1).0));
        }
        self.inner.dial(handle, port).await
    }

    async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef> {
        self.inner.snapshot(handle).await
    }

    async fn restore(&self, snapshot: &SnapshotRef, name: ContainerName) -> Result<Handle> {
        self.inner.restore(snapshot, name).await
    }

    async fn list(&self) -> Result<Vec<Handle>> {
        self.inner.list().await
    }

    async fn attach(&self, id: &SandboxId) -> Result<Handle> {
        self.inner.attach(id).await
    }

    async fn destroy(&self, handle: &Handle) -> Result<()> {
        match self.fault {
            Fault::DestroyDoesNothing => Ok(()),
            Fault::DestroyFails => Err(Error::io("destroying", std::io::Error::other("planted"))),
            _ => self.inner.destroy(handle).await,
        }
    }
}

fn options(scratch: &tempfile::TempDir) -> Options {
    let mut options = Options::new(scratch.path());
    options.select = CHOSEN.iter().map(|id| (*id).to_owned()).collect();
    options.jobs = 4;
    options
}

async fn report(fault: Fault, change: impl FnOnce(&mut Options)) -> Report {
    let scratch = tempfile::tempdir().unwrap();
    let mut options = options(&scratch);
    change(&mut options);
    let factory = move |scratch: PathBuf| async move {
        let mutant = Mutant {
            inner: plain(scratch).await?,
            fault,
            created: false.into(),
        };
        Ok(Arc::new(mutant) as Arc<dyn Backend>)
    };
    let report = run(Arc::new(factory), &options, |_| {}).await;
    // Whatever a case did, nothing of it stays.
    assert_eq!(
        std::fs::read_dir(scratch.path()).unwrap().count(),
        0,
        "{fault:?}"
    );
    report
}

fn with_status(report: &Report, status: Status) -> Vec<&'static str> {
    let rows = report.rows.iter().filter(|row| row.status == status);
    rows.map(|row| row.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_backend_passes_every_chosen_case() {
    let scratch = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    // Without its trees: see Mutant::read_tree_at.
    let mut options = options(&scratch);
    options
        .select
        .retain(|id| id != "file::absent_is_not_found");
    let report = run(Arc::new(plain), &options, |row| seen.push(row.id)).await;
    assert_eq!(report.verdict(), Verdict::Success, "{}", report.summary());
    assert_eq!(report.count(Status::Pass), CHOSEN.len() - 1);
    assert_eq!(seen.len(), report.rows.len(), "each row is observed once");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_planted_fault_fails_exactly_its_cases() {
    let table: &[(Fault, &[&str])] = &[
        (
            Fault::CapsChange,
            &["caps::answer_is_the_same_for_the_backends_life"],
        ),
        (
            Fault::DialWithoutCapability,
            &[
                "caps::undeclared_dial_is_refused",
                "life::destroyed_handle_is_unknown_to_every_operation",
            ],
        ),
        (
            Fault::OtherName,
            &["life::handle_carries_the_name_of_the_spec"],
        ),
        (
            Fault::SharedName,
            &["life::name_of_a_live_sandbox_is_taken"],
        ),
        (
            Fault::DeadHandleIsNotFound,
            &["life::destroyed_handle_is_unknown_to_every_operation"],
        ),
        (
            Fault::ExitCodeIsLost,
            &[
                "exec::exit_code_is_kept",
                "exec::result_follows_last_chunk",
                "limits::one_byte_more_is_truncated",
            ],
        ),
        (
            Fault::StderrBecomesStdout,
            &[
                "exec::output_streams_are_separate_and_exact",
                "limits::one_byte_more_is_truncated",
            ],
        ),
        (Fault::CommandEnvIsLost, &["env::later_value_wins"]),
        (
            Fault::TruncationIsSilent,
            &["limits::one_byte_more_is_truncated"],
        ),
        (
            Fault::WriteAppends,
            &["file::write_replaces_the_whole_content"],
        ),
        (
            Fault::CaptureIsReversed,
            &["file::captured_files_come_in_order"],
        ),
        (
            Fault::HiddenFilesAreNotListed,
            &["file::list_shows_one_level_with_kinds"],
        ),
        (
            Fault::DeleteFollowsLinks,
            &["file::delete_removes_a_file_or_the_link_itself"],
        ),
        (Fault::AbsentIsEmpty, &["file::absent_is_not_found"]),
    ];
    for (fault, expected) in table {
        let report = report(*fault, |_| {}).await;
        assert_eq!(
            with_status(&report, Status::Fail),
            *expected,
            "{fault:?}: {}",
            report.summary()
        );
        assert_eq!(
            report.count(Status::Pass),
            CHOSEN.len() - expected.len(),
            "{fault:?}"
        );
        assert_eq!(report.verdict(), Verdict::Failed, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_output_is_noticed_wherever_output_counts() {
    let report = report(Fault::ChunkAfterResult, |_| {}).await;
    let failed = with_status(&report, Status::Fail);
    for id in [
        "exec::output_streams_are_separate_and_exact",
        "exec::nothing_carries_over_between_commands",
    ] {
        assert!(failed.contains(&id), "{id} passes without the last chunk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leak_fails_a_case_that_would_pass() {
    let report = report(Fault::DestroyDoesNothing, |options| {
        options.select = vec!["exec::exit_code_is_kept".into()];
    })
    .await;
    let row = &report.rows[0];
    assert_eq!(row.status, Status::Fail);
    assert!(row.reason.contains("still listed"), "{}", row.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_destroy_fails_a_case_that_would_pass() {
    let report = report(Fault::DestroyFails, |options| {
        options.select = vec!["exec::exit_code_is_kept".into()];
    })
    .await;
    let row = &report.rows[0];
    assert_eq!(row.status, Status::Fail);
    assert!(row.reason.contains("cannot be destroyed"), "{}", row.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_an_error_of_its_case_alone() {
    let report = report(Fault::StatPanics, |_| {}).await;
    let errors = with_status(&report, Status::Error);
    assert_eq!(
        errors,
        [
            "life::destroyed_handle_is_unknown_to_every_operation",
            "file::absent_is_not_found",
            "file::write_replaces_the_whole_content"
        ]
    );
    assert!(
        report
            .rows
            .iter()
            .any(|row| row.reason.contains("a planted panic"))
    );
    assert_eq!(report.verdict(), Verdict::Error);
    assert_eq!(report.count(Status::Pass), CHOSEN.len() - errors.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_fails_its_case_at_the_deadline() {
    let report = report(Fault::ReadHangs, |options| {
        options.select = vec!["file::write_replaces_the_whole_content".into()];
        options.deadline = Some(Duration::from_millis(500));
    })
    .await;
    let row = &report.rows[0];
    assert_eq!(row.status, Status::Fail);
    assert!(
        row.reason.contains("did not end within 500ms"),
        "{}",
        row.reason
    );
    assert!(row.duration < Duration::from_secs(10), "{:?}", row.duration);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_ability_that_does_not_work_is_a_failure_and_no_skip() {
    let select = |options: &mut Options| {
        options.select = vec!["net::dial_to_nobody".into(), "caps::undeclared_dial".into()];
    };
    let report = report(Fault::DeclaredDialIsUnsupported, select).await;
    let told: Vec<(&str, Status)> = report.rows.iter().map(|row| (row.id, row.status)).collect();
    let expected = [
        ("caps::undeclared_dial_is_refused", Status::Skipped),
        ("net::dial_to_nobody_is_refused_at_once", Status::Fail),
    ];
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_case_that_is_skipped_fails_the_run() {
    let scratch = tempfile::tempdir().unwrap();
    let mut options = options(&scratch);
    options.select = vec!["exec::exit_code_is_kept".into(), "pty::size_is_set".into()];
    assert_eq!(
        run(Arc::new(plain), &options, |_| {}).await.verdict(),
        Verdict::Success
    );
    options.require = vec!["pty::*".into()];
    let report = run(Arc::new(plain), &options, |_| {}).await;
    assert_eq!(report.verdict(), Verdict::Failed);
    assert!(
        report.summary().contains("required but not run"),
        "{}",
        report.summary()
    );
    let json = report.to_json();
    assert_eq!(json["counts"]["skipped"], 1);
    assert_eq!(json["cases"][0]["status"], "pass");
    assert_eq!(json["exit_code"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_passing_case_is_no_success() {
    let scratch = tempfile::tempdir().unwrap();
    let mut options = options(&scratch);
    for select in ["pty::size_is_set", "no::such_case"] {
        options.select = vec![select.into()];
        let report = run(Arc::new(plain), &options, |_| {}).await;
        assert_eq!(report.verdict(), Verdict::NothingPassed, "{select}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_runs_add_up_and_each_gets_a_fresh_backend() {
    let scratch = tempfile::tempdir().unwrap();
    let mut options = options(&scratch);
    options.select = vec!["life::handle_carries".into()];
    options.repeat = 3;
    let made = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = made.clone();
    let factory = move |scratch: PathBuf| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        plain(scratch)
    };
    let report = run(Arc::new(factory), &options, |_| {}).await;
    assert_eq!(report.verdict(), Verdict::Success, "{}", report.summary());
    // One to be asked for its capabilities, and one for each run.
    assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 4);
}
