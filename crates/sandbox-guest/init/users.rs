//! The sandbox's own user database: `/etc/passwd` and `/etc/group`, read anew for each lookup, since commands may change them.

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

/// Finds a user; `None` if a name is unknown. Numeric ids need no entry.
pub(crate) fn find(spec: &UserSpec) -> Option<User> {
    let passwd = read("/etc/passwd");
    let group = read("/etc/group");
    resolve(spec, &passwd, &group)
}

fn read(path: &str) -> Vec<u8> {
    // A database is small; a hostile one is cut. A fifo in its place must not hold the guest up, hence the kind check.
    const MOST: u64 = 4 << 20;
    match std::fs::metadata(path) {
        Ok(data) if data.is_file() && data.len() <= MOST => std::fs::read(path).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn resolve(spec: &UserSpec, passwd: &[u8], group: &[u8]) -> Option<User> {
    let fields = |line: &[u8]| line.split(|b| *b == b':').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let entry = passwd.split(|b| *b == b'\n').map(fields).find(|entry| {
        entry.len() >= 6
            && match spec {
                UserSpec::Default => number(&entry[2]) == Some(0),
                UserSpec::Name(name) => entry[0] == *name,
                UserSpec::Ids(uid, _) => number(&entry[2]) == Some(*uid),
            }
    });
    let mut user = match (spec, entry) {
        (_, Some(entry)) => {
            User { uid: number(&entry[2])?, gid: number(&entry[3])?, groups: Vec::new(), name: entry[0].clone(), home: entry[5].clone() }
        }
        (UserSpec::Name(_), None) => return None,
        (UserSpec::Default, None) => {
            User { uid: 0, gid: 0, groups: Vec::new(), name: b"root".to_vec(), home: b"/root".to_vec() }
        }
        (UserSpec::Ids(uid, _), None) => {
            User { uid: *uid, gid: *uid, groups: Vec::new(), name: Vec::new(), home: b"/".to_vec() }
        }
    };
    if let UserSpec::Ids(_, Some(gid)) = spec {
        user.gid = *gid;
    }
    user.groups.push(user.gid);
    for line in group.split(|b| *b == b'\n').map(fields) {
        if line.len() >= 4
            && !user.name.is_empty()
            && line[3].split(|b| *b == b',').any(|member| member == user.name)
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
    std::str::from_utf8(text).ok()?.parse().ok().filter(|id| *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:100::/home/alice:/bin/sh\n";
    const GROUP: &[u8] = b"root:x:0:\nusers:x:100:\nwheel:x:10:bob,alice\n";

    #[test]
    fn a_name_brings_its_groups_and_home() {
        let user = resolve(&UserSpec::Name(b"alice".to_vec()), PASSWD, GROUP).expect("alice is there");
        assert_eq!((user.uid, user.gid, user.groups), (1000, 100, vec![100, 10]));
        assert_eq!(user.home, b"/home/alice");
    }

    #[test]
    fn an_unknown_name_is_nobody_and_an_unknown_id_is_itself() {
        assert_eq!(resolve(&UserSpec::Name(b"carol".to_vec()), PASSWD, GROUP), None);
        let user = resolve(&UserSpec::Ids(7, None), PASSWD, GROUP).expect("ids need no entry");
        assert_eq!((user.uid, user.gid, user.home), (7, 7, b"/".to_vec()));
        let user = resolve(&UserSpec::Ids(1000, Some(5)), PASSWD, GROUP).expect("ids need no entry");
        assert_eq!((user.gid, user.groups), (5, vec![5, 10]));
    }

    #[test]
    fn the_default_user_works_without_a_database() {
        let user = resolve(&UserSpec::Default, b"", b"").expect("root is always there");
        assert_eq!((user.uid, user.home), (0, b"/root".to_vec()));
    }
}
