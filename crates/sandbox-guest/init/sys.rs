//! Linux system calls, raw: no C library is between the guest and the kernel.
//!
//! Reasons: the monitor of a command shares its memory with PID 1 and must touch neither `errno` nor any lock; credentials are
//! changed for one thread only; and the ABI of the kernel is the same wherever the guest runs.
#![allow(unsafe_code)]
// Each build uses its own part: the set-up is not needed where an engine has made the sandbox.
#![allow(dead_code)]

use std::arch::asm;
use std::ffi::CStr;
use std::fmt;

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "errno {} ({})",
            self.0,
            std::io::Error::from_raw_os_error(self.0)
        )
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

pub(crate) type Sys<T> = Result<T, Errno>;

pub(crate) type Fd = i32;

macro_rules! errnos {
    ($($name:ident = $value:literal),* $(,)?) => { $(pub(crate) const $name: Errno = Errno($value);)* };
}

errnos! {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, ENOEXEC = 8, EBADF = 9, ECHILD = 10, EAGAIN = 11, ENOMEM = 12,
    EACCES = 13, EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24,
    ENOTTY = 25, ETXTBSY = 26, ENOSPC = 28, EROFS = 30, EMLINK = 31, EPIPE = 32, ERANGE = 34, ENAMETOOLONG = 36, ENOSYS = 38,
    ENOTEMPTY = 39, ELOOP = 40, EOVERFLOW = 75, EUSERS = 87, EOPNOTSUPP = 95, EAFNOSUPPORT = 97, ECONNRESET = 104, ETIMEDOUT = 110,
    ECONNREFUSED = 111, EINPROGRESS = 115,
}

/// Numbers of the system calls.
#[cfg(target_arch = "x86_64")]
pub(crate) mod nr {
    macro_rules! numbers {
        ($($name:ident = $value:literal),* $(,)?) => { $(pub(crate) const $name: usize = $value;)* };
    }
    numbers! {
        READ = 0, WRITE = 1, CLOSE = 3, LSEEK = 8, MMAP = 9, MUNMAP = 11, RT_SIGACTION = 13, RT_SIGPROCMASK = 14, IOCTL = 16,
        PREAD64 = 17, DUP = 32, GETPID = 39, SOCKET = 41, CONNECT = 42, SENDMSG = 46, RECVMSG = 47, BIND = 49, LISTEN = 50,
        SOCKETPAIR = 53, SETSOCKOPT = 54, GETSOCKOPT = 55, CLONE = 56, EXECVE = 59, EXIT = 60, WAIT4 = 61, KILL = 62, FCNTL = 72,
        FTRUNCATE = 77, GETCWD = 79, CHDIR = 80, FCHDIR = 81, FCHMOD = 91, FCHOWN = 93, UMASK = 95, GETUID = 102, GETGID = 104,
        GETEUID = 107, GETEGID = 108, SETSID = 112, SETGROUPS = 116, SETRESUID = 117, SETRESGID = 119, CAPGET = 125, CAPSET = 126,
        PIVOT_ROOT = 155, PRCTL = 157, CHROOT = 161, SYNC = 162, MOUNT = 165, UMOUNT2 = 166, SETHOSTNAME = 170, GETDENTS64 = 217,
        EPOLL_CTL = 233, WAITID = 247, KEYCTL = 250, OPENAT = 257, MKDIRAT = 258, MKNODAT = 259, FCHOWNAT = 260, UNLINKAT = 263,
        LINKAT = 265, SYMLINKAT = 266, READLINKAT = 267, FCHMODAT = 268, PPOLL = 271, UNSHARE = 272, EPOLL_PWAIT = 281,
        ACCEPT4 = 288, SIGNALFD4 = 289, EVENTFD2 = 290, EPOLL_CREATE1 = 291, DUP3 = 292, PIPE2 = 293, PRLIMIT64 = 302, SETNS = 308,
        RENAMEAT2 = 316, SECCOMP = 317, GETRANDOM = 318, STATX = 332, PIDFD_SEND_SIGNAL = 424, OPEN_TREE = 428, MOVE_MOUNT = 429,
        FSOPEN = 430, FSCONFIG = 431, FSMOUNT = 432, PIDFD_OPEN = 434, CLONE3 = 435, CLOSE_RANGE = 436, OPENAT2 = 437,
        PIDFD_GETFD = 438, FACCESSAT2 = 439, MOUNT_SETATTR = 442, LANDLOCK_CREATE_RULESET = 444, LANDLOCK_ADD_RULE = 445,
        LANDLOCK_RESTRICT_SELF = 446, CLOCK_GETTIME = 228, EXIT_GROUP = 231, UTIMENSAT = 280, STATFS = 137, FSTATFS = 138,
        FSYNC = 74, FLOCK = 73, SHUTDOWN = 48, SETFSUID = 122,
        SETFSGID = 123, SCHED_SETSCHEDULER = 144, SCHED_GETSCHEDULER = 145,
    }
}

/// Numbers of the system calls.
#[cfg(target_arch = "aarch64")]
pub(crate) mod nr {
    macro_rules! numbers {
        ($($name:ident = $value:literal),* $(,)?) => { $(pub(crate) const $name: usize = $value;)* };
    }
    numbers! {
        READ = 63, WRITE = 64, CLOSE = 57, LSEEK = 62, MMAP = 222, MUNMAP = 215, RT_SIGACTION = 134, RT_SIGPROCMASK = 135,
        IOCTL = 29, PREAD64 = 67, DUP = 23, GETPID = 172, SOCKET = 198, CONNECT = 203, SENDMSG = 211, RECVMSG = 212, BIND = 200,
        LISTEN = 201, SOCKETPAIR = 199, SETSOCKOPT = 208, GETSOCKOPT = 209, CLONE = 220, EXECVE = 221, EXIT = 93, WAIT4 = 260,
        KILL = 129, FCNTL = 25, FTRUNCATE = 46, GETCWD = 17, CHDIR = 49, FCHDIR = 50, FCHMOD = 52, FCHOWN = 55, UMASK = 166,
        GETUID = 174, GETGID = 176, GETEUID = 175, GETEGID = 177, SETSID = 157, SETGROUPS = 159, SETRESUID = 147, SETRESGID = 149,
        CAPGET = 90, CAPSET = 91, PIVOT_ROOT = 41, PRCTL = 167, CHROOT = 51, SYNC = 81, MOUNT = 40, UMOUNT2 = 39,
        SETHOSTNAME = 161, GETDENTS64 = 61, EPOLL_CTL = 21, WAITID = 95, KEYCTL = 219, OPENAT = 56, MKDIRAT = 34, MKNODAT = 33,
        FCHOWNAT = 54, UNLINKAT = 35, LINKAT = 37, SYMLINKAT = 36, READLINKAT = 78, FCHMODAT = 53, PPOLL = 73, UNSHARE = 97,
        EPOLL_PWAIT = 22, ACCEPT4 = 242, SIGNALFD4 = 74, EVENTFD2 = 19, EPOLL_CREATE1 = 20, DUP3 = 24, PIPE2 = 59, PRLIMIT64 = 261,
        SETNS = 268, RENAMEAT2 = 276, SECCOMP = 277, GETRANDOM = 278, STATX = 291, PIDFD_SEND_SIGNAL = 424, OPEN_TREE = 428,
        MOVE_MOUNT = 429, FSOPEN = 430, FSCONFIG = 431, FSMOUNT = 432, PIDFD_OPEN = 434, CLONE3 = 435, CLOSE_RANGE = 436,
        OPENAT2 = 437, PIDFD_GETFD = 438, FACCESSAT2 = 439, MOUNT_SETATTR = 442, LANDLOCK_CREATE_RULESET = 444,
        LANDLOCK_ADD_RULE = 445, LANDLOCK_RESTRICT_SELF = 446, CLOCK_GETTIME = 113, EXIT_GROUP = 94, UTIMENSAT = 88, STATFS = 43,
        FSTATFS = 44, FSYNC = 82, FLOCK = 32, SHUTDOWN = 210, SETFSUID = 151, SETFSGID = 152,
        SCHED_SETSCHEDULER = 119, SCHED_GETSCHEDULER = 120,
    }
}

/// One system call with up to six arguments; the kernel's answer as it is.
///
/// # Safety
/// The arguments must be what that call expects: pointers valid for what the kernel reads and writes through them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn raw(n: usize, a: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the `syscall` instruction clobbers rcx and r11 and writes rax; memory effects are the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => answer, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// One system call with up to six arguments; the kernel's answer as it is.
///
/// # Safety
/// The arguments must be what that call expects: pointers valid for what the kernel reads and writes through them.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) unsafe fn raw(n: usize, a: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: `svc` writes x0 only; memory effects are the caller's promise.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => answer, in("x1") a[1], in("x2") a[2], in("x3") a[3],
            in("x4") a[4], in("x5") a[5], options(nostack));
    }
    answer
}

/// One system call, its negative answers as errors.
///
/// # Safety
/// As [`raw`].
#[inline(always)]
pub(crate) unsafe fn call(n: usize, a: [usize; 6]) -> Sys<usize> {
    // SAFETY: the caller's promise is passed on.
    let answer = unsafe { raw(n, a) };
    if (-4095..0).contains(&answer) {
        Err(Errno(-answer as i32))
    } else {
        Ok(answer as usize)
    }
}

/// `clone` with its own stack: the child runs `function(argument)` and never returns.
///
/// # Safety
/// `stack_top` must be 16-byte aligned and the end of memory that is the child's alone for as long as it runs. With `CLONE_VM` the
/// function must be written for shared memory: no allocation, no locks, no thread-local state.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn clone_onto(
    flags: usize,
    stack_top: *mut u8,
    function: unsafe extern "C" fn(*mut u8) -> !,
    argument: *mut u8,
) -> Sys<i32> {
    let answer: isize;
    // SAFETY: in the parent this is a plain system call. The child starts on its own stack with the function and its argument in
    // registers that the kernel preserves, and never comes back to this frame.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
            inlateout("rax") nr::CLONE as isize => answer, in("rdi") flags, in("rsi") stack_top, in("rdx") 0, in("r10") 0,
            in("r8") 0, in("r12") argument, in("r13") function, lateout("rcx") _, lateout("r11") _);
    }
    if answer < 0 {
        Err(Errno(-answer as i32))
    } else {
        Ok(answer as i32)
    }
}

/// `clone` with its own stack: the child runs `function(argument)` and never returns.
///
/// # Safety
/// `stack_top` must be 16-byte aligned and the end of memory that is the child's alone for as long as it runs. With `CLONE_VM` the
/// function must be written for shared memory: no allocation, no locks, no thread-local state.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn clone_onto(
    flags: usize,
    stack_top: *mut u8,
    function: unsafe extern "C" fn(*mut u8) -> !,
    argument: *mut u8,
) -> Sys<i32> {
    let answer: isize;
    // SAFETY: as on x86_64.
    unsafe {
        asm!("svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, x20", "blr x21", "brk 1", "2:", in("x8") nr::CLONE,
            inlateout("x0") flags as isize => answer, in("x1") stack_top, in("x2") 0, in("x3") 0, in("x4") 0,
            in("x20") argument, in("x21") function, lateout("x30") _);
    }
    if answer < 0 {
        Err(Errno(-answer as i32))
    } else {
        Ok(answer as i32)
    }
}

// --- files

pub(crate) const AT_FDCWD: Fd = -100;
pub(crate) const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
pub(crate) const AT_REMOVEDIR: u32 = 0x200;
pub(crate) const AT_EACCESS: u32 = 0x200;
pub(crate) const AT_EMPTY_PATH: u32 = 0x1000;
pub(crate) const AT_RECURSIVE: u32 = 0x8000;

pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_WRONLY: u32 = 1;
pub(crate) const O_RDWR: u32 = 2;
pub(crate) const O_CREAT: u32 = 0o100;
pub(crate) const O_EXCL: u32 = 0o200;
pub(crate) const O_NOCTTY: u32 = 0o400;
pub(crate) const O_TRUNC: u32 = 0o1000;
pub(crate) const O_NONBLOCK: u32 = 0o4000;
pub(crate) const O_CLOEXEC: u32 = 0o2000000;
pub(crate) const O_PATH: u32 = 0o10000000;
#[cfg(target_arch = "x86_64")]
pub(crate) const O_DIRECTORY: u32 = 0o200000;
#[cfg(target_arch = "x86_64")]
pub(crate) const O_NOFOLLOW: u32 = 0o400000;
#[cfg(target_arch = "aarch64")]
pub(crate) const O_DIRECTORY: u32 = 0o40000;
#[cfg(target_arch = "aarch64")]
pub(crate) const O_NOFOLLOW: u32 = 0o100000;

pub(crate) const S_IFMT: u32 = 0o170000;
pub(crate) const S_IFIFO: u32 = 0o010000;
pub(crate) const S_IFCHR: u32 = 0o020000;
pub(crate) const S_IFDIR: u32 = 0o040000;
pub(crate) const S_IFBLK: u32 = 0o060000;
pub(crate) const S_IFREG: u32 = 0o100000;
pub(crate) const S_IFLNK: u32 = 0o120000;
pub(crate) const S_IFSOCK: u32 = 0o140000;

pub(crate) const RESOLVE_NO_XDEV: u64 = 0x01;
pub(crate) const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
pub(crate) const RESOLVE_NO_SYMLINKS: u64 = 0x04;
pub(crate) const RESOLVE_BENEATH: u64 = 0x08;
pub(crate) const RESOLVE_IN_ROOT: u64 = 0x10;

/// A descriptor that is closed when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnedFd(Fd);

impl OwnedFd {
    /// Takes ownership of an open descriptor.
    pub(crate) fn new(fd: Fd) -> Self {
        OwnedFd(fd)
    }

    pub(crate) fn raw(&self) -> Fd {
        self.0
    }

    pub(crate) fn into_raw(self) -> Fd {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        // An error of close means that the descriptor is gone all the same.
        let _ = close(self.0);
    }
}

fn owned(answer: Sys<usize>) -> Sys<OwnedFd> {
    answer.map(|fd| OwnedFd(fd as Fd))
}

pub(crate) fn close(fd: Fd) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe { call(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]).map(drop) }
}

pub(crate) fn close_range(first: u32, last: u32, flags: u32) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe {
        call(
            nr::CLOSE_RANGE,
            [first as usize, last as usize, flags as usize, 0, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn openat(dir: Fd, path: &CStr, flags: u32, mode: u32) -> Sys<OwnedFd> {
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    unsafe {
        owned(call(
            nr::OPENAT,
            [
                dir as usize,
                path.as_ptr() as usize,
                (flags | O_CLOEXEC) as usize,
                mode as usize,
                0,
                0,
            ],
        ))
    }
}

pub(crate) fn openat2(dir: Fd, path: &CStr, flags: u32, mode: u32, resolve: u64) -> Sys<OwnedFd> {
    let how = [u64::from(flags | O_CLOEXEC), u64::from(mode), resolve];
    let mut tries = 0;
    loop {
        // SAFETY: the path is NUL-terminated and `how` is the kernel's 24-byte struct; both outlive the call.
        let answer = unsafe {
            owned(call(
                nr::OPENAT2,
                [
                    dir as usize,
                    path.as_ptr() as usize,
                    how.as_ptr() as usize,
                    size_of_val(&how),
                    0,
                    0,
                ],
            ))
        };
        match answer {
            Err(EINTR) => {}
            // Somebody renamed a component meanwhile, and the kernel asks to try again. Bounded: for a non-blocking open the same
            // error means that somebody holds a lease on the file, which lasts.
            Err(EAGAIN) if resolve & (RESOLVE_BENEATH | RESOLVE_IN_ROOT) != 0 && tries < 64 => {
                tries += 1
            }
            other => return other,
        }
    }
}

pub(crate) fn read(fd: Fd, buffer: &mut [u8]) -> Sys<usize> {
    loop {
        // SAFETY: the buffer is writable for its length.
        match unsafe {
            call(
                nr::READ,
                [
                    fd as usize,
                    buffer.as_mut_ptr() as usize,
                    buffer.len(),
                    0,
                    0,
                    0,
                ],
            )
        } {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

pub(crate) fn write(fd: Fd, buffer: &[u8]) -> Sys<usize> {
    loop {
        // SAFETY: the buffer is readable for its length.
        match unsafe {
            call(
                nr::WRITE,
                [fd as usize, buffer.as_ptr() as usize, buffer.len(), 0, 0, 0],
            )
        } {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

pub(crate) fn write_all(fd: Fd, mut buffer: &[u8]) -> Sys<()> {
    while !buffer.is_empty() {
        match write(fd, buffer)? {
            0 => return Err(EIO),
            n => buffer = &buffer[n..],
        }
    }
    Ok(())
}

pub(crate) fn ftruncate(fd: Fd, length: u64) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe { call(nr::FTRUNCATE, [fd as usize, length as usize, 0, 0, 0, 0]).map(drop) }
}

pub(crate) fn mkdirat(dir: Fd, path: &CStr, mode: u32) -> Sys<()> {
    // SAFETY: the path is NUL-terminated.
    unsafe {
        call(
            nr::MKDIRAT,
            [dir as usize, path.as_ptr() as usize, mode as usize, 0, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn mknodat(dir: Fd, path: &CStr, mode: u32, device: u64) -> Sys<()> {
    let arguments = [
        dir as usize,
        path.as_ptr() as usize,
        mode as usize,
        device as usize,
        0,
        0,
    ];
    // SAFETY: the path is NUL-terminated.
    unsafe { call(nr::MKNODAT, arguments).map(drop) }
}

pub(crate) fn unlinkat(dir: Fd, path: &CStr, flags: u32) -> Sys<()> {
    // SAFETY: the path is NUL-terminated.
    unsafe {
        call(
            nr::UNLINKAT,
            [
                dir as usize,
                path.as_ptr() as usize,
                flags as usize,
                0,
                0,
                0,
            ],
        )
        .map(drop)
    }
}

pub(crate) fn renameat2(from: Fd, old: &CStr, to: Fd, new: &CStr, flags: u32) -> Sys<()> {
    let arguments = [
        from as usize,
        old.as_ptr() as usize,
        to as usize,
        new.as_ptr() as usize,
        flags as usize,
        0,
    ];
    // SAFETY: both paths are NUL-terminated.
    unsafe { call(nr::RENAMEAT2, arguments).map(drop) }
}

pub(crate) fn linkat(from: Fd, old: &CStr, to: Fd, new: &CStr, flags: u32) -> Sys<()> {
    let arguments = [
        from as usize,
        old.as_ptr() as usize,
        to as usize,
        new.as_ptr() as usize,
        flags as usize,
        0,
    ];
    // SAFETY: both paths are NUL-terminated.
    unsafe { call(nr::LINKAT, arguments).map(drop) }
}

pub(crate) fn symlinkat(target: &CStr, dir: Fd, path: &CStr) -> Sys<()> {
    // SAFETY: both strings are NUL-terminated.
    unsafe {
        call(
            nr::SYMLINKAT,
            [
                target.as_ptr() as usize,
                dir as usize,
                path.as_ptr() as usize,
                0,
                0,
                0,
            ],
        )
        .map(drop)
    }
}

pub(crate) fn readlinkat(dir: Fd, path: &CStr) -> Sys<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    let arguments = [
        dir as usize,
        path.as_ptr() as usize,
        buffer.as_mut_ptr() as usize,
        buffer.len(),
        0,
        0,
    ];
    // SAFETY: the path is NUL-terminated, the buffer writable for its length.
    let length = unsafe { call(nr::READLINKAT, arguments)? };
    buffer.truncate(length);
    Ok(buffer)
}

pub(crate) fn fchmod(fd: Fd, mode: u32) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe { call(nr::FCHMOD, [fd as usize, mode as usize, 0, 0, 0, 0]).map(drop) }
}

pub(crate) fn fchmodat(dir: Fd, path: &CStr, mode: u32) -> Sys<()> {
    // SAFETY: the path is NUL-terminated.
    unsafe {
        call(
            nr::FCHMODAT,
            [dir as usize, path.as_ptr() as usize, mode as usize, 0, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn fchown(fd: Fd, uid: u32, gid: u32) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe {
        call(
            nr::FCHOWN,
            [fd as usize, uid as usize, gid as usize, 0, 0, 0],
        )
        .map(drop)
    }
}

/// Whether the effective user may do `mode` (4 read, 2 write, 1 execute) with what the descriptor names.
pub(crate) fn access_fd(fd: Fd, mode: u32) -> Sys<()> {
    let flags = (AT_EACCESS | AT_EMPTY_PATH) as usize;
    // SAFETY: the empty path is NUL-terminated.
    unsafe {
        call(
            nr::FACCESSAT2,
            [
                fd as usize,
                c"".as_ptr() as usize,
                mode as usize,
                flags,
                0,
                0,
            ],
        )
        .map(drop)
    }
}

/// What `statx` says of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) device: (u32, u32),
    pub(crate) special: (u32, u32),
    pub(crate) mount: u64,
    /// When anything about it last changed: seconds and nanoseconds. Nobody can set it back.
    pub(crate) changed: (u64, u32),
}

impl Stat {
    pub(crate) fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
}

pub(crate) fn statx(dir: Fd, path: &CStr, flags: u32) -> Sys<Stat> {
    const BASIC_AND_MOUNT: usize = 0x17ff;
    let mut buffer = [0u64; 32];
    let arguments = [
        dir as usize,
        path.as_ptr() as usize,
        flags as usize,
        BASIC_AND_MOUNT,
        buffer.as_mut_ptr() as usize,
        0,
    ];
    // SAFETY: the path is NUL-terminated and the buffer has the 256 bytes of the kernel's struct.
    unsafe { call(nr::STATX, arguments)? };
    let word = |at: usize| {
        let value = buffer[at / 8];
        (if at.is_multiple_of(8) {
            value
        } else {
            value >> 32
        }) as u32
    };
    Ok(Stat {
        mode: word(28) & 0xffff,
        links: word(16),
        uid: word(20),
        gid: word(24),
        inode: buffer[4],
        size: buffer[5],
        special: (word(128), word(132)),
        device: (word(136), word(140)),
        mount: buffer[18],
        changed: (buffer[12], word(104)),
    })
}

pub(crate) fn fstat(fd: Fd) -> Sys<Stat> {
    statx(fd, c"", AT_EMPTY_PATH)
}

/// One entry of a directory: its name and the kernel's `d_type`.
pub(crate) struct Dirent {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: u8,
}

/// The entries of an open directory without `.` and `..`, in the kernel's order.
pub(crate) fn read_dir(fd: Fd, mut each: impl FnMut(Dirent)) -> Sys<()> {
    let mut buffer = vec![0u64; 4096];
    loop {
        // SAFETY: the buffer is writable for its length and aligned for the kernel's records.
        let length = unsafe {
            call(
                nr::GETDENTS64,
                [
                    fd as usize,
                    buffer.as_mut_ptr() as usize,
                    buffer.len() * 8,
                    0,
                    0,
                    0,
                ],
            )?
        };
        if length == 0 {
            return Ok(());
        }
        let bytes: Vec<u8> = buffer[..length.div_ceil(8)]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let mut at = 0;
        while at + 19 <= length {
            let size = usize::from(u16::from_ne_bytes([bytes[at + 16], bytes[at + 17]]));
            let record = &bytes[at..at + size];
            let name = record[19..].split(|b| *b == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                each(Dirent {
                    name: name.to_vec(),
                    kind: record[18],
                });
            }
            at += size;
        }
    }
}

pub(crate) fn set_nonblocking(fd: Fd) -> Sys<()> {
    const F_GETFL: usize = 3;
    const F_SETFL: usize = 4;
    // SAFETY: no pointers.
    unsafe {
        let flags = call(nr::FCNTL, [fd as usize, F_GETFL, 0, 0, 0, 0])?;
        call(
            nr::FCNTL,
            [fd as usize, F_SETFL, flags | O_NONBLOCK as usize, 0, 0, 0],
        )
        .map(drop)
    }
}

/// Duplicates a descriptor to the lowest number from `least` on.
pub(crate) fn dup_from(fd: Fd, least: u32) -> Sys<OwnedFd> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    // SAFETY: no pointers.
    unsafe {
        owned(call(
            nr::FCNTL,
            [fd as usize, F_DUPFD_CLOEXEC, least as usize, 0, 0, 0],
        ))
    }
}

/// Duplicates `fd` to exactly `to`, without close-on-exec.
pub(crate) fn dup_onto(fd: Fd, to: Fd) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe { call(nr::DUP3, [fd as usize, to as usize, 0, 0, 0, 0]).map(drop) }
}

/// A pipe: read end, write end.
pub(crate) fn pipe() -> Sys<(OwnedFd, OwnedFd)> {
    let mut ends = [0i32; 2];
    // SAFETY: the array has room for the two descriptors.
    unsafe {
        call(
            nr::PIPE2,
            [ends.as_mut_ptr() as usize, O_CLOEXEC as usize, 0, 0, 0, 0],
        )?
    };
    Ok((OwnedFd(ends[0]), OwnedFd(ends[1])))
}

/// An `ioctl` with a plain number.
pub(crate) fn ioctl(fd: Fd, request: u32, value: usize) -> Sys<usize> {
    // SAFETY: only used with requests whose argument is a number.
    unsafe { call(nr::IOCTL, [fd as usize, request as usize, value, 0, 0, 0]) }
}

/// An `ioctl` that reads or writes a struct.
pub(crate) fn ioctl_with<T>(fd: Fd, request: u32, value: &mut T) -> Sys<usize> {
    // SAFETY: only used with requests whose struct is `T`.
    unsafe {
        call(
            nr::IOCTL,
            [
                fd as usize,
                request as usize,
                std::ptr::from_mut(value) as usize,
                0,
                0,
                0,
            ],
        )
    }
}

/// How many bytes lie ready in a pipe.
pub(crate) fn bytes_ready(fd: Fd) -> u64 {
    const FIONREAD: u32 = 0x541b;
    let mut count = 0i32;
    match ioctl_with(fd, FIONREAD, &mut count) {
        Ok(_) => count.max(0) as u64,
        Err(_) => 0,
    }
}

pub(crate) fn random(buffer: &mut [u8]) -> Sys<()> {
    // SAFETY: the buffer is writable for its length.
    unsafe {
        call(
            nr::GETRANDOM,
            [buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0, 0],
        )
        .map(drop)
    }
}

/// The monotonic clock in milliseconds.
pub(crate) fn now_ms() -> u64 {
    let mut time = [0u64; 2];
    const CLOCK_MONOTONIC: usize = 1;
    // SAFETY: the array is the kernel's timespec.
    let _ = unsafe {
        call(
            nr::CLOCK_GETTIME,
            [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    time[0] * 1000 + time[1] / 1_000_000
}

// --- processes

pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGPIPE: i32 = 13;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGCHLD: i32 = 17;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGSTOP: i32 = 19;

pub(crate) const CLONE_VM: usize = 0x100;
pub(crate) const CLONE_FILES: usize = 0x400;
pub(crate) const CLONE_VFORK: usize = 0x4000;

pub(crate) const PR_SET_PDEATHSIG: usize = 1;
pub(crate) const PR_SET_DUMPABLE: usize = 4;
pub(crate) const PR_CAPBSET_DROP: usize = 24;
pub(crate) const PR_SET_CHILD_SUBREAPER: usize = 36;
pub(crate) const PR_SET_NO_NEW_PRIVS: usize = 38;

pub(crate) fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { raw(nr::GETPID, [0; 6]) as i32 }
}

pub(crate) fn kill(pid: i32, signal: i32) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe { call(nr::KILL, [pid as usize, signal as usize, 0, 0, 0, 0]).map(drop) }
}

pub(crate) fn prctl(option: usize, value: usize) -> Sys<usize> {
    // SAFETY: only used with options whose argument is a number.
    unsafe { call(nr::PRCTL, [option, value, 0, 0, 0, 0]) }
}

pub(crate) fn setsid() -> Sys<()> {
    // SAFETY: no arguments.
    unsafe { call(nr::SETSID, [0; 6]).map(drop) }
}

pub(crate) fn setresuid(uid: u32) -> Sys<()> {
    let id = uid as usize;
    // SAFETY: no pointers.
    unsafe { call(nr::SETRESUID, [id, id, id, 0, 0, 0]).map(drop) }
}

pub(crate) fn setresgid(gid: u32) -> Sys<()> {
    let id = gid as usize;
    // SAFETY: no pointers.
    unsafe { call(nr::SETRESGID, [id, id, id, 0, 0, 0]).map(drop) }
}

/// As whom this thread uses files: for any user but root the rights of root over files are put aside.
pub(crate) fn set_file_user(uid: u32, gid: u32, groups: &[u32]) -> Sys<()> {
    const NO_CHANGE: usize = u32::MAX as usize;
    setgroups(groups)?;
    // SAFETY: no pointers. These calls never fail but answer with the id before; a second one tells whether the first worked.
    unsafe {
        let _ = call(nr::SETFSGID, [gid as usize, 0, 0, 0, 0, 0]);
        let _ = call(nr::SETFSUID, [uid as usize, 0, 0, 0, 0, 0]);
        let now = (
            raw(nr::SETFSUID, [NO_CHANGE, 0, 0, 0, 0, 0]),
            raw(nr::SETFSGID, [NO_CHANGE, 0, 0, 0, 0, 0]),
        );
        if now == (uid as isize, gid as isize) {
            Ok(())
        } else {
            Err(EPERM)
        }
    }
}

pub(crate) fn setgroups(groups: &[u32]) -> Sys<()> {
    // SAFETY: the slice is readable for its length.
    unsafe {
        call(
            nr::SETGROUPS,
            [groups.len(), groups.as_ptr() as usize, 0, 0, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn umask(mask: u32) {
    // SAFETY: no pointers; never fails.
    let _ = unsafe { raw(nr::UMASK, [mask as usize, 0, 0, 0, 0, 0]) };
}

pub(crate) fn chdir(path: &CStr) -> Sys<()> {
    // SAFETY: the path is NUL-terminated.
    unsafe { call(nr::CHDIR, [path.as_ptr() as usize, 0, 0, 0, 0, 0]).map(drop) }
}

pub(crate) fn fchdir(fd: Fd) -> Sys<()> {
    // SAFETY: no pointers.
    unsafe { call(nr::FCHDIR, [fd as usize, 0, 0, 0, 0, 0]).map(drop) }
}

/// Whether the current directory lies below the root: the kernel's answer begins with "(unreachable)" otherwise.
pub(crate) fn check_cwd() -> Sys<()> {
    let mut here = [0u8; 8];
    // SAFETY: the buffer is writable for its length. For a longer path the answer is ERANGE, before or after which nothing is
    // written; such a path is tried again with room for any.
    match unsafe {
        call(
            nr::GETCWD,
            [here.as_mut_ptr() as usize, here.len(), 0, 0, 0, 0],
        )
    } {
        Ok(_) if here[0] == b'/' => Ok(()),
        Ok(_) => Err(ENOENT),
        Err(ERANGE) => {
            let mut here = [0u8; 4096];
            // SAFETY: the buffer is writable for its length.
            match unsafe {
                call(
                    nr::GETCWD,
                    [here.as_mut_ptr() as usize, here.len(), 0, 0, 0, 0],
                )
            } {
                Ok(_) if here[0] != b'/' => Err(ENOENT),
                _ => Ok(()),
            }
        }
        Err(error) => Err(error),
    }
}

/// Becomes another program; returns only if that failed.
///
/// # Safety
/// Both arrays must end with a null pointer and point to NUL-terminated strings.
pub(crate) unsafe fn execve(
    program: &CStr,
    argv: *const *const u8,
    env: *const *const u8,
) -> Errno {
    // SAFETY: the caller's promise; the path is NUL-terminated.
    let answer = unsafe {
        raw(
            nr::EXECVE,
            [
                program.as_ptr() as usize,
                argv as usize,
                env as usize,
                0,
                0,
                0,
            ],
        )
    };
    Errno(-answer as i32)
}

/// Sets the signal mask of this thread; bit n-1 blocks signal n.
pub(crate) fn set_signal_mask(mask: u64) -> Sys<()> {
    const SIG_SETMASK: usize = 2;
    // SAFETY: the mask is the kernel's 8-byte set.
    unsafe {
        call(
            nr::RT_SIGPROCMASK,
            [SIG_SETMASK, std::ptr::from_ref(&mask) as usize, 0, 8, 0, 0],
        )
        .map(drop)
    }
}

/// Gives a signal its default action (`false`) or ignores it (`true`).
pub(crate) fn ignore_signal(signal: i32, ignore: bool) -> Sys<()> {
    // The kernel's sigaction: handler, flags, restorer, mask; SIG_DFL is 0 and SIG_IGN is 1.
    let action = [usize::from(ignore), 0, 0, 0];
    // SAFETY: the array is the kernel's struct; no handler runs.
    unsafe {
        call(
            nr::RT_SIGACTION,
            [signal as usize, action.as_ptr() as usize, 0, 8, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn exit(code: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { raw(nr::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

pub(crate) const WNOHANG: usize = 1;
pub(crate) const WUNTRACED: usize = 2;

/// What `wait4` says: the wait status, and from its rusage CPU times in microseconds and the peak resident set in KiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waited {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) peak_kib: u64,
}

pub(crate) fn wait4(pid: i32, options: usize) -> Sys<Waited> {
    let mut status = 0i32;
    let mut usage = [0u64; 18];
    let arguments = [
        pid as usize,
        std::ptr::from_mut(&mut status) as usize,
        options,
        usage.as_mut_ptr() as usize,
        0,
        0,
    ];
    loop {
        // SAFETY: status and the 144-byte rusage are writable.
        match unsafe { call(nr::WAIT4, arguments) } {
            Err(EINTR) => {}
            Err(error) => return Err(error),
            Ok(pid) => {
                return Ok(Waited {
                    pid: pid as i32,
                    status,
                    user_us: usage[0].wrapping_mul(1_000_000).wrapping_add(usage[1]),
                    system_us: usage[2].wrapping_mul(1_000_000).wrapping_add(usage[3]),
                    peak_kib: usage[4],
                });
            }
        }
    }
}

/// The next child of this process that has ended, left to be waited for; waits until there is one.
pub(crate) fn peek_ended_child() -> Sys<Waited> {
    const WEXITED: usize = 4;
    const WNOWAIT: usize = 0x0100_0000;
    const CLD_EXITED: i32 = 1;
    // The kernel's siginfo: the code is its third number, process and status the fifth and seventh.
    let mut info = [0i32; 32];
    let mut usage = [0u64; 18];
    let arguments = [
        0,
        0,
        info.as_mut_ptr() as usize,
        WEXITED | WNOWAIT,
        usage.as_mut_ptr() as usize,
        0,
    ];
    loop {
        // SAFETY: the 128-byte siginfo and the 144-byte rusage are writable.
        match unsafe { call(nr::WAITID, arguments) } {
            Err(EINTR) => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    let status = if info[2] == CLD_EXITED {
        (info[6] & 0xff) << 8
    } else {
        info[6] & 0x7f
    };
    Ok(Waited {
        pid: info[4],
        status,
        user_us: usage[0].wrapping_mul(1_000_000).wrapping_add(usage[1]),
        system_us: usage[2].wrapping_mul(1_000_000).wrapping_add(usage[3]),
        peak_kib: usage[4],
    })
}

// --- events

pub(crate) const EPOLLIN: u32 = 1;
pub(crate) const EPOLLOUT: u32 = 4;
pub(crate) const EPOLLERR: u32 = 8;
pub(crate) const EPOLLHUP: u32 = 16;

/// The kernel's `epoll_event`; packed on x86_64 only.
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy, Default)]
pub(crate) struct EpollEvent {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

pub(crate) fn epoll_create() -> Sys<OwnedFd> {
    // SAFETY: no pointers.
    unsafe { owned(call(nr::EPOLL_CREATE1, [O_CLOEXEC as usize, 0, 0, 0, 0, 0])) }
}

fn epoll_ctl(epoll: Fd, operation: usize, fd: Fd, events: u32, data: u64) -> Sys<()> {
    let event = EpollEvent { events, data };
    let event = std::ptr::from_ref(&event) as usize;
    // SAFETY: the event is the kernel's struct and outlives the call.
    unsafe {
        call(
            nr::EPOLL_CTL,
            [epoll as usize, operation, fd as usize, event, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn epoll_add(epoll: Fd, fd: Fd, events: u32, data: u64) -> Sys<()> {
    epoll_ctl(epoll, 1, fd, events, data)
}

pub(crate) fn epoll_modify(epoll: Fd, fd: Fd, events: u32, data: u64) -> Sys<()> {
    epoll_ctl(epoll, 3, fd, events, data)
}

pub(crate) fn epoll_remove(epoll: Fd, fd: Fd) {
    // The descriptor may have been closed on the other side; then it is not in the set any more.
    let _ = epoll_ctl(epoll, 2, fd, 0, 0);
}

/// Waits for events, at most `timeout_ms` (-1: for ever).
pub(crate) fn epoll_wait(epoll: Fd, events: &mut [EpollEvent], timeout_ms: i32) -> Sys<usize> {
    let arguments = [
        epoll as usize,
        events.as_mut_ptr() as usize,
        events.len(),
        timeout_ms as usize,
        0,
        8,
    ];
    // SAFETY: the slice is writable for its length.
    match unsafe { call(nr::EPOLL_PWAIT, arguments) } {
        Err(EINTR) => Ok(0),
        other => other,
    }
}

pub(crate) fn eventfd(nonblocking: bool) -> Sys<OwnedFd> {
    let flags = if nonblocking {
        O_CLOEXEC | O_NONBLOCK
    } else {
        O_CLOEXEC
    };
    // SAFETY: no pointers.
    unsafe { owned(call(nr::EVENTFD2, [0, flags as usize, 0, 0, 0, 0])) }
}

/// A descriptor that becomes readable when one of the (blocked) signals of the mask is pending.
pub(crate) fn signalfd(mask: u64) -> Sys<OwnedFd> {
    let flags = (O_CLOEXEC | O_NONBLOCK) as usize;
    // SAFETY: the mask is the kernel's 8-byte set.
    unsafe {
        owned(call(
            nr::SIGNALFD4,
            [
                usize::MAX,
                std::ptr::from_ref(&mask) as usize,
                8,
                flags,
                0,
                0,
            ],
        ))
    }
}

// --- sockets

pub(crate) const AF_UNIX: usize = 1;
pub(crate) const AF_INET: usize = 2;
pub(crate) const AF_INET6: usize = 10;
pub(crate) const SOCK_STREAM: usize = 1;

/// The most descriptors that one message carries here.
pub(crate) const MAX_FDS: usize = 8;

#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: u32,
    vectors: usize,
    vector_count: usize,
    control: usize,
    control_length: usize,
    flags: i32,
}

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const CONTROL_HEADER: usize = 16;

/// Sends bytes with descriptors; the descriptors go with the first byte.
pub(crate) fn send_with_fds(socket: Fd, bytes: &[u8], fds: &[Fd]) -> Sys<usize> {
    let vector = [bytes.as_ptr() as usize, bytes.len()];
    let mut control = [0u64; (CONTROL_HEADER + MAX_FDS * 4) / 8];
    let length = CONTROL_HEADER + fds.len() * 4;
    control[0] = length as u64;
    control[1] = u64::from(SOL_SOCKET) | u64::from(SCM_RIGHTS) << 32;
    for (index, fd) in fds.iter().enumerate() {
        let shift = (index % 2) * 32;
        control[2 + index / 2] |= u64::from(*fd as u32) << shift;
    }
    let header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: vector.as_ptr() as usize,
        vector_count: 1,
        control: if fds.is_empty() {
            0
        } else {
            control.as_ptr() as usize
        },
        control_length: if fds.is_empty() {
            0
        } else {
            length.next_multiple_of(8)
        },
        flags: 0,
    };
    loop {
        // SAFETY: the header and everything that it points to outlive the call and have the lengths given.
        let answer = unsafe {
            call(
                nr::SENDMSG,
                [
                    socket as usize,
                    std::ptr::from_ref(&header) as usize,
                    MSG_NOSIGNAL,
                    0,
                    0,
                    0,
                ],
            )
        };
        match answer {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// Receives bytes and the descriptors that came with them.
pub(crate) fn receive_with_fds(
    socket: Fd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Sys<usize> {
    let vector = [buffer.as_mut_ptr() as usize, buffer.len()];
    let mut control = [0u64; (CONTROL_HEADER + MAX_FDS * 4) / 8];
    let mut header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: vector.as_ptr() as usize,
        vector_count: 1,
        control: control.as_mut_ptr() as usize,
        control_length: size_of_val(&control),
        flags: 0,
    };
    let received = loop {
        let arguments = [
            socket as usize,
            std::ptr::from_mut(&mut header) as usize,
            MSG_CMSG_CLOEXEC,
            0,
            0,
            0,
        ];
        // SAFETY: the header and everything that it points to outlive the call, writable with the lengths given.
        match unsafe { call(nr::RECVMSG, arguments) } {
            Err(EINTR) => {}
            other => break other?,
        }
    };
    if header.control_length >= CONTROL_HEADER
        && control[1] == u64::from(SOL_SOCKET) | u64::from(SCM_RIGHTS) << 32
    {
        let count = (control[0] as usize).saturating_sub(CONTROL_HEADER) / 4;
        for index in 0..count.min(MAX_FDS) {
            let shift = (index % 2) * 32;
            fds.push(OwnedFd((control[2 + index / 2] >> shift) as u32 as Fd));
        }
    }
    Ok(received)
}

pub(crate) fn socket(family: usize, kind: usize) -> Sys<OwnedFd> {
    let kind = kind | (O_CLOEXEC | O_NONBLOCK) as usize;
    // SAFETY: no pointers.
    unsafe { owned(call(nr::SOCKET, [family, kind, 0, 0, 0, 0])) }
}

/// Connects to an address given as the kernel's `sockaddr` bytes.
pub(crate) fn connect(socket: Fd, address: &[u8]) -> Sys<()> {
    // SAFETY: the address is readable for its length.
    unsafe {
        call(
            nr::CONNECT,
            [
                socket as usize,
                address.as_ptr() as usize,
                address.len(),
                0,
                0,
                0,
            ],
        )
        .map(drop)
    }
}

/// The error that a connect which was in progress ended with.
pub(crate) fn socket_error(socket: Fd) -> Sys<()> {
    const SO_ERROR: usize = 4;
    let (mut error, mut length) = (0i32, 4u32);
    let arguments = [
        socket as usize,
        SOL_SOCKET as usize,
        SO_ERROR,
        std::ptr::from_mut(&mut error) as usize,
        std::ptr::from_mut(&mut length) as usize,
        0,
    ];
    // SAFETY: both numbers are writable.
    unsafe { call(nr::GETSOCKOPT, arguments)? };
    if error == 0 {
        Ok(())
    } else {
        Err(Errno(error))
    }
}

pub(crate) fn shutdown(socket: Fd, how: usize) {
    // SAFETY: no pointers. A connection that is gone needs no shutdown.
    let _ = unsafe { raw(nr::SHUTDOWN, [socket as usize, how, 0, 0, 0, 0]) };
}

pub(crate) fn accept(socket: Fd) -> Sys<OwnedFd> {
    let flags = (O_CLOEXEC | O_NONBLOCK) as usize;
    // SAFETY: no address is asked for.
    unsafe { owned(call(nr::ACCEPT4, [socket as usize, 0, 0, flags, 0, 0])) }
}

// --- set-up

pub(crate) const CLONE_NEWNS: u64 = 0x0002_0000;
pub(crate) const CLONE_NEWCGROUP: u64 = 0x0200_0000;
pub(crate) const CLONE_NEWUTS: u64 = 0x0400_0000;
pub(crate) const CLONE_NEWIPC: u64 = 0x0800_0000;
pub(crate) const CLONE_NEWUSER: u64 = 0x1000_0000;
pub(crate) const CLONE_NEWPID: u64 = 0x2000_0000;
pub(crate) const CLONE_NEWNET: u64 = 0x4000_0000;
pub(crate) const CLONE_PARENT: u64 = 0x8000;
const CLONE_PIDFD: u64 = 0x1000;

pub(crate) const MS_REC: usize = 0x4000;
pub(crate) const MS_PRIVATE: usize = 0x4_0000;
pub(crate) const MS_SLAVE: usize = 0x8_0000;

pub(crate) const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub(crate) const MOUNT_ATTR_NODEV: u64 = 0x4;
pub(crate) const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub(crate) const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

/// `fork` with namespaces: the child returns 0 and goes on with a copy of this process, the parent gets the child's id and a
/// descriptor of it. Only for a process with one thread.
///
/// Not by `clone3`: container engines answer that it does not exist, whatever they think of namespaces.
pub(crate) fn fork_into(flags: u64) -> Sys<(i32, Option<OwnedFd>)> {
    let mut pidfd: Fd = -1;
    let signal = if flags & CLONE_PARENT == 0 {
        SIGCHLD as u64
    } else {
        0
    };
    let flags = (flags | CLONE_PIDFD | signal) as usize;
    let place = std::ptr::from_mut(&mut pidfd) as usize;
    // SAFETY: the pidfd's place is writable; without CLONE_VM and with no stack given the child has its own copy of the one thread's
    // stack and returns here like a fork.
    let pid = unsafe { call(nr::CLONE, [flags, 0, place, 0, 0, 0])? };
    Ok((pid as i32, (pid != 0).then_some(OwnedFd(pidfd))))
}

/// Gives up a real-time class of scheduling, in which a command could take a whole CPU from everybody.
pub(crate) fn leave_real_time() -> Sys<()> {
    const FIFO: usize = 1;
    const ROUND_ROBIN: usize = 2;
    const RESET_ON_FORK: usize = 0x4000_0000;
    // SAFETY: no pointers.
    let policy = unsafe { call(nr::SCHED_GETSCHEDULER, [0; 6])? } & !RESET_ON_FORK;
    if policy != FIFO && policy != ROUND_ROBIN {
        return Ok(());
    }
    let priority = 0i32;
    let parameter = std::ptr::from_ref(&priority) as usize;
    // SAFETY: the number is the kernel's struct of one field.
    unsafe { call(nr::SCHED_SETSCHEDULER, [0, 0, parameter, 0, 0, 0]).map(drop) }
}

pub(crate) fn set_propagation(path: &CStr, flags: usize) -> Sys<()> {
    // SAFETY: the path is NUL-terminated; source, type and data are not looked at.
    unsafe { call(nr::MOUNT, [0, path.as_ptr() as usize, 0, flags, 0, 0]).map(drop) }
}

pub(crate) fn umount_detach(path: &CStr) -> Sys<()> {
    const MNT_DETACH: usize = 2;
    // SAFETY: the path is NUL-terminated.
    unsafe {
        call(
            nr::UMOUNT2,
            [path.as_ptr() as usize, MNT_DETACH, 0, 0, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn pivot_root(new: &CStr, old: &CStr) -> Sys<()> {
    // SAFETY: both paths are NUL-terminated.
    unsafe {
        call(
            nr::PIVOT_ROOT,
            [new.as_ptr() as usize, old.as_ptr() as usize, 0, 0, 0, 0],
        )
        .map(drop)
    }
}

/// Makes a file system and a detached mount of it. An option without a value is a flag.
pub(crate) fn new_mount(
    kind: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attributes: u64,
) -> Sys<OwnedFd> {
    const CLOEXEC: usize = 1;
    const SET_FLAG: usize = 0;
    const SET_STRING: usize = 1;
    const CREATE: usize = 6;
    // SAFETY: strings are NUL-terminated and outlive the calls; a flag has no value.
    unsafe {
        let context = owned(call(
            nr::FSOPEN,
            [kind.as_ptr() as usize, CLOEXEC, 0, 0, 0, 0],
        ))?;
        let fd = context.raw() as usize;
        for (key, value) in options {
            let key = key.as_ptr() as usize;
            match value {
                Some(value) => call(
                    nr::FSCONFIG,
                    [fd, SET_STRING, key, value.as_ptr() as usize, 0, 0],
                )?,
                None => call(nr::FSCONFIG, [fd, SET_FLAG, key, 0, 0, 0])?,
            };
        }
        call(nr::FSCONFIG, [fd, CREATE, 0, 0, 0, 0])?;
        owned(call(
            nr::FSMOUNT,
            [fd, CLOEXEC, attributes as usize, 0, 0, 0],
        ))
    }
}

/// A detached copy of the mounts at a path, for attaching somewhere else.
pub(crate) fn clone_mounts(dir: Fd, path: &CStr, recursive: bool) -> Sys<OwnedFd> {
    const OPEN_TREE_CLONE: u32 = 1;
    let flags = OPEN_TREE_CLONE
        | O_CLOEXEC
        | if path.is_empty() { AT_EMPTY_PATH } else { 0 }
        | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is NUL-terminated.
    unsafe {
        owned(call(
            nr::OPEN_TREE,
            [
                dir as usize,
                path.as_ptr() as usize,
                flags as usize,
                0,
                0,
                0,
            ],
        ))
    }
}

/// Sets attributes on a mount, and with `recursive` on all below it; `map` is the user namespace of an id mapping.
pub(crate) fn set_mount_attributes(
    mount: Fd,
    set: u64,
    map: Option<Fd>,
    recursive: bool,
) -> Sys<()> {
    let attributes = [set, 0, 0, map.unwrap_or(0) as u64];
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    let arguments = [
        mount as usize,
        c"".as_ptr() as usize,
        flags as usize,
        attributes.as_ptr() as usize,
        size_of_val(&attributes),
        0,
    ];
    // SAFETY: the array is the kernel's `mount_attr` and outlives the call.
    unsafe { call(nr::MOUNT_SETATTR, arguments).map(drop) }
}

/// Attaches a detached mount at what `target` names.
pub(crate) fn attach_mount(mount: Fd, target: Fd) -> Sys<()> {
    const BOTH_EMPTY: usize = 0x04 | 0x40;
    let empty = c"".as_ptr() as usize;
    // SAFETY: the empty paths are NUL-terminated.
    unsafe {
        call(
            nr::MOVE_MOUNT,
            [mount as usize, empty, target as usize, empty, BOTH_EMPTY, 0],
        )
        .map(drop)
    }
}

pub(crate) fn fchownat(dir: Fd, path: &CStr, uid: u32, gid: u32) -> Sys<()> {
    let flags = (AT_SYMLINK_NOFOLLOW | if path.is_empty() { AT_EMPTY_PATH } else { 0 }) as usize;
    let arguments = [
        dir as usize,
        path.as_ptr() as usize,
        uid as usize,
        gid as usize,
        flags,
        0,
    ];
    // SAFETY: the path is NUL-terminated.
    unsafe { call(nr::FCHOWNAT, arguments).map(drop) }
}

pub(crate) fn sethostname(name: &[u8]) -> Sys<()> {
    // SAFETY: the name is readable for its length.
    unsafe {
        call(
            nr::SETHOSTNAME,
            [name.as_ptr() as usize, name.len(), 0, 0, 0, 0],
        )
        .map(drop)
    }
}

/// Leaves the session keyring that was inherited for a new, empty one.
pub(crate) fn new_session_keyring() -> Sys<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;
    // SAFETY: no name is given.
    unsafe { call(nr::KEYCTL, [KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0, 0]).map(drop) }
}

pub(crate) fn set_rlimit(resource: u32, soft: u64, hard: u64) -> Sys<()> {
    let limit = [soft, hard];
    // SAFETY: the array is the kernel's struct; the old limit is not asked for.
    unsafe {
        call(
            nr::PRLIMIT64,
            [0, resource as usize, limit.as_ptr() as usize, 0, 0, 0],
        )
        .map(drop)
    }
}

pub(crate) fn get_rlimit(resource: u32) -> Sys<(u64, u64)> {
    let mut limit = [0u64; 2];
    // SAFETY: the array is the kernel's struct; no new limit is set.
    unsafe {
        call(
            nr::PRLIMIT64,
            [0, resource as usize, 0, limit.as_mut_ptr() as usize, 0, 0],
        )?
    };
    Ok((limit[0], limit[1]))
}

/// Sets the effective and permitted capabilities to `keep`, the inheritable ones to none.
pub(crate) fn set_capabilities(keep: u64) -> Sys<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let (low, high) = (keep as u32, (keep >> 32) as u32);
    let data = [low, low, 0, high, high, 0];
    // SAFETY: both arrays are the kernel's structs of that version.
    unsafe {
        call(
            nr::CAPSET,
            [header.as_ptr() as usize, data.as_ptr() as usize, 0, 0, 0, 0],
        )
        .map(drop)
    }
}

/// Installs a system call filter; the program is the kernel's 8-byte instructions one after the other.
pub(crate) fn install_filter(program: &[u8]) -> Sys<()> {
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    let instructions: Vec<u64> = program
        .chunks_exact(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
        .collect();
    if instructions.is_empty() || instructions.len() > 4096 || !program.len().is_multiple_of(8) {
        return Err(EINVAL);
    }
    let description = [instructions.len(), instructions.as_ptr() as usize];
    // SAFETY: the array has the layout of `sock_fprog` (a 16-bit count, padding, a pointer), little-endian as both architectures
    // are here, and the instructions outlive the call.
    unsafe {
        call(
            nr::SECCOMP,
            [
                SECCOMP_SET_MODE_FILTER,
                0,
                description.as_ptr() as usize,
                0,
                0,
                0,
            ],
        )
        .map(drop)
    }
}

/// The version of Landlock, 0 if the kernel has none or it is switched off.
pub(crate) fn landlock_version() -> u32 {
    const VERSION: usize = 1;
    // SAFETY: with this flag no struct is read.
    unsafe { call(nr::LANDLOCK_CREATE_RULESET, [0, 0, VERSION, 0, 0, 0]).unwrap_or(0) as u32 }
}

/// Confines this thread and its children to what is below `root`, with the given handled file accesses and scopes.
pub(crate) fn landlock_confine(root: Fd, accesses: u64, scopes: u64) -> Sys<()> {
    const PATH_BENEATH: usize = 1;
    let attributes = [accesses, 0, scopes];
    // Older kernels take the first field only, and refuse a longer struct unless its rest is zero.
    // SAFETY: the arrays are the kernel's structs and outlive the calls; `path_beneath` is packed: 8 and 4 bytes.
    unsafe {
        let arguments = [
            attributes.as_ptr() as usize,
            size_of_val(&attributes),
            0,
            0,
            0,
            0,
        ];
        let ruleset = owned(call(nr::LANDLOCK_CREATE_RULESET, arguments))?;
        let rule = [accesses, u64::from(root as u32)];
        call(
            nr::LANDLOCK_ADD_RULE,
            [
                ruleset.raw() as usize,
                PATH_BENEATH,
                rule.as_ptr() as usize,
                0,
                0,
                0,
            ],
        )?;
        call(
            nr::LANDLOCK_RESTRICT_SELF,
            [ruleset.raw() as usize, 0, 0, 0, 0, 0],
        )
        .map(drop)
    }
}

/// Whether the other end of a stream socket is closed.
pub(crate) fn peer_is_gone(socket: Fd) -> bool {
    const POLLRDHUP: u64 = 0x2000;
    let mut poll = u64::from(socket as u32) | POLLRDHUP << 32;
    let now = [0u64; 2];
    let arguments = [
        std::ptr::from_mut(&mut poll) as usize,
        1,
        now.as_ptr() as usize,
        0,
        0,
        0,
    ];
    // SAFETY: one `pollfd` and the time are readable, the `pollfd` writable.
    unsafe { call(nr::PPOLL, arguments) != Ok(0) }
}

/// The magic number of the file system that a descriptor is on.
pub(crate) fn filesystem_magic(fd: Fd) -> Sys<u64> {
    let mut buffer = [0u64; 15];
    // SAFETY: the buffer has the 120 bytes of the kernel's struct.
    unsafe {
        call(
            nr::FSTATFS,
            [fd as usize, buffer.as_mut_ptr() as usize, 0, 0, 0, 0],
        )?
    };
    Ok(buffer[0])
}

/// Waits, at most `milliseconds`.
pub(crate) fn sleep_ms(milliseconds: u64) {
    let time = [milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    // SAFETY: no descriptors, the time is readable.
    let _ = unsafe { raw(nr::PPOLL, [0, 0, time.as_ptr() as usize, 0, 0, 0]) };
}

/// Two connected stream sockets.
pub(crate) fn socket_pair() -> Sys<(OwnedFd, OwnedFd)> {
    let mut ends = [0i32; 2];
    let kind = SOCK_STREAM | O_CLOEXEC as usize;
    // SAFETY: the array has room for the two descriptors.
    unsafe {
        call(
            nr::SOCKETPAIR,
            [AF_UNIX, kind, 0, ends.as_mut_ptr() as usize, 0, 0],
        )?
    };
    Ok((OwnedFd(ends[0]), OwnedFd(ends[1])))
}

/// Names this process in lists of processes; cut to 15 bytes.
pub(crate) fn set_name(name: &CStr) -> Sys<()> {
    const PR_SET_NAME: usize = 15;
    // SAFETY: the name is NUL-terminated.
    unsafe { call(nr::PRCTL, [PR_SET_NAME, name.as_ptr() as usize, 0, 0, 0, 0]).map(drop) }
}
