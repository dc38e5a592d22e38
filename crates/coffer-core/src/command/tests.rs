use proptest::prelude::*;

use super::*;

fn policy(default: Effect, rules: &[(Effect, &str)]) -> CommandPolicy {
    let rules = rules
        .iter()
        .map(|(effect, pattern)| Rule { effect: *effect, pattern: pattern.parse().unwrap(), note: None })
        .collect();
    CommandPolicy { default, rules }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_string).collect()
}

/// As SDKs start a line.
fn bash(line: &str) -> Vec<String> {
    ["/bin/bash", "-l", "-c", line].map(str::to_string).to_vec()
}

fn refused(policy: &CommandPolicy, words: &[String]) -> Option<Refused> {
    policy.refusal(&policy.judge(words))
}

fn is_unclear(policy: &CommandPolicy, words: &[String]) -> bool {
    matches!(refused(policy, words), Some(Refused::Unclear(_)))
}

#[test]
fn a_pattern_is_how_a_command_begins() {
    for (pattern, command, fits) in [
        ("rm", "rm -rf /", true),
        ("rm", "/usr/bin/rm x", true),
        ("rm", "rmdir x", false),
        ("/bin/rm", "/usr/bin/rm x", false),
        ("rm*", "rmdir x", true),
        ("git push", "git push origin", true),
        ("git push", "git pull", false),
        ("git push", "git", false),
        ("git * --force", "git push --force", true),
        ("git ** --force", "git push origin main --force", true),
        ("git ** --force", "git push origin main", false),
        ("** rm", "sudo rm x", true),
        ("** rm", "rm x", true),
        ("** rm", "sudo -n rm", true),
        ("** rm ** /", "sudo rm -rf --no-preserve-root /", true),
        ("curl *.evil.*", "curl http://x.evil.example/", true),
        ("curl *a*b*", "curl b", false),
        ("*", "anything at all", true),
        ("a*a", "a", false),
        ("git **", "git", true),
    ] {
        let pattern: Pattern = pattern.parse().unwrap();
        assert_eq!(pattern.fits(&words(command)), fits, "{pattern} {command}");
    }
}

#[test]
fn the_first_rule_that_fits_decides() {
    use Effect::{Allow, Deny};
    let policy = policy(Allow, &[(Allow, "git push origin"), (Deny, "git push"), (Deny, "rm -rf")]);
    for (line, rule) in [
        ("git push origin main", None),
        ("git push elsewhere", Some(1)),
        ("ls && rm -rf /", Some(2)),
        ("rm x", None),
        ("echo 'rm -rf /'", None),
        ("echo rm -rf", None),
        ("if true; then rm -rf /; fi", Some(2)),
        ("x=1 y=2 rm -rf /", Some(2)),
        ("echo $(rm -rf /)", Some(2)),
        ("echo \"a `rm -rf /` b\"", Some(2)),
        ("cat <(rm -rf /)", Some(2)),
        ("(cd /; rm -rf .)", Some(2)),
        ("{ rm -rf .; }", Some(2)),
        ("true | rm -rf x", Some(2)),
        ("true & rm -rf x", Some(2)),
        ("true\nrm -rf x", Some(2)),
        ("! rm -rf x", Some(2)),
        ("time -p rm -rf x", Some(2)),
        ("function f { rm -rf x; }", Some(2)),
        ("for x do rm -rf x; done", Some(2)),
        ("for x in rm -rf; do echo $x; done", None),
        ("case x in a) rm -rf x;; esac", Some(2)),
        ("case $x in a) true;; *) rm -rf x;; esac", Some(2)),
        ("case $x in a|b*) true;; esac; rm -rf x", Some(2)),
        ("case $x in $(rm -rf x)) true;; esac", Some(2)),
        ("case $(rm -rf x) in *) true;; esac", Some(2)),
        ("(case x in (a) ls;; b) true;; esac; rm -rf x)", Some(2)),
        ("if case x in *) true;; esac then rm -rf x; fi", Some(2)),
        ("case x in *) case y in *) true;; esac esac\nrm -rf x", Some(2)),
        ("case x in *) cat <<E\n*) rm -rf x\nE\n;; esac", None),
        ("case x in\n# the rest\n[a-z]*|\"-rf\") ls ;; # more\n(*)\n ls ;&\n~/x) ls\nesac", None),
        ("case rm in rm) ls;; -rf) ls;; esac > out", None),
        ("case x in esac; rm -rf x", Some(2)),
        (">out rm -rf x", Some(2)),
        ("2>&1 rm -rf x", Some(2)),
        ("r\\\nm -rf x", Some(2)),
        ("r''m \"-rf\" x", Some(2)),
        ("\\rm -rf x", Some(2)),
        ("bash -c 'rm -rf x'", Some(2)),
        ("sh -ec 'true; sh -c \"rm -rf x\"'", Some(2)),
        ("echo ${x:-$(rm -rf x)}", Some(2)),
        ("echo $((1 + $(rm -rf x)))", Some(2)),
        ("echo $((1 + 2)); rm -rf x", Some(2)),
        ("a=(1 2); for ((i=0; i<3; i++)); do rm -rf x; done", Some(2)),
        ("cat > f <<'E'\nrm -rf x $(rm -rf x)\nit's\nE\ntrue", None),
        ("cat <<E\n$(rm -rf x)\nE", Some(2)),
        ("cat <<E\nfoo\nE\nrm -rf x", Some(2)),
        ("cat <<E\nfoo\\\nE\nE\nrm -rf x", Some(2)),
        ("cat <<-E\n\tfoo\n\tE\nrm -rf x", Some(2)),
        ("cat <<A; cat <<B\na\nA\nb\nB\nrm -rf x", Some(2)),
        ("cat <<EOF\nE\\\nOF\nrm -rf x", Some(2)),
        ("cat <<< 'rm -rf x'", None),
        ("# rm -rf x\ntrue", None),
        ("echo a#b; rm -rf x", Some(2)),
        ("((1 #2)); rm -rf x\n))", Some(2)),
        ("[ -f x ] && [[ -n y ]] || rm -rf x", Some(2)),
    ] {
        let found = refused(&policy, &bash(line));
        assert_eq!(found.as_ref().and_then(Refused::rule), rule, "{line}: {found:?}");
        assert_eq!(found.is_some(), rule.is_some(), "{line}: {found:?}");
    }
}

#[test]
fn what_cannot_be_told_is_refused_where_there_is_a_policy() {
    let some = policy(Effect::Allow, &[(Effect::Deny, "rm")]);
    for line in [
        "$CMD x",
        "\"$CMD\" x",
        "$(echo rm) x",
        "/bin/r? x",
        "[r]m x",
        "{rm,-rf} x",
        "~/x",
        "$'rm' x",
        "echo 'x",
        "echo \"x",
        "echo $(x",
        "(x",
        "echo `x",
        "echo \"$(case x in a) rm x;; esac)\"",
        "case x in *) ls",
        "case x in\nrm x\ny) ls;; esac",
        "case x in @(a|b)) ls;; esac",
        "case x in a b) ls;; esac",
        "case x in a) ls;; (esac) ls;; esac",
        "case x in a) ls) ;; esac",
        "cat <<E; case x in\nrm) x\nE\nls;; esac",
        "case x\nof *) ls;; esac",
        "echo $'\\'; rm x #'",
        "cat <<$X\nx\n",
        "echo $((1 '#'2)); rm x",
        "echo $((rm x) )",
        "cat <(echo)#; rm x",
        "coproc rm x",
        "a\0b",
    ] {
        assert!(is_unclear(&some, &bash(line)), "{line}: {:?}", some.judge(&bash(line)));
        assert_eq!(refused(&CommandPolicy::default(), &bash(line)), None, "{line}");
    }
    let long = "x ".repeat(shell::LONGEST);
    assert!(is_unclear(&some, &bash(&long)));
    assert!(is_unclear(&some, &words(&long)));
    assert!(is_unclear(&some, &bash(&"$(".repeat(1000))));
    assert!(is_unclear(&some, &bash(&"(".repeat(100_000))));
}

#[test]
fn an_allow_list_lets_nothing_else_pass() {
    let policy = policy(Effect::Deny, &[(Effect::Allow, "git"), (Effect::Allow, "echo")]);
    for line in ["git status", "git a && echo b | git c", "", "x=1", "# nothing", "echo $(git status)"] {
        assert_eq!(refused(&policy, &bash(line)), None, "{line}");
    }
    for line in [
        "ls",
        "git status; ls",
        "echo $(ls)",
        "echo `ls`",
        "echo \"$(ls)\"",
        "echo <(ls)",
        "git() { ls; }",
        "eval ls",
        "sudo git x",
        "cat <<E\nE",
        "zsh -c 'git x'",
        "bash script.sh",
        "case x in git) ls;; esac",
    ] {
        assert!(refused(&policy, &bash(line)).is_some(), "{line}");
    }
    assert!(refused(&policy, &words("ls")).is_some());
    assert_eq!(refused(&policy, &words("/usr/bin/git log")), None);
    // A terminal is a shell without a line.
    assert!(refused(&policy, &words("/bin/bash -i -l")).is_some());
}

#[test]
fn a_shell_is_seen_through_however_it_is_given_its_line() {
    let policy = policy(Effect::Allow, &[(Effect::Deny, "rm")]);
    for command in [
        &["sh", "-c", "rm x"][..],
        &["bash", "-lc", "rm x"],
        &["bash", "-c", "-l", "rm x"],
        &["bash", "-o", "pipefail", "-c", "rm x"],
        &["bash", "-euo", "pipefail", "-c", "rm x"],
        &["bash", "+o", "posix", "-c", "rm x"],
        &["bash", "--norc", "--rcfile", "x", "-c", "--", "rm x"],
        &["bash", "-c", "rm x", "name", "argument"],
        &["/usr/bin/env/../bash", "-c", "rm x"],
    ] {
        let command: Vec<_> = command.iter().map(|word| (*word).to_string()).collect();
        assert!(refused(&policy, &command).is_some(), "{command:?}");
    }
    for command in [&["bash", "rm"][..], &["bash", "-c"], &["bash", "x.sh", "-c", "rm x"], &["bash"], &[]] {
        let command: Vec<_> = command.iter().map(|word| (*word).to_string()).collect();
        assert_eq!(refused(&policy, &command), None, "{command:?}");
    }
}

#[test]
fn a_policy_is_read_as_it_is_written() {
    let text = r#"{"default":"deny","rules":[{"effect":"allow","pattern":"git ** -x","note":"why"}]}"#;
    let policy: CommandPolicy = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&policy).unwrap(), text);
    for bad in [
        r#"{"rules":[{"effect":"deny","pattern":" "}]}"#,
        r#"{"rules":[{"effect":"perhaps","pattern":"x"}]}"#,
        r#"{"rules":[{"effect":"deny","pattern":"x","more":1}]}"#,
        r#"{"rule":[]}"#,
    ] {
        assert!(serde_json::from_str::<CommandPolicy>(bad).is_err(), "{bad}");
    }
    for text in ["**", "** a", "a **", "a ** b ** c", "*"] {
        assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
    }
    let many = policy.rules[0].clone();
    assert!(CommandPolicy { default: Effect::Deny, rules: vec![many; 101] }.check().is_err());
}

/// Lines of keywords and parentheses, run by real shells that find no program. The policy must have seen
/// every program that a shell looked for, or refuse the line.
#[test]
fn a_shell_runs_nothing_that_was_not_seen() {
    const TOKENS: &str = "case,case x in,in,esac,*),a),(a),needle),needle,needle,;;,;;,;&,;,;,\n,\n,(,),{,},if,then,fi,\
        for,do,done,!,|,||,&&,x,a=(,<f,<<E,\nE\n,#,[[,]],f()";
    const LINES: [&str; 6] = [
        "case x in a) x ;; * ) needle ;; esac \n needle",
        "case x in ( needle ) x ;; esac ; x",
        "( case x in needle | a ) x ;; needle ) x ;; esac ; needle )",
        "if case x in x ) x ;; esac then case needle in \n # \n needle) x \n esac \n fi",
        "case x in x ) case x in * ) x ;& needle) x ;; esac ;; esac ; x",
        "x a \n x \n x && ( x ; x ) || { x ; } \n x",
    ];
    let policy = policy(Effect::Allow, &[(Effect::Deny, "needle")]);
    let shells: Vec<_> = ["bash", "dash"].into_iter().filter(|name| run_shell(name, ":").is_some()).collect();
    let rounds = std::env::var("FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400_u64);
    let tokens: Vec<&str> = TOKENS.split(',').collect();
    let mut ran = 0;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chance = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for _ in 0..rounds {
        let mut words = LINES[chance(LINES.len())].split(' ').collect::<Vec<_>>();
        for _ in 0..chance(5) {
            let at = chance(words.len());
            match chance(3) {
                0 => words[at] = tokens[chance(tokens.len())],
                1 => words.insert(at, tokens[chance(tokens.len())]),
                _ => words.truncate(at.max(1)),
            }
        }
        let line = words.join(" ");
        if refused(&policy, &bash(&line)).is_some() {
            continue;
        }
        for shell in &shells {
            let said = run_shell(shell, &line).unwrap();
            assert!(!said.contains("needle: "), "{shell} runs {line:?}: {said}");
            ran += usize::from(said.contains("x: "));
        }
    }
    assert!(shells.is_empty() || ran > 20, "{ran} lines got as far as a command");
}

/// A shell's standard error, if that shell is installed.
fn run_shell(shell: &str, line: &str) -> Option<String> {
    let path = ["/bin", "/usr/bin"]
        .iter()
        .map(|dir| format!("{dir}/{shell}"))
        .find(|path| std::path::Path::new(path).exists())?;
    let mut command = std::process::Command::new(path);
    let command =
        command.args(["-c", line]).env_clear().env("PATH", "/nonexistent").stdin(std::process::Stdio::null());
    Some(String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned())
}

/// Code can start any program: a rule about commands says nothing about it.
#[test]
fn code_runs_only_if_a_rule_names_it() {
    let permits = |policy: &CommandPolicy, language: &str| policy.permit(&super::code(language)).is_ok();
    assert!(permits(&CommandPolicy::default(), "python"), "without a policy");
    for blind in [
        policy(Effect::Allow, &[(Effect::Deny, "curl")]),
        policy(Effect::Deny, &[(Effect::Allow, "**")]),
        policy(Effect::Deny, &[(Effect::Allow, "*")]),
        policy(Effect::Deny, &[(Effect::Allow, "** code:python")]),
        policy(Effect::Deny, &[(Effect::Allow, "cod*")]),
        policy(Effect::Deny, &[]),
    ] {
        assert!(!permits(&blind, "python"), "{blind:?}");
    }
    let some = policy(
        Effect::Allow,
        &[(Effect::Deny, "code:bash"), (Effect::Allow, "code:*"), (Effect::Deny, "rm")],
    );
    assert!(permits(&some, "python") && permits(&some, "r") && !permits(&some, "bash"));
    let refused = some.permit(&super::code("bash")).unwrap_err();
    assert_eq!((refused.rule, refused.words), (Some(0), vec!["code:bash".to_string()]));
    // A rule about code says nothing about commands.
    let code = policy(Effect::Deny, &[(Effect::Allow, "code:*")]);
    assert!(refused_words(&code, &["ls"]) && permits(&code, "python"));
}

fn refused_words(policy: &CommandPolicy, words: &[&str]) -> bool {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    policy.permit(&words).is_err()
}

proptest! {
    /// A command on its own line is found, whatever is before it, or the line is refused.
    #[test]
    fn nothing_hides_what_follows(before in "[ -~\n\t]{0,60}") {
        let policy = policy(Effect::Allow, &[(Effect::Deny, "needle")]);
        let quotes = |text: &str| text.contains(['\'', '"', '\\', '<', '`', '#']) || text.contains("$(") || text.contains("((");
        // Quotes and here-documents may swallow the next line, as in a shell.
        if !quotes(&before) {
            let line = format!("{before}\nneedle");
            prop_assert!(refused(&policy, &bash(&line)).is_some(), "{line}");
        }
    }

    #[test]
    fn no_line_panics(line in "[a-z '\"\\\\$`(){}<>|&;#*?\n=\\[\\]-]{0,80}") {
        let policy = policy(Effect::Deny, &[(Effect::Allow, "a ** b*c")]);
        let judged = policy.judge(&bash(&line));
        prop_assert_eq!(policy.judge(&bash(&line)), judged);
    }

    /// Quoting never changes the words that bash would run.
    #[test]
    fn quotes_do_not_change_words(words in prop::collection::vec("[a-z*$;|&() #~{}\"-]{1,8}", 1..5)) {
        let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let policy = policy(Effect::Deny, &[]);
        let judged = policy.judge(&bash(&line));
        prop_assert_eq!(&judged.commands[0].words, &words);
    }
}
