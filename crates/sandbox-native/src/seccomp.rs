//! The system call filter of a sandbox.
//!
//! A deny list: what a sandboxed program has no use for and what has been a way out of sandboxes. Several programs, because one has
//! one answer: `EPERM` for what is forbidden, `ENOSYS` for what programs know how to do without, `EAFNOSUPPORT` for sockets. The
//! kernel applies the strictest answer of all.
//!
//! `ptrace` and reading another process's memory stay allowed, so that debuggers work: only processes of the same sandbox can be
//! named, and its process 1 is protected by not being dumpable.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

#[cfg(target_arch = "x86_64")]
const ARCH: (TargetArch, u32) = (TargetArch::x86_64, 0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCH: (TargetArch, u32) = (TargetArch::aarch64, 0xc000_00b7);

/// The newest system call that was looked at when this list was made. Later ones do not exist inside, and neither does the x32
/// variant of any call, whose numbers are all larger.
const LAST_KNOWN: u32 = 466;

/// The programs in the order in which they are installed, each as the kernel's 8-byte instructions.
pub(crate) fn programs(writable_binds: bool) -> Vec<Vec<u8>> {
    let filters = [
        (forbidden(writable_binds), libc::EPERM),
        (absent(writable_binds), libc::ENOSYS),
        (socket_families(), libc::EAFNOSUPPORT),
    ];
    let mut programs = vec![bytes(&known_calls())];
    programs.extend(filters.map(|(rules, errno)| bytes(&compile(rules, errno))));
    programs
}

fn compile(rules: Rules, errno: i32) -> BpfProgram {
    let answer = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, ARCH.0);
    // The rules are constants of this file, and a test compiles all of them.
    filter
        .and_then(BpfProgram::try_from)
        .expect("the rules are well-formed")
}

fn bytes(program: &[sock_filter]) -> Vec<u8> {
    let instruction = |i: &sock_filter| {
        let mut bytes = i.code.to_ne_bytes().to_vec();
        bytes.extend([i.jt, i.jf]);
        bytes.extend(i.k.to_ne_bytes());
        bytes
    };
    program.iter().flat_map(instruction).collect()
}

/// Another architecture's calls kill; unknown ones are answered like an older kernel would, so that programs fall back.
fn known_calls() -> BpfProgram {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_GREATER: u16 = 0x25;
    const RETURN: u16 = 0x06;
    const KILL_PROCESS: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(JUMP_EQUAL, 1, 0, ARCH.1),
        instruction(RETURN, 0, 0, KILL_PROCESS),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_GREATER, 0, 1, LAST_KNOWN),
        instruction(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32),
        instruction(RETURN, 0, 0, ALLOW),
    ]
}

fn forbidden(writable_binds: bool) -> Rules {
    let mut rules = Rules::new();
    let always = [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_setns,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_kexec_load,
        libc::SYS_kexec_file_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_open_by_handle_at,
        libc::SYS_acct,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_reboot,
        libc::SYS_syslog,
        libc::SYS_quotactl,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_move_pages,
        libc::SYS_migrate_pages,
        libc::SYS_mbind,
        libc::SYS_set_mempolicy,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_kcmp,
        libc::SYS_pidfd_getfd,
        libc::SYS_vhangup,
        libc::SYS_fanotify_init,
        libc::SYS_name_to_handle_at,
    ];
    for call in always {
        rules.insert(call, Vec::new());
    }
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt] {
        rules.insert(call, Vec::new());
    }
    // The low byte of clone's flags is the exit signal, so a time namespace can only be asked for with the two other calls.
    const NAMESPACES: [u64; 7] = [
        0x0002_0000, // mount
        0x0200_0000, // cgroup
        0x0400_0000, // uts
        0x0800_0000, // ipc
        0x1000_0000, // user
        0x2000_0000, // pid
        0x4000_0000, // net
    ];
    const TIME_NAMESPACE: u64 = 0x80;
    rules.insert(
        libc::SYS_clone,
        NAMESPACES.map(|flag| all([has(0, flag)])).into(),
    );
    let unshare = NAMESPACES.into_iter().chain([TIME_NAMESPACE]);
    rules.insert(
        libc::SYS_unshare,
        unshare.map(|flag| all([has(0, flag)])).collect(),
    );
    // The kernel looks at the lower half of the request only, so that is what is compared (CVE-2019-10063).
    const TIOCSTI: u64 = 0x5412;
    const TIOCLINUX: u64 = 0x541c;
    const TIOCCONS: u64 = 0x541d;
    const TIOCSETD: u64 = 0x5423;
    let requests = [TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD];
    rules.insert(
        libc::SYS_ioctl,
        requests.map(|request| all([is(1, request)])).into(),
    );
    // Execution domains other than Linux's own, but for 32 bits, without address randomisation, and the question which it is.
    let harmless = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];
    rules.insert(
        libc::SYS_personality,
        vec![all(harmless.map(|persona| is_not(0, persona)))],
    );
    if writable_binds {
        no_set_id_files(&mut rules);
    }
    rules
}

/// A sandbox that writes into a directory of the host must not leave a program there that gives somebody else its rights.
fn no_set_id_files(rules: &mut Rules) {
    const SET_ID: [u64; 2] = [0o4000, 0o2000];
    const CREATE: u64 = 0o100;
    const TEMPORARY: u64 = 0o20000000;
    let mut modes: Vec<(i64, u8)> = vec![
        (libc::SYS_fchmod, 1),
        (libc::SYS_fchmodat, 2),
        (SYS_FCHMODAT2, 2),
        (libc::SYS_mknodat, 2),
    ];
    let mut creations: Vec<(i64, u8)> = vec![(libc::SYS_openat, 2)];
    #[cfg(target_arch = "x86_64")]
    {
        modes.extend([
            (libc::SYS_chmod, 1),
            (libc::SYS_creat, 1),
            (libc::SYS_mknod, 1),
        ]);
        creations.push((libc::SYS_open, 1));
    }
    for (call, mode) in modes {
        rules.insert(call, SET_ID.map(|bit| all([has(mode, bit)])).into());
    }
    for (call, flags) in creations {
        let created = |flag| SET_ID.map(|bit| all([has(flags, flag), has(flags + 1, bit)]));
        rules.insert(call, [created(CREATE), created(TEMPORARY)].concat());
    }
}

const SYS_FCHMODAT2: i64 = 452;

fn absent(writable_binds: bool) -> Rules {
    let mut rules = Rules::new();
    let calls = [
        // Its flags are in memory, where a filter cannot look; programs fall back to clone.
        libc::SYS_clone3,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        libc::SYS_quotactl_fd,
        // It does system calls past the filter.
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_lookup_dcookie,
        libc::SYS_nfsservctl,
    ];
    for call in calls {
        rules.insert(call, Vec::new());
    }
    #[cfg(target_arch = "x86_64")]
    for call in [
        libc::SYS_uselib,
        libc::SYS_ustat,
        libc::SYS_sysfs,
        libc::SYS__sysctl,
    ] {
        rules.insert(call, Vec::new());
    }
    if writable_binds {
        // Its mode is in memory too.
        rules.insert(libc::SYS_openat2, Vec::new());
    }
    rules
}

/// Local, internet and routing sockets only. Others reach past the network namespace (vsock) or are little-tested kernel code.
fn socket_families() -> Rules {
    let families = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
    ];
    let netlink = [
        is(0, libc::AF_NETLINK as u64),
        is_not(2, libc::NETLINK_ROUTE as u64),
    ];
    let mut rules = Rules::new();
    rules.insert(
        libc::SYS_socket,
        vec![
            all(families.map(|family| is_not(0, family as u64))),
            all(netlink),
        ],
    );
    rules.insert(
        libc::SYS_socketpair,
        vec![all([is_not(0, libc::AF_UNIX as u64)])],
    );
    rules
}

fn all<const N: usize>(conditions: [SeccompCondition; N]) -> SeccompRule {
    SeccompRule::new(conditions.into()).expect("a rule has conditions")
}

fn condition(argument: u8, operation: SeccompCmpOp, value: u64) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value)
        .expect("a call has six arguments")
}

fn is(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn is_not(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Ne, value)
}

fn has(argument: u8, bit: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::MaskedEq(bit), bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_compile_and_fit_the_kernel() {
        for writable in [false, true] {
            let programs = programs(writable);
            assert_eq!(programs.len(), 4);
            for program in programs {
                assert!(program.len() % 8 == 0 && program.len() / 8 <= 4096 && !program.is_empty());
            }
        }
    }
}
