//! Where sandboxes are kept on disk.
//!
//! ```text
//! <state>/probe                   that sandboxes can be made here
//! <state>/spare/                  bases that no session has at present
//! <state>/sessions/<id>.lock      held by the owning process and its janitor
//! <state>/sessions/<id>/skeleton  the base of its sandboxes
//!                      /mnt       where each sandbox mounts its scratch file system, in its own mount namespace
//!                      /boxes/<sandbox>/{upper,work}
//! <state>/detached/<sandbox>/     the same for one sandbox that outlives its maker, with `record` and `socket`
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use sandbox_core::{Error, Result};
use sandbox_guest::remove::remove_tree;

/// The state directory.
#[derive(Debug, Clone)]
pub(crate) struct State(PathBuf);

impl State {
    /// Opens or makes it: the one that was asked for, or the default.
    pub(crate) fn open(asked: Option<PathBuf>) -> Result<Self> {
        let chosen = match asked {
            Some(path) if !path.is_absolute() => {
                return Err(Error::invalid_spec(
                    "state_dir",
                    format!("{path:?} must be absolute"),
                ));
            }
            Some(path) => path,
            None => default_directory(|name| std::env::var_os(name).map(PathBuf::from)),
        };
        let failed = |error| Error::io(format!("preparing the state directory {chosen:?}"), error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&chosen)
            .map_err(failed)?;
        // What is looked at from here on is the directory itself, wherever links lead later.
        let real = fs::canonicalize(&chosen).map_err(failed)?;
        let data = fs::symlink_metadata(&real).map_err(failed)?;
        let refused = |why: String| Err(Error::invalid_spec("state_dir", why));
        // A link among everybody's files can be changed by whoever made it, after this look at where it leads.
        let link = fs::symlink_metadata(&chosen).map_err(failed)?;
        let foreign_link = link.is_symlink() && link.uid() != geteuid().as_raw() && link.uid() != 0;
        // Somebody else's directory would let them swap what sandboxes are made of.
        if data.uid() != geteuid().as_raw() || foreign_link {
            return refused(format!(
                "{chosen:?} belongs to another user; choose a directory of your own"
            ));
        }
        if data.permissions().mode() & 0o022 != 0 {
            return refused(format!(
                "{chosen:?} can be written by others; take those permissions away (chmod go-w) or choose another"
            ));
        }
        let state = State(real);
        for directory in [state.sessions(), state.detached(), state.spares()] {
            make_directory(&directory, 0o700).map_err(failed)?;
        }
        Ok(state)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn sessions(&self) -> PathBuf {
        self.0.join("sessions")
    }

    pub(crate) fn detached(&self) -> PathBuf {
        self.0.join("detached")
    }

    /// Finished skeletons that nobody uses.
    pub(crate) fn spares(&self) -> PathBuf {
        self.0.join("spare")
    }

    /// Makes a session directory that is this process's until its lock is dropped.
    pub(crate) fn new_session(&self) -> io::Result<Session> {
        loop {
            let id = crate::random_hex()?;
            let lock_path = self.sessions().join(format!("{id}.lock"));
            let lock = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&lock_path)?;
            let Some(lock) = claim(lock)? else {
                continue;
            };
            let directory = self.sessions().join(&id);
            prepare(&directory)?;
            make_directory(&directory.join("boxes"), 0o711)?;
            return Ok(Session {
                id,
                directory,
                lock,
                lock_path,
            });
        }
    }

    /// Removes sessions whose owner and janitor are both gone; gives their ids.
    pub(crate) fn sweep_sessions(&self) -> Vec<String> {
        let mut swept = Vec::new();
        for entry in fs::read_dir(self.sessions())
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            let Some(id) = path
                .file_name()
                .and_then(|name| name.to_str()?.strip_suffix(".lock"))
            else {
                continue;
            };
            let Ok(lock) = File::open(&path) else {
                continue;
            };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            match remove_tree(&self.sessions().join(id)) {
                Ok(()) => {
                    swept.push(id.to_owned());
                    let _ = fs::remove_file(&path);
                }
                Err(error) => {
                    tracing::warn!(session = id, %error, "leftovers of a session could not be removed");
                }
            }
        }
        swept
    }
}

/// Locks a new lock file; gives nothing if a sweeper was faster. It may have locked the file since its creation, or removed it.
fn claim(lock: File) -> io::Result<Option<File>> {
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return Ok(None),
        other => other?,
    }
    Ok((lock.metadata()?.nlink() > 0).then_some(lock))
}

/// The part of a directory of sandboxes that every set-up expects.
pub(crate) fn prepare(directory: &Path) -> io::Result<()> {
    // Ids of sandboxes made by root are not root's: they pass through by name, but cannot list.
    make_directory(directory, 0o711)?;
    make_directory(&directory.join("mnt"), 0o755)
}

/// A directory with exactly this mode, whatever the umask. It may be there already, if it is a directory of the caller's.
pub(crate) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let data = fs::symlink_metadata(path)?;
            if data.is_dir() && data.uid() == geteuid().as_raw() {
                return Ok(());
            }
            let text =
                format!("{path:?} is in the way: it is a link, no directory, or another user's");
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    }
}

fn default_directory(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let given = |name: &str| variable(name).filter(|path| path.is_absolute());
    if let Some(path) = given("SANDBOX_STATE_DIR") {
        return path;
    }
    let of_root = Path::new("/var/lib/sandbox");
    // Root of a user namespace may not write there.
    if geteuid().is_root() && may_make(of_root) {
        return of_root.into();
    }
    given("XDG_STATE_HOME")
        .map(|path| path.join("sandbox"))
        .or_else(|| {
            given("HOME")
                .filter(|home| home.is_dir())
                .map(|home| home.join(".local/state/sandbox"))
        })
        .filter(|path| may_make(path))
        .unwrap_or_else(|| format!("/tmp/sandbox-{}", geteuid().as_raw()).into())
}

/// Whether the nearest directory that exists can be written.
fn may_make(path: &Path) -> bool {
    path.ancestors()
        .find(|path| path.exists())
        .is_some_and(|path| {
            rustix::fs::access(
                path,
                rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
            )
            .is_ok()
        })
}

/// The directory of one backend instance.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) directory: PathBuf,
    pub(crate) lock: File,
    lock_path: PathBuf,
}

impl Drop for Session {
    fn drop(&mut self) {
        // The directory is removed by whoever ends last; what fails here is swept by the next session.
        if remove_tree(&self.directory).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_follows_the_variables() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            move |name: &str| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| PathBuf::from(value))
            }
        };
        assert_eq!(
            default_directory(env(&[("SANDBOX_STATE_DIR", "/srv/x")])),
            Path::new("/srv/x")
        );
        let relative = default_directory(env(&[("SANDBOX_STATE_DIR", "x")]));
        assert!(relative.is_absolute());
    }

    #[test]
    fn a_session_in_use_is_not_swept_and_an_abandoned_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(Some(directory.path().join("state"))).unwrap();
        let session = state.new_session().unwrap();
        assert!(state.sweep_sessions().is_empty());
        assert!(session.directory.join("boxes").is_dir());
        let path = session.directory.clone();
        // As if the process had been killed: the lock goes, nothing is removed.
        let leaked = std::mem::ManuallyDrop::new(session);
        rustix::fs::flock(&leaked.lock, FlockOperation::Unlock).unwrap();
        assert_eq!(state.sweep_sessions(), std::slice::from_ref(&leaked.id));
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(State::open(Some(directory.path().into())).is_err());
        assert!(State::open(Some("relative".into())).is_err());
        // Nor through a link.
        let own = tempfile::tempdir().unwrap();
        let link = own.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(State::open(Some(link)).is_err());
    }

    #[test]
    fn a_directory_below_it_is_no_link() {
        let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), directory.path().join("sessions")).unwrap();
        assert!(State::open(Some(directory.path().into())).is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_state_is_named_by_its_real_path() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("real");
        fs::create_dir(&real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let state = State::open(Some(link)).unwrap();
        assert_eq!(state.path(), fs::canonicalize(real).unwrap());
    }

    #[test]
    fn a_lock_file_that_a_sweeper_has_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let new = File::create(&path).unwrap();
        let sweeper = File::open(&path).unwrap();
        flock(&sweeper, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(claim(new.try_clone().unwrap()).unwrap().is_none());
        drop(sweeper);
        let claimed = claim(new).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(claim(claimed.unwrap()).unwrap().is_none());
    }
}
