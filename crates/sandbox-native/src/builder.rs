//! How a native backend is set up.

use std::path::PathBuf;

use sandbox_core::policy::UnsandboxedPermit;
use sandbox_core::{Checked, Error, Result};
use sandbox_guest::setup::{Fault, Ids, STEPS};

use crate::native::Native;

/// The first id of the host that sandboxes of a root caller use, if nothing else is said.
const DEFAULT_BASE: u32 = 0x7001_0000;
/// How many ids a sandbox of a root caller has.
const IDS: u32 = 65_536;

/// Options of a [`Native`] backend. All have defaults.
///
/// ```no_run
/// # async fn run() -> sandbox_core::Result<()> {
/// let native = sandbox_native::Native::builder().state_dir("/srv/sandboxes").build().await?;
/// # drop(native);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Builder {
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) frames: bool,
    pub(crate) max_capture: Option<u64>,
    pub(crate) base: Option<u32>,
    pub(crate) unsandboxed: bool,
    pub(crate) fault: Option<Fault>,
}

impl Builder {
    /// Where sandboxes are kept on disk: an absolute directory that only the caller can write. Made if absent.
    ///
    /// The default is `$SANDBOX_STATE_DIR`, else `/var/lib/sandbox` for root, else `$XDG_STATE_HOME/sandbox`, else
    /// `~/.local/state/sandbox`, else `/tmp/sandbox-<uid>`.
    ///
    /// ```
    /// let _ = sandbox_native::Native::builder().state_dir("/srv/sandboxes");
    /// ```
    pub fn state_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(directory.into());
        self
    }

    /// Sends output through the control socket instead of handing pipes to the sandbox: slower, as over a network. For tests of
    /// that way.
    ///
    /// ```
    /// let _ = sandbox_native::Native::builder().frames(true);
    /// ```
    pub fn frames(mut self, frames: bool) -> Self {
        self.frames = frames;
        self
    }

    /// How many bytes the files of one `capture_files` may have together, because they are held in memory; more is `TooLarge`. The
    /// default is 256 MiB. Larger files are read piece by piece with `read_file_at`.
    ///
    /// ```
    /// let _ = sandbox_native::Native::builder().max_capture(1 << 30);
    /// ```
    pub fn max_capture(mut self, bytes: u64) -> Self {
        self.max_capture = Some(bytes);
        self
    }

    /// The first of 65,536 ids of the host that the users of a sandbox are, if the caller is root. They must be nobody else's. The
    /// default is 1879113728. An ordinary caller's sandboxes have one user, who is the caller.
    ///
    /// ```
    /// let _ = sandbox_native::Native::builder().first_id(0x7002_0000);
    /// ```
    pub fn first_id(mut self, base: u32) -> Self {
        self.base = Some(base);
        self
    }

    /// Runs commands directly on the host, in a directory of their own and **without any isolation**. It needs a permit, which
    /// only a [`FallbackPolicy`](sandbox_core::policy::FallbackPolicy) gives. `Caps` of such a backend say of each wall that it is
    /// absent, and `build` prints a warning to standard error.
    pub fn unsandboxed(mut self, _permit: UnsandboxedPermit) -> Self {
        self.unsandboxed = true;
        self
    }

    /// Makes a step of every set-up fail, to test what failing does.
    #[doc(hidden)]
    pub fn fault(mut self, step: &str, errno: i32) -> Self {
        self.fault = Some(Fault {
            step: step.into(),
            errno,
        });
        self
    }

    /// The steps that [`fault`](Builder::fault) knows.
    #[doc(hidden)]
    #[must_use]
    pub fn steps() -> &'static [&'static str] {
        &STEPS
    }

    /// Prepares the state directory and finds out what this machine can do, by making one throw-away sandbox: some milliseconds,
    /// no network. A machine that cannot make sandboxes is no error here: `Caps` say so, and `create` says what to do about it.
    ///
    /// # Errors
    /// `InvalidSpec` for an option that cannot be used, `Io` if the state directory or the helper processes cannot be made.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let error = sandbox_native::Native::builder().state_dir("relative").build().await.unwrap_err();
    /// assert_eq!(error.kind(), sandbox_core::ErrorKind::InvalidSpec);
    /// # });
    /// ```
    pub async fn build(self) -> Result<Checked<Native>> {
        let native = tokio::task::spawn_blocking(move || Native::new(self))
            .await
            .map_err(|error| {
                Error::io("preparing the native backend", std::io::Error::other(error))
            })??;
        Ok(Checked::new(native))
    }
}

/// Which ids sandboxes get.
pub(crate) fn choose_ids(base: Option<u32>) -> Result<Ids> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        return Ok(Ids::Single {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
        });
    }
    if let Some(base) = base {
        // The highest id means "no change" to the kernel.
        if base == 0 || base.checked_add(IDS).is_none() {
            return Err(Error::invalid_spec(
                "first_id",
                format!("{base} must be above 0 and leave room for {IDS} ids"),
            ));
        }
        return Ok(Ids::Range { base, count: IDS });
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    Ok(range_within(&map))
}

/// The default range, or, where root is itself inside a user namespace that does not have it, the upper half of what there is.
fn range_within(map: &str) -> Ids {
    let ranges = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (first, _, count) = (
            numbers.next()?.ok()?,
            numbers.next()?,
            numbers.next()?.ok()?,
        );
        Some((first, count))
    });
    let ranges: Vec<(u32, u32)> = ranges.collect();
    let has_default = ranges.iter().any(|(first, count)| {
        *first <= DEFAULT_BASE && DEFAULT_BASE - *first <= count.saturating_sub(IDS)
    });
    let largest = ranges.into_iter().max_by_key(|(_, count)| *count);
    match largest {
        // Root of a namespace with one id is as much of a user as any other.
        Some((first, 1)) if !has_default => Ids::Single {
            uid: first,
            gid: first,
        },
        Some((first, count)) if !has_default => {
            let half = (count / 2).min(IDS);
            Ids::Range {
                base: first + (count - half),
                count: half,
            }
        }
        _ => Ids::Range {
            base: DEFAULT_BASE,
            count: IDS,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_inside_a_user_namespace_shares_what_it_has() {
        let all = "         0          0 4294967295\n";
        assert_eq!(
            range_within(all),
            Ids::Range {
                base: DEFAULT_BASE,
                count: IDS
            }
        );
        let container = "0 1000 1\n1 100000 65536\n";
        assert_eq!(
            range_within(container),
            Ids::Range {
                base: 32769,
                count: 32768
            }
        );
        assert_eq!(
            range_within(""),
            Ids::Range {
                base: DEFAULT_BASE,
                count: IDS
            }
        );
    }
}
