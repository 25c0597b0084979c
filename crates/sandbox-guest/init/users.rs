//! The sandbox's own user database: `/etc/passwd` and `/etc/group`, which commands may change at any time.

use std::ffi::CStr;

use crate::sys;
use crate::wire::message::UserSpec;

/// As whom a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) name: Vec<u8>,
    pub(crate) home: Vec<u8>,
}

/// A database that is read again only when its file has changed.
#[derive(Default)]
pub(crate) struct Users {
    passwd: Cached,
    group: Cached,
}

#[derive(Default)]
struct Cached {
    version: Option<(u64, u64, (u64, u32))>,
    content: Vec<u8>,
}

impl Users {
    /// Finds a user; `None` if a name is unknown. Numeric ids need no entry.
    pub(crate) fn find(&mut self, spec: &UserSpec) -> Option<User> {
        self.passwd.refresh(c"/etc/passwd");
        self.group.refresh(c"/etc/group");
        resolve(spec, &self.passwd.content, &self.group.content)
    }
}

impl Cached {
    fn refresh(&mut self, path: &CStr) {
        // A database is small; a hostile one is left unread. A fifo in its place must not hold the guest up.
        const MOST: u64 = 4 << 20;
        let stat = sys::statx(sys::AT_FDCWD, path, 0);
        let usable = stat
            .ok()
            .filter(|stat| stat.kind() == sys::S_IFREG && stat.size <= MOST);
        let version = usable.map(|stat| (stat.inode, stat.size, stat.changed));
        if version.is_none() || version != self.version {
            self.version = version;
            self.content =
                usable.map_or_else(Vec::new, |stat| read(path, stat.size).unwrap_or_default());
        }
    }
}

fn read(path: &CStr, size: u64) -> sys::Sys<Vec<u8>> {
    let fd = sys::openat(sys::AT_FDCWD, path, sys::O_RDONLY | sys::O_NONBLOCK, 0)?;
    let mut content = vec![0; size as usize];
    let mut length = 0;
    while length < content.len() {
        match sys::read(fd.raw(), &mut content[length..])? {
            0 => break,
            n => length += n,
        }
    }
    content.truncate(length);
    Ok(content)
}

fn resolve(spec: &UserSpec, passwd: &[u8], group: &[u8]) -> Option<User> {
    let fields = |line: &[u8]| {
        line.split(|b| *b == b':')
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let entry = passwd.split(|b| *b == b'\n').map(fields).find(|entry| {
        entry.len() >= 6
            && match spec {
                UserSpec::Default => number(&entry[2]) == Some(0),
                UserSpec::Name(name) => entry[0] == *name,
                UserSpec::Ids(uid, _) => number(&entry[2]) == Some(*uid),
            }
    });
    let mut user = match (spec, entry) {
        (_, Some(entry)) => User {
            uid: number(&entry[2])?,
            gid: number(&entry[3])?,
            groups: Vec::new(),
            name: entry[0].clone(),
            home: entry[5].clone(),
        },
        (UserSpec::Name(_), None) => return None,
        (UserSpec::Default, None) => User {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            name: b"root".to_vec(),
            home: b"/root".to_vec(),
        },
        (UserSpec::Ids(uid, _), None) => User {
            uid: *uid,
            gid: *uid,
            groups: Vec::new(),
            name: Vec::new(),
            home: b"/".to_vec(),
        },
    };
    if let UserSpec::Ids(_, Some(gid)) = spec {
        user.gid = *gid;
    }
    user.groups.push(user.gid);
    for line in group.split(|b| *b == b'\n').map(fields) {
        if line.len() >= 4
            && !user.name.is_empty()
            && line[3]
                .split(|b| *b == b',')
                .any(|member| member == user.name)
            && let Some(gid) = number(&line[2])
            && !user.groups.contains(&gid)
            && user.groups.len() < 64
        {
            user.groups.push(gid);
        }
    }
    Some(user)
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text)
        .ok()?
        .parse()
        .ok()
        .filter(|id| *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:100::/home/alice:/bin/sh\n";
    const GROUP: &[u8] = b"root:x:0:\nusers:x:100:\nwheel:x:10:bob,alice\n";

    #[test]
    fn a_name_brings_its_groups_and_home() {
        let user =
            resolve(&UserSpec::Name(b"alice".to_vec()), PASSWD, GROUP).expect("alice is there");
        assert_eq!(
            (user.uid, user.gid, user.groups),
            (1000, 100, vec![100, 10])
        );
        assert_eq!(user.home, b"/home/alice");
    }

    #[test]
    fn an_unknown_name_is_nobody_and_an_unknown_id_is_itself() {
        assert_eq!(
            resolve(&UserSpec::Name(b"carol".to_vec()), PASSWD, GROUP),
            None
        );
        let user = resolve(&UserSpec::Ids(7, None), PASSWD, GROUP).expect("ids need no entry");
        assert_eq!((user.uid, user.gid, user.home), (7, 7, b"/".to_vec()));
        let user =
            resolve(&UserSpec::Ids(1000, Some(5)), PASSWD, GROUP).expect("ids need no entry");
        assert_eq!((user.gid, user.groups), (5, vec![5, 10]));
    }

    #[test]
    fn the_default_user_works_without_a_database() {
        let user = resolve(&UserSpec::Default, b"", b"").expect("root is always there");
        assert_eq!((user.uid, user.home), (0, b"/root".to_vec()));
    }
}
