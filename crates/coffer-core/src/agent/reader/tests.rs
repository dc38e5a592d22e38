//! Lines that the real programs printed, against a scripted model, and hostile ones.

use std::collections::BTreeMap;

use super::*;
use crate::agent::transcript::{CallState, EditKind, EntryBody, TodoState};

/// The report, and the last version of each entry.
fn read(format: OutputFormat, text: &str) -> (AgentReport, Vec<EntryBody>) {
    read_both(format, text, "")
}

fn read_both(format: OutputFormat, text: &str, error: &str) -> (AgentReport, Vec<EntryBody>) {
    let mut entries = BTreeMap::new();
    let mut reader = AgentReader::new(format);
    let mut tell = |change: Change| {
        entries.insert(change.number, change.body);
    };
    // In pieces, as pipes return them.
    for piece in text.as_bytes().chunks(7) {
        reader.push(piece, &mut tell);
    }
    reader.push_error(error.as_bytes(), &mut tell);
    let report = reader.finish(&mut tell);
    (report, entries.into_values().collect())
}

fn tokens(input: u64, cached: u64, output: u64) -> Option<Tokens> {
    Some(Tokens { input, cached, output })
}

fn kinds(entries: &[EntryBody]) -> Vec<&'static str> {
    entries.iter().map(EntryBody::kind).collect()
}

type Ran = (String, CallState, Option<i64>);

/// The commands with their exit codes, and the diffs of the edits.
fn work(entries: &[EntryBody]) -> (Vec<Ran>, Vec<String>) {
    let mut commands = Vec::new();
    let mut diffs = Vec::new();
    for entry in entries {
        match entry {
            EntryBody::Command { command, state, exit_code, .. } => {
                commands.push((command.text.clone(), *state, *exit_code));
            }
            EntryBody::Edit { path, diff, state: CallState::Done, .. } => {
                assert_eq!(path, "/home/user/app/hello.txt");
                diffs.push(diff.clone().unwrap_or_default().text);
            }
            _ => {}
        }
    }
    (commands, diffs)
}

fn ran(first: Option<i64>, second: Option<i64>, is_told: bool) -> Vec<Ran> {
    let how = if is_told { CallState::Failed } else { CallState::Done };
    vec![("cat hello.txt".into(), CallState::Done, first), ("ls /nonexistent; exit 3".into(), how, second)]
}

const LAST: Option<&str> = Some("All done: hello.txt says hello there.");

#[test]
fn claude_code() {
    let (report, entries) = read(OutputFormat::ClaudeStream, include_str!("recorded/claude.jsonl"));
    assert_eq!((report.tokens, report.cost_nanos), (tokens(8100, 1800, 162), Some(36_825_000)));
    assert_eq!((report.summary.as_deref(), report.error, report.tools), (LAST, None, 5));
    assert_eq!(report.model.as_deref(), Some("claude-opus-4-8[1m]"));
    assert_eq!(report.session.as_deref(), Some("19915bed-9eb9-4224-a7e8-b0444c417f34"));
    assert_eq!(
        kinds(&entries),
        [
            "started", "thinking", "message", "tool", "todos", "message", "edit", "message", "edit",
            "message", "command", "message", "command", "message", "usage"
        ]
    );
    let (commands, diffs) = work(&entries);
    assert_eq!(commands, ran(Some(0), Some(3), true));
    assert_eq!(diffs, ["+hello\n+world\n", "@@ -1,2 +1,2 @@\n hello\n-world\n+there\n"]);
    let output = entries.iter().find_map(|entry| match entry {
        EntryBody::Command { exit_code: Some(3), output, .. } => output.clone(),
        _ => None,
    });
    assert_eq!(output.unwrap().text, "ls: cannot access '/nonexistent': No such file or directory");
    // Before the end the sum of messages is known, each counted once.
    let (cut_off, _) = read(
        OutputFormat::ClaudeStream,
        r#"{"type":"assistant","message":{"id":"m1","content":[],"usage":{"input_tokens":5,"output_tokens":2}}}
{"type":"assistant","message":{"id":"m1","content":[],"usage":{"input_tokens":5,"output_tokens":2}}}
{"type":"assistant","message":{"id":"m2","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}"#,
    );
    assert_eq!(cut_off.tokens, tokens(6, 0, 3));
}

#[test]
fn claude_code_with_subagents_counts_all_models_of_the_last_result() {
    let (report, entries) = read(
        OutputFormat::ClaudeStream,
        r#"{"type":"system","subtype":"init","session_id":"s","model":"opus"}
{"type":"assistant","parent_tool_use_id":"t1","message":{"id":"m1","content":[{"type":"text","text":"below"}],"usage":{"input_tokens":5}}}
{"type":"result","is_error":false,"result":"Started.","total_cost_usd":0.1,"usage":{"input_tokens":10,"output_tokens":1},"modelUsage":{"opus":{"inputTokens":10,"outputTokens":1}}}
{"type":"system","subtype":"init","session_id":"s","model":"opus"}
{"type":"result","is_error":false,"result":"Done.","total_cost_usd":0.3,"usage":{"input_tokens":10,"output_tokens":1},"modelUsage":{"opus":{"inputTokens":20,"outputTokens":2,"cacheReadInputTokens":3},"haiku":{"inputTokens":40,"outputTokens":4,"cacheCreationInputTokens":2}}}
"#,
    );
    assert_eq!((report.tokens, report.cost_nanos), (tokens(65, 3, 6), Some(300_000_000)));
    assert_eq!(report.summary.as_deref(), Some("Done."), "not a subagent's words");
    assert_eq!(kinds(&entries), ["started", "message", "usage"]);
}

#[test]
fn claude_code_that_failed_or_waits_says_why() {
    let (report, entries) = read(OutputFormat::ClaudeStream, include_str!("recorded/claude-failed.jsonl"));
    assert_eq!(report.error.as_deref(), Some("API Error: 400 the model broke half-way"));
    assert_eq!(kinds(&entries), ["error", "usage"], "the same error once");
    let mut reader = AgentReader::new(OutputFormat::ClaudeStream);
    reader.push(include_bytes!("recorded/claude-retries.jsonl"), &mut |_| {});
    assert_eq!(reader.last(), Some("its model did not answer: authentication_failed (401) (retry 6 of 10)"));
    let (failed, _) =
        read(OutputFormat::ClaudeStream, r#"{"type":"result","subtype":"error_max_turns","is_error":true}"#);
    assert_eq!(failed.error.as_deref(), Some("error_max_turns"));
    let (failed, _) = read(
        OutputFormat::ClaudeStream,
        r#"{"type":"result","subtype":"error_during_execution","is_error":true,"error":{"message":"401 no key"}}"#,
    );
    assert_eq!(failed.error.as_deref(), Some("401 no key"));
}

#[test]
fn qwen_code() {
    let (report, entries) = read(OutputFormat::ClaudeStream, include_str!("recorded/qwen.jsonl"));
    assert_eq!(report.tokens, tokens(7800, 1800, 162), "its input has the cached ones in it");
    assert_eq!((report.summary.as_deref(), report.model.as_deref()), (LAST, Some("m-1")));
    let (commands, diffs) = work(&entries);
    // It does not tell how a command ended.
    assert_eq!(commands, ran(None, None, false));
    assert_eq!(diffs, ["+hello\n+world\n", "-world\n+there\n"]);
    assert!(entries.iter().any(|entry| matches!(entry, EntryBody::Todos { items } if items.len() == 2)));
    // It ends with 0 and `success` on a wrong key.
    let (failed, entries) = read(OutputFormat::ClaudeStream, include_str!("recorded/qwen-failed.jsonl"));
    assert_eq!(failed.error.as_deref(), Some("401 invalid x-api-key"));
    assert_eq!(kinds(&entries), ["started", "error"]);
}

#[test]
fn cursor() {
    let (report, entries) = read(
        OutputFormat::ClaudeStream,
        r#"{"type":"system","subtype":"init","session_id":"c","model":"auto"}
{"type":"tool_call","subtype":"started","call_id":"1","tool_call":{"shellToolCall":{"args":{"command":"ls"}}}}
{"type":"tool_call","subtype":"completed","call_id":"1","tool_call":{"shellToolCall":{"args":{"command":"ls"},"result":{"success":{"exitCode":0,"stdout":"a\n"}}}}}
{"type":"result","subtype":"success","is_error":false,"result":"Done."}
"#,
    );
    assert_eq!((report.tools, report.summary.as_deref()), (1, Some("Done.")));
    assert!(
        matches!(&entries[1], EntryBody::Command { exit_code: Some(0), output: Some(out), .. } if out.text == "a")
    );
}

#[test]
fn codex() {
    let (report, entries) = read(OutputFormat::CodexStream, include_str!("recorded/codex.jsonl"));
    assert_eq!((report.tokens, report.cost_nanos), (tokens(3900, 900, 81), None));
    assert_eq!((report.summary.as_deref(), report.error.as_deref(), report.tools), (LAST, None, 2));
    assert_eq!(kinds(&entries), ["started", "error", "command", "command", "message", "usage"]);
    let (commands, _) = work(&entries);
    assert_eq!(commands[0], ("cat hello.txt".into(), CallState::Failed, Some(1)));
    // A session that goes on tells its total.
    let mut reader = AgentReader::new(OutputFormat::CodexStream);
    reader.continues(Tokens { input: 2600, cached: 600, output: 54 });
    reader.push(include_bytes!("recorded/codex.jsonl"), &mut |_| {});
    assert_eq!(reader.report().tokens, tokens(1300, 300, 27));
    let (failed, entries) = read(OutputFormat::CodexStream, include_str!("recorded/codex-failed.jsonl"));
    assert!(failed.error.unwrap().starts_with("unexpected status 401 Unauthorized: invalid x-api-key"));
    assert_eq!(kinds(&entries), ["started", "error", "retry", "retry", "retry", "retry", "retry", "error"]);
    assert!(matches!(&entries[6], EntryBody::Retry { attempt: Some(5), of: Some(5), .. }), "{entries:?}");
    let (report, entries) = read(
        OutputFormat::CodexStream,
        r#"{"type":"item.completed","item":{"id":"i0","type":"reasoning","text":"**Hm**"}}
{"type":"item.started","item":{"id":"i1","type":"todo_list","items":[{"text":"a","completed":false}]}}
{"type":"item.updated","item":{"id":"i1","type":"todo_list","items":[{"text":"a","completed":true}]}}
{"type":"item.started","item":{"id":"i2","type":"mcp_tool_call","server":"s","tool":"look","arguments":{"at":1},"status":"in_progress"}}
{"type":"item.completed","item":{"id":"i2","type":"mcp_tool_call","server":"s","tool":"look","arguments":{"at":1},"result":{"content":[{"type":"text","text":"seen"}]},"status":"completed"}}
{"type":"item.completed","item":{"id":"i3","type":"file_change","changes":[{"path":"a.rs","kind":"add"},{"path":"b.rs","kind":"delete"}],"status":"completed"}}
{"type":"turn.failed","error":{"message":"{\"error\":{\"message\":\"it broke\",\"code\":400}}"}}
"#,
    );
    assert_eq!((report.tools, report.error.as_deref()), (2, Some("400 it broke")));
    assert_eq!(kinds(&entries), ["thinking", "todos", "todos", "tool", "edit", "edit", "error"]);
    assert!(matches!(&entries[2], EntryBody::Todos { items } if items[0].state == TodoState::Done));
    assert!(matches!(&entries[5], EntryBody::Edit { edit: EditKind::Deleted, .. }));
}

#[test]
fn gemini() {
    let (report, entries) = read(OutputFormat::GeminiStream, include_str!("recorded/gemini.jsonl"));
    assert_eq!(report.tokens, tokens(7800, 1800, 162), "what it thought is output too");
    assert_eq!((report.summary.as_deref(), report.model.as_deref()), (LAST, Some("gemini-2.5-pro")));
    let (commands, diffs) = work(&entries);
    assert_eq!(commands, ran(None, None, false));
    assert_eq!(diffs, ["+hello\n+world\n", "-world\n+there\n"]);
    let (failed, _) = read(OutputFormat::GeminiStream, include_str!("recorded/gemini-failed.jsonl"));
    assert_eq!(failed.error.as_deref(), Some("401 invalid x-api-key"));
    let (report, entries) = read(
        OutputFormat::GeminiStream,
        r#"{"type":"message","role":"assistant","content":"Rea","delta":true}
{"type":"message","role":"assistant","content":"dy","delta":true}
{"type":"error","severity":"warning","message":"Loop detected"}"#,
    );
    assert_eq!((report.summary.as_deref(), report.error), (Some("Ready"), None));
    assert_eq!(kinds(&entries), ["message", "error"]);
}

#[test]
fn opencode() {
    let (report, entries) = read(OutputFormat::OpenCodeStream, include_str!("recorded/opencode.jsonl"));
    assert_eq!((report.tokens, report.cost_nanos), (tokens(7800, 1800, 162), Some(6_504_000)));
    assert_eq!(report.summary.as_deref(), LAST);
    assert!(report.session.unwrap().starts_with("ses_"));
    let (commands, diffs) = work(&entries);
    assert_eq!(commands, ran(Some(0), Some(3), true));
    assert_eq!(diffs, ["+hello\n+world\n", "@@ -1,2 +1,2 @@\n hello\n-world\n+there\n"]);
    let (failed, _) = read(OutputFormat::OpenCodeStream, include_str!("recorded/opencode-failed.jsonl"));
    assert_eq!(failed.error.as_deref(), Some("invalid x-api-key"));
}

#[test]
fn goose() {
    let (report, entries) = read(OutputFormat::GooseStream, include_str!("recorded/goose.jsonl"));
    assert_eq!((report.tokens, report.model.as_deref()), (tokens(6500, 1500, 135), Some("m-1")));
    assert_eq!((report.summary.as_deref(), report.error), (LAST, None));
    let (commands, diffs) = work(&entries);
    assert_eq!(commands, ran(Some(0), Some(3), true));
    assert_eq!(diffs, ["+hello\n+world\n", "-world\n+there\n"]);
    // It ends with 0 after this.
    let (failed, _) = read(OutputFormat::GooseStream, include_str!("recorded/goose-failed.jsonl"));
    assert!(failed.error.unwrap().starts_with("Request failed: Bad request (400): the model broke half-way"));
    let (failed, entries) = read(OutputFormat::GooseStream, include_str!("recorded/goose-refused.jsonl"));
    assert!(failed.error.unwrap().contains("Status: 401 Unauthorized"));
    assert_eq!(kinds(&entries), ["output", "error"]);
    let (report, _) =
        read(OutputFormat::GooseStream, r#"{"type":"complete","total_tokens":77,"cost_usd":0.5}"#);
    assert_eq!((report.tokens, report.cost_nanos), (tokens(77, 0, 0), Some(500_000_000)));
}

#[test]
fn aider() {
    let (report, entries) = read(
        OutputFormat::Aider,
        "Added a.py\nTokens: 12k sent, 1.5k cache hit, 1,234 received.\nCost: $0.05 message, $0.12 session.\nBye\n",
    );
    assert_eq!((report.tokens, report.cost_nanos), (tokens(12_000, 1500, 1234), Some(120_000_000)));
    assert_eq!((kinds(&entries), report.summary.as_deref()), (vec!["output", "usage"], Some("Bye")));
    let (report, _) =
        read(OutputFormat::Aider, "Tokens: 10 sent, 2 received. Cost: $0.05 message, $0.12 session.");
    assert_eq!((report.tokens, report.cost_nanos), (tokens(10, 0, 2), Some(120_000_000)));
    // It exits with 0 on a wrong key.
    let refused = "litellm.AuthenticationError: AuthenticationError: OpenAIException - invalid \nx-api-key\nThe API provider is not able to authenticate you. Check your API key.\n";
    let (failed, _) = read(OutputFormat::Aider, refused);
    assert_eq!(failed.error.as_deref(), Some("invalid x-api-key"));
    let again = format!("{refused}Tokens: 10 sent, 2 received.\n");
    assert_eq!(read(OutputFormat::Aider, &again).0.error, None);
}

#[test]
fn a_custom_agent_is_readable_text() {
    let (report, entries) = read_both(
        OutputFormat::Text,
        include_str!("recorded/copilot.txt"),
        include_str!("recorded/copilot-stderr.txt"),
    );
    assert_eq!(report.tokens, tokens(6500, 1500, 135), "Copilot tells them to people only");
    assert_eq!(report.summary.as_deref(), LAST);
    let EntryBody::Output { text } = &entries[0] else { panic!("{entries:?}") };
    assert!(text.text.starts_with("Step 2.\n\n● Create hello.txt +2\n"), "{text:?}");
}

#[test]
fn what_is_hostile_costs_nothing_and_is_not_believed() {
    let endless = "x".repeat(3 * LONGEST_LINE);
    let mut reader = AgentReader::new(OutputFormat::ClaudeStream);
    for _ in 0..3 {
        reader.push(endless.as_bytes(), &mut |_| {});
        assert!(reader.main.line.capacity() <= 2 * LONGEST_LINE);
    }
    reader.push(
        b"\n{\"type\":\"result\",\"total_cost_usd\":-5,\"usage\":{\"input_tokens\":18446744073709551615}}\n",
        &mut |_| {},
    );
    reader.push(
        b"{\"type\":\"result\",\"total_cost_usd\":1e300,\"usage\":{\"input_tokens\":1.5}}\n",
        &mut |_| {},
    );
    let report = reader.finish(&mut |_| {});
    assert_eq!((report.passed_over, report.lines, report.cost_nanos), (1, 3, None));
    assert_eq!(report.tokens, tokens(1 << 50, 0, 0));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let (report, entries) =
        read(OutputFormat::CodexStream, &format!("{{\"type\":{deep}}}\n\u{1b}[31mnot json\n"));
    assert_eq!((report.lines, kinds(&entries)), (2, vec!["output"]));
    // Calls without end that never end.
    let mut reader = AgentReader::new(OutputFormat::ClaudeStream);
    let (mut told, mut bytes) = (0usize, 0usize);
    for at in 0..6000 {
        let call = format!(
            "{{\"type\":\"assistant\",\"message\":{{\"content\":[{{\"type\":\"tool_use\",\"id\":\"t{at}\",\"name\":\"Bash\",\"input\":{{\"command\":\"{}\"}}}}]}}}}\n",
            "y".repeat(5000)
        );
        reader.push(call.as_bytes(), &mut |change| {
            told += 1;
            bytes += change.body.size();
        });
    }
    let report = reader.finish(&mut |_| {});
    assert!(told < 4100 && bytes < 10 << 20, "{told} entries of {bytes} bytes");
    assert_eq!(report.tools, 6000);
}
