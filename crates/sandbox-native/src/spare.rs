//! Finished skeletons that the next session can take instead of making its own.
//!
//! A skeleton is only ever the read-only layer below sandboxes, so that one which has been used is as good as new. Making one costs
//! more system calls than everything else that a short-lived program does with a sandbox.
//!
//! ```text
//! <state>/spare/<stamp>-<random>/skeleton
//!                               /mounts     what must be bound over it, a name per line
//! ```
//!
//! They come and go by `rename`, whole or not at all, so that no two sessions have the same one. A session that dies takes its own
//! along.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sandbox_guest::remove::remove_tree;
use sandbox_guest::setup::Mount;

use crate::random_hex;
use crate::skeleton::{self, Stamp};
use crate::state::make_directory;

/// More than this many sessions seldom end at the same time.
const MOST: usize = 4;
/// What lies beside the skeleton in a directory of sandboxes.
const BESIDE: &str = "base";

/// The skeleton of a directory of sandboxes.
#[derive(Debug)]
pub(crate) struct Base {
    /// What must be bound over it.
    pub(crate) mounts: Vec<Mount>,
    stamp: Stamp,
    base: Option<u32>,
    directory: PathBuf,
    spares: PathBuf,
}

impl Base {
    /// Puts `skeleton` into a directory: a spare one, or a new one.
    pub(crate) fn put_into(directory: &Path, spares: &Path, base: Option<u32>) -> io::Result<Self> {
        let stamp = skeleton::stamp(base)?;
        let (skeleton, beside) = (directory.join("skeleton"), directory.join(BESIDE));
        let mounts = match take(spares, &stamp, &beside) {
            Some(mounts) => {
                fs::rename(beside.join("skeleton"), &skeleton)?;
                mounts
            }
            None => {
                make_directory(&beside, 0o700)?;
                let mounts = skeleton::build(&skeleton, base)?;
                fs::write(beside.join("mounts"), skeleton::names(&mounts))?;
                mounts
            }
        };
        Ok(Base {
            mounts,
            stamp,
            base,
            directory: directory.to_owned(),
            spares: spares.to_owned(),
        })
    }

    /// Leaves it for the next session, if there is room. No sandbox may be using it any more.
    pub(crate) fn give_back(&self) -> io::Result<()> {
        if !self.stamp.settled {
            return Ok(());
        }
        let mut others = 0;
        for name in names(&self.spares) {
            if self.stamp.is_of(&name) {
                others += 1;
                continue;
            }
            if !self.may_remove(&name, geteuid().as_raw()) {
                continue;
            }
            // Of another time. Taken first, so that nobody else can take it while it is being removed.
            let stale = self.directory.join("stale");
            if fs::rename(self.spares.join(name), &stale).is_ok() {
                remove_tree(&stale)?;
            }
        }
        if others >= MOST {
            return Ok(());
        }
        let beside = self.directory.join(BESIDE);
        fs::rename(self.directory.join("skeleton"), beside.join("skeleton"))?;
        let name = format!("{}-{}", self.stamp.hash, random_hex()?);
        fs::rename(beside, self.spares.join(name))
    }
}

impl Base {
    /// The host's root removes anything; anybody else (also the root of a user namespace) only what belongs to it.
    fn may_remove(&self, spare: &str, me: u32) -> bool {
        let own = |path: PathBuf| fs::metadata(path).map(|data| data.uid() == me);
        let spare = self.spares.join(spare);
        self.base.is_some()
            || own(spare.join("skeleton"))
                .or_else(|_| own(spare))
                .unwrap_or(false)
    }
}

/// Moves a spare to `place`; gives its mounts.
fn take(spares: &Path, stamp: &Stamp, place: &Path) -> Option<Vec<Mount>> {
    let taken = names(spares)
        .into_iter()
        .filter(|name| stamp.is_of(name))
        .any(|name| fs::rename(spares.join(name), place).is_ok());
    if !taken {
        return None;
    }
    let text = fs::read_to_string(place.join("mounts")).ok();
    match text.filter(|_| place.join("skeleton").is_dir()) {
        Some(text) => Some(skeleton::mounts(&text)),
        // Somebody broke it; whatever is left of it must not be in the way.
        None => {
            remove_tree(place).ok()?;
            None
        }
    }
}

fn names(spares: &Path) -> Vec<String> {
    fs::read_dir(spares)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, name: &str) -> (Base, u64) {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        let mut base = Base::put_into(&directory, &root.join("spare"), None).unwrap();
        // Whatever this machine has been doing to its /etc just now.
        base.stamp.settled = true;
        let inode = fs::metadata(directory.join("skeleton/etc/passwd"))
            .unwrap()
            .ino();
        (base, inode)
    }

    #[test]
    fn what_belongs_to_somebody_else_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let spare = root.path().join("spare/0123456789abcdef-0123456789abcdef");
        fs::create_dir_all(spare.join("skeleton")).unwrap();
        let (base, _) = put(root.path(), "a");
        let name = "0123456789abcdef-0123456789abcdef";
        let owner = fs::metadata(&spare).unwrap().uid();
        assert!(base.may_remove(name, owner));
        assert!(!base.may_remove(name, owner + 1));
    }

    #[test]
    fn one_that_was_given_back_is_taken_by_one_other() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("spare")).unwrap();
        let (first, inode) = put(root.path(), "a");
        first.give_back().unwrap();
        assert!(!root.path().join("a/skeleton").exists());
        let (second, again) = put(root.path(), "b");
        assert_eq!((again, &second.mounts), (inode, &first.mounts));
        let (_third, other) = put(root.path(), "c");
        assert_ne!(other, inode);
        assert!(names(&root.path().join("spare")).is_empty());
    }

    #[test]
    fn what_is_of_another_time_is_removed_and_only_a_few_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let spares = root.path().join("spare");
        fs::create_dir_all(spares.join("0123456789abcdef-1/skeleton")).unwrap();
        let bases: Vec<Base> = (0..MOST + 2)
            .map(|n| put(root.path(), &n.to_string()).0)
            .collect();
        for base in &bases {
            base.give_back().unwrap();
        }
        let kept = names(&spares);
        assert_eq!(kept.len(), MOST);
        assert!(kept.iter().all(|name| bases[0].stamp.is_of(name)));
    }

    #[test]
    fn a_broken_one_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let spares = root.path().join("spare");
        fs::create_dir(&spares).unwrap();
        put(root.path(), "a").0.give_back().unwrap();
        fs::remove_file(spares.join(&names(&spares)[0]).join("mounts")).unwrap();
        let (base, _) = put(root.path(), "b");
        assert!(!base.mounts.is_empty());
    }

    #[test]
    fn one_that_is_made_while_its_sources_change_is_not_kept() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("spare")).unwrap();
        let (mut base, _) = put(root.path(), "a");
        base.stamp.settled = false;
        base.give_back().unwrap();
        assert!(names(&root.path().join("spare")).is_empty());
    }
}
