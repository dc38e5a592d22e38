//! Embeds what was built beforehand: agentd and the code interpreter, by `scripts/build-agentd` for a static target, and
//! the web UI, by `scripts/build-ui`.
//!
//! Cargo cannot build a dependency for another target, nor run npm, so these steps are the Makefile's. Without
//! them this binary still compiles (for `cargo check`) and says at run time what is missing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets this"));
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets this"));
    for (program, name) in [("coffer-agentd", "agentd"), ("coffer-code", "code")] {
        let built = manifest.join("../../target/agentd").join(program);
        println!("cargo::rerun-if-changed={}", built.display());
        let bytes = std::fs::read(&built).unwrap_or_default();
        std::fs::write(out.join(name), bytes).expect("OUT_DIR can be written");
    }

    pack_relocations(&out);

    // The directory is part of the repository, empty: one that is not there would make every build a new one.
    let ui = manifest.join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", ui.display());
    std::fs::write(out.join("ui_files.rs"), ui_files(&ui)).expect("OUT_DIR can be written");
}

/// Packs the relocations of this binary (DT_RELR): the loader spends more instructions on its 360,000 relocations than a client's
/// verb takes itself.
///
/// C libraries before glibc 2.36 refuse such a program, so `make dist`, which builds for other machines, sets
/// COFFER_PORTABLE. They refuse it because the linker adds a version to ask for; mold 1.10 forgets that, and glibc then
/// refuses its programs everywhere. So the linker is Rust's own lld here, by whatever name it is asked for.
fn pack_relocations(out: &Path) {
    println!("cargo::rerun-if-env-changed=COFFER_PORTABLE");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    let for_glibc = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    let target = std::env::var("TARGET").unwrap_or_default();
    if !for_glibc || !is("HOST", &target) || std::env::var_os("COFFER_PORTABLE").is_some() {
        return;
    }
    let version = answer("getconf", &["GNU_LIBC_VERSION"]);
    let minor = version.strip_prefix("glibc 2.").and_then(|minor| minor.parse::<u32>().ok());
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let lld = Path::new(&answer(&rustc, &["--print", "sysroot"]))
        .join("lib/rustlib")
        .join(target)
        .join("bin/gcc-ld/ld.lld");
    if minor.is_none_or(|minor| minor < 36) || !lld.is_file() {
        return;
    }
    let names = out.join("linker");
    let _ = std::fs::remove_dir_all(&names);
    std::fs::create_dir(&names).expect("OUT_DIR can be written");
    for name in ["ld", "ld.lld", "ld.mold"] {
        std::os::unix::fs::symlink(&lld, names.join(name)).expect("OUT_DIR can be written");
    }
    println!("cargo::rustc-link-arg-bins=-B{}", names.display());
    // As mold does it for `strip = "debuginfo"`; lld would keep 55 MB of symbols.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs,--strip-all");
}

fn answer(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string()).unwrap_or_default()
}

/// A table of the built files, each with its compressed forms.
fn ui_files(dist: &Path) -> String {
    let mut found = Vec::new();
    gather(dist, &mut found);
    found.sort();
    let mut table = "static UI_FILES: &[coffer_server::UiFile] = &[\n".to_string();
    // A half-built directory is none: without its page the rest is of no use.
    let whole = dist.join("index.html").is_file();
    for file in found.iter().filter(|_| whole) {
        let Ok(path) = file.strip_prefix(dist) else { continue };
        let path = path.to_str().expect("names of built files are plain");
        let hidden = path.starts_with('.');
        if hidden || path.ends_with(".gz") || path.ends_with(".br") {
            continue;
        }
        let compressed = |ending: &str| {
            let other = PathBuf::from(format!("{}.{ending}", file.display()));
            if other.is_file() { format!("Some(include_bytes!({other:?}))") } else { "None".to_string() }
        };
        let (gzip, brotli) = (compressed("gz"), compressed("br"));
        writeln!(
            table,
            "    coffer_server::UiFile {{ path: {path:?}, plain: include_bytes!({file:?}), gzip: {gzip}, \
             brotli: {brotli} }},"
        )
        .expect("a string can be written to");
    }
    table.push_str("];\n");
    table
}

fn gather(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { gather(&path, found) } else { found.push(path) }
    }
}
