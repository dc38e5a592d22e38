//! Lists the migrations for the crate to embed.
//!
//! `sqlx::migrate!` does the same, but its feature compiles SQLite and both drivers once more, for macros that check
//! queries against a database.

use std::fmt::Write as _;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=migrations");
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets this") + "/migrations";
    let mut paths: Vec<_> = std::fs::read_dir(&directory)
        .expect("the migrations can be listed")
        .map(|entry| entry.expect("the migrations can be listed").path())
        .collect();
    paths.sort();
    let mut list = String::from("[\n");
    for path in paths {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name in ASCII");
        let (version, name) = name.split_once('_').expect("a name such as 0001_foundation.sql");
        let version: i64 = version.parse().expect("a name such as 0001_foundation.sql");
        let name = name.replace('_', " ");
        writeln!(list, "    ({version}, {name:?}, include_str!({path:?})),")
            .expect("a string takes everything");
    }
    list.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets this");
    std::fs::write(Path::new(&out).join("migrations.rs"), list)
        .expect("the output directory can be written to");
}
