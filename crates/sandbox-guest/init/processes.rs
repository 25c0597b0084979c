//! The processes of the sandbox, as `/proc` shows them.

use std::ffi::CString;

use crate::sys::{self, OwnedFd};

/// Looks at the sandbox's processes.
pub(crate) struct Processes {
    proc: Option<OwnedFd>,
    /// The monitors' own processes, which belong to no command's tree.
    pub(crate) monitors: Vec<i32>,
}

impl Processes {
    pub(crate) fn new() -> Self {
        let proc = sys::openat(sys::AT_FDCWD, c"/proc", sys::O_RDONLY | sys::O_DIRECTORY, 0).ok();
        Processes {
            proc,
            monitors: Vec::new(),
        }
    }

    /// Everything below a process.
    pub(crate) fn below(&self, root: i32) -> Vec<i32> {
        descendants(&self.list(), &[root])
    }

    /// What monitors that were killed had watched: children of the guest now, among which there are only monitors otherwise.
    pub(crate) fn orphans(&self) -> Vec<i32> {
        let all = self.list();
        let own = sys::getpid();
        let children = all
            .iter()
            .filter(|(_, parent)| *parent == own)
            .map(|(pid, _)| *pid);
        let roots: Vec<i32> = children
            .filter(|pid| !self.monitors.contains(pid))
            .collect();
        let mut tree = descendants(&all, &roots);
        tree.extend(roots);
        tree
    }

    /// Every live process, with its parent.
    fn list(&self) -> Vec<(i32, i32)> {
        let mut list = Vec::new();
        // Opened anew: a directory's position belongs to its open file.
        let Some(Ok(dir)) = self
            .proc
            .as_ref()
            .map(|proc| sys::openat(proc.raw(), c".", sys::O_RDONLY | sys::O_DIRECTORY, 0))
        else {
            return list;
        };
        let mut pids: Vec<i32> = Vec::new();
        let _ = sys::read_dir(dir.raw(), |entry| {
            pids.extend(
                std::str::from_utf8(&entry.name)
                    .ok()
                    .and_then(|name| name.parse::<i32>().ok()),
            );
        });
        let mut buffer = [0; 512];
        for pid in pids {
            let Ok(name) = CString::new(format!("{pid}/stat")) else {
                continue;
            };
            let read = sys::openat(dir.raw(), &name, sys::O_RDONLY, 0)
                .and_then(|stat| sys::read(stat.raw(), &mut buffer));
            if let Ok(length) = read
                && let Some((true, parent)) = parse_stat(&buffer[..length])
            {
                list.push((pid, parent));
            }
        }
        list
    }
}

/// Whether a `/proc/PID/stat` is of a live process, and its parent. The name in it may hold anything, so its last parenthesis
/// counts. A zombie whose other threads run on is alive.
fn parse_stat(stat: &[u8]) -> Option<(bool, i32)> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let dead = matches!(*fields.first()?, "Z" | "X")
        && fields.get(17).is_none_or(|threads| *threads == "1");
    Some((!dead, fields.get(1)?.parse().ok()?))
}

fn descendants(all: &[(i32, i32)], roots: &[i32]) -> Vec<i32> {
    let mut children: std::collections::HashMap<i32, Vec<i32>> = std::collections::HashMap::new();
    for (pid, parent) in all {
        children.entry(*parent).or_default().push(*pid);
    }
    let mut found: Vec<i32> = Vec::new();
    let mut parents: Vec<i32> = roots.to_vec();
    while let Some(parent) = parents.pop() {
        // Taken out, so that a list which changed while it was read cannot lead in circles.
        for pid in children.remove(&parent).unwrap_or_default() {
            found.push(pid);
            parents.push(pid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_fake_its_parent() {
        assert_eq!(parse_stat(b"7 (a) S 1 1) R 42 7 7"), Some((true, 42)));
        assert_eq!(
            parse_stat(b"7 (a) Z 42 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"),
            Some((false, 42))
        );
        assert_eq!(
            parse_stat(b"7 (a) Z 42 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0"),
            Some((true, 42))
        );
        assert_eq!(parse_stat(b"7 (a"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn descendants_are_found_through_every_generation() {
        let all = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 6)];
        let mut found = descendants(&all, &[2]);
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }
}
