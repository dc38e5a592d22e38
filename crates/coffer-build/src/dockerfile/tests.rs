use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Dockerfile {
    let options = DockerfileOptions { context: Some("c".repeat(64)), ..DockerfileOptions::default() };
    parse(text, &options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The steps after those that every Dockerfile begins with.
fn steps(text: &str) -> Vec<(BuildStepKind, Vec<String>)> {
    let steps = read(text).plan.steps;
    steps.into_iter().skip(2).map(|step| (step.kind, step.args)).collect()
}

fn refused(text: &str) -> (u32, String) {
    let error = parse(text, &DockerfileOptions::default()).unwrap_err();
    (error.line, error.message)
}

const ENDS: [(BuildStepKind, &str); 2] =
    [(BuildStepKind::User, "user"), (BuildStepKind::Workdir, "/home/user")];

fn expected(list: &[(BuildStepKind, &[&str])]) -> Vec<(BuildStepKind, Vec<String>)> {
    let ends = ENDS.iter().map(|(kind, arg)| (*kind, vec![arg.to_string()]));
    list.iter()
        .map(|(kind, args)| (*kind, args.iter().map(ToString::to_string).collect()))
        .chain(ends)
        .collect()
}

#[test]
fn a_dockerfile_becomes_what_e2bs_clients_send() {
    use BuildStepKind::{Copy, Env, Run, User, Workdir};
    let text = r#"# syntax=docker/dockerfile:1
FROM python:3.12 AS app
ENV A=1 B="two words" PATH=$PATH:/opt/bin
ENV OLD style value
WORKDIR /srv/app
COPY --chown=app:www --chmod=0640 a.txt sub/ ./
ADD ["with space.txt", "/x y/"]
RUN pip install \
    --no-cache-dir -r requirements.txt
RUN ["echo", "it's $HOME"]
USER app:www
EXPOSE 8000
ENTRYPOINT ["python3", "-m"]
CMD ["http.server", "8000"]
"#;
    let read = read(text);
    assert_eq!(read.plan.source, BuildSource::Image("python:3.12".into()));
    let steps: Vec<(BuildStepKind, Vec<&str>)> = read
        .plan
        .steps
        .iter()
        .map(|step| (step.kind, step.args.iter().map(String::as_str).collect()))
        .collect();
    assert_eq!(
        steps,
        [
            (User, vec!["root"]),
            (Workdir, vec!["/"]),
            (Env, vec!["A", "1", "B", "two words", "PATH", "${PATH}:/opt/bin"]),
            (Env, vec!["OLD", "style value"]),
            (Workdir, vec!["/srv/app"]),
            (Copy, vec!["a.txt", "./", "app:www", "0640"]),
            (Copy, vec!["sub", "./", "app:www", "0640"]),
            (Copy, vec!["with space.txt", "/x y/", "", ""]),
            (Run, vec!["pip install     --no-cache-dir -r requirements.txt"]),
            (Run, vec!["echo 'it'\"'\"'s $HOME'"]),
            (User, vec!["app:www"]),
        ]
    );
    assert_eq!(read.plan.steps[5].files_hash.as_deref(), Some("c".repeat(64).as_str()));
    assert_eq!(read.plan.steps[8].line, Some(8));
    let start = read.plan.start.clone().unwrap();
    assert_eq!((start.command.as_deref(), start.ready), (Some("python3 -m http.server 8000"), None));
    let warned: Vec<u32> = read.warnings.iter().map(|warning| warning.line).collect();
    assert_eq!(warned, [12]);
    // And the builder takes it.
    assert_eq!(crate::step::check(&read.plan).unwrap().len(), 11);
}

#[test]
fn args_are_variables_of_commands_and_not_of_the_template() {
    let text = "ARG TAG=12\nARG UNUSED\nFROM debian:${TAG}\nARG TAG\nARG VERSION=1.$TAG\nARG NOTHING\nRUN a\nENV VERSION=2\nRUN b\nUSER u$TAG";
    let options =
        DockerfileOptions { args: [("TAG".to_string(), "13".to_string())].into(), ..Default::default() };
    let plan = parse(text, &options).unwrap().plan;
    assert_eq!(plan.source, BuildSource::Image("debian:13".into()));
    let env = |index: usize| -> Vec<(&str, &str)> {
        plan.steps[index].env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    };
    assert_eq!(env(2), [("TAG", "13"), ("VERSION", "1.13")]);
    assert_eq!(env(4), [("TAG", "13")]);
    assert_eq!(plan.steps[5].args, ["u13"]);
    assert!(
        read("FROM --platform=linux/arm64 a\nARG TARGETARCH\nRUN x").plan.steps[2]
            .env
            .contains_key("TARGETARCH")
    );
}

#[test]
fn commands_take_heredocs_secrets_and_other_shells() {
    use BuildStepKind::Run;
    let text = "FROM a\nRUN <<EOF\necho one\necho two\nEOF\nRUN python3 <<'PY' > x\nprint(1)\nPY\n\
                SHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\nRUN a | b";
    let expected = expected(&[
        (Run, &["echo one\necho two"]),
        (Run, &["python3 <<'PY' > x\nprint(1)\nPY\n"]),
        (Run, &["/bin/bash -o pipefail -c 'a | b'"]),
    ]);
    assert_eq!(steps(text), expected);
    let read =
        read("FROM a\nRUN --mount=type=secret,id=npm-token,env=TOKEN --mount=type=cache,target=/c npm ci");
    assert_eq!(read.plan.steps[2].secrets, [("TOKEN".to_string(), "npm-token".to_string())].into());
    assert_eq!(read.plan.steps[2].args, ["npm ci"]);
    assert_eq!(read.warnings.len(), 1);
}

#[test]
fn templates_and_archives_have_schemes() {
    for (from, source) in [
        ("template://base:v1", BuildSource::Template("base:v1".into())),
        ("archive://abc", BuildSource::Archive("abc".into())),
        ("scratch", BuildSource::Template("scratch".into())),
        ("localhost:5000/a@sha256:00", BuildSource::Image("localhost:5000/a@sha256:00".into())),
    ] {
        assert_eq!(read(&format!("FROM {from}")).plan.source, source);
    }
}

#[test]
fn the_start_command_is_the_last_of_its_kind() {
    let start = |text: &str| read(&format!("FROM a\n{text}")).plan.start.and_then(|start| start.command);
    assert_eq!(start("CMD a\nCMD b c"), Some("b c".into()));
    assert_eq!(start("ENTRYPOINT run it\nCMD [\"x\"]"), Some("run it".into()));
    assert_eq!(start("ENTRYPOINT [\"sh\", \"-c\"]\nCMD x y"), Some("sh -c /bin/sh -c 'x y'".into()));
    assert_eq!(start("ENTRYPOINT [\"e\"]\nENTRYPOINT []"), None);
    assert_eq!(start("RUN x"), None);
}

#[test]
fn refusals_name_the_line_and_the_way_out() {
    for (text, line, says) in [
        ("", 1, "there is no FROM"),
        ("\n\nRUN x", 3, "RUN comes before FROM"),
        ("FROM a\nFROM b", 2, "a second FROM"),
        ("FROM", 1, "FROM needs the name of an image"),
        ("FROM a b c", 1, "FROM needs the name of an image"),
        ("FROM $X", 1, "$X has no value before the build"),
        ("FROM a\nCOPY --from=b x y", 2, "COPY --from is not supported"),
        ("FROM a\nCOPY x y", 2, "upload it and name it in `context`"),
        ("FROM a\nCOPY x", 2, "COPY needs a source and a destination"),
        ("FROM a\nCOPY x y z", 2, "must end with '/'"),
        ("FROM a\nCOPY --chmod=u+x x y", 2, "the mode 'u+x' is not octal"),
        ("FROM a\nCOPY <<EOF /x\nhello\nEOF\n", 2, "COPY of a heredoc is not supported"),
        ("FROM a\nRUN", 2, "RUN needs a command"),
        ("FROM a\nRUN []", 2, "RUN needs a command"),
        ("FROM a\nRUN <<EOF\n#!/usr/bin/python3\nEOF", 2, "name the program"),
        ("FROM a\nRUN --mount=type=ssh x", 2, "--mount of type ssh is not supported"),
        ("FROM a\nRUN --mount=type=secret,id=x y", 2, "needs env="),
        ("FROM a\nRUN --network=none x", 2, "RUN --network is not supported"),
        ("FROM a\nENV A", 2, "'A' needs a value"),
        ("FROM a\nENV A=1 B", 2, "'B' needs a value"),
        ("FROM a\nENV A=\"x", 2, "has no second one"),
        ("FROM a\nUSER $HOME", 2, "$HOME has no value before the build"),
        ("FROM a\nWORKDIR", 2, "WORKDIR needs a value"),
        ("FROM a\nARG 1=2", 2, "'1' cannot be the name of an ARG"),
        ("FROM a\nSHELL bash", 2, "SHELL needs words as JSON"),
        ("FROM a\nFOO x", 2, "'FOO' is not an instruction"),
        ("FROM a\nRUN \0", 2, "there is a NUL"),
    ] {
        let (at, message) = refused(text);
        assert!(at == line && message.contains(says), "{text:?}: line {at}: {message}");
    }
    let options = DockerfileOptions { context: Some("c".into()), ..Default::default() };
    for (add, says) in [("https://x/y /y", "download it with RUN"), ("a.tar.gz /", "RUN tar")] {
        let error = parse(&format!("FROM a\nADD {add}"), &options).unwrap_err();
        assert!(error.message.contains(says), "{error}");
    }
}

#[test]
fn sources_stay_in_the_context() {
    for (source, kept) in
        [("../../etc/passwd", "etc/passwd"), ("./a/./b/", "a/b"), ("/", "."), ("a/../..", "."), (".", ".")]
    {
        assert_eq!(within_context(source).as_deref(), Ok(kept), "{source}");
    }
}

#[test]
fn plans_are_bounded() {
    assert!(refused(&format!("FROM a\nRUN {}", "x".repeat(LONGEST_DOCKERFILE))).1.contains("more than"));
    assert!(refused(&format!("FROM a\n{}", "RUN x\n".repeat(600))).1.contains("at most 500 steps"));
    let doubling: String = (0..40).map(|index| format!("ARG A{}=$A{index}$A{index}\n", index + 1)).collect();
    let (_, message) = refused(&format!("FROM a\nARG A0=xx\n{doubling}"));
    assert!(message.contains("more than"), "{message}");
    let many: String = (0..400).map(|index| format!("ARG B{index}={}\n", "y".repeat(500))).collect();
    let (_, message) = refused(&format!("FROM a\n{many}{}", "RUN x\n".repeat(400)));
    assert!(message.contains("with their variables"), "{message}");
}

proptest! {
    #[test]
    fn reading_never_panics(text in "(FROM|RUN|ENV|COPY|ARG|USER|[ \t\n\\\\\"'$`{}:=<#a-z\\[\\],-]){0,60}") {
        let _ = parse(&text, &DockerfileOptions::default());
        let _ = parse(&format!("FROM a\n{text}"), &DockerfileOptions { context: Some("c".into()), ..Default::default() });
    }
}
