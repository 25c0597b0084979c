//! A hostile program: it tries every door out of a sandbox and says which held. It is this test binary itself, bound into a sandbox.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io::{Error, ErrorKind, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use libc::{c_long, c_ulong};

/// What a door did: how it held, or how it opened.
type Door = Result<String, String>;

/// What the host lets the program know, to make it as hard as possible.
pub(crate) const HOST_PID: &str = "HOSTILE_HOST_PID";
pub(crate) const HOST_FILE: &str = "HOSTILE_HOST_FILE";
pub(crate) const HOST_SOCKET: &str = "HOSTILE_HOST_SOCKET";
pub(crate) const HOST_PORT: &str = "HOSTILE_HOST_PORT";
pub(crate) const HOST_SHM: &str = "HOSTILE_HOST_SHM";

/// The capabilities that a sandbox's root has: chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service.
const CAPABILITIES: u64 = 0x4fb;

fn call(number: c_long, arguments: &[c_ulong]) -> Result<c_long, Error> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the pointers among the arguments name live buffers of the caller; most calls are refused before they look.
    let answer = unsafe { libc::syscall(number, all[0], all[1], all[2], all[3], all[4], all[5]) };
    if answer < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// The call must be refused with one of these errors.
fn refused(number: c_long, arguments: &[c_ulong], expected: &[i32]) -> Door {
    judge(
        call(number, arguments).map(|answer| format!("answered {answer}")),
        expected,
    )
}

fn judge(outcome: Result<String, Error>, expected: &[i32]) -> Door {
    match outcome {
        Err(error)
            if error
                .raw_os_error()
                .is_some_and(|errno| expected.contains(&errno)) =>
        {
            Ok(error.to_string())
        }
        Err(error) => Err(format!("failed in another way than it should: {error}")),
        Ok(answer) => Err(answer),
    }
}

fn text(bytes: &[u8]) -> c_ulong {
    // Leaked on purpose: the kernel reads it during the call.
    CString::new(bytes).expect("no NUL").into_raw() as c_ulong
}

fn opened(path: &str, write: bool) -> Result<String, Error> {
    let mut options = fs::OpenOptions::new();
    options.read(!write).write(write);
    options.open(path).map(|_| format!("{path} was opened"))
}

const DENIED: &[i32] = &[libc::EPERM, libc::EACCES];

fn doors() -> Vec<(String, Door)> {
    let mut doors: Vec<(String, Door)> = Vec::new();
    let mut door = |name: &str, outcome: Door| doors.push((name.to_owned(), outcome));

    // What came from the host by accident; first, because the doors below open files of their own.
    door(
        "descriptors",
        match fs::read_dir("/proc/self/fd") {
            Ok(entries) => {
                let numbers = entries
                    .flatten()
                    .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
                // One above 2 is the listing's own.
                let extra: Vec<i32> = numbers.filter(|fd| *fd > 2).collect();
                if extra.len() <= 1 {
                    Ok("0, 1 and 2".into())
                } else {
                    Err(format!("{extra:?}"))
                }
            }
            Err(error) => Err(error.to_string()),
        },
    );

    // Process 1, which is not of the sandbox.
    for name in ["mem", "environ", "maps", "syscall", "stack", "auxv"] {
        door(
            &format!("/proc/1/{name}"),
            judge(opened(&format!("/proc/1/{name}"), false), DENIED),
        );
    }
    door(
        "/proc/1/mem for writing",
        judge(opened("/proc/1/mem", true), DENIED),
    );
    for name in ["root", "cwd", "exe", "ns/user", "ns/mnt"] {
        let path = format!("/proc/1/{name}");
        door(
            &path,
            judge(
                fs::read_link(&path).map(|to| format!("leads to {to:?}")),
                DENIED,
            ),
        );
    }
    door(
        "/proc/1/root/ as a path",
        judge(
            fs::read_dir("/proc/1/root/").map(|_| "listed".into()),
            DENIED,
        ),
    );
    door(
        "/proc/1/fd",
        judge(fs::read_dir("/proc/1/fd").map(|_| "listed".into()), DENIED),
    );
    let limit = [1u64, 1];
    let limit = std::ptr::from_ref(&limit) as c_ulong;
    for (name, resource) in [("cpu", libc::RLIMIT_CPU), ("files", libc::RLIMIT_NOFILE)] {
        door(
            &format!("a {name} limit for 1"),
            refused(
                libc::SYS_prlimit64,
                &[1, resource as c_ulong, limit, 0],
                DENIED,
            ),
        );
    }
    let zeros = [0u64; 16];
    let zeros = std::ptr::from_ref(&zeros) as c_ulong;
    let one_cpu = [1u64; 1];
    for (name, number, arguments) in [
        (
            "affinity",
            libc::SYS_sched_setaffinity,
            [1, 8, std::ptr::from_ref(&one_cpu) as c_ulong],
        ),
        (
            "scheduler",
            libc::SYS_sched_setscheduler,
            [1, libc::SCHED_IDLE as c_ulong, zeros],
        ),
        (
            "scheduling parameter",
            libc::SYS_sched_setparam,
            [1, zeros, 0],
        ),
        (
            "scheduling attributes",
            libc::SYS_sched_setattr,
            [1, zeros, 0],
        ),
        ("priority", libc::SYS_setpriority, [0, 1, 19]),
        ("group's priority", libc::SYS_setpriority, [1, 1, 19]),
        ("user's priority", libc::SYS_setpriority, [2, 0, 19]),
        ("disk priority", libc::SYS_ioprio_set, [1, 1, 3 << 13]),
        (
            "group's disk priority",
            libc::SYS_ioprio_set,
            [2, 1, 3 << 13],
        ),
        (
            "user's disk priority",
            libc::SYS_ioprio_set,
            [3, 0, 3 << 13],
        ),
    ] {
        door(
            &format!("the {name} of 1"),
            refused(number, &arguments, DENIED),
        );
    }
    for name in [
        "oom_score_adj",
        "autogroup",
        "timerslack_ns",
        "coredump_filter",
    ] {
        let path = format!("/proc/1/{name}");
        // One of them can be opened by anybody, and refuses to be written.
        let written = fs::write(&path, "1000").map(|()| format!("{path} was written"));
        door(
            &format!("{path} for writing"),
            match written {
                // Not every kernel has all of them.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok("absent".into()),
                other => judge(other, DENIED),
            },
        );
    }
    door(
        "ptrace of 1",
        refused(
            libc::SYS_ptrace,
            &[libc::PTRACE_ATTACH as c_ulong, 1],
            DENIED,
        ),
    );
    door(
        "ptrace seize of 1",
        refused(libc::SYS_ptrace, &[0x4206, 1], DENIED),
    );
    door("process_vm_readv of 1", {
        let mut byte = 0u8;
        let ours = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let theirs = libc::iovec {
            iov_base: 0x400000 as *mut _,
            iov_len: 1,
        };
        refused(
            libc::SYS_process_vm_readv,
            &[
                1,
                &raw const ours as c_ulong,
                1,
                &raw const theirs as c_ulong,
                1,
                0,
            ],
            DENIED,
        )
    });
    door(
        "process_vm_writev of 1",
        refused(libc::SYS_process_vm_writev, &[1], DENIED),
    );
    door(
        "pidfd_getfd of 1",
        match call(libc::SYS_pidfd_open, &[1]) {
            Ok(pidfd) => refused(libc::SYS_pidfd_getfd, &[pidfd as c_ulong, 0], DENIED),
            Err(error) => Err(format!("pidfd_open should work: {error}")),
        },
    );
    door(
        "kcmp with 1",
        refused(libc::SYS_kcmp, &[1, std::process::id().into(), 0], DENIED),
    );

    // Namespaces.
    for (name, flag) in [
        ("user", 0x1000_0000u64),
        ("mount", 0x0002_0000),
        ("pid", 0x2000_0000),
        ("net", 0x4000_0000),
        ("ipc", 0x0800_0000),
        ("uts", 0x0400_0000),
        ("cgroup", 0x0200_0000),
        ("time", 0x80),
    ] {
        door(
            &format!("unshare {name}"),
            refused(libc::SYS_unshare, &[flag], DENIED),
        );
        if name != "time" {
            let flags = flag | libc::SIGCHLD as u64;
            door(
                &format!("clone {name}"),
                refused(libc::SYS_clone, &[flags, 0, 0, 0, 0], DENIED),
            );
        }
    }
    door(
        "clone3",
        refused(libc::SYS_clone3, &[0, 0], &[libc::ENOSYS]),
    );
    door(
        "setns",
        match fs::File::open("/proc/self/ns/mnt") {
            Ok(file) => refused(libc::SYS_setns, &[file.as_raw_fd() as c_ulong, 0], DENIED),
            Err(error) => Err(error.to_string()),
        },
    );
    door(
        "nested user namespaces",
        match fs::read_to_string("/proc/sys/user/max_user_namespaces") {
            Ok(text) if text.trim() == "0" => Ok("none allowed".into()),
            other => Err(format!("{other:?}")),
        },
    );

    // Mounts.
    let (none, tmpfs, tmp, usr) = (text(b"none"), text(b"tmpfs"), text(b"/tmp"), text(b"/usr"));
    door(
        "mount tmpfs",
        refused(libc::SYS_mount, &[none, tmp, tmpfs, 0, 0], DENIED),
    );
    let remount = libc::MS_REMOUNT | libc::MS_BIND;
    door(
        "remount /usr writable",
        refused(libc::SYS_mount, &[none, usr, 0, remount, 0], DENIED),
    );
    door(
        "remount / with set-uid",
        refused(libc::SYS_mount, &[none, text(b"/"), 0, remount, 0], DENIED),
    );
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/sys",
        "/proc/acpi",
        "/sys",
        "/dev",
        "/usr",
        "/proc",
    ] {
        let arguments = [text(path.as_bytes()), libc::MNT_DETACH as c_ulong];
        door(
            &format!("unmount {path}"),
            refused(libc::SYS_umount2, &arguments, DENIED),
        );
    }
    door(
        "pivot_root",
        refused(libc::SYS_pivot_root, &[tmp, tmp], DENIED),
    );
    door("chroot", refused(libc::SYS_chroot, &[tmp], DENIED));
    for (name, number) in [
        ("open_tree", libc::SYS_open_tree),
        ("move_mount", libc::SYS_move_mount),
        ("fsopen", libc::SYS_fsopen),
        ("fsconfig", libc::SYS_fsconfig),
        ("fsmount", libc::SYS_fsmount),
        ("fspick", libc::SYS_fspick),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("open_tree_attr", 467),
    ] {
        door(name, refused(number, &[usr, usr, 0, 0, 0], &[libc::ENOSYS]));
    }
    for path in [
        "/usr/x",
        "/usr/bin/x",
        "/dev/x",
        "/sys/x",
        "/proc/sys/x",
        "/proc/x",
    ] {
        let written = fs::write(path, "x").map(|()| "written".to_owned());
        door(
            &format!("write {path}"),
            judge(written, &[libc::EROFS, libc::ENOENT, libc::EACCES]),
        );
    }
    door("hard link out of a read-only bind", {
        let linked = fs::hard_link(std::env::current_exe().unwrap_or_default(), "/work/alias");
        judge(linked.map(|()| "linked".into()), &[libc::EXDEV])
    });
    door("overwriting a read-only bind", {
        let path = std::env::current_exe().unwrap_or_default();
        judge(
            opened(&path.to_string_lossy(), true),
            &[libc::EROFS, libc::ETXTBSY, libc::EACCES],
        )
    });

    // Ways around path names.
    door(
        "open_by_handle_at",
        refused(libc::SYS_open_by_handle_at, &[0, 0, 0], DENIED),
    );
    door(
        "name_to_handle_at",
        refused(libc::SYS_name_to_handle_at, &[0, 0, 0], DENIED),
    );
    for path in [
        "/../../../..",
        "/proc/self/cwd/../../../../..",
        "/proc/self/root",
        "/proc/self/root/..",
    ] {
        door(
            &format!("{path} is the root"),
            match (fs::metadata(path), fs::metadata("/")) {
                (Ok(there), Ok(root)) if (there.dev(), there.ino()) == (root.dev(), root.ino()) => {
                    Ok("it is".into())
                }
                other => Err(format!("{other:?}")),
            },
        );
    }
    let host_file = std::env::var(HOST_FILE).unwrap_or_default();
    door(
        "a file of the host",
        judge(opened(&host_file, false), &[libc::ENOENT]),
    );
    door(
        "shadow",
        judge(opened("/etc/shadow", false), &[libc::ENOENT]),
    );

    // Devices.
    for (name, mode, device) in [
        ("block", libc::S_IFBLK, 0xfe00),
        ("memory", libc::S_IFCHR, 0x101),
        ("console", libc::S_IFCHR, 0x501),
    ] {
        let arguments = [
            libc::AT_FDCWD as c_ulong,
            text(b"/tmp/node"),
            u64::from(mode) | 0o600,
            device,
        ];
        door(
            &format!("mknod {name}"),
            refused(libc::SYS_mknodat, &arguments, DENIED),
        );
    }
    for path in [
        "/dev/mem",
        "/dev/kmsg",
        "/dev/vda",
        "/dev/sda",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/console",
        "/dev/net/tun",
    ] {
        door(path, judge(opened(path, false), &[libc::ENOENT]));
    }

    // The kernel's settings and secrets.
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
    ] {
        let written = fs::OpenOptions::new()
            .write(true)
            .open(path)
            .map(|_| "opened".to_owned());
        door(
            &format!("write {path}"),
            judge(
                written,
                &[libc::EROFS, libc::EACCES, libc::EPERM, libc::ENOENT],
            ),
        );
    }
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/key-users",
        "/proc/timer_list",
        "/proc/kmsg",
        "/proc/interrupts",
    ] {
        door(
            &format!("read {path}"),
            match fs::read(path) {
                Ok(content) if content.is_empty() => Ok("nothing in it".into()),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok("absent".into()),
                Ok(content) => Err(format!("{} bytes", content.len())),
                Err(error) => Err(error.to_string()),
            },
        );
    }
    door(
        "/sys is empty",
        match fs::read_dir("/sys").map(Iterator::count) {
            Ok(0) => Ok("it is".into()),
            other => Err(format!("{other:?}")),
        },
    );
    for (name, number) in [
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("keyctl", libc::SYS_keyctl),
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("kexec_load", libc::SYS_kexec_load),
        ("kexec_file_load", libc::SYS_kexec_file_load),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("reboot", libc::SYS_reboot),
        ("swapon", libc::SYS_swapon),
        ("swapoff", libc::SYS_swapoff),
        ("acct", libc::SYS_acct),
        ("syslog", libc::SYS_syslog),
        ("quotactl", libc::SYS_quotactl),
        ("settimeofday", libc::SYS_settimeofday),
        ("clock_settime", libc::SYS_clock_settime),
        ("move_pages", libc::SYS_move_pages),
        ("migrate_pages", libc::SYS_migrate_pages),
        ("mbind", libc::SYS_mbind),
        ("set_mempolicy", libc::SYS_set_mempolicy),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("vhangup", libc::SYS_vhangup),
    ] {
        door(name, refused(number, &[], DENIED));
    }
    for (name, number) in [
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("an unknown call", 999),
    ] {
        door(name, refused(number, &[], &[libc::ENOSYS]));
    }
    door(
        "sethostname",
        refused(libc::SYS_sethostname, &[text(b"x"), 1], DENIED),
    );
    door(
        "personality",
        refused(libc::SYS_personality, &[0x0040_0000 | 0x8000], DENIED),
    );
    #[cfg(target_arch = "x86_64")]
    {
        door("iopl", refused(libc::SYS_iopl, &[3], DENIED));
        door("ioperm", refused(libc::SYS_ioperm, &[0x70, 1, 1], DENIED));
        door(
            "modify_ldt",
            refused(libc::SYS_modify_ldt, &[0, 0, 0], DENIED),
        );
        door(
            "an x32 call",
            refused(0x4000_0000 + libc::SYS_getpid, &[], &[libc::ENOSYS]),
        );
        door("a 32-bit call", thirty_two_bits());
    }

    // Sockets, local and not.
    for (name, family) in [
        ("vsock", 40),
        ("packet", 17),
        ("alg", 38),
        ("bluetooth", 31),
        ("can", 29),
        ("tipc", 30),
        ("rds", 21),
        ("key", 15),
        ("xdp", 44),
        ("smc", 43),
    ] {
        door(
            &format!("socket {name}"),
            refused(libc::SYS_socket, &[family, 3, 0], &[libc::EAFNOSUPPORT]),
        );
    }
    let netlink = libc::AF_NETLINK as c_ulong;
    for (name, protocol) in [
        ("audit", 9),
        ("netfilter", 12),
        ("kobject", 15),
        ("generic", 16),
    ] {
        let arguments = [netlink, libc::SOCK_RAW as c_ulong, protocol];
        door(
            &format!("netlink {name}"),
            refused(libc::SYS_socket, &arguments, &[libc::EAFNOSUPPORT]),
        );
    }
    let raw = [
        libc::AF_INET as c_ulong,
        libc::SOCK_RAW as c_ulong,
        libc::IPPROTO_ICMP as c_ulong,
    ];
    door("raw socket", refused(libc::SYS_socket, &raw, DENIED));
    let name = std::env::var(HOST_SOCKET).unwrap_or_default();
    door("an abstract socket of the host", {
        let address = SocketAddr::from_abstract_name(name);
        let connected = address.and_then(|address| UnixStream::connect_addr(&address));
        judge(
            connected.map(|_| "connected".into()),
            &[libc::ECONNREFUSED, libc::EPERM],
        )
    });
    let port = std::env::var(HOST_PORT)
        .ok()
        .and_then(|port| port.parse().ok())
        .unwrap_or(1u16);
    door("a port of the host", {
        let connected = TcpStream::connect(("127.0.0.1", port));
        judge(connected.map(|_| "connected".into()), &[libc::ECONNREFUSED])
    });
    door("the network", {
        let connected = TcpStream::connect(("192.0.2.1", 80));
        judge(connected.map(|_| "connected".into()), &[libc::ENETUNREACH])
    });

    // Other processes and shared memory of the host.
    let pid = std::env::var(HOST_PID)
        .ok()
        .and_then(|pid| pid.parse().ok())
        .unwrap_or(0u64);
    door(
        "a signal to the host",
        refused(libc::SYS_kill, &[pid, 0], &[libc::ESRCH]),
    );
    door(
        "the processes that are seen",
        match fs::read_dir("/proc") {
            Ok(entries) => {
                let is_process = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
                let count = entries
                    .flatten()
                    .filter(|entry| is_process(&entry.file_name().to_string_lossy()))
                    .count();
                if count < 10 {
                    Ok(format!("{count}"))
                } else {
                    Err(format!("{count}"))
                }
            }
            Err(error) => Err(error.to_string()),
        },
    );
    let key: c_ulong = std::env::var(HOST_SHM)
        .ok()
        .and_then(|key| key.parse().ok())
        .unwrap_or(0);
    door(
        "System V shared memory of the host",
        refused(libc::SYS_shmget, &[key, 0, 0], &[libc::ENOENT]),
    );
    door(
        "/dev/shm is empty",
        match fs::read_dir("/dev/shm").map(Iterator::count) {
            Ok(0) => Ok("it is".into()),
            other => Err(format!("{other:?}")),
        },
    );

    // Terminals.
    for request in [
        libc::TIOCSTI,
        libc::TIOCSTI | 1 << 32,
        0x541c,
        libc::TIOCCONS,
        0x5423,
    ] {
        door(
            &format!("ioctl {request:#x} on a terminal"),
            match opened_terminal() {
                Ok(terminal) => {
                    let byte = b'x';
                    let arguments = [
                        terminal.as_raw_fd() as c_ulong,
                        request,
                        &raw const byte as c_ulong,
                    ];
                    refused(libc::SYS_ioctl, &arguments, DENIED)
                }
                Err(error) => Err(error.to_string()),
            },
        );
    }

    // Rights.
    door(
        "no new privileges",
        match status("NoNewPrivs") {
            Some(value) if value == "1" => Ok(value),
            other => Err(format!("{other:?}")),
        },
    );
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        door(
            set,
            match status(set).and_then(|value| u64::from_str_radix(&value, 16).ok()) {
                Some(value) if value & !CAPABILITIES == 0 => Ok(format!("{value:#x}")),
                other => Err(format!("{other:x?}")),
            },
        );
    }
    for set in ["CapInh", "CapAmb"] {
        door(
            set,
            match status(set) {
                Some(value) if value.bytes().all(|b| b == b'0') => Ok("empty".into()),
                other => Err(format!("{other:?}")),
            },
        );
    }
    door(
        "the host's root",
        refused(
            libc::SYS_setresuid,
            &[70_000, 70_000, 70_000],
            &[libc::EINVAL],
        ),
    );
    door("raising the core limit", {
        let limit = [u64::MAX, u64::MAX];
        refused(
            libc::SYS_prlimit64,
            &[
                0,
                u64::from(libc::RLIMIT_CORE),
                limit.as_ptr() as c_ulong,
                0,
            ],
            DENIED,
        )
    });
    door("core dumps are off", {
        let mut limit = [9u64; 2];
        match call(
            libc::SYS_prlimit64,
            &[
                0,
                u64::from(libc::RLIMIT_CORE),
                0,
                limit.as_mut_ptr() as c_ulong,
            ],
        ) {
            Ok(_) if limit == [1, 1] => Ok("1, which no core pattern ignores".into()),
            other => Err(format!("{other:?} {limit:?}")),
        }
    });
    door(
        "a higher priority",
        refused(libc::SYS_setpriority, &[0, 0, -5i64 as c_ulong], DENIED),
    );
    for path in ["/", "/usr", "/tmp", "/work", "/dev/shm"] {
        door(
            &format!("set-uid on {path}"),
            match mount_flags(path) {
                Ok(flags) if flags & libc::ST_NOSUID != 0 => Ok("ignored".into()),
                other => Err(format!("{other:?}")),
            },
        );
    }

    // What came from the host by accident.
    door(
        "the host's environment",
        match std::env::vars_os()
            .find(|(name, _)| name == "HOSTILE_SECRET" || name == "CARGO_PKG_NAME")
        {
            None => Ok("unknown".into()),
            Some((name, _)) => Err(format!("{name:?}")),
        },
    );
    door(
        "the host's name",
        match fs::read_to_string("/proc/sys/kernel/hostname") {
            Ok(name) if name == "sandbox\n" => Ok("sandbox".into()),
            other => Err(format!("{other:?}")),
        },
    );
    door(
        "the host's control groups",
        match fs::read_to_string("/proc/self/cgroup") {
            Ok(text) if text.lines().all(|line| line.ends_with(":/")) => Ok("not named".into()),
            other => Err(format!("{other:?}")),
        },
    );
    // Last: they may end everything here, and must not end process 1.
    for signal in [libc::SIGKILL, libc::SIGSTOP, libc::SIGTERM, libc::SIGHUP] {
        // Sent without an error and without an effect: that the sandbox goes on is what the host checks.
        door(
            &format!("signal {signal} to 1"),
            match call(libc::SYS_kill, &[1, signal as c_ulong]) {
                Ok(_) => Ok("ignored".into()),
                Err(error) => Ok(error.to_string()),
            },
        );
    }
    doors
}

fn status(field: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|line| {
        Some(
            line.strip_prefix(field)?
                .strip_prefix(':')?
                .trim()
                .to_owned(),
        )
    })
}

fn mount_flags(path: &str) -> Result<c_ulong, Error> {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: an all-zero `statvfs` is a valid value, and the call fills it.
    let (answer, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut stat), stat)
    };
    if answer == 0 {
        Ok(stat.f_flag)
    } else {
        Err(Error::last_os_error())
    }
}

fn opened_terminal() -> Result<fs::File, Error> {
    let master = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/ptmx")?;
    let unlocked = 0i32;
    call(
        libc::SYS_ioctl,
        &[
            master.as_raw_fd() as c_ulong,
            libc::TIOCSPTLCK,
            &raw const unlocked as c_ulong,
        ],
    )?;
    let number = {
        let mut number = 0i32;
        call(
            libc::SYS_ioctl,
            &[
                master.as_raw_fd() as c_ulong,
                libc::TIOCGPTN,
                &raw mut number as c_ulong,
            ],
        )?;
        number
    };
    let terminal = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/dev/pts/{number}"));
    // The terminal needs its other end for as long as it is used.
    std::mem::forget(master);
    terminal
}

#[cfg(target_arch = "x86_64")]
fn thirty_two_bits() -> Door {
    // SAFETY: the child only does system calls and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        const GETPID: u64 = 20;
        // SAFETY: `int 0x80` is the kernel's 32-bit entry; rbx is not touched by getpid.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") GETPID => _, lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _);
            libc::_exit(0);
        }
    }
    let mut state = 0;
    // SAFETY: the state is writable.
    unsafe { libc::waitpid(pid, &raw mut state, 0) };
    if libc::WIFSIGNALED(state) {
        Ok(format!("killed by signal {}", libc::WTERMSIG(state)))
    } else {
        Err(format!("it went on: {state:#x}"))
    }
}

/// Runs inside a sandbox, as one of its commands.
#[test]
#[ignore = "a program for the inside of a sandbox; the other tests start it there"]
fn try_all_doors() {
    assert_eq!(
        std::env::var("HOSTILE").as_deref(),
        Ok("1"),
        "started by the other tests only"
    );
    let mut out = std::io::stdout().lock();
    for (name, outcome) in doors() {
        let line = match outcome {
            Ok(how) => format!("held\t{name}\t{how}\n"),
            Err(how) => format!("OPEN\t{name}\t{how}\n"),
        };
        out.write_all(line.as_bytes()).expect("standard output");
    }
}
