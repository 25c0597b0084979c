//! ISO-1 and ISO-3: what the sandbox cannot see and cannot gain.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sandbox_core::{Bind, Cmd, ErrorKind, NetworkMode, SandboxPath};

use crate::case::{Done, Stop, cases, ensure, ensure_eq, short};
use crate::context::{Context, Place, marker, refused, refused_as, unique};
use crate::needs::{Ability, Need};

cases! { "iso":
    files_of_the_host_are_invisible ["ISO-1"] [Need::Has(Ability::OwnRoot)];
    programs_of_the_host_are_not_run_instead ["ISO-1", "POL-2"] [Need::Has(Ability::OwnRoot)];
    secrets_of_the_host_are_not_in_etc ["ISO-1"] [Need::Has(Ability::OwnRoot)];
    processes_of_the_host_are_invisible ["ISO-1"] [Need::Has(Ability::OwnProcesses)];
    hostname_is_not_the_hosts ["ISO-1"] [Need::Has(Ability::OwnRoot)];
    abstract_sockets_of_the_host_are_invisible ["ISO-1"] [Need::Has(Ability::OwnNetwork), Need::Has(Ability::NetworkNone)];
    shared_memory_of_the_host_is_invisible ["ISO-1"] [Need::Has(Ability::OwnRoot)];
    sandboxes_see_no_files_of_each_other ["ISO-1"] [Need::Has(Ability::OwnRoot)];
    sandboxes_see_no_processes_of_each_other ["ISO-1"] [Need::Has(Ability::OwnProcesses)];
    base_cannot_be_changed_for_others ["ISO-1", "LIFE-4"] [Need::Has(Ability::OwnRoot)];
    no_new_privileges_can_be_had ["ISO-3"] [Need::Has(Ability::SyscallFilter)];
    dangerous_capabilities_are_gone ["ISO-3"] [Need::Has(Ability::UnprivilegedUser)];
    process_is_no_root_of_the_host ["ISO-3"] [Need::Has(Ability::UnprivilegedUser)];
    kernel_settings_are_read_only ["ISO-3"] [Need::Has(Ability::OwnProcesses)];
    masked_files_of_proc_say_nothing ["ISO-3"] [Need::Has(Ability::OwnProcesses)];
    devices_are_the_harmless_ones ["ISO-3"] [Need::Has(Ability::OwnRoot)];
    disks_cannot_be_reached ["ISO-3"] [Need::Has(Ability::UnprivilegedUser)];
    file_systems_cannot_be_mounted ["ISO-3"] [Need::Has(Ability::UnprivilegedUser)];
    supervisor_cannot_be_looked_into ["ISO-3"] [Need::Has(Ability::OwnProcesses)];
    core_dumps_are_off ["ISO-3"] [];
    read_only_bind_is_read_only ["CAPS-4", "ISO-1"] [Need::Has(Ability::Binds)];
    writable_bind_is_shared ["CAPS-4"] [Need::Has(Ability::Binds)];
    links_in_a_bind_do_not_lead_out ["ISO-1", "FILE-1"] [Need::Has(Ability::Binds)];
    bind_of_an_absent_source_is_refused ["ISO-4", "LIFE-6"] [Need::Has(Ability::Binds)];
}

/// A file with a text that nobody else has, on the host.
fn secret(cx: &Context) -> Done<(String, String)> {
    let path = cx.host_dir()?.join("secret");
    let text = format!("secret-{:016x}", unique());
    std::fs::write(&path, &text)?;
    let path = path
        .to_str()
        .ok_or_else(|| Stop::Error("the scratch path is no text".into()))?;
    Ok((path.to_owned(), text))
}

async fn files_of_the_host_are_invisible(cx: Context) -> Done {
    let place = cx.place().await?;
    let (path, _) = secret(&cx)?;
    ensure!(
        !place.sh(&format!("cat '{path}'")).await?.success(),
        "a file of the host can be read"
    );
    let kinds = [
        ErrorKind::NotFound,
        ErrorKind::NotADirectory,
        ErrorKind::PermissionDenied,
    ];
    refused_as(
        place.read(&path).await,
        &kinds,
        "a file of the host by a file call",
    )?;
    place
        .sh(&format!("rm -f '{path}'; mkdir -p '{path}.d'"))
        .await?;
    ensure!(Path::new(&path).exists(), "a file of the host was removed");
    ensure!(
        !Path::new(&format!("{path}.d")).exists(),
        "a directory was made on the host"
    );
    Ok(())
}

/// A program that exists on the host only: if it runs, it ran on the host.
async fn programs_of_the_host_are_not_run_instead(cx: Context) -> Done {
    let place = cx.place().await?;
    let dir = cx.host_dir()?;
    let (tool, mark) = (dir.join("tool"), dir.join("mark"));
    std::fs::write(&tool, format!("#!/bin/sh\ntouch '{}'\n", mark.display()))?;
    let done = std::process::Command::new("chmod")
        .arg("755")
        .arg(&tool)
        .status()?;
    ensure!(done.success(), "the tool cannot be made executable");
    let tool = tool
        .to_str()
        .ok_or_else(|| Stop::Error("the scratch path is no text".into()))?;
    refused(
        place.start(Cmd::argv([tool])).await,
        ErrorKind::NotFound,
        "a program of the host",
    )?;
    ensure!(!mark.exists(), "the program ran on the host");
    Ok(())
}

async fn secrets_of_the_host_are_not_in_etc(cx: Context) -> Done {
    let place = cx.place().await?;
    for path in [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/hostname",
        "/etc/ssh/ssh_host_ed25519_key",
    ] {
        let Ok(of_host) = std::fs::read(path) else {
            continue;
        };
        let inside = place.run(Cmd::argv(["cat", path])).await?;
        ensure!(
            of_host.is_empty() || inside.stdout != of_host,
            "{path} of the host can be read"
        );
    }
    for dir in [
        "/root", "/home", "/var/lib", "/var/log", "/boot", "/mnt", "/media", "/srv", "/run",
    ] {
        let Ok(of_host) = std::fs::read_dir(dir) else {
            continue;
        };
        let of_host: Vec<String> = of_host
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            // What every system has there says nothing.
            .filter(|name| {
                !["lock", "shm", "mount", "user", "dpkg", "apt", "misc"].contains(&name.as_str())
            })
            .collect();
        let inside = place.sh(&format!("ls -A {dir}")).await?;
        let inside = String::from_utf8_lossy(&inside.stdout).into_owned();
        let seen: Vec<&String> = of_host
            .iter()
            .filter(|name| inside.lines().any(|line| line == *name))
            .collect();
        ensure!(
            seen.is_empty(),
            "{dir} of the host is visible: {}",
            short(&seen)
        );
    }
    Ok(())
}

/// Ends it when the case is over, however it ends.
struct OfHost(std::process::Child);

impl Drop for OfHost {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn processes_of_the_host_are_invisible(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let child = std::process::Command::new("sleep")
        .arg(&marker)
        .stdin(Stdio::null())
        .spawn()?;
    let child = OfHost(child);
    ensure_eq!(
        place.count(&marker).await?,
        0,
        "processes of the host that are seen"
    );
    let own = std::process::id();
    let seen = place
        .sh(&format!("cat /proc/{own}/cmdline 2>/dev/null"))
        .await?;
    let of_host = std::fs::read(format!("/proc/{own}/cmdline")).unwrap_or_default();
    ensure!(
        of_host.is_empty() || seen.stdout != of_host,
        "the host's own process is seen"
    );
    let numbers = place.out("cd /proc; set -- [0-9]*; echo $#").await?;
    let count: usize = numbers.trim().parse().map_err(Stop::fail)?;
    ensure!(count < 20, "{count} processes are seen in an idle sandbox");
    drop(child);
    Ok(())
}

async fn hostname_is_not_the_hosts(cx: Context) -> Done {
    let place = cx.place().await?;
    let of_host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let inside = place.out("cat /proc/sys/kernel/hostname").await?;
    ensure!(inside != of_host, "the host's name {of_host:?} is seen");
    Ok(())
}

async fn abstract_sockets_of_the_host_are_invisible(cx: Context) -> Done {
    #[cfg(target_os = "linux")]
    {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let mut spec = cx.spec()?;
        spec.network = NetworkMode::None;
        let place = cx.place_of(spec).await?;
        let name = format!("conformance-{:016x}", unique());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let path = cx.host_dir()?.join("socket");
        let by_path = UnixListener::bind(&path)?;
        let of_host = std::fs::read_to_string("/proc/net/unix")?;
        ensure!(
            of_host.contains(&name),
            "the host does not see its own socket"
        );
        let inside = place.out("cat /proc/net/unix").await?;
        ensure!(
            !inside.contains(&name),
            "an abstract socket of the host is seen"
        );
        ensure!(
            !place
                .sh(&format!("[ -e '{}' ]", path.display()))
                .await?
                .success(),
            "a socket of the host is seen"
        );
        drop((listener, by_path));
        Ok(())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cx;
        Err(Stop::Unavailable("the host has no abstract sockets".into()))
    }
}

struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn shared_memory_of_the_host_is_invisible(cx: Context) -> Done {
    let place = cx.place().await?;
    let name = format!("conformance-{:016x}", unique());
    for dir in ["/dev/shm", "/tmp", "/var/tmp"] {
        let file = Path::new(dir).join(&name);
        if std::fs::write(&file, "x").is_err() {
            continue;
        }
        let _removed = Removed(file);
        ensure!(
            !place.sh(&format!("[ -e {dir}/{name} ]")).await?.success(),
            "{dir} of the host is seen"
        );
    }
    place.sh(&format!("echo x >/dev/shm/{name}-of-box")).await?;
    ensure!(
        !Path::new("/dev/shm")
            .join(format!("{name}-of-box"))
            .exists(),
        "the host sees the sandbox's shared memory"
    );
    Ok(())
}

async fn sandboxes_see_no_files_of_each_other(cx: Context) -> Done {
    let (one, other) = (cx.place().await?, cx.place().await?);
    let name = format!("conformance-{:016x}", unique());
    let mut made = 0;
    for dir in ["/tmp", "/dev/shm", "/var/tmp", "/run", ".", "$HOME"] {
        if one
            .sh(&format!("echo x >\"{dir}/{name}\""))
            .await?
            .success()
        {
            made += 1;
            ensure!(
                !other
                    .sh(&format!("[ -e \"{dir}/{name}\" ]"))
                    .await?
                    .success(),
                "{dir} is shared"
            );
        }
    }
    ensure!(made >= 2, "only {made} directories can be written");
    Ok(())
}

async fn sandboxes_see_no_processes_of_each_other(cx: Context) -> Done {
    let (one, other) = (cx.place().await?, cx.place().await?);
    let marker = marker();
    let mut execution = one.start(Cmd::argv(["sleep", &marker])).await?;
    one.appears(&marker, 1).await?;
    ensure_eq!(
        other.count(&marker).await?,
        0,
        "processes that the other sandbox sees"
    );
    other.sh("kill -9 -1").await?;
    ensure_eq!(
        one.count(&marker).await?,
        1,
        "processes after the other sandbox killed all of its own"
    );
    execution.kill();
    execution.wait().await;
    Ok(())
}

async fn base_cannot_be_changed_for_others(cx: Context) -> Done {
    let one = cx.place().await?;
    let name = format!("conformance-{:016x}", unique());
    for dir in ["/", "/etc", "/usr", "/usr/bin", "/bin", "/lib"] {
        one.sh(&format!("echo x >{dir}/{name}")).await?;
        ensure!(
            !Path::new(dir).join(&name).exists(),
            "{dir} of the host was written"
        );
    }
    let other = cx.place().await?;
    for dir in ["/", "/etc", "/usr", "/usr/bin", "/bin", "/lib"] {
        ensure!(
            !other.sh(&format!("[ -e {dir}/{name} ]")).await?.success(),
            "{dir} of the next sandbox is changed"
        );
    }
    Ok(())
}

/// A field of a fresh process's status.
async fn status(place: &Place, field: &str) -> Done<String> {
    let text = place.out("cat /proc/self/status").await?;
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
        .ok_or_else(|| Stop::fail(format!("there is no {field} in /proc/self/status")))
}

async fn no_new_privileges_can_be_had(cx: Context) -> Done {
    let place = cx.place().await?;
    ensure_eq!(status(&place, "NoNewPrivs").await?, "1", "NoNewPrivs");
    ensure_eq!(
        status(&place, "Seccomp").await?,
        "2",
        "the kind of the system call filter"
    );
    Ok(())
}

async fn dangerous_capabilities_are_gone(cx: Context) -> Done {
    /// Kernel modules, raw devices, tracing, administration, boot, time, the BPF ones.
    const DANGEROUS: [(u32, &str); 9] = [
        (12, "net_admin"),
        (16, "sys_module"),
        (17, "sys_rawio"),
        (19, "sys_ptrace"),
        (21, "sys_admin"),
        (22, "sys_boot"),
        (25, "sys_time"),
        (38, "perfmon"),
        (39, "bpf"),
    ];
    let place = cx.place().await?;
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        let value = status(&place, set).await?;
        let bits = u64::from_str_radix(&value, 16).map_err(Stop::fail)?;
        for (bit, name) in DANGEROUS {
            ensure!(bits & (1 << bit) == 0, "{name} is in {set} ({value})");
        }
    }
    Ok(())
}

/// Looked at from the host, where ids are what they are.
async fn process_is_no_root_of_the_host(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let mut execution = place.start(Cmd::argv(["sleep", &marker])).await?;
    place.appears(&marker, 1).await?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let Ok(arguments) = std::fs::read(path.join("cmdline")) else {
            continue;
        };
        if arguments
            .split(|byte| *byte == 0)
            .any(|argument| argument == marker.as_bytes())
            && let Ok(status) = std::fs::read_to_string(path.join("status"))
        {
            found.push(status);
        }
    }
    execution.kill();
    execution.wait().await;
    if found.is_empty() {
        return Err(Stop::Unavailable(
            "the sandbox's processes are not on this machine".into(),
        ));
    }
    for status in found {
        for field in ["Uid:", "Gid:"] {
            let ids = status
                .lines()
                .find_map(|line| line.strip_prefix(field))
                .unwrap_or("");
            ensure!(!ids.is_empty(), "there is no {field} in the status");
            ensure!(
                ids.split_whitespace().all(|id| id != "0"),
                "{field} on the host is {ids:?}"
            );
        }
    }
    Ok(())
}

/// What is written is what is there already, so that a success would do no harm.
async fn kernel_settings_are_read_only(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut tried = 0;
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/file-max",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/user/max_user_namespaces",
    ] {
        let script = format!(
            "[ -e {path} ] || exit 9; value=$(cat {path}) || exit 8; printf '%s\\n' \"$value\" >{path}"
        );
        let code = place.sh(&script).await?.code();
        ensure!(code != Some(0), "{path} can be written");
        tried += usize::from(!matches!(code, Some(8 | 9)));
    }
    ensure!(tried > 0, "none of the settings is there to be tried");
    for path in [
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
    ] {
        // Opening for appending writes nothing.
        ensure!(
            !place.sh(&format!(": >>{path}")).await?.success(),
            "{path} can be opened for writing"
        );
    }
    Ok(())
}

async fn masked_files_of_proc_say_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/kmsg",
        "/proc/latency_stats",
        "/proc/sched_debug",
    ] {
        let cmd = Cmd::argv(["head", "-c", "64", path]).timeout(Duration::from_secs(3));
        let result = place.run(cmd).await?;
        ensure_eq!(result.stdout.len(), 0, "bytes of {path}");
    }
    for dir in ["/proc/acpi", "/proc/scsi"] {
        let result = place.sh(&format!("ls -A {dir} 2>/dev/null")).await?;
        ensure_eq!(result.stdout.len(), 0, "bytes of the listing of {dir}");
    }
    Ok(())
}

async fn devices_are_the_harmless_ones(cx: Context) -> Done {
    const HARMLESS: [&str; 8] = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "console",
    ];
    let place = cx.place().await?;
    let script = "for f in /dev/* /dev/.[!.]*; do [ -L \"$f\" ] && continue; [ -b \"$f\" ] && echo \"block $f\"; [ -c \"$f\" ] && echo \"char $f\"; done; true";
    for line in place.out(script).await?.lines() {
        let name = line.strip_prefix("char /dev/");
        ensure!(
            name.is_some_and(|name| HARMLESS.contains(&name)),
            "there is {line}"
        );
    }
    let said = place
        .out("echo x >/dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c")
        .await?;
    ensure_eq!(said, "3\n3\n", "use of the harmless ones");
    Ok(())
}

async fn disks_cannot_be_reached(cx: Context) -> Done {
    let place = cx.place().await?;
    for (name, node) in [
        ("disk", "b 8 0"),
        ("disk2", "b 259 0"),
        ("memory", "c 1 1"),
        ("kmsg", "c 1 11"),
    ] {
        let script = format!("mknod {name} {node} && head -c 1 {name}");
        let result = place.sh(&script).await?;
        ensure!(
            !result.success() && result.stdout.is_empty(),
            "a node {node} can be made and read"
        );
    }
    Ok(())
}

async fn file_systems_cannot_be_mounted(cx: Context) -> Done {
    let place = cx.place().await?;
    place.need("mount").await?;
    place.out("mkdir m").await?;
    for script in [
        "mount -t tmpfs none m",
        "mount -t proc none m",
        "mount -t sysfs none m",
        "mount --bind / m",
        "mount -o remount,rw /",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "umount -l /tmp",
    ] {
        ensure!(!place.sh(script).await?.success(), "{script} succeeds");
    }
    Ok(())
}

async fn supervisor_cannot_be_looked_into(cx: Context) -> Done {
    let place = cx.place().await?;
    for path in [
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/1/auxv",
        "/proc/1/maps",
    ] {
        let result = place.run(Cmd::argv(["head", "-c", "1", path])).await?;
        ensure_eq!(result.stdout.len(), 0, "bytes of {path}");
    }
    for script in [
        "ls /proc/1/fd/",
        "ls /proc/1/root/",
        "ls /proc/1/cwd/",
        "readlink /proc/1/exe",
        ": >>/proc/1/mem",
        ": >>/proc/1/exe",
        "cat /proc/1/exe >/dev/null",
    ] {
        ensure!(!place.sh(script).await?.success(), "{script} succeeds");
    }
    Ok(())
}

async fn core_dumps_are_off(cx: Context) -> Done {
    let place = cx.place().await?;
    place.sh("ulimit -c unlimited; kill -SEGV $$").await?;
    place.sh("kill -ABRT $$").await?;
    ensure_eq!(
        place.list(".").await?.len(),
        0,
        "entries of the workdir after two crashes"
    );
    let limit = place.out("ulimit -Hc").await?;
    ensure!(
        ["0\n", "1\n"].contains(&limit.as_str()),
        "the hard limit of core dumps is {limit:?}"
    );
    Ok(())
}

async fn read_only_bind_is_read_only(cx: Context) -> Done {
    let host = cx.host_dir()?.join("data");
    std::fs::create_dir(&host)?;
    std::fs::write(host.join("file"), "of the host")?;
    let mut spec = cx.spec()?;
    spec.binds
        .push(Bind::read_only(&host, SandboxPath::new("/data/here")?));
    let place = cx.place_of(spec).await?;
    ensure_eq!(
        place.out("cat /data/here/file").await?,
        "of the host",
        "the file by a command"
    );
    ensure_eq!(
        place.read("/data/here/file").await?,
        "of the host",
        "the file by a file call"
    );
    for script in [
        "echo x >/data/here/file",
        "echo x >/data/here/new",
        "rm -f /data/here/file",
        "mv /data/here/file /data/here/other",
        "chmod 777 /data/here",
        "ln /data/here/file linked && echo x >linked",
    ] {
        ensure!(!place.sh(script).await?.success(), "{script} succeeds");
    }
    let kinds = [ErrorKind::PermissionDenied, ErrorKind::Io];
    refused_as(
        place.write("/data/here/file", "x").await,
        &kinds,
        "a write by a file call",
    )?;
    refused_as(
        place.delete("/data/here/file").await,
        &kinds,
        "a delete by a file call",
    )?;
    ensure_eq!(
        std::fs::read_to_string(host.join("file"))?,
        "of the host",
        "the file on the host"
    );
    place.destroy().await?;
    ensure!(
        host.join("file").exists(),
        "destroy removed the host's files"
    );
    Ok(())
}

async fn writable_bind_is_shared(cx: Context) -> Done {
    let host = cx.host_dir()?.join("data");
    std::fs::create_dir(&host)?;
    std::fs::write(host.join("file"), "of the host")?;
    let mut spec = cx.spec()?;
    spec.binds
        .push(Bind::writable(&host, SandboxPath::new("/data")?));
    let place = cx.place_of(spec).await?;
    place
        .out("cat /data/file >/dev/null && echo inside >/data/new && mkdir /data/dir")
        .await?;
    ensure_eq!(
        std::fs::read_to_string(host.join("new"))?,
        "inside\n",
        "a new file on the host"
    );
    place.write("/data/called", "by a file call").await?;
    ensure_eq!(
        std::fs::read_to_string(host.join("called"))?,
        "by a file call",
        "a file call's file on the host"
    );
    place.destroy().await?;
    ensure!(
        host.join("new").exists() && host.join("dir").is_dir(),
        "destroy removed the host's files"
    );
    Ok(())
}

async fn links_in_a_bind_do_not_lead_out(cx: Context) -> Done {
    let (path, text) = secret(&cx)?;
    let host = cx.host_dir()?.join("data");
    std::fs::create_dir(&host)?;
    std::os::unix::fs::symlink(&path, host.join("absolute"))?;
    std::os::unix::fs::symlink("../secret", host.join("relative"))?;
    std::os::unix::fs::symlink("..", host.join("up"))?;
    let mut spec = cx.spec()?;
    spec.binds
        .push(Bind::writable(&host, SandboxPath::new("/data")?));
    let place = cx.place_of(spec).await?;
    for link in [
        "/data/absolute",
        "/data/relative",
        "/data/up/secret",
        "/data/../secret",
    ] {
        if let Ok(read) = place.read(link).await {
            ensure!(read != text, "{link} leads to a file of the host");
        }
        let seen = place.run(Cmd::argv(["cat", link])).await?;
        ensure!(
            seen.stdout != text,
            "{link} leads a command to a file of the host"
        );
        let _ = place.write(link, "overwritten").await;
    }
    ensure_eq!(std::fs::read_to_string(&path)?, text, "the host's file");
    Ok(())
}

async fn bind_of_an_absent_source_is_refused(cx: Context) -> Done {
    let absent = cx.host_dir()?.join("absent");
    let mut spec = cx.spec()?;
    let name = spec.name.clone();
    spec.binds
        .push(Bind::read_only(&absent, SandboxPath::new("/data")?));
    let kinds = [
        ErrorKind::InvalidSpec,
        ErrorKind::NotFound,
        ErrorKind::Isolation,
    ];
    let error = {
        use sandbox_core::Backend;
        refused_as(cx.backend().create(spec).await, &kinds, "a bind of nothing")?
    };
    ensure!(
        error.to_string().contains("absent"),
        "the error does not name the source: {error}"
    );
    ensure!(!absent.exists(), "the source was made");
    let mut plain = cx.spec()?;
    plain.name = name;
    cx.place_of(plain).await?;
    Ok(())
}
