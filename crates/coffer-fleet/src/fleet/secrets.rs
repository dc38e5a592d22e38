//! Secrets by reference: in a sandbox's environment, and in headers that egress adds to its requests.
//!
//! Rows have names, never values. The fleet looks up values when it initialises agentd and when it sends the
//! engine a network policy; the latter again when a secret has changed or the engine was unreachable, because
//! the engine keeps values only in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_core::network::{HeaderRule, HeaderText, Policy, SECRET_REFERENCE};
use coffer_core::sync::Mutex;
use coffer_core::{AuditId, ProjectId, StateName};
use coffer_engine::EngineNotice;
use coffer_store::{AuditRecord, MissingKey, SandboxRow, SecretValues, Store, UsableSecret};
use coffer_wire::agentd::Init;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{Fleet, FleetError, Record, Step};
use crate::output::{Patterns, Values};
use coffer_core::chain;
use coffer_core::clock::now_ms;

/// How often to look for changes of secrets by other servers.
const LOOK: Duration = Duration::from_secs(10);
/// The action of the audit record for a secret that a sandbox got.
const SECRET_USED: &str = "secret.used";

/// Why a secret cannot be used as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretUse {
    #[error("secret '{0}' not found")]
    Unknown(String),
    #[error("the secret '{0}' can be used only in headers to its own hosts")]
    OtherHost(String),
    #[error(
        "the secret '{0}' is limited to hosts and may not be sent in plain HTTP; hint: leave out `plain_http`, or \
         have an admin set `plain_http` on the secret"
    )]
    PlainHttp(String),
    #[error("the secret '{0}' is limited to hosts and may not be sent in plain HTTP through `egressProxy`")]
    PlainProxy(String),
    #[error("the secret '{0}' is sealed under a missing master key")]
    Sealed(String),
    #[error("the secret '{0}' is not a valid header value: it is too long or has invisible characters")]
    NoHeader(String),
    #[error("`${{` in a header value starts a reference: write `${{secret:NAME}}`")]
    NoReference,
    #[error("the sandbox's settings are sealed under a missing master key")]
    SandboxSealed,
}

/// The environment variables with the values of the named secrets.
pub fn variables(
    names: &BTreeMap<String, String>,
    values: &SecretValues,
) -> Result<BTreeMap<String, String>, SecretUse> {
    let value = |(variable, name): (&String, &String)| {
        let secret = values.get(name).ok_or_else(|| SecretUse::Unknown(name.clone()))?;
        if secret.hosts.is_some() {
            return Err(SecretUse::OtherHost(name.clone()));
        }
        let value = secret.value.as_ref().ok_or_else(|| SecretUse::Sealed(name.clone()))?;
        Ok((variable.clone(), value.reveal().to_string()))
    };
    names.iter().map(value).collect()
}

/// The policy with the values of secrets instead of their names.
fn with_values(policy: Policy, values: &SecretValues) -> Result<Policy, SecretUse> {
    let proxied = policy.proxy().is_some();
    policy.map_headers(|rule, text| filled(rule, text, proxied, values))
}

fn filled(
    rule: &HeaderRule,
    text: &HeaderText,
    proxied: bool,
    values: &SecretValues,
) -> Result<HeaderText, SecretUse> {
    let mut rest = text.reveal();
    let mut whole = String::new();
    let mut last = None;
    while let Some((before, after)) = rest.split_once("${") {
        whole.push_str(before);
        let reference = after.strip_prefix(&SECRET_REFERENCE[2..]).and_then(|after| after.split_once('}'));
        let (name, after) = reference.ok_or(SecretUse::NoReference)?;
        let secret = values.get(name).ok_or_else(|| SecretUse::Unknown(name.to_string()))?;
        let is_for = |hosts: &Vec<_>| {
            rule.hosts.iter().all(|host| hosts.iter().any(|pattern| host.is_within(pattern)))
        };
        if !secret.hosts.as_ref().is_none_or(is_for) {
            return Err(SecretUse::OtherHost(name.to_string()));
        }
        check_transport(rule, name, secret, proxied)?;
        let value = secret.value.as_ref().ok_or_else(|| SecretUse::Sealed(name.to_string()))?;
        whole.push_str(value.reveal());
        last = Some(name);
        rest = after;
    }
    whole.push_str(rest);
    HeaderText::parse(&whole).map_err(|_| SecretUse::NoHeader(last.unwrap_or_default().to_string()))
}

/// Refuses to send a secret that is limited to hosts if the host does not prove its name.
///
/// Over TLS it does, also through a proxy: egress verifies the certificate of the named host itself. Plain
/// HTTP can be answered by any address that the sandbox or its DNS names, and read by a proxy of the caller's
/// choice.
fn check_transport(
    rule: &HeaderRule,
    name: &str,
    secret: &UsableSecret,
    proxied: bool,
) -> Result<(), SecretUse> {
    match (secret.hosts.is_some() && rule.plain_http, secret.plain_http, proxied) {
        (false, _, _) | (true, true, false) => Ok(()),
        (true, false, _) => Err(SecretUse::PlainHttp(name.to_string())),
        (true, true, true) => Err(SecretUse::PlainProxy(name.to_string())),
    }
}

/// Whether the engine needs secrets for this sandbox. Called often, for every sandbox.
fn has_secrets(row: &SandboxRow) -> bool {
    let policy = &row.network.policy;
    policy.proxy().is_some() || !policy.headers().is_empty()
}

/// Logs at the start what cannot be read because a master key is missing, and what to do about it.
pub(super) async fn explain_missing(store: &Store) {
    match store.master_key(&store.operator()).await {
        Ok(status) => {
            for missing in status.missing {
                let MissingKey { id, projects, secrets, sandboxes } = missing;
                tracing::error!(
                    "master key {id} is missing: {secrets} secrets and the tokens and settings of {sandboxes} live \
                     sandboxes in {projects} projects cannot be read. Put it back, as a second line of the master \
                     key's file or in secrets.previous_master_keys, and start again; or set those secrets again and \
                     destroy those sandboxes. Everything else works."
                );
            }
        }
        Err(error) => tracing::warn!("could not check for missing master keys: {error}"),
    }
}

/// The redaction patterns of a project: its values as this server last read them.
pub(super) fn patterns_of(store: Store) -> Values {
    let made: Mutex<HashMap<ProjectId, (u64, Arc<Patterns>)>> = Mutex::default();
    let none = Arc::new(Patterns::default());
    Arc::new(move |project| {
        let Some(values) = store.cached_secret_values(project) else { return none.clone() };
        let mut made = made.lock();
        match made.get(&project) {
            Some((version, patterns)) if *version == values.version => patterns.clone(),
            _ => {
                let patterns = Arc::new(Patterns::new(&values.texts().collect::<Vec<_>>()));
                made.insert(project, (values.version, patterns.clone()));
                patterns
            }
        }
    })
}

impl Fleet {
    /// Reads the secrets of all projects that have sandboxes, which also finds changes by other servers.
    pub(super) async fn read_secrets(&self) -> HashMap<ProjectId, u64> {
        let projects: HashSet<ProjectId> = self.everyone().iter().map(|record| record.project).collect();
        let mut versions = HashMap::new();
        for project in projects {
            match self.store.read_secrets(project).await {
                Ok(values) => drop(versions.insert(project, values.version)),
                Err(error) => tracing::warn!("could not read the secrets of project {project}: {error}"),
            }
        }
        versions
    }

    /// The policy for the engine, and the version of the values in it.
    pub(super) async fn reach_of(
        &self,
        project: ProjectId,
        policy: Policy,
    ) -> Result<(Policy, u64), FleetError> {
        let policy = policy.of_project(project);
        if policy.headers().is_empty() {
            return Ok((policy, 0));
        }
        let mut values = self.store.secret_values(project).await?;
        let mut filled = with_values(policy.clone(), &values);
        if matches!(filled, Err(SecretUse::Unknown(_))) {
            // Another server may have just created it.
            values = self.store.read_secrets(project).await?;
            filled = with_values(policy, &values);
        }
        Ok((filled?, values.version))
    }

    /// Checks that the secrets of a new sandbox can be used; usually from memory.
    pub(super) async fn check_secrets(
        &self,
        project: ProjectId,
        names: &BTreeMap<String, String>,
    ) -> Result<(), FleetError> {
        // At least once for each project: output is redacted with the values in memory.
        if names.is_empty() && self.store.cached_secret_values(project).is_some() {
            return Ok(());
        }
        let values = self.store.secret_values(project).await?;
        match variables(names, &values) {
            Err(SecretUse::Unknown(_)) => {
                variables(names, &*self.store.read_secrets(project).await?)?;
            }
            checked => {
                checked?;
            }
        }
        Ok(())
    }

    /// The message that initialises a sandbox's agentd.
    pub(super) async fn init_of(&self, record: &Record) -> Result<Init, FleetError> {
        let (sealed, names, project) = {
            let live = record.live();
            (live.row.sealed, live.row.secrets.clone(), record.project)
        };
        if sealed {
            return Err(SecretUse::SandboxSealed.into());
        }
        let mut init = record.init(&self.environment);
        if !names.is_empty() {
            let values = self.store.secret_values(project).await?;
            init.env_vars.extend(variables(&names, &values)?);
        }
        let in_headers = record.live().row.network.policy.secret_names();
        self.note_secrets(record, names.into_values().chain(in_headers).collect());
        Ok(init)
    }

    /// Records that a sandbox got secrets: in its environment, or in headers of its requests.
    pub fn note_secrets(&self, record: &Record, names: BTreeSet<String>) {
        for name in names {
            let id = AuditId::generate();
            self.audit.write_read(AuditRecord {
                id,
                project: Some(record.project),
                actor: format!("sandbox:{}", record.id),
                action: SECRET_USED.to_string(),
                subject: Some(name),
                status: 200,
                code: None,
                request_id: id.to_string(),
                at_ms: now_ms(),
            });
        }
    }

    /// Sends changed secrets to the engine soon.
    pub fn secrets_changed(&self) {
        self.tell_secrets.notify_one();
    }

    /// Sends secrets that the engine does not have, until `stop`.
    pub(super) async fn keep_told(
        self: Arc<Self>,
        mut notices: broadcast::Receiver<EngineNotice>,
        stop: CancellationToken,
    ) {
        loop {
            self.tell_all().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.tell_secrets.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                notice = notices.recv() => match notice {
                    Ok(EngineNotice::Died { .. }) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                    // It may be another node, which has no secrets yet.
                    Ok(EngineNotice::Reconnected) | Err(broadcast::error::RecvError::Lagged(_)) => {
                        for record in self.everyone() {
                            record.told.store(0, Ordering::Relaxed);
                        }
                    }
                },
            }
        }
    }

    async fn tell_all(self: &Arc<Self>) {
        let versions = self.read_secrets().await;
        for record in self.everyone() {
            if !has_secrets(&record.live().row) && record.git.is_empty() {
                continue;
            }
            let Some(&version) = versions.get(&record.project) else { continue };
            if record.told.load(Ordering::Relaxed) != version
                && let Some(claim) = record.try_claim(Step::Update)
            {
                let told = self.tell(&record).await;
                drop(claim);
                self.heal(&record).await;
                if let Err(error) = told {
                    let id = record.id;
                    tracing::warn!(sandbox.id = %id, "could not send the secrets of sandbox {id} to the engine: {}", chain(&error));
                }
            }
        }
    }

    /// Sends the engine a sandbox's network policy with secrets. If they cannot be read, sends it without, so
    /// that requests that need a header are refused.
    pub(super) async fn tell(&self, record: &Record) -> Result<(), FleetError> {
        let row = record.row();
        if row.sealed || !matches!(row.state.name(), StateName::Running | StateName::Paused) {
            return Ok(());
        }
        let policy = record.git.opens(row.network.policy.clone()).map_err(|_| FleetError::Broken)?;
        match self.reach_of(row.project, policy.clone()).await {
            Ok((reach, version)) => {
                self.engine.set_network(row.id, &reach).await?;
                self.note_secrets(record, row.network.policy.secret_names());
                // If no header refers to a secret, the version does not matter; use the current one.
                let now =
                    self.store.cached_secret_values(row.project).map_or(version, |values| values.version);
                record.told.store(if version == 0 { now } else { version }, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                let policy = policy.of_project(row.project);
                self.engine.set_network(row.id, &policy.without_secrets()).await?;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_store::SecretTerms;
    use serde_json::json;

    fn policy(value: &str, host: &str) -> Policy {
        let headers = json!([{"hosts": [host], "headers": {"authorization": value}}]);
        serde_json::from_value(json!({"base": "web", "headers": headers})).unwrap()
    }

    async fn values() -> Arc<SecretValues> {
        let database = coffer_testkit::TestDatabase::sqlite();
        let store = database.open().await;
        let project = store.create_project(&store.operator(), "p").await.unwrap();
        let key = store.create_key(&store.operator(), project, "k").await.unwrap();
        let Some(coffer_store::Authenticated::Project(whom)) =
            store.authenticate(key.reveal()).await.unwrap()
        else {
            panic!("a key of a project");
        };
        let hosts = vec![coffer_core::network::NamePattern::parse("*.a.com").unwrap()];
        for (name, value, hosts, plain_http) in [
            ("open", "open value", None, None),
            ("bound", "bound value", Some(hosts.clone()), None),
            ("plain", "plain value", Some(hosts), Some(true)),
            ("lines", "a\nb", None, None),
        ] {
            let (value, terms) =
                (coffer_store::Secret::new(value), SecretTerms { hosts, plain_http, metadata: None });
            store.put_secret_on(&whom.scope, &name.parse().unwrap(), &value, terms).await.unwrap();
        }
        store.secret_values(project).await.unwrap()
    }

    #[tokio::test]
    async fn references_are_filled_in_and_nothing_else_is() {
        let values = values().await;
        let filled = |text: &str, host: &str| {
            let filled = with_values(policy(text, host), &values)?;
            Ok(filled.headers()[0].headers.values().next().unwrap().reveal().to_string())
        };
        assert_eq!(filled("Bearer ${secret:open}!", "b.com").unwrap(), "Bearer open value!");
        assert_eq!(filled("${secret:open}${secret:bound}", "x.a.com").unwrap(), "open valuebound value");
        assert_eq!(filled("plain $ {} text", "b.com").unwrap(), "plain $ {} text");
        for (text, host, why) in [
            ("${secret:none}", "b.com", SecretUse::Unknown("none".into())),
            ("${secret:bound}", "b.com", SecretUse::OtherHost("bound".into())),
            ("${secret:bound}", "*.com", SecretUse::OtherHost("bound".into())),
            ("${secret:lines}", "b.com", SecretUse::NoHeader("lines".into())),
            ("${secret:open", "b.com", SecretUse::NoReference),
            ("${e2b.identity.tokens.x}", "b.com", SecretUse::NoReference),
        ] {
            assert_eq!(filled(text, host), Err(why), "{text} {host}");
        }
    }

    #[tokio::test]
    async fn a_secret_that_is_for_hosts_needs_a_host_that_proves_its_name() {
        let values = values().await;
        let judged = |name: &str, plain: bool, proxy: bool| {
            let text = format!("${{secret:{name}}}");
            let rule = json!({"hosts": ["x.a.com"], "headers": {"x": text}, "plain_http": plain});
            let policy: Policy = serde_json::from_value(json!({"base": "web", "headers": [rule]})).unwrap();
            let proxy =
                proxy.then(|| coffer_core::network::Proxy::new("proxy.com:1080", None, None).unwrap());
            with_values(policy.through(proxy), &values).err()
        };
        for (name, plain, proxy, why) in [
            ("bound", false, false, None),
            ("bound", false, true, None),
            ("bound", true, false, Some(SecretUse::PlainHttp("bound".into()))),
            ("bound", true, true, Some(SecretUse::PlainHttp("bound".into()))),
            ("plain", false, true, None),
            ("plain", true, false, None),
            ("plain", true, true, Some(SecretUse::PlainProxy("plain".into()))),
            ("open", true, true, None),
        ] {
            assert_eq!(judged(name, plain, proxy), why, "{name}, plain HTTP: {plain}, proxy: {proxy}");
        }
    }

    #[tokio::test]
    async fn a_secret_that_is_for_hosts_is_no_variable() {
        let values = values().await;
        let of = |name: &str| variables(&BTreeMap::from([("V".to_string(), name.to_string())]), &values);
        assert_eq!(of("open").unwrap()["V"], "open value");
        assert_eq!(of("bound"), Err(SecretUse::OtherHost("bound".into())));
        assert_eq!(of("none"), Err(SecretUse::Unknown("none".into())));
    }
}
