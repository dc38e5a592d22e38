//! `docs/cli.md`: the reference of every verb, from the arguments themselves.

use clap::CommandFactory as _;

use crate::Arguments;

const BEGIN: &str = "<!-- verbs: written by `COFFER_UPDATE=1 cargo test --bin coffer verbs` -->\n";
const END: &str = "<!-- end of verbs -->\n";

/// Every verb with its help, as Markdown.
fn verbs() -> String {
    let mut program = Arguments::command();
    program.build();
    let mut text = String::new();
    describe(&mut program, &mut text);
    text
}

fn describe(command: &mut clap::Command, text: &mut String) {
    for verb in command
        .get_subcommands_mut()
        .filter(|verb| !verb.is_hide_set() && !["help", "up"].contains(&verb.get_name()))
    {
        let name = verb.get_bin_name().unwrap_or_default().to_string();
        // Options that every verb has are described once, on the page.
        let mut own = verb.clone().mut_args(|arg| {
            let is_common = arg.is_global_set() || arg.get_id() == "help" || arg.get_id() == "version";
            if is_common { arg.hide(true) } else { arg }
        });
        let help = own.render_help().to_string();
        let lines = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        text.push_str(&format!("### `{name}`\n\n```text\n{}\n```\n\n", lines.trim_end()));
        describe(verb, text);
    }
}

#[test]
fn the_page_has_all_verbs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the mark for verbs");
    let (_, after) = rest.split_once(END).expect("the page has the end mark");
    let wanted = format!("{before}{BEGIN}\n{}{END}{after}", verbs());
    if std::env::var_os("COFFER_UPDATE").is_some() {
        std::fs::write(path, &wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/cli.md is out of date: run this test with COFFER_UPDATE=1");
}
