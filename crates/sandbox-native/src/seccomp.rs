//! The system call filter of a sandbox.
//!
//! A deny list: what a sandboxed program has no use for and what has been a way out of sandboxes. What is forbidden answers `EPERM`,
//! what programs know how to do without `ENOSYS`, sockets `EAFNOSUPPORT`. A foreign architecture kills.
//!
//! `ptrace` and reading another process's memory stay allowed, so that debuggers work: only processes of the same sandbox can be
//! named, and its process 1 is protected by not being dumpable. What needs only the same user id, such as setting a limit on process
//! 1 that kills it, is denied here; process 1 makes its own such calls before the filter is there.
//!
//! It is one program that finds a call's rules by bisection. The kernel runs a filter once for every number of a call when it is
//! installed; with a chain of comparisons that alone took a third of the time that making a sandbox takes.

use std::collections::BTreeMap;

/// What a call is answered if all conditions hold; the first rule that matches counts.
#[derive(Debug, Clone)]
struct Rule {
    conditions: Vec<Condition>,
    errno: i32,
}

/// On the lower half of an argument, which is all that the kernel looks at in these calls (CVE-2019-10063).
#[derive(Debug, Clone, Copy)]
struct Condition {
    argument: u8,
    test: Test,
}

#[derive(Debug, Clone, Copy)]
enum Test {
    Is(u32),
    IsNot(u32),
    /// Any of these bits is set.
    HasAny(u32),
}

type Table = BTreeMap<u32, Vec<Rule>>;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The newest system call that was looked at when this list was made. Later ones do not exist inside, and neither does the x32
/// variant of any call, whose numbers are all larger.
const LAST_KNOWN: u32 = 466;

/// The program, as the kernel's 8-byte instructions one after the other.
pub(crate) fn program(writable_binds: bool) -> Vec<u8> {
    let bytes = |i: &Instruction| {
        let mut bytes = i.code.to_ne_bytes().to_vec();
        bytes.extend([i.yes, i.no]);
        bytes.extend(i.value.to_ne_bytes());
        bytes
    };
    compile(&table(writable_binds))
        .iter()
        .flat_map(bytes)
        .collect()
}

fn table(writable_binds: bool) -> Table {
    let mut table = Table::new();
    forbidden(&mut table, writable_binds);
    absent(&mut table, writable_binds);
    socket_families(&mut table);
    table
}

/// One instruction of the kernel's classic packet filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    value: u32,
}

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_NOT_LESS: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const ANSWER: u16 = 0x06;

const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// Places in what the kernel shows to a filter.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

fn instruction(code: u16, yes: u8, no: u8, value: u32) -> Instruction {
    Instruction {
        code,
        yes,
        no,
        value,
    }
}

fn answer(value: u32) -> Instruction {
    instruction(ANSWER, 0, 0, value)
}

fn compile(table: &Table) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        instruction(IF_EQUAL, 1, 0, ARCHITECTURE),
        answer(KILL_PROCESS),
        instruction(LOAD, 0, 0, NUMBER_AT),
        instruction(IF_GREATER, 0, 1, LAST_KNOWN),
        answer(ERRNO | libc::ENOSYS as u32),
    ];
    let calls: Vec<(u32, &[Rule])> = table
        .iter()
        .map(|(call, rules)| (*call, &**rules))
        .collect();
    program.extend(bisect(&calls));
    program
}

/// With the number of the call loaded.
fn bisect(calls: &[(u32, &[Rule])]) -> Vec<Instruction> {
    match calls {
        [] => vec![answer(ALLOW)],
        [(call, rules)] => {
            let mut code = vec![instruction(IF_EQUAL, 1, 0, *call), answer(ALLOW)];
            code.extend(decide(rules));
            code
        }
        _ => {
            let (low, high) = calls.split_at(calls.len() / 2);
            let (low, high) = (bisect(low), (high[0].0, bisect(high)));
            // A conditional jump reaches 255 instructions only, a plain one everything.
            let mut code = vec![
                instruction(IF_NOT_LESS, 0, 1, high.0),
                instruction(JUMP, 0, 0, low.len() as u32),
            ];
            code.extend(low);
            code.extend(high.1);
            code
        }
    }
}

/// The answer for a call that has these rules.
fn decide(rules: &[Rule]) -> Vec<Instruction> {
    let mut code = Vec::new();
    for rule in rules {
        for (index, condition) in rule.conditions.iter().enumerate() {
            // Over the rest of this rule: two instructions for each condition that follows, and the answer.
            let next_rule = (2 * (rule.conditions.len() - index - 1) + 1) as u8;
            let place = ARGUMENTS_AT + 8 * u32::from(condition.argument);
            code.push(instruction(LOAD, 0, 0, place));
            code.push(match condition.test {
                Test::Is(value) => instruction(IF_EQUAL, 0, next_rule, value),
                Test::IsNot(value) => instruction(IF_EQUAL, next_rule, 0, value),
                Test::HasAny(bits) => instruction(IF_ANY_BIT, 0, next_rule, bits),
            });
        }
        code.push(answer(ERRNO | rule.errno as u32));
    }
    code.push(answer(ALLOW));
    code
}

fn forbidden(table: &mut Table, writable_binds: bool) {
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
        deny(table, call, libc::EPERM, vec![vec![]]);
    }
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt] {
        deny(table, call, libc::EPERM, vec![vec![]]);
    }
    // Mount, cgroup, uts, ipc, user, pid and net. The low byte of clone's flags is the exit signal, so that a time namespace can
    // only be asked for with the two other calls.
    const NAMESPACES: u32 = 0x7e02_0000;
    const TIME_NAMESPACE: u32 = 0x80;
    deny(
        table,
        libc::SYS_clone,
        libc::EPERM,
        vec![vec![has_any(0, NAMESPACES)]],
    );
    let any = has_any(0, NAMESPACES | TIME_NAMESPACE);
    deny(table, libc::SYS_unshare, libc::EPERM, vec![vec![any]]);
    const TIOCSTI: u32 = 0x5412;
    const TIOCLINUX: u32 = 0x541c;
    const TIOCCONS: u32 = 0x541d;
    const TIOCSETD: u32 = 0x5423;
    let requests = [TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD];
    let rules = requests.map(|request| vec![is(1, request)]);
    deny(table, libc::SYS_ioctl, libc::EPERM, rules.into());
    // Execution domains other than Linux's own, but for 32 bits, without address randomisation, and the question which it is.
    let harmless = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];
    let other = harmless.map(|persona| is_not(0, persona));
    deny(
        table,
        libc::SYS_personality,
        libc::EPERM,
        vec![other.into()],
    );
    leave_process_one_alone(table);
    if writable_binds {
        no_set_id_files(table);
    }
}

/// Process 1 may have the same user id as a command, which would let that starve it or have the kernel kill it. It has one thread,
/// leads its own process group, and both have the number 1.
fn leave_process_one_alone(table: &mut Table) {
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
    ] {
        deny(table, call, libc::EPERM, vec![vec![is(0, 1)]]);
    }
    // By process, by group, and all of a user at once. The kinds are counted from 0 in one call and from 1 in the other.
    for (call, process) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
        let rules = vec![
            vec![is(0, process), is(1, 1)],
            vec![is(0, process + 1), is(1, 1)],
            vec![is(0, process + 2)],
        ];
        deny(table, call, libc::EPERM, rules);
    }
}

/// A sandbox that writes into a directory of the host must not leave a program there that gives somebody else its rights.
fn no_set_id_files(table: &mut Table) {
    const SET_ID: u32 = 0o6000;
    // Only then the mode means anything: with O_CREAT, or the bit of O_TMPFILE that is its own.
    const CREATES: u32 = 0o100 | 0o20000000;
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
        deny(table, call, libc::EPERM, vec![vec![has_any(mode, SET_ID)]]);
    }
    for (call, flags) in creations {
        let rule = vec![has_any(flags, CREATES), has_any(flags + 1, SET_ID)];
        deny(table, call, libc::EPERM, vec![rule]);
    }
}

const SYS_FCHMODAT2: i64 = 452;

fn absent(table: &mut Table, writable_binds: bool) {
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
        deny(table, call, libc::ENOSYS, vec![vec![]]);
    }
    #[cfg(target_arch = "x86_64")]
    for call in [
        libc::SYS_uselib,
        libc::SYS_ustat,
        libc::SYS_sysfs,
        libc::SYS__sysctl,
    ] {
        deny(table, call, libc::ENOSYS, vec![vec![]]);
    }
    if writable_binds {
        // Its mode is in memory too.
        deny(table, libc::SYS_openat2, libc::ENOSYS, vec![vec![]]);
    }
}

/// Local, internet and routing sockets only. Others reach past the network namespace (vsock) or are little-tested kernel code.
fn socket_families(table: &mut Table) {
    let families = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
    ];
    let other_family = families.map(|family| is_not(0, family as u32)).into();
    let other_netlink = vec![
        is(0, libc::AF_NETLINK as u32),
        is_not(2, libc::NETLINK_ROUTE as u32),
    ];
    deny(
        table,
        libc::SYS_socket,
        libc::EAFNOSUPPORT,
        vec![other_family, other_netlink],
    );
    let not_local = vec![is_not(0, libc::AF_UNIX as u32)];
    deny(
        table,
        libc::SYS_socketpair,
        libc::EAFNOSUPPORT,
        vec![not_local],
    );
}

/// Adds rules for a call: for each list, the answer if all its conditions hold.
fn deny(table: &mut Table, call: i64, errno: i32, rules: Vec<Vec<Condition>>) {
    let rules = rules
        .into_iter()
        .map(|conditions| Rule { conditions, errno });
    table.entry(call as u32).or_default().extend(rules);
}

fn is(argument: u8, value: u32) -> Condition {
    Condition {
        argument,
        test: Test::Is(value),
    }
}

fn is_not(argument: u8, value: u32) -> Condition {
    Condition {
        argument,
        test: Test::IsNot(value),
    }
}

fn has_any(argument: u8, bits: u32) -> Condition {
    Condition {
        argument,
        test: Test::HasAny(bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's machine, as far as these programs use it; panics where the kernel would refuse the program.
    fn run(program: &[Instruction], architecture: u32, call: u32, arguments: [u64; 6]) -> u32 {
        let (mut at, mut loaded) = (0, 0u32);
        loop {
            let i = program[at];
            at += 1;
            let mut jump = |holds: bool| at += usize::from(if holds { i.yes } else { i.no });
            match i.code {
                LOAD => {
                    loaded = match i.value {
                        NUMBER_AT => call,
                        ARCHITECTURE_AT => architecture,
                        place => {
                            assert!(place >= ARGUMENTS_AT && place % 8 == 0 && place < 64);
                            arguments[((place - ARGUMENTS_AT) / 8) as usize] as u32
                        }
                    }
                }
                JUMP => at += i.value as usize,
                IF_EQUAL => jump(loaded == i.value),
                IF_GREATER => jump(loaded > i.value),
                IF_NOT_LESS => jump(loaded >= i.value),
                IF_ANY_BIT => jump(loaded & i.value != 0),
                ANSWER => return i.value,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    /// What the table says, read directly.
    fn expected(table: &Table, call: u32, arguments: [u64; 6]) -> u32 {
        if call > LAST_KNOWN {
            return ERRNO | libc::ENOSYS as u32;
        }
        let holds = |condition: &Condition| {
            let value = arguments[usize::from(condition.argument)] as u32;
            match condition.test {
                Test::Is(wanted) => value == wanted,
                Test::IsNot(unwanted) => value != unwanted,
                Test::HasAny(bits) => value & bits != 0,
            }
        };
        let rules = table.get(&call).map_or(&[][..], Vec::as_slice);
        let matching = rules.iter().find(|rule| rule.conditions.iter().all(holds));
        matching.map_or(ALLOW, |rule| ERRNO | rule.errno as u32)
    }

    #[test]
    fn the_program_says_what_the_table_says() {
        // Values that some condition asks about, and neighbours.
        let values = [
            0,
            1,
            2,
            8,
            0o100,
            0o644,
            0o4755,
            0o2755,
            0o20000100,
            10,
            16,
            17,
            40,
            0x80,
            0x11,
            0x1000_0011,
            0x5412,
            0x1_0000_5412,
            0x5413,
            0xffff_ffff,
            u64::MAX,
        ];
        for writable in [false, true] {
            let table = table(writable);
            let program = compile(&table);
            assert!(program.len() <= 4096, "{} instructions", program.len());
            for call in (0..LAST_KNOWN + 50).chain([0x4000_0000, 0x4000_0027, u32::MAX]) {
                for (index, value) in values.iter().enumerate() {
                    let other = values[(index * 7 + 3) % values.len()];
                    for arguments in [
                        [*value; 6],
                        [*value, other, 0, other, 0, 0],
                        [16, other, *value, *value, 0, 0],
                    ] {
                        assert_eq!(
                            run(&program, ARCHITECTURE, call, arguments),
                            expected(&table, call, arguments),
                            "call {call} with {arguments:x?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_best_known_doors_are_shut_and_ordinary_calls_pass() {
        let program = compile(&table(false));
        let answer =
            |call: i64, arguments: [u64; 6]| run(&program, ARCHITECTURE, call as u32, arguments);
        let errno = |errno: i32| ERRNO | errno as u32;
        assert_eq!(answer(libc::SYS_read, [0; 6]), ALLOW);
        assert_eq!(answer(libc::SYS_clone, [0x11, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            answer(libc::SYS_clone, [0x1000_0011, 0, 0, 0, 0, 0]),
            errno(libc::EPERM)
        );
        assert_eq!(answer(libc::SYS_clone3, [0; 6]), errno(libc::ENOSYS));
        assert_eq!(
            answer(libc::SYS_ioctl, [0, 0x1_0000_5412, 0, 0, 0, 0]),
            errno(libc::EPERM)
        );
        assert_eq!(answer(libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            answer(libc::SYS_socket, [40, 1, 0, 0, 0, 0]),
            errno(libc::EAFNOSUPPORT)
        );
        assert_eq!(answer(libc::SYS_socket, [16, 3, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            answer(libc::SYS_socket, [16, 3, 9, 0, 0, 0]),
            errno(libc::EAFNOSUPPORT)
        );
        for call in [
            libc::SYS_prlimit64,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setattr,
        ] {
            assert_eq!(answer(call, [1, 0, 0, 0, 0, 0]), errno(libc::EPERM));
            assert_eq!(
                answer(call, [0x1_0000_0001, 0, 0, 0, 0, 0]),
                errno(libc::EPERM)
            );
            assert_eq!(answer(call, [0; 6]), ALLOW);
        }
        for (call, process) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
            for kind in process..process + 3 {
                assert_eq!(answer(call, [kind, 1, 0, 0, 0, 0]), errno(libc::EPERM));
            }
            assert_eq!(answer(call, [process, 0, 0, 0, 0, 0]), ALLOW);
            assert_eq!(
                answer(call, [process + 2, 0, 0, 0, 0, 0]),
                errno(libc::EPERM)
            );
        }
        assert_eq!(
            run(&program, 0x4000_0003, 20, [0; 6]),
            KILL_PROCESS,
            "a foreign architecture"
        );
    }
}
