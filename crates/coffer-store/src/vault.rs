//! The keys in memory: the given master keys, and the data keys of projects.
//!
//! Sealing and opening use only memory, so they cost a create or a list almost nothing. A data key is in the
//! database before anything is sealed with it.
//!
//! Rotation can be killed at any point: first the new master key is written to the file next to the old one,
//! then all data keys are sealed again in one transaction, then the old key is removed from the file. At every
//! point the file has the key for every row.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use coffer_core::ProjectId;
use coffer_core::sync::RwLock;
use sqlx::{AnyConnection, Row};

use crate::columns::id;
use crate::database::Database;
use crate::error::{Doing, OpenError, RotateError};
use crate::projects::lock_project;
use crate::sealing::{self, Key};
use crate::{MasterKey, Operator, Store, StoreError, now_ms};

const READ: &str = "read the data keys";
const SEAL: &str = "create a data key";
const ROTATE: &str = "rotate the master key";

/// Where master keys come from.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// A file with one key per line, the current one first; created at first use. It can be rotated while
    /// running.
    File(PathBuf),
    /// The current key, and earlier ones.
    Given { current: MasterKey, previous: Vec<MasterKey> },
}

/// Public data about the master key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterKeyStatus {
    pub id: String,
    /// Earlier ones that are still available.
    pub previous: Vec<String>,
    /// Whether it is in a file, and so can be rotated while running.
    pub in_file: bool,
    /// Missing master keys that something is sealed under.
    pub missing: Vec<MissingKey>,
}

/// A missing master key, and how much cannot be read without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingKey {
    pub id: String,
    pub projects: i64,
    pub secrets: i64,
    pub sandboxes: i64,
}

#[derive(Debug)]
pub(crate) struct Vault {
    source: KeySource,
    state: RwLock<State>,
    /// Allows one rotation, or one new data key, at a time.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The current one first.
    masters: Vec<MasterKey>,
    /// Ids of master keys that were missing at the start.
    lost: HashSet<String>,
    projects: HashMap<ProjectId, BTreeMap<i64, Option<Key>>>,
}

/// Why a column could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed;

impl Vault {
    pub(crate) async fn open(database: &Database, source: KeySource) -> Result<Arc<Self>, OpenError> {
        let masters = masters(&source)?;
        let vault = Arc::new(Self {
            source,
            state: RwLock::new(State { masters, ..State::default() }),
            changing: tokio::sync::Mutex::default(),
        });
        let unopened = |error: StoreError| OpenError::Keys { why: error.to_string() };
        vault.load(database).await.map_err(unopened)?;
        // Sealed under an earlier available key: a rotation was interrupted, or done by hand.
        vault.seal_anew(database).await.map_err(unopened)?;
        vault.forget_previous(database).await.map_err(unopened)?;
        Ok(vault)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    /// Seals a text for a column, with the project's newest data key; [`ready`](Self::ready) must have been
    /// called.
    pub(crate) fn seal(&self, project: ProjectId, purpose: &str, text: &str) -> Result<String, StoreError> {
        let state = self.state();
        let keys = state.projects.get(&project);
        let newest =
            keys.and_then(|keys| keys.iter().rev().find_map(|(number, key)| Some((number, key.as_ref()?))));
        let (number, key) =
            newest.ok_or_else(|| StoreError::Sealed { what: "no key to seal a value with".into() })?;
        Ok(sealing::written(*number, &key.seal(&purpose_of(project, purpose), text.as_bytes())))
    }

    /// Opens a column. Unsealed text of older versions is returned as it is.
    pub(crate) fn open_text(&self, project: ProjectId, purpose: &str, text: &str) -> Result<String, Sealed> {
        let Some((number, sealed)) = sealing::read(text) else { return Ok(text.to_string()) };
        let state = self.state();
        let key = state.projects.get(&project).and_then(|keys| keys.get(&number)?.as_ref()).ok_or(Sealed)?;
        let opened = key.open(&purpose_of(project, purpose), sealed).ok_or(Sealed)?;
        String::from_utf8(opened).map_err(|_| Sealed)
    }

    fn has_key(&self, project: ProjectId) -> bool {
        self.state().projects.get(&project).is_some_and(|keys| keys.values().any(Option::is_some))
    }

    /// Ensures that the project's values can be sealed. After the first call, this uses only memory.
    pub(crate) async fn ready(
        self: &Arc<Self>,
        database: &Database,
        project: ProjectId,
    ) -> Result<(), StoreError> {
        if self.has_key(project) {
            return Ok(());
        }
        let _turn = self.changing.lock().await;
        if self.has_key(project) {
            return Ok(());
        }
        let vault = self.clone();
        let made = database.write(SEAL, move |connection| {
            Box::pin(async move { vault.find_or_make(connection, project).await })
        });
        let keys = made.await?;
        // Only now: before the commit nothing may be sealed with it.
        self.state_mut().projects.insert(project, keys);
        Ok(())
    }

    async fn find_or_make(
        &self,
        connection: &mut AnyConnection,
        project: ProjectId,
    ) -> Result<BTreeMap<i64, Option<Key>>, StoreError> {
        // Locks the project's row, so that only one of two servers creates the key.
        lock_project(connection, project, SEAL).await?;
        let rows = sqlx::query("SELECT number, master_id, key_secret FROM data_keys WHERE project_id = $1")
            .bind(project)
            .fetch_all(&mut *connection)
            .await
            .doing(SEAL)?;
        let mut keys = BTreeMap::new();
        for row in &rows {
            let (number, key) = self.read_key(row, project)?;
            keys.insert(number, key);
        }
        if keys.values().any(Option::is_some) {
            return Ok(keys);
        }
        self.heed_rotation(connection).await?;
        let number = keys.last_key_value().map_or(1, |(last, _)| last + 1);
        let (key, master) = (Key::generate(), self.current());
        sqlx::query(
            "INSERT INTO data_keys (project_id, number, master_id, key_secret, created_ms, sealed_ms)
             VALUES ($1, $2, $3, $4, $5, $5)",
        )
        .bind(project)
        .bind(number)
        .bind(master.id())
        .bind(master.key().seal_key(&key_purpose(project, number), &key))
        .bind(now_ms())
        .execute(connection)
        .await
        .doing(SEAL)?;
        keys.insert(number, Some(key));
        Ok(keys)
    }

    /// A master key that another server has rotated must seal nothing more.
    async fn heed_rotation(&self, connection: &mut AnyConnection) -> Result<(), StoreError> {
        let newest = sqlx::query("SELECT master_id FROM data_keys ORDER BY sealed_ms DESC LIMIT 1")
            .fetch_optional(connection)
            .await
            .doing(SEAL)?;
        let Some(newest) = newest else { return Ok(()) };
        let newest: String = newest.try_get("master_id").doing(SEAL)?;
        let is_known = || {
            let state = self.state();
            state.lost.contains(&newest) || state.masters.iter().any(|master| master.id() == newest)
        };
        if !is_known()
            && let Ok(masters) = masters(&self.source)
        {
            self.state_mut().masters = masters;
        }
        if is_known() {
            Ok(())
        } else {
            Err(StoreError::Sealed { what: format!("{newest} is the current one") })
        }
    }

    fn current(&self) -> MasterKey {
        self.state().masters.first().cloned().expect("there is always one")
    }

    /// The number and, if its master key is available, the key of a row.
    fn read_key(
        &self,
        row: &sqlx::any::AnyRow,
        project: ProjectId,
    ) -> Result<(i64, Option<Key>), StoreError> {
        let number: i64 = row.try_get("number").doing(READ)?;
        let (master, sealed): (String, String) =
            (row.try_get("master_id").doing(READ)?, row.try_get("key_secret").doing(READ)?);
        let state = self.state();
        let master = state.masters.iter().find(|known| known.id() == master);
        Ok((number, master.and_then(|master| master.key().open_key(&key_purpose(project, number), &sealed))))
    }

    /// Reads every data key.
    async fn load(&self, database: &Database) -> Result<(), StoreError> {
        let rows = sqlx::query("SELECT project_id, number, master_id, key_secret FROM data_keys")
            .fetch_all(database.readers())
            .await
            .doing(READ)?;
        let mut projects: HashMap<ProjectId, BTreeMap<i64, Option<Key>>> = HashMap::new();
        let mut lost = HashSet::new();
        for row in &rows {
            let project = id(row, "project_id")?;
            let (number, key) = self.read_key(row, project)?;
            if key.is_none() {
                lost.insert(row.try_get::<String, _>("master_id").doing(READ)?);
            }
            projects.entry(project).or_default().insert(number, key);
        }
        let mut state = self.state_mut();
        (state.projects, state.lost) = (projects, lost);
        Ok(())
    }

    /// Seals every data key that can be opened under the current master key.
    async fn seal_anew(self: &Arc<Self>, database: &Database) -> Result<(), StoreError> {
        let master = self.current();
        let at_hand: Vec<String> = self.state().masters.iter().skip(1).map(MasterKey::id).collect();
        if at_hand.is_empty() {
            return Ok(());
        }
        let vault = self.clone();
        let sealed = database.write(ROTATE, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "SELECT project_id, number, master_id, key_secret FROM data_keys WHERE master_id <> $1",
                )
                .bind(master.id())
                .fetch_all(&mut *connection)
                .await
                .doing(ROTATE)?;
                for row in &rows {
                    let project = id(row, "project_id")?;
                    let (number, Some(key)) = vault.read_key(row, project)? else { continue };
                    sqlx::query(
                        "UPDATE data_keys SET master_id = $1, key_secret = $2, sealed_ms = $3
                         WHERE project_id = $4 AND number = $5",
                    )
                    .bind(master.id())
                    .bind(master.key().seal_key(&key_purpose(project, number), &key))
                    .bind(now_ms())
                    .bind(project)
                    .bind(number)
                    .execute(&mut *connection)
                    .await
                    .doing(ROTATE)?;
                }
                Ok(())
            })
        });
        sealed.await
    }

    /// Removes earlier master keys that no row needs from the file.
    async fn forget_previous(&self, database: &Database) -> Result<(), StoreError> {
        let KeySource::File(path) = &self.source else { return Ok(()) };
        let rows =
            sqlx::query("SELECT DISTINCT master_id FROM data_keys").fetch_all(database.readers()).await;
        let rows = rows.doing(READ)?;
        let needed: HashSet<String> =
            rows.iter().map(|row| row.try_get("master_id").doing(READ)).collect::<Result<_, _>>()?;
        let before = self.state().masters.clone();
        let kept: Vec<MasterKey> = before
            .iter()
            .enumerate()
            .filter(|(at, master)| *at == 0 || needed.contains(&master.id()))
            .map(|(_, master)| master.clone())
            .collect();
        if kept.len() < before.len() {
            // The rows are already sealed: an old key that stays in the file is not a failure.
            match write_keys(path, &kept) {
                Ok(()) => self.state_mut().masters = kept,
                Err(error) => tracing::warn!(
                    "could not remove an earlier master key from `{}`: {error}",
                    path.display()
                ),
            }
        }
        Ok(())
    }

    async fn rotate(self: &Arc<Self>, database: &Database) -> Result<String, RotateError> {
        let KeySource::File(path) = &self.source else { return Err(RotateError::NotInFile) };
        let _turn = self.changing.lock().await;
        // Another server may have rotated it, or a person may have put back a lost key.
        let mut masters = masters(&self.source).map_err(|error| RotateError::File(error.to_string()))?;
        let new = MasterKey::generate();
        let id = new.id();
        masters.insert(0, new);
        write_keys(path, &masters).map_err(|error| RotateError::File(error.to_string()))?;
        self.state_mut().masters = masters;
        self.load(database).await?;
        self.seal_anew(database).await?;
        self.forget_previous(database).await?;
        tracing::info!("master key rotated, the new one is {id}");
        Ok(id)
    }
}

impl Store {
    /// Creates a new master key and seals every data key under it. Values stay as they are.
    pub async fn rotate_master_key(&self, _: &Operator) -> Result<String, RotateError> {
        self.vault().rotate(self.database()).await
    }

    /// The status of the master key, and how much cannot be read because one is missing.
    pub async fn master_key(&self, _: &Operator) -> Result<MasterKeyStatus, StoreError> {
        let ids: Vec<String> = self.vault().state().masters.iter().map(MasterKey::id).collect();
        let rows = sqlx::query(
            "SELECT k.master_id, COUNT(*) AS projects,
                 CAST(COALESCE(SUM((SELECT COUNT(*) FROM secrets AS s WHERE s.project_id = k.project_id
                     AND s.retired_ms IS NULL AND s.value_secret LIKE 's1.' || k.number || '.%')), 0) AS BIGINT) AS secrets,
                 CAST(COALESCE(SUM((SELECT COUNT(*) FROM sandboxes AS s WHERE s.project_id = k.project_id
                     AND s.state IN ('creating', 'running', 'paused')
                     AND s.env_vars_secret LIKE 's1.' || k.number || '.%')), 0) AS BIGINT) AS sandboxes
             FROM data_keys AS k GROUP BY k.master_id ORDER BY k.master_id",
        )
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let mut missing = Vec::new();
        for row in &rows {
            let id: String = row.try_get("master_id").doing(READ)?;
            if !ids.contains(&id) {
                missing.push(MissingKey {
                    id,
                    projects: row.try_get("projects").doing(READ)?,
                    secrets: row.try_get("secrets").doing(READ)?,
                    sandboxes: row.try_get("sandboxes").doing(READ)?,
                });
            }
        }
        let mut ids = ids.into_iter();
        let id = ids.next().unwrap_or_default();
        let in_file = matches!(self.vault().source, KeySource::File(_));
        Ok(MasterKeyStatus { id, previous: ids.collect(), in_file, missing })
    }

    /// Seals unsealed columns of live sandboxes, from older versions.
    pub(crate) async fn seal_old_rows(&self) -> Result<(), StoreError> {
        const DOING: &str = "seal values of older versions";
        const COLUMNS: [&str; 4] =
            ["env_vars_secret", "access_token_secret", "traffic_token_secret", "network_secret"];
        let rows = sqlx::query(
            "SELECT id, project_id, env_vars_secret, access_token_secret, traffic_token_secret, network_secret
             FROM sandboxes WHERE env_vars_secret NOT LIKE 's1.%'",
        )
        .fetch_all(self.database().readers())
        .await
        .doing(DOING)?;
        for row in &rows {
            let (project, sandbox): (ProjectId, coffer_core::SandboxId) =
                (id(row, "project_id")?, id(row, "id")?);
            self.vault().ready(self.database(), project).await?;
            let mut sealed = Vec::new();
            for column in COLUMNS {
                let text: Option<String> = row.try_get(column).doing(DOING)?;
                let seal = |text: String| {
                    self.vault().seal(project, &crate::columns::purpose(sandbox, column), &text)
                };
                sealed.push(text.map(seal).transpose()?);
            }
            let write = self.database().write(DOING, move |connection| {
                Box::pin(async move {
                    let [env, access, traffic, network] =
                        <[Option<String>; 4]>::try_from(sealed).unwrap_or_default();
                    sqlx::query(
                        "UPDATE sandboxes SET env_vars_secret = $1, access_token_secret = $2,
                             traffic_token_secret = $3, network_secret = $4 WHERE id = $5",
                    )
                    .bind(env)
                    .bind(access)
                    .bind(traffic)
                    .bind(network)
                    .bind(sandbox)
                    .execute(connection)
                    .await
                    .doing(DOING)
                    .map(drop)
                })
            });
            write.await?;
        }
        Ok(())
    }
}

fn purpose_of(project: ProjectId, purpose: &str) -> String {
    format!("{project}/{purpose}")
}

fn key_purpose(project: ProjectId, number: i64) -> String {
    format!("data-key/{project}/{number}")
}

/// The master keys, the current one first.
fn masters(source: &KeySource) -> Result<Vec<MasterKey>, OpenError> {
    let path = match source {
        KeySource::Given { current, previous } => {
            return Ok([vec![current.clone()], previous.clone()].concat());
        }
        KeySource::File(path) => path,
    };
    let failed =
        |why: String| OpenError::Keys { why: format!("the master key file `{}`: {why}", path.display()) };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let new = MasterKey::generate();
            write_keys(path, std::slice::from_ref(&new)).map_err(|error| failed(error.to_string()))?;
            tracing::info!("created master key {} in `{}`", new.id(), path.display());
            return Ok(vec![new]);
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<MasterKey> =
        lines.map(MasterKey::parse).collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))?;
    if keys.is_empty() {
        return Err(failed("it is empty; put the key back, or remove the file to create a new key".into()));
    }
    Ok(keys)
}

/// Writes the file atomically, readable only by its owner.
fn write_keys(path: &Path, keys: &[MasterKey]) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    for key in keys {
        writeln!(file, "{}", key.text())?;
    }
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
