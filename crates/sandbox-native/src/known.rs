//! Remembers that throw-away sandboxes worked, so that not every short-lived program makes them again.
//!
//! Only success is remembered, and only for the same kernel, boot, program and surroundings. It decides what `Caps` say; whether a
//! sandbox really stands is found out again whenever one is made.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use sandbox_guest::setup::Ids;

use crate::detached::boot_id;
use crate::launch::SUID_DUMPABLE;
use crate::native::Ready;
use crate::random_hex;

const NAME: &str = "probe";

/// Settings and facts that decide whether sandboxes can be made.
const FILES: [&str; 8] = [
    SUID_DUMPABLE,
    "/proc/sys/kernel/osrelease",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/userns_restrict",
    "/proc/self/attr/current",
    "/proc/self/uid_map",
];
const NAMESPACES: [&str; 4] = ["user", "mnt", "pid", "cgroup"];
/// What a filter or a lack of rights around this process would change.
const STATUS: [&str; 6] = [
    "Uid:",
    "Gid:",
    "CapEff:",
    "NoNewPrivs:",
    "Seccomp:",
    "Seccomp_filters:",
];

/// What a probe in these surroundings would be about.
pub(crate) fn surroundings(state: &Path, ids: Ids) -> io::Result<String> {
    let mut hash = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hash);
    // A sample tells builds apart well enough; hashing all of it would take longer than what is spared.
    sandbox_guest::INIT.len().hash(&mut hash);
    for page in sandbox_guest::INIT.chunks(4096) {
        page[..page.len().min(16)].hash(&mut hash);
    }
    format!("{ids:?}").hash(&mut hash);
    boot_id().hash(&mut hash);
    for file in FILES {
        fs::read(file).ok().hash(&mut hash);
    }
    for namespace in NAMESPACES {
        let data = fs::metadata(format!("/proc/self/ns/{namespace}"))?;
        data.ino().hash(&mut hash);
    }
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if STATUS.iter().any(|field| line.starts_with(field)) {
            line.hash(&mut hash);
        }
    }
    fs::metadata(state)?.dev().hash(&mut hash);
    Path::new("/bin/bash").exists().hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}

/// What a probe in these surroundings found, if there was one and it found nothing wrong.
pub(crate) fn recall(state: &Path, surroundings: &str) -> Option<Ready> {
    let text = fs::read_to_string(state.join(NAME)).ok()?;
    let mut words = text.strip_suffix(" end\n")?.split(' ');
    if words.next()? != surroundings {
        return None;
    }
    let ready = Ready {
        in_memory: false,
        landlock: words.next()?.parse().ok()?,
        bash: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(ready)
}

/// Remembers what a probe found.
pub(crate) fn remember(state: &Path, surroundings: &str, ready: &Ready) -> io::Result<()> {
    let temporary = state.join(format!("{NAME}.{}", random_hex()?));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    let text = format!("{surroundings} {} {} end\n", ready.landlock, ready.bash);
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| fs::rename(&temporary, state.join(NAME)));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_recalled_in_the_same_surroundings_only() {
        let state = tempfile::tempdir().unwrap();
        let ids = |uid| Ids::Single { uid, gid: 1 };
        let here = surroundings(state.path(), ids(1)).unwrap();
        assert_eq!(here, surroundings(state.path(), ids(1)).unwrap());
        assert_ne!(here, surroundings(state.path(), ids(2)).unwrap());
        assert!(recall(state.path(), &here).is_none());
        let ready = Ready {
            in_memory: false,
            landlock: 7,
            bash: true,
        };
        remember(state.path(), &here, &ready).unwrap();
        let recalled = recall(state.path(), &here).unwrap();
        assert_eq!((recalled.landlock, recalled.bash), (7, true));
        assert!(recall(state.path(), "elsewhere").is_none());
        let file = state.path().join(NAME);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&file).unwrap();
        for cut in 0..text.len() {
            fs::write(&file, &text[..cut]).unwrap();
            assert!(recall(state.path(), &here).is_none(), "cut at {cut}");
        }
    }
}
