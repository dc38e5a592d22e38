//! Embeds agentd, which `scripts/build-agentd` has built beforehand for a static target.
//!
//! Cargo cannot build a dependency for another target, so the two steps are the Makefile's. Without
//! the first one this binary still compiles (for `cargo check`) and says at run time what is missing.

use std::path::{Path, PathBuf};

fn main() {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets this"));
    let agentd = manifest.join("../../target/agentd/coffer-agentd");
    println!("cargo::rerun-if-changed={}", agentd.display());
    let embedded = Path::new(&std::env::var("OUT_DIR").expect("cargo sets this")).join("agentd");
    let bytes = std::fs::read(&agentd).unwrap_or_default();
    std::fs::write(embedded, bytes).expect("OUT_DIR can be written");
}
