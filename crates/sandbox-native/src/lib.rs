#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod builder;
mod cgroup;
mod detached;
mod doctor;
mod executable;
mod janitor;
mod known;
mod launch;
mod native;
mod place;
mod process;
mod remedy;
mod seccomp;
mod skeleton;
mod spare;
mod state;

pub use builder::Builder;
pub use doctor::{DoctorReport, Layer, LayerState};
pub use native::Native;

/// Process 1 and the monitors of a few commands: ours, so they do not count against the caller's limit of processes.
const OWN_PROCESSES: u64 = 4;

/// 16 random hexadecimal digits.
fn random_hex() -> std::io::Result<String> {
    let mut bytes = [0u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    debug_assert_eq!(
        filled,
        bytes.len(),
        "the kernel fills up to 256 bytes at once"
    );
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
