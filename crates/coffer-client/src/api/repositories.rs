//! Repositories, their branches and pull requests, and connections to forges.

use coffer_api_types::connections::{Connection, NewConnection, Permissions, ReachableQuery, RemoteQuery};
use coffer_api_types::pulls::{Comment, Diff, GiveReview, Merge, OpenPull, Pull, PullQuery, Review, Say};
use coffer_api_types::repositories::{
    Branch, ChangedRepository, NewRepository, RemoteRepository, Repository, RepositoryDetail,
};
use http::Method;

use crate::client::{Client, at, encode, with_query};
use crate::error::Error;
use crate::pages::Pages;

impl Client {
    pub async fn create_repository(&self, new: &NewRepository) -> Result<Repository, Error> {
        self.call(Method::POST, &at(["repositories"]), Some(new)).await
    }

    pub fn repositories(&self) -> Pages<Repository> {
        self.list(at(["repositories"]), &())
    }

    /// By id or name.
    pub async fn repository(&self, name: &str) -> Result<RepositoryDetail, Error> {
        self.get(&at(["repositories", name])).await
    }

    pub async fn change_repository(
        &self,
        name: &str,
        change: &ChangedRepository,
    ) -> Result<Repository, Error> {
        self.call(Method::PATCH, &at(["repositories", name]), Some(change)).await
    }

    pub async fn delete_repository(&self, name: &str) -> Result<(), Error> {
        self.delete(&at(["repositories", name])).await
    }

    pub fn branches(&self, repository: &str) -> Pages<Branch> {
        self.list(at(["repositories", repository, "branches"]), &())
    }

    pub async fn open_pull(&self, repository: &str, new: &OpenPull) -> Result<Pull, Error> {
        self.call(Method::POST, &at(["repositories", repository, "pulls"]), Some(new)).await
    }

    pub fn pulls(&self, repository: &str, query: &PullQuery) -> Pages<Pull> {
        self.list(at(["repositories", repository, "pulls"]), query)
    }

    pub async fn pull(&self, repository: &str, number: i64) -> Result<Pull, Error> {
        self.get(&at(["repositories", repository, "pulls", &number.to_string()])).await
    }

    pub async fn pull_diff(&self, repository: &str, number: i64) -> Result<Diff, Error> {
        self.get(&at(["repositories", repository, "pulls", &number.to_string(), "diff"])).await
    }

    pub async fn merge_pull(&self, repository: &str, number: i64, merge: &Merge) -> Result<Pull, Error> {
        let path = at(["repositories", repository, "pulls", &number.to_string(), "merge"]);
        self.call(Method::POST, &path, Some(merge)).await
    }

    pub async fn comment_on_pull(&self, repository: &str, number: i64, say: &Say) -> Result<Comment, Error> {
        let path = at(["repositories", repository, "pulls", &number.to_string(), "comments"]);
        self.call(Method::POST, &path, Some(say)).await
    }

    pub async fn review_pull(
        &self,
        repository: &str,
        number: i64,
        review: &GiveReview,
    ) -> Result<Review, Error> {
        let path = at(["repositories", repository, "pulls", &number.to_string(), "reviews"]);
        self.call(Method::POST, &path, Some(review)).await
    }

    pub async fn create_connection(&self, new: &NewConnection) -> Result<Connection, Error> {
        self.call(Method::POST, &at(["forge", "connections"]), Some(new)).await
    }

    pub fn connections(&self) -> Pages<Connection> {
        self.list(at(["forge", "connections"]), &())
    }

    pub async fn delete_connection(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["forge", "connections", id])).await
    }
    /// Repositories of the forge that the connection's credential can see.
    pub fn reachable_repositories(&self, id: &str, query: &ReachableQuery) -> Pages<RemoteRepository> {
        self.list(at(["forge", "connections", id, "repositories"]), query)
    }

    /// What the connection's credential lacks for work on a repository.
    pub async fn connection_permissions(&self, id: &str, remote: &str) -> Result<Permissions, Error> {
        let query = encode(&RemoteQuery { repository: remote.to_string() });
        self.get(&with_query(at(["forge", "connections", id, "permissions"]), &query)).await
    }
}
