//! Opening a database, and the errors.

use std::error::Error;
use std::os::unix::fs::PermissionsExt;

use coffer_store::{OpenError, Store};

use crate::databases::{TestDatabase, on_both};
use crate::fixtures::{project, running, sandbox};

/// The error with its causes, as a person would read it.
fn told(error: &OpenError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

on_both! {
    async fn opening_again_keeps_everything(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        // Next to the open one, like a second server; and after all are closed.
        let second = database.open().await;
        assert_eq!(second.sandbox(&scope, row.id).await.unwrap().as_ref(), Some(&row));
        second.close().await;
        store.close().await;
        let third = database.open().await;
        assert_eq!(third.sandbox(&scope, row.id).await.unwrap(), Some(row));
    }

    async fn a_database_of_a_newer_version_is_left_alone(database: &TestDatabase) {
        database.open().await.close().await;
        let mut connection = database.connect().await;
        let newest = "UPDATE _sqlx_migrations SET version = 9999
             WHERE version = (SELECT MAX(version) FROM _sqlx_migrations)";
        sqlx::query(newest).execute(&mut connection).await.unwrap();
        let error = Store::open(&database.url, TestDatabase::keys()).await.unwrap_err();
        assert!(matches!(error, OpenError::Newer { migration: 9999, .. }), "{error:?}");
        assert!(told(&error).contains("written by a newer version"), "{}", told(&error));
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_refused() {
    for url in
        ["", "coffer.db", "mysql://root:hunter2@host/x", "sqlite:", "sqlite::memory:", "sqlite:/a?mode=ro"]
    {
        let error = Store::open(url, TestDatabase::keys()).await.unwrap_err();
        assert!(matches!(error, OpenError::BadUrl { .. }), "{url}: {error:?}");
        assert!(!told(&error).contains("hunter2"));
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing/coffer.db");
    for (path, why) in
        [(missing.as_path(), "No such file or directory"), (directory.path(), "Is a directory")]
    {
        let error =
            Store::open(&format!("sqlite:{}", path.display()), TestDatabase::keys()).await.unwrap_err();
        let told = told(&error);
        assert!(told.contains(&path.display().to_string()) && told.contains(why), "{told}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    let notes = "these are my notes\n".repeat(1000);
    std::fs::write(&path, &notes).unwrap();
    let error = Store::open(&format!("sqlite:{}", path.display()), TestDatabase::keys()).await.unwrap_err();
    assert!(matches!(&error, OpenError::Damaged { path: named, .. } if *named == path), "{error:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), notes);
}

#[tokio::test]
async fn a_database_with_a_broken_page_is_an_error_not_a_panic() {
    let database = TestDatabase::sqlite();
    let store = database.open().await;
    project(&store, "p").await;
    store.close().await;
    let path = database.files.join("coffer.db");
    let mut bytes = std::fs::read(&path).unwrap();
    // The header stays, so it looks like a database; the schema page does not.
    bytes[100..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let error = Store::open(&database.url, TestDatabase::keys()).await.unwrap_err();
    assert!(told(&error).contains("malformed"), "{}", told(&error));
}

#[tokio::test]
async fn any_file_name_will_do_and_only_we_can_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd %41 #name é.db");
    let store = Store::open(&format!("sqlite:{}", path.display()), TestDatabase::keys()).await.unwrap();
    project(&store, "p").await;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_name().to_str().unwrap().starts_with("odd %41 #name é.db"), "{entry:?}");
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
    assert!(path.exists());
}

#[tokio::test]
async fn a_postgres_that_is_away_is_named_without_its_password() {
    // Port 1 of loopback: nothing listens there.
    let error =
        Store::open("postgres://me:hunter2@127.0.0.1:1/coffer", TestDatabase::keys()).await.unwrap_err();
    let told = told(&error);
    assert!(told.contains("127.0.0.1:1/coffer") && !told.contains("hunter2"), "{told}");
}
