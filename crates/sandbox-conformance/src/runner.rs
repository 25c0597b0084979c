//! Runs cases: each on a fresh backend, with a deadline, and sees what it leaves behind.

use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_core::{Backend, Caps};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use crate::case::{Case, Stop};
use crate::context::{Context, backend_scratch, listed, unique};
use crate::factory::Factory;
use crate::report::{Report, Row};
use crate::tracked::Tracked;
use crate::verdict::Status;

/// How long the making of a backend, or one step of a tear-down, may take.
const STEP: Duration = Duration::from_secs(30);

/// Which cases run, and how.
///
/// ```
/// let mut options = sandbox_conformance::Options::new(&std::env::temp_dir());
/// options.select = vec!["file::*".into()];
/// assert_eq!((options.jobs, options.repeat), (2, 1));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// An existing directory for the backends' state; what is made in it is removed again.
    pub scratch: PathBuf,
    /// The ids to run: with `*` a pattern, without a part of the id. All if empty.
    pub select: Vec<String>,
    /// The ids that must run: a skip is a failure. Patterns as in `select`.
    pub require: Vec<String>,
    /// How many cases run at once.
    pub jobs: usize,
    /// How often each case runs; the worst counts.
    pub repeat: usize,
    /// Replaces every case's own deadline.
    pub deadline: Option<Duration>,
}

impl Options {
    /// Every case once, two at a time.
    ///
    /// ```
    /// assert!(sandbox_conformance::Options::new(&std::env::temp_dir()).select.is_empty());
    /// ```
    pub fn new(scratch: &Path) -> Self {
        Options {
            scratch: scratch.to_path_buf(),
            select: Vec::new(),
            require: Vec::new(),
            jobs: 2,
            repeat: 1,
            deadline: None,
        }
    }

    /// Whether a case is selected.
    ///
    /// ```
    /// let mut options = sandbox_conformance::Options::new(&std::env::temp_dir());
    /// options.select = vec!["exit_code".into(), "tree::*".into()];
    /// assert!(options.selects("exec::exit_code_is_kept") && options.selects("tree::x"));
    /// assert!(!options.selects("file::x"));
    /// ```
    pub fn selects(&self, id: &str) -> bool {
        self.select.is_empty() || self.select.iter().any(|pattern| matches(pattern, id))
    }

    fn requires(&self, id: &str) -> bool {
        self.require.iter().any(|pattern| matches(pattern, id))
    }
}

fn matches(pattern: &str, id: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return id.contains(pattern);
    };
    let Some(mut left) = id.strip_prefix(start) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// Runs the selected cases of [`all`](crate::all) on backends of the factory. `observe` sees each row when it is known, in the
/// order in which cases end.
///
/// Dropping the future stops the cases, and leaves to their backends what becomes of their sandboxes.
///
/// See the crate's page for an example.
///
/// ```
/// use sandbox_conformance::{Options, run};
/// # async fn broken(_: std::path::PathBuf) -> sandbox_core::Result<std::sync::Arc<dyn sandbox_core::Backend>> {
/// #     Err(sandbox_core::Error::cancelled())
/// # }
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let options = Options::new(&std::env::temp_dir());
/// let report = run(std::sync::Arc::new(broken), &options, |row| println!("{row}")).await;
/// assert!(report.failure.is_some());
/// # });
/// ```
pub async fn run(
    factory: Arc<dyn Factory>,
    options: &Options,
    mut observe: impl FnMut(&Row),
) -> Report {
    let (backend, caps) = match probe(&factory, options).await {
        Ok(probed) => probed,
        Err(failure) => {
            let mut report = Report::new("unknown", Vec::new());
            report.failure = Some(failure);
            return report;
        }
    };
    let selected: Vec<&'static Case> = crate::all()
        .into_iter()
        .filter(|case| options.selects(case.id))
        .collect();
    let places = Arc::new(Semaphore::new(options.jobs.max(1)));
    let mut rows: Vec<Option<Row>> = vec![None; selected.len()];
    let mut running = JoinSet::new();
    for (index, case) in selected.iter().copied().enumerate() {
        let required = options.requires(case.id);
        if let Some(reason) = case.skipped_by(&caps) {
            let row = rows[index].insert(row(case, required, Status::Skipped, reason));
            observe(row);
            continue;
        }
        let (factory, places) = (factory.clone(), places.clone());
        let (scratch, repeat) = (options.scratch.clone(), options.repeat.max(1));
        let deadline = options.deadline.unwrap_or(case.deadline);
        running.spawn(async move {
            // The semaphore is never closed, so that there is always a permit in the end.
            let _place = places.acquire_owned().await;
            let mut worst = row(case, required, Status::Pass, String::new());
            for _ in 0..repeat {
                let started = Instant::now();
                let (status, reason) = run_once(case, &factory, &scratch, deadline).await;
                worst.duration += started.elapsed();
                if status > worst.status {
                    (worst.status, worst.reason) = (status, reason);
                }
            }
            (index, worst)
        });
    }
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok((index, row)) => observe(rows[index].insert(row)),
            // run_once catches what cases and backends do; only a defect of this function ends here.
            Err(error) => panic::resume_unwind(error.into_panic()),
        }
    }
    Report::new(backend, rows.into_iter().flatten().collect())
}

/// The backend's name and capabilities, from one that is made for nothing else.
async fn probe(factory: &Arc<dyn Factory>, options: &Options) -> Result<(String, Caps), String> {
    let scratch = Scratch::new(&options.scratch, "probe")?;
    let backend = make(factory, scratch.path()).await?;
    let probed = (backend.name().to_owned(), backend.capabilities());
    drop(backend);
    scratch.remove()?;
    Ok(probed)
}

async fn make(factory: &Arc<dyn Factory>, scratch: &Path) -> Result<Arc<dyn Backend>, String> {
    let dir = backend_scratch(scratch);
    std::fs::create_dir(&dir).map_err(|error| format!("cannot make {dir:?}: {error}"))?;
    let factory = factory.clone();
    // On a task of its own, so that a panic is caught.
    let made = tokio::spawn(async move { factory.backend(&dir).await });
    match tokio::time::timeout(STEP, made).await {
        Ok(Ok(Ok(backend))) => Ok(backend),
        Ok(Ok(Err(error))) => Err(format!("the backend cannot be made: {error}")),
        Ok(Err(panicked)) => Err(format!(
            "making the backend panicked: {}",
            message(panicked)
        )),
        Err(_) => Err(format!("the backend was not made within {STEP:?}")),
    }
}

async fn run_once(
    case: &'static Case,
    factory: &Arc<dyn Factory>,
    root: &Path,
    deadline: Duration,
) -> (Status, String) {
    let scratch = match Scratch::new(root, "case") {
        Ok(scratch) => scratch,
        Err(reason) => return (Status::Error, reason),
    };
    let backend = match make(factory, scratch.path()).await {
        Ok(backend) => Arc::new(Tracked::new(backend)),
        Err(reason) => return (Status::Error, reason),
    };
    let prefix = format!("c{:08x}", unique() as u32);
    let context = Context::new(
        backend.clone(),
        factory.clone(),
        scratch.path().to_path_buf(),
        prefix.clone(),
    );
    let (status, reason) = attempt(case, context, deadline).await;
    let mut leaks = tear_down(backend, &prefix).await;
    leaks.extend(factory.residue(&backend_scratch(scratch.path())).await);
    leaks.extend(scratch.remove().err());
    if leaks.is_empty() {
        return (status, reason);
    }
    let leaks = format!("left behind: {}", leaks.join("; "));
    if reason.is_empty() {
        (status.max(Status::Fail), leaks)
    } else {
        (status.max(Status::Fail), format!("{reason}; {leaks}"))
    }
}

async fn attempt(case: &Case, context: Context, deadline: Duration) -> (Status, String) {
    let mut task = tokio::spawn((case.run)(context));
    match tokio::time::timeout(deadline, &mut task).await {
        Ok(Ok(Ok(()))) => (Status::Pass, String::new()),
        Ok(Ok(Err(Stop::Fail(reason)))) => (Status::Fail, reason),
        Ok(Ok(Err(Stop::Unavailable(reason)))) => (Status::Unavailable, reason),
        Ok(Ok(Err(Stop::Error(reason)))) => (Status::Error, reason),
        Ok(Err(panicked)) => (Status::Error, format!("panicked: {}", message(panicked))),
        Err(_) => {
            task.abort();
            // An aborted task ends at its next await; its sandboxes are ended below in any case.
            let _ = tokio::time::timeout(STEP, task).await;
            (Status::Fail, format!("did not end within {deadline:?}"))
        }
    }
}

/// Ends what the case left alive and says what cannot be ended or is there though nobody has its handle.
async fn tear_down(backend: Arc<Tracked>, prefix: &str) -> Vec<String> {
    let mut leaks = Vec::new();
    for handle in backend.live() {
        let name = handle.name.clone();
        let owner = backend.clone();
        let destroyed = tokio::spawn(async move { owner.destroy(&handle).await });
        match tokio::time::timeout(STEP, destroyed).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => leaks.push(format!("{name} cannot be destroyed: {error}")),
            Ok(Err(panicked)) => {
                leaks.push(format!("destroying {name} panicked: {}", message(panicked)));
            }
            Err(_) => leaks.push(format!("{name} was not destroyed within {STEP:?}")),
        }
    }
    let prefix = prefix.to_owned();
    let list = tokio::spawn(async move { listed(&*backend, &prefix).await });
    match tokio::time::timeout(STEP, list).await {
        Ok(Ok(Ok(names))) => leaks.extend(
            names
                .unwrap_or_default()
                .into_iter()
                .map(|name| format!("{name} is still listed")),
        ),
        Ok(Ok(Err(stop))) => leaks.push(format!("the sandboxes cannot be listed: {stop:?}")),
        Ok(Err(panicked)) => leaks.push(format!("listing panicked: {}", message(panicked))),
        Err(_) => leaks.push(format!("the sandboxes were not listed within {STEP:?}")),
    }
    leaks
}

fn row(case: &Case, required: bool, status: Status, reason: String) -> Row {
    Row {
        id: case.id,
        rules: case.rules,
        status,
        reason,
        duration: Duration::ZERO,
        required,
    }
}

fn message(panicked: JoinError) -> String {
    if !panicked.is_panic() {
        return panicked.to_string();
    }
    let payload = panicked.into_panic();
    match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "without a message".to_owned(),
    }
}

/// A directory of one case's own.
struct Scratch(PathBuf);

impl Scratch {
    fn new(root: &Path, purpose: &str) -> Result<Self, String> {
        let path = root.join(format!("{purpose}-{:016x}", unique()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Scratch(path)),
            Err(error) => Err(format!(
                "cannot make the scratch directory {path:?}: {error}"
            )),
        }
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn remove(&self) -> Result<(), String> {
        std::fs::remove_dir_all(&self.0)
            .map_err(|error| format!("{:?} cannot be removed: {error}", self.0))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After remove() there is nothing left; before it another failure is being reported already.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_with_stars_are_anchored_and_others_are_parts() {
        for (pattern, id, expected) in [
            ("exit", "exec::exit_code", true),
            ("exec::*", "exec::exit_code", true),
            ("exec::*", "x_exec::exit_code", false),
            ("*_code", "exec::exit_code", true),
            ("*_code", "exec::exit_codes", false),
            ("e*::*code", "exec::exit_code", true),
            ("e*::*_*", "exec::exit_code", true),
            ("*", "exec::exit_code", true),
            ("e*z*", "exec::exit_code", false),
            ("nothing", "exec::exit_code", false),
        ] {
            assert_eq!(matches(pattern, id), expected, "{pattern} on {id}");
        }
    }
}
