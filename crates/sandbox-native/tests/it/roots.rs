//! Root directories that a caller got from somewhere: hostile ones, and ones that are merely odd.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use sandbox_core::{
    Backend, Bind, Cmd, ContainerName, ContainerSpec, ErrorKind, RootFs, SandboxPath, Source,
};

use crate::support::State;

/// A directory with just enough to run this very program, which is its own proof.
fn minimal_root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["usr", "tmp", "etc"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.path().join(name)).unwrap();
    }
    root
}

fn spec(root: &Path) -> ContainerSpec {
    let source = Source::Workdir {
        root: RootFs::Dir(root.to_owned()),
    };
    let mut spec = ContainerSpec::new(ContainerName::new("odd").unwrap(), source);
    spec.binds
        .push(Bind::read_only("/usr", SandboxPath::new("/usr").unwrap()));
    spec
}

fn listing(root: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_root_directory_is_the_base_and_never_changes() {
    let state = State::new();
    let native = state.native().await;
    let root = minimal_root();
    fs::write(
        root.path().join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\n",
    )
    .unwrap();
    fs::write(root.path().join("etc/motd"), "from the root").unwrap();
    let before = listing(root.path());
    let handle = native.create(spec(root.path())).await.unwrap();
    let script = "cat /etc/motd; echo; stat -c %u /etc/motd; echo changed > /etc/motd; rm /etc/passwd; cat /etc/motd; touch /new; pwd";
    let result = native
        .exec(&handle, Cmd::shell(script))
        .await
        .unwrap()
        .wait()
        .await;
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    assert_eq!(
        text,
        "from the root\n0\nchanged\n/work\n",
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    native.destroy(&handle).await.unwrap();
    assert_eq!(listing(root.path()), before);
    assert_eq!(
        fs::read_to_string(root.path().join("etc/motd")).unwrap(),
        "from the root"
    );
    assert!(root.path().join("etc/passwd").exists());
}

#[tokio::test]
async fn links_in_a_hostile_root_lead_nowhere_on_the_host() {
    let state = State::new();
    let native = state.native().await;
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().display().to_string();
    for (name, link) in [
        ("proc", format!("../../../../../..{target}")),
        ("dev", target.clone()),
        ("sys", format!("/oldroot{target}")),
        ("proc", "/proc/1/root".to_owned()),
    ] {
        let root = minimal_root();
        symlink(&link, root.path().join(name)).unwrap();
        let error = native.create(spec(root.path())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Isolation, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(
            listing(outside.path()),
            Vec::<String>::new(),
            "{name} -> {link}"
        );
    }
}

#[tokio::test]
async fn a_bind_or_workdir_below_a_hostile_link_stays_inside() {
    let state = State::new();
    let native = state.native().await;
    let outside = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("f"), "bound").unwrap();
    let root = minimal_root();
    // Followed as a process inside would follow it: the same name, but in the sandbox.
    symlink(outside.path(), root.path().join("data")).unwrap();
    symlink(
        format!("../../../..{}", outside.path().display()),
        root.path().join("w"),
    )
    .unwrap();
    let mut wanted = spec(root.path());
    wanted.binds.push(Bind::read_only(
        data.path(),
        SandboxPath::new("/data/x/y").unwrap(),
    ));
    wanted.workdir = Some(SandboxPath::new("/w/deep").unwrap());
    match native.create(wanted).await {
        Ok(handle) => {
            let result = native
                .exec(&handle, Cmd::shell("cat /data/x/y/f; pwd -P"))
                .await
                .unwrap()
                .wait()
                .await;
            let text = String::from_utf8_lossy(&result.stdout).into_owned();
            assert!(text.starts_with("bound"), "{text}");
            native.destroy(&handle).await.unwrap();
        }
        // A link whose target is absent inside.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Isolation, "{error}"),
    }
    assert_eq!(listing(outside.path()), Vec::<String>::new());
    assert_eq!(listing(data.path()), ["f"]);
}

#[tokio::test]
async fn devices_of_a_hostile_root_are_not_used() {
    let pattern = fs::read("/proc/sys/kernel/core_pattern").unwrap();
    let state = State::new();
    let native = state.native().await;
    let root = minimal_root();
    fs::create_dir_all(root.path().join("dev/pts")).unwrap();
    symlink(
        "/proc/sys/kernel/core_pattern",
        root.path().join("dev/null"),
    )
    .unwrap();
    symlink(
        "/proc/sys/kernel/core_pattern",
        root.path().join("dev/pts/0"),
    )
    .unwrap();
    let handle = native.create(spec(root.path())).await.unwrap();
    let script = "stat -c '%F %t %T' /dev/null; echo x > /dev/null; cat /proc/kcore /proc/keys | wc -c; ls /dev/pts";
    let result = native
        .exec(&handle, Cmd::shell(script))
        .await
        .unwrap()
        .wait()
        .await;
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    assert_eq!(
        text,
        "character special file 1 3\n0\nptmx\n",
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    native.destroy(&handle).await.unwrap();
    assert_eq!(fs::read("/proc/sys/kernel/core_pattern").unwrap(), pattern);
}

#[tokio::test]
async fn a_root_behind_a_directory_that_may_only_be_passed_works() {
    let state = State::new();
    let native = state.native().await;
    let root = minimal_root();
    let parent = tempfile::tempdir().unwrap();
    let inner = parent.path().join("root");
    fs::rename(root.path(), &inner).unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let handle = native.create(spec(&inner)).await.unwrap();
    let result = native
        .exec(&handle, Cmd::shell("echo fine"))
        .await
        .unwrap()
        .wait()
        .await;
    assert_eq!(&result.stdout[..], b"fine\n");
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn a_root_or_bind_that_does_not_exist_is_a_clear_error() {
    let state = State::new();
    let native = state.native().await;
    let error = native
        .create(spec(Path::new("/nonexistent/root")))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    assert!(error.to_string().contains("/nonexistent/root"), "{error}");
    let mut wanted = crate::support::spec("b");
    wanted.binds.push(Bind::read_only(
        "/nonexistent/bind",
        SandboxPath::new("/x").unwrap(),
    ));
    let error = native.create(wanted).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{error}");
}
