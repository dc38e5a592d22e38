//! Logins that are files, of subscriptions: put into the memory of an attempt's sandbox while its agent works, and taken
//! back renewed. docs/design/0029-login-files.md has the whole picture.
//!
//! An agent can write to its own login, so what it leaves there is a claim: only renewed tokens of the same account are
//! taken over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use coffer_core::agent::login_file::{CODEX, is_file, split};
use coffer_core::agent::{AgentDefinition, AgentProgress};
use coffer_core::{RunId, StepCode};
use coffer_fleet::exec::Command;
use coffer_fleet::{FleetError, secret_variables};
use coffer_flow::StepError;
use coffer_store::{ProjectScope, Secret, SecretTerms};
use serde_json::Value;

use super::waiting::TellWait;
use super::{Station, Workbench};

/// The longest file.
const LONGEST: usize = 64 * 1024;
/// Shorter values in a file are no tokens, and would hide words.
const SHORTEST_HIDDEN: usize = 16;
/// Members of Codex's tokens that it renews.
const RENEWED: [&str; 3] = ["id_token", "access_token", "refresh_token"];
/// Where OpenAI's tokens name the account.
const OPENAI: &str = "https://api.openai.com/auth";
const WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(3);
/// How long a test of an agent may keep a login: it is no run whose end is on record.
pub(super) const TEST_KEEPS_MS: i64 = 5 * 60 * 1000;
/// Of every sandbox; the node mounts it.
const MEMORY: &str = "/dev/shm/coffer-login";

/// Puts a file from stdin into memory, below a directory that the home directory links to. A file that is there stays:
/// its program may have renewed it.
const PLACE: &str = r#"set -eu; umask 077; dir=$1 rest=$2 memory=$3
[ "$(stat -f -c %T /dev/shm)" = tmpfs ] || { echo "/dev/shm is not in memory" >&2; exit 3; }
mkdir -p "$memory/$dir"
if [ "$(readlink "$HOME/$dir" || true)" != "$memory/$dir" ]; then
    if [ -e "$HOME/$dir" ]; then cp -a "$HOME/$dir/." "$memory/$dir/"; rm -rf "$HOME/$dir"; fi
    ln -sfn "$memory/$dir" "$HOME/$dir"
fi
file=$memory/$dir/$rest; mkdir -p "${file%/*}"; [ -e "$file" ] || cat > "$file""#;
const REMOVE: &str = r#"rm -f -- "$1""#;

impl AgentLogins {
    /// Those of a definition: secrets by the paths of their files.
    fn of(definition: &AgentDefinition) -> Self {
        let files = definition.secrets.iter().filter(|(name, _)| is_file(name));
        Self(files.map(|(name, secret)| (name.clone(), secret.clone())).collect())
    }
}

/// Names of secrets, by the paths of their files.
struct AgentLogins(BTreeMap<String, String>);

impl Workbench {
    /// Takes the logins of an agent for a run; waits while another attempt has them, and tells so. Two programs that
    /// renew one login make each other's tokens worthless.
    pub(super) async fn take_logins(
        &self,
        scope: &ProjectScope,
        definition: &AgentDefinition,
        run: RunId,
        keeps_ms: Option<i64>,
        tell: TellWait<'_>,
    ) -> Result<(), StepError> {
        // In the order of secrets, so that two agents with the same ones never wait for each other.
        let secrets: BTreeSet<String> = AgentLogins::of(definition).0.into_values().collect();
        for secret in secrets {
            let mut is_told = false;
            while !self.store.take_login(scope, &secret, run, keeps_ms).await? {
                if keeps_ms.is_some() {
                    let message =
                        format!("an attempt works with the login `{secret}`; test the agent when it is over");
                    return Err(StepError::fatal(StepCode::StillRunning, message));
                }
                if !std::mem::replace(&mut is_told, true) {
                    let message = format!("waiting for the login `{secret}`, which another attempt uses");
                    tell(AgentProgress { message: Some(message), ..AgentProgress::default() }).await;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Lets other attempts have the logins of a run.
    pub(super) async fn release_logins(&self, scope: &ProjectScope, run: RunId) -> Result<(), StepError> {
        Ok(self.store.release_logins(scope, run).await?)
    }

    /// Puts the logins of an agent into its sandbox. Returns what must be shown nowhere.
    pub(super) async fn place_logins(
        &self,
        at: &Station,
        definition: &AgentDefinition,
    ) -> Result<Vec<String>, StepError> {
        let logins = AgentLogins::of(definition);
        if logins.0.is_empty() {
            return Ok(Vec::new());
        }
        let values = self.store.read_secrets(at.scope.project()).await?;
        let files = secret_variables(&logins.0, &values);
        let files = files.map_err(|error| self.trouble_at(at, FleetError::from(error)))?;
        let record = self.record(at).await?;
        let mut all = Vec::new();
        for (name, content) in files {
            let wrong = |why: &str| {
                StepError::fatal(StepCode::AgentUndefined, format!("the login `{name}` of the agent {why}"))
            };
            let (dir, rest) =
                split(&name).ok_or_else(|| wrong("is not below a directory of the home directory"))?;
            if content.len() > LONGEST {
                return Err(wrong("is larger than 64 KiB"));
            }
            // Before a program can print it.
            let found = hidden(&content);
            record.hidden.add(&found);
            all.extend(found);
            let words = ["/bin/sh", "-c", PLACE, "sh", dir, rest, MEMORY].map(str::to_string).to_vec();
            let stdin = Some(Bytes::from(content));
            let command = Command {
                words,
                shown: Some(format!("place the login {name}")),
                stdin,
                timeout: Some(WITHIN),
                most: 4096,
                ..Command::default()
            };
            let done = self.exec.run(&record, command, None).await;
            let done = done.map_err(|error| self.trouble_at(at, error))?;
            if !done.succeeded() {
                let said: String =
                    done.stderr.chars().filter(|letter| !letter.is_control()).take(200).collect();
                return Err(wrong(&format!("could not be placed: {said}")));
            }
        }
        self.fleet.note_secrets(&record, logins.0.into_values().collect());
        Ok(all)
    }

    /// Takes the logins of an agent out of its sandbox, and keeps what was renewed. What is lost with a sandbox is lost:
    /// the person signs in again.
    pub(super) async fn take_back_logins(&self, at: &Station, definition: &AgentDefinition) {
        for (name, secret) in AgentLogins::of(definition).0 {
            if let Err(why) = self.take_back(at, &name, &secret).await {
                tracing::warn!(sandbox.id = %at.sandbox, "could not take back the login `{secret}`: {why}");
            }
        }
    }

    async fn take_back(&self, at: &Station, name: &str, secret: &str) -> Result<(), String> {
        let Some(record) = self.fleet.find(&at.scope, at.sandbox) else { return Ok(()) };
        let (dir, rest) = split(name).ok_or("its path is none")?;
        let path = format!("{MEMORY}/{dir}/{rest}");
        // Not by a command: its output would be in the sandbox's log.
        let body = self.exec.file(&record, &path, LONGEST).await.map_err(|error| error.to_string())?;
        let Some(body) = body else { return Ok(()) };
        let after = String::from_utf8(body.to_vec()).map_err(|_| "it is no text")?;
        record.hidden.add(&hidden(&after));
        let values = self.store.read_secrets(at.scope.project()).await.map_err(|error| error.to_string())?;
        let one = BTreeMap::from([(name.to_string(), secret.to_string())]);
        let before = secret_variables(&one, &values).map_err(|error| error.to_string())?.remove(name);
        if let Some(renewed) = before.and_then(|before| renewed(name, &before, &after)) {
            let secret_name = secret.parse().map_err(|_| "its secret has no name")?;
            let (value, terms) = (Secret::from(renewed), SecretTerms::default());
            let kept = self.store.put_secret_on(&at.scope, &secret_name, &value, terms);
            kept.await.map_err(|error| error.to_string())?;
            self.fleet.secrets_changed();
            tracing::info!(sandbox.id = %at.sandbox, "the login `{secret}` was renewed by its program");
        }
        let words = ["/bin/sh", "-c", REMOVE, "sh", &path].map(str::to_string).to_vec();
        let removed = self.small(at, words, None, WITHIN).await.map_err(|error| error.message)?;
        if removed.0 { Ok(()) } else { Err("it could not be removed".into()) }
    }
}

/// The values in a file that must be shown nowhere: its texts, if it is JSON, otherwise all of it.
pub(super) fn hidden(content: &str) -> Vec<String> {
    fn texts(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) if text.len() >= SHORTEST_HIDDEN => found.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
            Value::Object(members) => members.values().for_each(|member| texts(member, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    match serde_json::from_str::<Value>(content) {
        Ok(value) => texts(&value, &mut found),
        Err(_) => found.push(content.trim().to_string()),
    }
    found.retain(|text| text.len() >= SHORTEST_HIDDEN);
    found
}

/// The file with what its program renewed; nothing if it did not, or if that is not believable.
///
/// Google's refresh tokens stay the same, so nothing of Gemini's file is worth keeping.
pub(super) fn renewed(name: &str, before: &str, after: &str) -> Option<String> {
    if name != CODEX || after.len() > LONGEST || before == after {
        return None;
    }
    let mut kept: Value = serde_json::from_str(before).ok()?;
    let new: Value = serde_json::from_str(after).ok()?;
    let (old_tokens, tokens) = (kept["tokens"].as_object()?.clone(), new["tokens"].as_object()?);
    // OpenAI signs its tokens and we cannot check that, but a token that names the account and is not its own opens nothing.
    let who = |token: &Value| account(token.as_str()?);
    for name in ["id_token", "access_token"] {
        if who(old_tokens.get(name)?)? != who(tokens.get(name)?)? {
            return None;
        }
    }
    for name in RENEWED {
        let token = tokens.get(name)?.as_str()?;
        let fits = token.len() >= SHORTEST_HIDDEN && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return None;
        }
        kept["tokens"][name] = Value::from(token);
    }
    let is_time =
        |text: &&str| text.len() <= 40 && text.bytes().all(|byte| b"0123456789-:.TZ+".contains(&byte));
    if let Some(when) = new["last_refresh"].as_str().filter(is_time) {
        kept["last_refresh"] = Value::from(when);
    }
    let text = serde_json::to_string_pretty(&kept).ok()?;
    (kept["tokens"] != Value::Object(old_tokens)).then_some(text)
}

/// Whose a token is: its subject, and the account that it is for.
fn account(token: &str) -> Option<(String, String)> {
    let mut parts = token.split('.');
    let (_, payload, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).ok()?;
    let payload: Value = serde_json::from_slice(&payload).ok()?;
    let account = payload[OPENAI]["chatgpt_account_id"].as_str().unwrap_or_default();
    Some((payload["sub"].as_str()?.to_string(), account.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use coffer_core::agent::login_file::GEMINI;

    use super::*;

    fn token(who: &str, number: u32) -> String {
        let payload = json!({"sub": who, "n": number, OPENAI: {"chatgpt_account_id": "acc-1"}}).to_string();
        let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(payload);
        format!("eyJhbGciOiJSUzI1NiJ9.{payload}.c2lnbmF0dXJl")
    }

    fn file(who: &str, number: u32) -> Value {
        json!({"OPENAI_API_KEY": null, "last_refresh": "2026-11-01T00:00:00Z", "tokens": {
            "id_token": token(who, number), "access_token": token(who, number),
            "refresh_token": format!("rt-{number:020}"), "account_id": "acc-1"}})
    }

    #[test]
    fn renewed_tokens_of_the_same_account_are_kept() {
        let (before, mut after) = (file("user-1", 1), file("user-1", 2));
        after["last_refresh"] = "2026-11-19T10:00:00.5Z".into();
        let kept = renewed(CODEX, &before.to_string(), &after.to_string()).unwrap();
        let kept: Value = serde_json::from_str(&kept).unwrap();
        assert_eq!(kept["tokens"], after["tokens"]);
        assert_eq!(kept["last_refresh"], "2026-11-19T10:00:00.5Z");
        assert_eq!(renewed(CODEX, &before.to_string(), &before.to_string()), None, "nothing is new");
    }

    #[test]
    fn an_agent_cannot_swap_the_account_or_add_anything() {
        let before = file("user-1", 1).to_string();
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut after = file("user-1", 2);
            change(&mut after);
            renewed(CODEX, &before, &after.to_string())
        };
        assert_eq!(changed(&|after| *after = file("attacker", 2)), None);
        assert_eq!(changed(&|after| after["tokens"]["access_token"] = token("attacker", 2).into()), None);
        assert_eq!(changed(&|after| after["tokens"]["access_token"] = "opaque-and-long-enough".into()), None);
        assert_eq!(changed(&|after| after["tokens"]["refresh_token"] = "".into()), None);
        assert_eq!(
            changed(&|after| after["tokens"]["refresh_token"] = "with\nnew lines and more".into()),
            None
        );
        assert_eq!(changed(&|after| after["tokens"] = Value::Null), None);
        let kept = changed(&|after| {
            after["OPENAI_API_KEY"] = "sk-of-the-attacker".into();
            after["tokens"]["account_id"] = "acc-2".into();
            after["more"] = "x".repeat(1000).into();
        });
        let kept: Value = serde_json::from_str(&kept.unwrap()).unwrap();
        assert_eq!((&kept["OPENAI_API_KEY"], &kept["tokens"]["account_id"]), (&Value::Null, &json!("acc-1")));
        assert_eq!(kept.get("more"), None);
        for after in ["", "{}", "[]", "not json", &"x".repeat(LONGEST + 1)] {
            assert_eq!(renewed(CODEX, &before, after), None);
        }
        assert_eq!(renewed(GEMINI, &before, &file("user-1", 2).to_string()), None);
    }

    #[test]
    fn the_tokens_in_a_file_are_hidden_and_not_its_words() {
        let found = hidden(&file("user-1", 1).to_string());
        assert!(found.contains(&token("user-1", 1)) && found.contains(&format!("rt-{:020}", 1)));
        assert!(!found.iter().any(|text| text == "acc-1"));
        assert_eq!(hidden("a plain token of many letters\n"), ["a plain token of many letters"]);
    }
}
