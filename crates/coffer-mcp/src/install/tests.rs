use super::*;

fn wish(key: Option<&str>) -> Wish {
    let url = "http://127.0.0.1:3000".to_string();
    let from = match key {
        Some(key) => KeySource::Key { url, key: key.into() },
        None => KeySource::Environment { url },
    };
    Wish { program: "/usr/bin/coffer".into(), from }
}

fn places(home: &Path) -> Places {
    Places { home: home.into(), config: None, roaming: None, codex: None }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn what_is_in_a_file_stays() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".cursor/mcp.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, r#"{"mcpServers": {"other": {"command": "x"}}, "more": [1]}"#).unwrap();
    for _ in 0..2 {
        plan("cursor", &places(home.path()), &wish(None)).unwrap().write().unwrap();
        let found = read(&file);
        assert_eq!((&found["mcpServers"]["other"]["command"], &found["more"][0]), (&json!("x"), &json!(1)));
        let ours = &found["mcpServers"]["cofferdam"];
        assert_eq!(ours["env"]["COFFER_API_KEY"], "${env:COFFER_API_KEY}");
        assert_eq!((&ours["command"], &ours["args"]), (&json!("/usr/bin/coffer"), &json!(["mcp"])));
    }
    let other = Wish { from: KeySource::Environment { url: "http://other".into() }, ..wish(None) };
    assert!(matches!(plan("cursor", &places(home.path()), &other), Err(InstallError::Exists { .. })));
}

#[test]
fn a_file_that_cannot_be_parsed_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".gemini/settings.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for bad in ["{ // comment\n}", "[]", r#"{"mcpServers": []}"#] {
        fs::write(&file, bad).unwrap();
        let refused = plan("gemini", &places(home.path()), &wish(None)).unwrap_err();
        assert!(matches!(refused, InstallError::Unreadable { .. }), "{bad}: {refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), bad);
    }
}

#[test]
fn comments_in_toml_stay_and_a_second_time_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".codex/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "# mine\nmodel = \"x\"\n\n[mcp_servers.other]\ncommand = \"y\"").unwrap();
    plan("codex", &places(home.path()), &wish(None)).unwrap().write().unwrap();
    let once = fs::read_to_string(&file).unwrap();
    assert!(once.starts_with("# mine\n"), "{once}");
    let parsed: toml::Table = toml::from_str(&once).unwrap();
    assert_eq!(parsed["mcp_servers"]["cofferdam"]["bearer_token_env_var"].as_str(), Some("COFFER_API_KEY"));
    assert_eq!(parsed["mcp_servers"]["other"]["command"].as_str(), Some("y"));
    plan("codex", &places(home.path()), &wish(None)).unwrap().write().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), once);
    fs::write(&file, "mcp_servers = {}\n").unwrap();
    assert!(plan("codex", &places(home.path()), &wish(None)).is_err());
}

#[test]
fn a_key_is_written_only_when_asked_and_only_for_the_owner() {
    let home = tempfile::tempdir().unwrap();
    let refused = plan("claude-desktop", &places(home.path()), &wish(None)).unwrap_err();
    assert!(refused.to_string().contains("--with-key"), "{refused}");
    let plan = plan("claude-desktop", &places(home.path()), &wish(Some("e2b_secret"))).unwrap();
    assert!(!plan.shown().contains("e2b_secret") && plan.is_new);
    plan.write().unwrap();
    assert_eq!(read(&plan.path)["mcpServers"]["cofferdam"]["env"]["COFFER_API_KEY"], "e2b_secret");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&plan.path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn an_unknown_client_is_refused_with_the_names() {
    let refused = plan("emacs", &places(Path::new("/nowhere")), &wish(None)).unwrap_err().to_string();
    assert!(refused.contains("claude-code") && refused.contains("vscode"), "{refused}");
}

#[test]
fn a_profile_is_written_by_its_name_for_every_client() {
    for client in names() {
        let home = tempfile::tempdir().unwrap();
        let all = Places { codex: Some(home.path().into()), ..places(home.path()) };
        let from =
            KeySource::Profile { name: "team \"x\"".into(), directory: Some("/etc/coffer \"x\"".into()) };
        let wish = Wish { program: "/usr/bin/coffer".into(), from };
        let text = plan(client, &all, &wish).unwrap().shown();
        assert!(!text.contains("COFFER_API_KEY") && !text.contains("coffer-api-key"), "{text}");
        let entry: Value = match client {
            "codex" => serde_json::to_value(toml::from_str::<toml::Table>(&text).unwrap()).unwrap(),
            _ => serde_json::from_str(&text).unwrap(),
        };
        let servers =
            ["mcpServers", "servers", "mcp_servers"].iter().find_map(|name| entry.get(*name)).unwrap();
        assert_eq!(servers[NAME]["args"], json!(["mcp", "--profile", "team \"x\""]), "{client}");
        assert_eq!(servers[NAME]["env"]["COFFER_CONFIG_DIR"], "/etc/coffer \"x\"", "{client}");
    }
}
