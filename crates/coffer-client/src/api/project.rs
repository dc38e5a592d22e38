//! The project and its bounds: keys, secrets, volumes, quotas, usage, budgets, webhooks, audit.

use coffer_api_types::audit::{AuditQuery, Audited};
use coffer_api_types::budgets::{Budget, ChangedBudget, NewBudget};
use coffer_api_types::keys::{Key, MadeKey, NewKeyRequest, RotateRequest};
use coffer_api_types::limits::{QuotaState, QuotasShape};
use coffer_api_types::projects::{Project, ProjectName};
use coffer_api_types::search::{SearchQuery, SearchResults};
use coffer_api_types::secrets::{NewValue, Secret};
use coffer_api_types::session::{Identity, SignIn, SignInLink};
use coffer_api_types::usage::{Prices, UsageEntry, UsageQuery};
use coffer_api_types::volumes::{NewVolume, Volume, VolumeDetail};
use coffer_api_types::webhooks::{
    ChangedWebhook, Delivery, DeliveryDetail, DeliveryQuery, MadeWebhook, NewWebhook, SigningSecret, Webhook,
};
use http::Method;

use crate::client::{Client, at, encode, with_query};
use crate::error::Error;
use crate::pages::Pages;

impl Client {
    /// What the key is and may do.
    pub async fn me(&self) -> Result<Identity, Error> {
        self.get(&at(["me"])).await
    }

    /// Exchanges the token of a one-time link for a key. Needs no key.
    pub async fn sign_in(&self, token: &str) -> Result<MadeKey, Error> {
        self.call(Method::POST, &at(["sign-in"]), Some(&SignIn { token: token.to_string() })).await
    }

    /// Creates a one-time link with the rights of this client's key.
    pub async fn create_sign_in_link(&self) -> Result<SignInLink, Error> {
        self.call(Method::POST, &at(["sign-in-links"]), None::<&()>).await
    }

    /// Records of the project by words.
    pub async fn search(&self, query: &SearchQuery) -> Result<SearchResults, Error> {
        self.get(&with_query(at(["search"]), &encode(query))).await
    }

    /// The key's own project.
    pub async fn project(&self) -> Result<Project, Error> {
        self.get(&at(["project"])).await
    }

    pub async fn rename_project(&self, name: &str) -> Result<Project, Error> {
        self.call(Method::PATCH, &at(["project"]), Some(&ProjectName { name: name.to_string() })).await
    }

    /// For operators.
    pub async fn create_project(&self, name: &str) -> Result<Project, Error> {
        self.call(Method::POST, &at(["projects"]), Some(&ProjectName { name: name.to_string() })).await
    }

    /// For operators.
    pub fn projects(&self) -> Pages<Project> {
        self.list(at(["projects"]), &())
    }

    /// For operators: a key of any project.
    pub async fn create_project_key(&self, project: &str, new: &NewKeyRequest) -> Result<MadeKey, Error> {
        self.call(Method::POST, &at(["projects", project, "keys"]), Some(new)).await
    }

    pub async fn create_key(&self, new: &NewKeyRequest) -> Result<MadeKey, Error> {
        self.call(Method::POST, &at(["keys"]), Some(new)).await
    }

    pub fn keys(&self) -> Pages<Key> {
        self.list(at(["keys"]), &()).at_once()
    }

    pub async fn revoke_key(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["keys", id])).await
    }

    pub async fn rotate_key(&self, id: &str, request: &RotateRequest) -> Result<MadeKey, Error> {
        self.call(Method::POST, &at(["keys", id, "rotate"]), Some(request)).await
    }

    /// Creates a secret, or gives it another value.
    pub async fn set_secret(&self, name: &str, value: &NewValue) -> Result<Secret, Error> {
        self.call(Method::PUT, &at(["secrets", name]), Some(value)).await
    }

    pub fn secrets(&self) -> Pages<Secret> {
        self.list(at(["secrets"]), &()).at_once()
    }

    pub async fn delete_secret(&self, name: &str) -> Result<(), Error> {
        self.delete(&at(["secrets", name])).await
    }

    pub async fn create_volume(&self, new: &NewVolume) -> Result<Volume, Error> {
        self.call(Method::POST, &at(["volumes"]), Some(new)).await
    }

    pub fn volumes(&self) -> Pages<Volume> {
        self.list(at(["volumes"]), &()).at_once()
    }

    pub async fn volume(&self, id: &str) -> Result<VolumeDetail, Error> {
        self.get(&at(["volumes", id])).await
    }

    pub async fn delete_volume(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["volumes", id])).await
    }

    pub async fn quotas(&self) -> Result<QuotaState, Error> {
        self.get(&at(["quotas"])).await
    }

    /// For operators.
    pub async fn project_quotas(&self, project: &str) -> Result<QuotaState, Error> {
        self.get(&at(["projects", project, "quotas"])).await
    }

    /// For operators.
    pub async fn set_project_quotas(&self, project: &str, quotas: &QuotasShape) -> Result<QuotaState, Error> {
        self.call(Method::PUT, &at(["projects", project, "quotas"]), Some(quotas)).await
    }

    pub fn usage(&self, query: &UsageQuery) -> Pages<UsageEntry> {
        self.list(at(["usage"]), query)
    }

    /// For operators: of all projects.
    pub fn usage_of_all(&self, query: &UsageQuery) -> Pages<UsageEntry> {
        self.list(at(["admin", "usage"]), query)
    }

    /// Usage as a table for spreadsheets (CSV), if the query asks for that format.
    pub async fn usage_table(&self, query: &UsageQuery, of_all: bool) -> Result<String, Error> {
        const LONGEST: usize = 16 << 20;
        let path = if of_all { at(["admin", "usage"]) } else { at(["usage"]) };
        let answer = self.content(&with_query(path, &encode(query))).await?;
        let table = answer.whole(LONGEST).await?;
        String::from_utf8(table).map_err(|error| Error::Unreadable(error.to_string()))
    }

    pub async fn prices(&self) -> Result<Prices, Error> {
        self.get(&at(["prices"])).await
    }

    pub async fn create_budget(&self, new: &NewBudget) -> Result<Budget, Error> {
        self.call(Method::POST, &at(["budgets"]), Some(new)).await
    }

    pub fn budgets(&self) -> Pages<Budget> {
        self.list(at(["budgets"]), &())
    }

    pub async fn change_budget(&self, id: &str, change: &ChangedBudget) -> Result<Budget, Error> {
        self.call(Method::PUT, &at(["budgets", id]), Some(change)).await
    }

    pub async fn delete_budget(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["budgets", id])).await
    }

    pub async fn create_webhook(&self, new: &NewWebhook) -> Result<MadeWebhook, Error> {
        self.call(Method::POST, &at(["webhooks"]), Some(new)).await
    }

    pub fn webhooks(&self) -> Pages<Webhook> {
        self.list(at(["webhooks"]), &())
    }

    pub async fn webhook(&self, id: &str) -> Result<Webhook, Error> {
        self.get(&at(["webhooks", id])).await
    }

    pub async fn change_webhook(&self, id: &str, change: &ChangedWebhook) -> Result<Webhook, Error> {
        self.call(Method::PATCH, &at(["webhooks", id]), Some(change)).await
    }

    pub async fn delete_webhook(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["webhooks", id])).await
    }

    pub async fn test_webhook(&self, id: &str) -> Result<DeliveryDetail, Error> {
        self.call(Method::POST, &at(["webhooks", id, "test"]), None::<&()>).await
    }

    pub async fn rotate_webhook(&self, id: &str) -> Result<SigningSecret, Error> {
        self.call(Method::POST, &at(["webhooks", id, "rotate"]), None::<&()>).await
    }

    pub fn deliveries(&self, id: &str, query: &DeliveryQuery) -> Pages<Delivery> {
        self.list(at(["webhooks", id, "deliveries"]), query)
    }

    pub async fn redeliver(&self, id: &str, delivery: &str) -> Result<DeliveryDetail, Error> {
        let path = at(["webhooks", id, "deliveries", delivery, "redeliver"]);
        self.call(Method::POST, &path, None::<&()>).await
    }

    /// Newest first.
    pub fn audit(&self, query: &AuditQuery) -> Pages<Audited> {
        self.list(at(["audit"]), query)
    }
}
