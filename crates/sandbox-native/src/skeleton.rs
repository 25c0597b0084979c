//! The base of a sandbox on the host's own programs: a small tree of directories and harmless configuration, over which the
//! host's system directories are bound read-only.
//!
//! `/etc` is the sandbox's own. Of the host's, only what is named here is taken over, and only what every user of the host may
//! read: never shadow files, keys, tokens or sudo's rules.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sandbox_guest::setup::Mount;

use crate::detached::boot_id;
use crate::state::make_directory;

/// Directories of the sandbox's own, with their modes.
const DIRECTORIES: [(&str, u32); 29] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/user", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("work", 0o755),
    ("etc/ssl", 0o755),
    ("etc/pki", 0o755),
    ("etc/pki/tls", 0o755),
    ("etc/pki/ca-trust", 0o755),
];

/// The user of `home/user`, where the sandbox has more than one.
const USER: u32 = 1000;

const PASSWD: &str = "\
root:x:0:0:root:/root:SHELL
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:SHELL
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";

const GROUP: &str = "\
root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
mail:x:8:
www-data:x:33:
staff:x:50:
users:x:100:
user:x:1000:
nogroup:x:65534:
";

const HOSTS: &str = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
                        protocols: files\nservices: files\nethers: files\nrpc: files\n";

/// What is taken over from the host's `/etc`: files, links and directories.
const FROM_ETC: [&str; 58] = [
    "alpine-release",
    "alternatives",
    "arch-release",
    "bash.bashrc",
    "bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "ethertypes",
    "fedora-release",
    "fonts",
    "gai.conf",
    "ghc",
    "glvnd",
    "gprofng.rc",
    "gss",
    "host.conf",
    "inputrc",
    "java",
    "java-8-openjdk",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "mailcap",
    "maven",
    "mime.types",
    "mono",
    "networks",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "skel",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// A directory of the host with more entries or bytes than this is bound instead of copied.
const COPIED_ENTRIES: usize = 24;
const COPIED_BYTES: u64 = 256 << 10;

/// System directories, beside `/usr`; on most systems they are links into it.
const SYSTEM: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];

/// Builds the tree in `directory`, which must be new. `base` is the host's id of the sandbox's root, if it is not the caller's own.
/// Gives what must be bound over it.
pub(crate) fn build(directory: &Path, base: Option<u32>) -> io::Result<Vec<Mount>> {
    let mut skeleton = Skeleton {
        root: directory,
        base,
        mounts: Vec::new(),
    };
    make_directory(directory, 0o755)?;
    skeleton.own(directory, 0)?;
    for (name, mode) in DIRECTORIES {
        let path = directory.join(name);
        make_directory(&path, mode)?;
        skeleton.own(
            &path,
            if name == "home/user" && base.is_some() {
                USER
            } else {
                0
            },
        )?;
    }
    skeleton.bind("usr");
    for name in SYSTEM {
        skeleton.system_directory(name)?;
    }
    for (target, link) in [
        ("/run", "var/run"),
        ("/run/lock", "var/lock"),
        ("/proc/self/mounts", "etc/mtab"),
    ] {
        skeleton.link(Path::new(target), link)?;
    }
    let shell = if Path::new("/bin/bash").exists() {
        "/bin/bash"
    } else {
        "/bin/sh"
    };
    for (name, content) in [
        ("etc/passwd", &*PASSWD.replace("SHELL", shell)),
        ("etc/group", GROUP),
        ("etc/hosts", HOSTS),
        ("etc/hostname", "sandbox\n"),
        ("etc/nsswitch.conf", NSSWITCH),
        ("etc/resolv.conf", ""),
    ] {
        skeleton.file(name, content.as_bytes())?;
    }
    for name in FROM_ETC {
        skeleton.take_over(name)?;
    }
    for entry in fs::read_dir("/etc")?.flatten() {
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("python3."))
        {
            skeleton.take_over(&name.to_string_lossy())?;
        }
    }
    Ok(skeleton.mounts)
}

/// What a skeleton was made from.
#[derive(Debug, Clone)]
pub(crate) struct Stamp {
    /// Of everything that [`build`] looks at; 16 hexadecimal digits.
    pub(crate) hash: String,
    /// Whether nothing of that changed just now: times are too coarse to tell two changes in a row apart.
    pub(crate) settled: bool,
}

impl Stamp {
    /// Whether this is the name of a skeleton with this stamp.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        name.split_once('-')
            .is_some_and(|(hash, _)| hash == self.hash)
    }
}

/// What a skeleton that is built now is made from: the names, kinds, modes, sizes and times of all that is read. And this boot,
/// because what is written shortly before a power cut may not be there after it.
pub(crate) fn stamp(base: Option<u32>) -> io::Result<Stamp> {
    let mut looked = Looked {
        hash: DefaultHasher::new(),
        newest: 0,
    };
    (env!("CARGO_PKG_VERSION"), base, boot_id()).hash(&mut looked.hash);
    Path::new("/bin/bash").exists().hash(&mut looked.hash);
    for name in SYSTEM {
        looked.at(&Path::new("/").join(name));
    }
    // It changes when one of its entries comes or goes, such as the directories of Python's versions.
    looked.at(Path::new("/etc"));
    for name in FROM_ETC {
        looked.whole(&Path::new("/etc").join(name));
    }
    for entry in fs::read_dir("/etc")?.flatten() {
        let name = entry.file_name();
        if name.as_bytes().starts_with(b"python3.") {
            looked.whole(&entry.path());
        }
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    Ok(Stamp {
        hash: format!("{:016x}", looked.hash.finish()),
        settled: looked.newest.saturating_add(2) < i64::try_from(now).unwrap_or(i64::MAX),
    })
}

struct Looked {
    hash: DefaultHasher,
    /// The latest change, in seconds since 1970.
    newest: i64,
}

impl Looked {
    fn at(&mut self, path: &Path) -> Option<fs::Metadata> {
        path.hash(&mut self.hash);
        let data = fs::symlink_metadata(path).ok();
        if let Some(data) = &data {
            self.data(data);
            if data.is_symlink() {
                fs::read_link(path).ok().hash(&mut self.hash);
            }
        }
        data
    }

    fn data(&mut self, data: &fs::Metadata) {
        (data.dev(), data.ino(), data.mode(), data.size()).hash(&mut self.hash);
        (data.mtime(), data.mtime_nsec()).hash(&mut self.hash);
        (data.ctime(), data.ctime_nsec()).hash(&mut self.hash);
        self.newest = self.newest.max(data.ctime());
    }

    /// A directory that is copied, with all that is in it.
    fn whole(&mut self, path: &Path) {
        if !self.at(path).is_some_and(|data| data.is_dir()) {
            return;
        }
        let files = small_tree(path);
        files.is_some().hash(&mut self.hash);
        // By name: a directory's order is nobody's promise.
        let mut files = files.unwrap_or_default();
        files.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (path, data) in files {
            path.hash(&mut self.hash);
            self.data(&data);
        }
    }
}

/// The names of mounts of [`build`], one per line.
pub(crate) fn names(mounts: &[Mount]) -> Vec<u8> {
    let mut text = Vec::new();
    for mount in mounts {
        text.extend(mount.target.strip_prefix(b"/").unwrap_or(&mount.target));
        text.push(b'\n');
    }
    text
}

/// The mounts with these [`names`].
pub(crate) fn mounts(names: &str) -> Vec<Mount> {
    names.lines().map(mount).collect()
}

/// The host's resolver configuration, for sandboxes on its network.
pub(crate) fn resolver() -> Mount {
    mount("etc/resolv.conf")
}

fn mount(name: &str) -> Mount {
    let path = format!("/{name}").into_bytes();
    Mount {
        source: path.clone(),
        target: path,
        writable: false,
        system: true,
    }
}

struct Skeleton<'a> {
    root: &'a Path,
    base: Option<u32>,
    mounts: Vec<Mount>,
}

impl Skeleton<'_> {
    fn own(&self, path: &Path, inside: u32) -> io::Result<()> {
        match self.base {
            Some(base) => lchown(path, Some(base + inside), Some(base + inside)),
            None => Ok(()),
        }
    }

    fn bind(&mut self, name: &str) {
        self.mounts.push(mount(name));
    }

    fn link(&self, target: &Path, name: &str) -> io::Result<()> {
        let path = self.root.join(name);
        symlink(target, &path)?;
        self.own(&path, 0)
    }

    fn file(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.root.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        self.own(&path, 0)
    }

    fn directory(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(name);
        make_directory(&path, 0o755)?;
        self.own(&path, 0)
    }

    fn system_directory(&mut self, name: &str) -> io::Result<()> {
        let host = Path::new("/").join(name);
        match fs::symlink_metadata(&host) {
            Ok(data) if data.is_symlink() => self.link(&fs::read_link(&host)?, name),
            Ok(data) if data.is_dir() => {
                self.directory(name)?;
                self.bind(name);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A file, link or directory of the host's `/etc`, if every user may read it; nothing if it is absent.
    fn take_over(&mut self, name: &str) -> io::Result<()> {
        let inside = format!("etc/{name}");
        let host = Path::new("/").join(&inside);
        let Ok(data) = fs::symlink_metadata(&host) else {
            return Ok(());
        };
        if let Some(parent) = Path::new(&inside)
            .parent()
            .filter(|parent| !self.root.join(parent).is_dir())
        {
            self.directory(&parent.to_string_lossy())?;
        }
        if data.is_symlink() {
            let target = fs::read_link(&host)?;
            return if leads_to_usr(&target) {
                self.link(&target, &inside)
            } else {
                Ok(())
            };
        }
        if data.is_file() {
            return self.copy_file(&host, &inside, &data);
        }
        if !data.is_dir() || data.mode() & 0o005 != 0o005 {
            return Ok(());
        }
        match small_tree(&host) {
            Some(files) => {
                self.directory(&inside)?;
                for (path, data) in files {
                    let name = format!(
                        "{inside}/{}",
                        path.strip_prefix(&host).unwrap_or(&path).display()
                    );
                    if data.is_dir() {
                        self.directory(&name)?;
                    } else if data.is_symlink() {
                        self.link(&fs::read_link(&path)?, &name)?;
                    } else {
                        self.copy_file(&path, &name, &data)?;
                    }
                }
                Ok(())
            }
            None => {
                self.directory(&inside)?;
                self.bind(&inside);
                Ok(())
            }
        }
    }

    fn copy_file(&self, host: &Path, name: &str, data: &fs::Metadata) -> io::Result<()> {
        if !data.is_file() || data.mode() & 0o004 == 0 {
            return Ok(());
        }
        self.file(name, &fs::read(host)?)
    }
}

fn leads_to_usr(target: &Path) -> bool {
    target.starts_with("/usr") || target.starts_with("../usr") || target.components().count() == 1
}

/// All entries of a directory, parents first, if they are few and small and every user may read them.
fn small_tree(root: &Path) -> Option<Vec<(PathBuf, fs::Metadata)>> {
    let mut found: Vec<(PathBuf, fs::Metadata)> = Vec::new();
    let mut bytes = 0;
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).ok()? {
            let path = entry.ok()?.path();
            let data = fs::symlink_metadata(&path).ok()?;
            bytes += data.len();
            let readable = data.is_symlink() || data.mode() & 0o004 != 0;
            // A name that is no text would need bytes everywhere for the sake of a file that nobody has.
            let plain = std::str::from_utf8(path.as_os_str().as_bytes()).is_ok();
            if found.len() == COPIED_ENTRIES || bytes > COPIED_BYTES || !readable || !plain {
                return None;
            }
            if data.is_dir() {
                open.push(path.clone());
            }
            found.push((path, data));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_users_of_its_own_and_no_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("skeleton");
        let mounts = build(&root, None).unwrap();
        assert!(
            fs::read_to_string(root.join("etc/passwd"))
                .unwrap()
                .starts_with("root:x:0:0:")
        );
        for secret in [
            "shadow",
            "gshadow",
            "sudoers",
            "ssh",
            "ssl/private",
            "machine-id",
        ] {
            assert!(!root.join("etc").join(secret).exists(), "{secret}");
        }
        assert!(mounts.iter().all(|mount| mount.system && !mount.writable));
        assert_eq!(mounts[0].target, b"/usr");
        let mode = |name: &str| fs::metadata(root.join(name)).unwrap().mode() & 0o7777;
        assert_eq!(
            (mode("tmp"), mode("root"), mode("work")),
            (0o1777, 0o700, 0o755)
        );
    }
}
