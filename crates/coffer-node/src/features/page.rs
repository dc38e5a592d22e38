//! `docs/kernels.md`, generated from the table. A test keeps the committed page the same.

use super::table::{Need, Row, TABLE};

const INTRODUCTION: &str = "\
# Kernels and hosts

<!-- Generated from crates/coffer-node/src/features/table.rs: change that, then
     `COFFER_UPDATE=1 cargo test -p coffer-node --lib page`. -->

Cofferdam works on **Linux 5.19 and later** with cgroup v2, v1 or both, and has all its features from **6.15**
on. The oldest kernel it was run on is 6.1; 5.19 follows from the features below. Nothing is decided by version: the node
tries each feature when it starts, uses a fallback if there is one, and logs what is missing. `coffer up --check` does only
that: it starts on a scratch directory, creates one sandbox, uses it, destroys it, and exits with 0, or with 3 and the reason.

| host | kernel | result |
|---|---|---|
| Debian 12 | 6.1 | tested in a virtual machine (`make vm`) |
| Debian 13 | 6.12 | tested in a virtual machine |
| the newest kernel that Debian ships | 6.15 or later | tested in a virtual machine |
| Debian 12 with cgroup v1 controllers (hybrid) | 6.1 | tested in a virtual machine |
| Ubuntu 24.04, Ubuntu 22.04 with the HWE kernel | 6.8 | not tested as such: each feature that 6.8 lacks is forced off in the tests |
| Ubuntu 22.04 with its first kernel | 5.15 | refused at start: overlays cannot use id-mapped layers; install `linux-generic-hwe-22.04` |

`COFFER_KERNEL_LACKS=overlay_detached,cgroup_kill coffer up` makes the node treat features as missing, as if the kernel
lacked them. The tests use it to cover old kernels on new ones; an operator can use it to work around a kernel bug.

## Features
";

const NOTES: &str = "
`since` is the first mainline release, from public history; the probe decides.
";

/// The whole page.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_string();
    for (need, title, text) in [
        (Need::Required, "Required", "Without one of these `coffer up` exits with 3 and says which."),
        (Need::Fallback, "With a fallback", "Sandboxes work the same; some steps use a fallback."),
        (Need::Optional, "Optional", "Sandboxes work, except for what the column *without it* says."),
    ] {
        page.push_str(&format!("\n### {title}\n\n{text}\n\n"));
        page.push_str("| feature | since | used for | without it | what to do |\n|---|---|---|---|---|\n");
        for Row { name, since, used_for, without, fix, .. } in TABLE.iter().filter(|row| row.need == need) {
            page.push_str(&format!("| `{name}` | {since} | {used_for} | {without} | {fix} |\n"));
        }
    }
    page.push_str(NOTES);
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels.md");
        if std::env::var_os("COFFER_UPDATE").is_some() {
            std::fs::write(path, super::page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == super::page(), "run `COFFER_UPDATE=1 cargo test -p coffer-node --lib page`");
    }
}
