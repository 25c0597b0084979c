//! Compiles `init/main.rs`, the program inside a sandbox, into one static executable that the library embeds.
//!
//! It is compiled by `rustc` itself and uses nothing but the standard library, so that a dependent needs no second build step, no
//! other target and no network. Set `SANDBOX_INIT` to an executable on disk to embed that one instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=init");
    println!("cargo::rerun-if-changed=src/wire");
    println!("cargo::rerun-if-env-changed=SANDBOX_INIT");
    let out =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("sandbox-init");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        // The client compiles everywhere; there is no guest to run on other systems.
        fs::write(&out, b"").expect("OUT_DIR is writable");
        return;
    }
    match env::var_os("SANDBOX_INIT") {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", Path::new(&path).display());
            fs::copy(&path, &out).unwrap_or_else(|error| {
                panic!("SANDBOX_INIT={}: {error}", Path::new(&path).display())
            });
        }
        None => compile(&out),
    }
}

fn compile(out: &Path) {
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc
        .args([
            "init/main.rs",
            "--crate-name=sandbox_init",
            "--crate-type=bin",
            "--edition=2024",
        ])
        .args([
            "-Copt-level=s",
            "-Cpanic=abort",
            "-Clto=fat",
            "-Ccodegen-units=1",
            "-Cstrip=symbols",
        ])
        .args([
            "-Ctarget-feature=+crt-static",
            "-Crelocation-model=static",
            "--cap-lints=warn",
        ])
        .arg(format!("--target={target}"))
        .arg("-o")
        .arg(out);
    let linker = format!(
        "CARGO_TARGET_{}_LINKER",
        target.to_uppercase().replace('-', "_")
    );
    if let Some(linker) = env::var_os("RUSTC_LINKER").or_else(|| env::var_os(linker)) {
        let mut option = std::ffi::OsString::from("-Clinker=");
        option.push(linker);
        rustc.arg(option);
    }
    // Flags for the host program (coverage, sanitizers) do not concern the guest.
    rustc
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = rustc.status().expect("rustc starts");
    assert!(
        status.success(),
        "the guest program could not be compiled for {target}. It is linked statically: install the C library's static archive \
         (Debian: libc6-dev, Fedora: glibc-static) or set SANDBOX_INIT to a ready-made executable"
    );
}
