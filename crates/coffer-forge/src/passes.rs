//! Passes: passwords for git that are valid for minutes and for one repository.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use coffer_core::sync::Mutex;
use coffer_core::{ProjectId, RepositoryId};
use coffer_shares::{Place, Shares, pool};
use coffer_store::{ProjectScope, Secret};

use crate::ForgeError;
use crate::forge::GitAccess;

/// The prefix that distinguishes them from keys.
const MARK: &str = "cofpass_";
pub(crate) const LONGEST_PASS: Duration = Duration::from_secs(24 * 3600);

/// The rights of a pass.
#[derive(Debug, Clone)]
pub struct Pass {
    pub scope: ProjectScope,
    pub repository: RepositoryId,
    pub access: GitAccess,
    pub actor: String,
}

/// The passes of this process; they end with it, and clients ask for new ones.
#[derive(Debug)]
pub(crate) struct Passes {
    issued: Mutex<HashMap<Digest, Issued>>,
    room: Shares<ProjectId>,
}

#[derive(Debug)]
struct Issued {
    until: Instant,
    pass: Pass,
    _place: Place<ProjectId>,
}

impl Default for Passes {
    fn default() -> Self {
        Self { issued: Mutex::default(), room: Shares::new(pool::GIT_PASSES) }
    }
}

type Digest = [u8; 32];

impl Passes {
    /// Creates a pass, as the value of an `Authorization` header.
    pub(crate) fn issue(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        access: GitAccess,
        actor: &str,
        lifetime: Duration,
    ) -> Result<Secret, ForgeError> {
        let now = Instant::now();
        let text = format!("{MARK}{}", hex::encode(rand::random::<[u8; 32]>()));
        let pass = Pass { scope: *scope, repository, access, actor: actor.to_string() };
        let mut issued = self.issued.lock();
        let place = match self.room.try_take(scope.project()) {
            Ok(place) => place,
            Err(_) => {
                issued.retain(|_, issued| issued.until > now);
                self.room.try_take(scope.project())?
            }
        };
        let until = now + lifetime.min(LONGEST_PASS);
        issued.insert(digest(&text), Issued { until, pass, _place: place });
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("coffer:{text}"));
        Ok(Secret::new(format!("Basic {basic}")))
    }

    /// The rights of a password, if it is a valid pass. Looked up by digest, so the time reveals nothing of
    /// the text.
    pub(crate) fn find(&self, text: &str) -> Option<Pass> {
        if !text.starts_with(MARK) {
            return None;
        }
        let issued = self.issued.lock();
        issued
            .get(&digest(text))
            .filter(|issued| issued.until > Instant::now())
            .map(|issued| issued.pass.clone())
    }
}

fn digest(text: &str) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_store::Authenticated;

    #[tokio::test]
    async fn a_pass_opens_what_it_was_made_for_while_it_holds() {
        let database = coffer_testkit::TestDatabase::sqlite();
        let store = database.open().await;
        let project = store.create_project(&store.operator(), "one").await.unwrap();
        let key = store.create_key(&store.operator(), project, "test").await.unwrap();
        let Some(Authenticated::Project(principal)) = store.authenticate(key.reveal()).await.unwrap() else {
            panic!("a project's key")
        };
        let (passes, repository) = (Passes::default(), RepositoryId::generate());
        let issue = |lifetime| {
            let header =
                passes.issue(&principal.scope, repository, GitAccess::Fetch, "key:1", lifetime).unwrap();
            let basic = header.reveal().strip_prefix("Basic ").unwrap().to_string();
            let basic = base64::engine::general_purpose::STANDARD.decode(basic).unwrap();
            String::from_utf8(basic).unwrap().strip_prefix("coffer:").unwrap().to_string()
        };
        let (good, over) = (issue(Duration::from_secs(60)), issue(Duration::ZERO));
        let found = passes.find(&good).unwrap();
        assert_eq!(
            (found.repository, found.access, found.actor.as_str()),
            (repository, GitAccess::Fetch, "key:1")
        );
        assert!(passes.find(&over).is_none(), "it is over");
        for bad in ["", MARK, &good[..good.len() - 1], key.reveal()] {
            assert!(passes.find(bad).is_none(), "{bad}");
        }
    }
}
