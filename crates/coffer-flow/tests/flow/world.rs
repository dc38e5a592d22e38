//! A store with a project, runners, and a kind of runs to try.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use coffer_core::{FailureCode, Millis, RunId};
use coffer_flow::{Clock, Kind, Run, Runner, Settings, StepError, Stop, Tries};
use coffer_store::{Authenticated, NewRun, ProjectScope, RunRow, RunState, Slots, Store};
use coffer_testkit::TestDatabase;
use serde_json::{Value, json};

use crate::outside::Outside;

/// The timeout of tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The steps of [`Trip`].
pub(crate) const STEPS: [&str; 4] = ["sandbox", "clone", "push", "pull"];

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) scope: ProjectScope,
    pub(crate) outside: Outside,
    pub(crate) clock: Arc<AtomicI64>,
}

impl World {
    pub(crate) async fn new(database: &TestDatabase) -> Self {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let clock = Arc::new(AtomicI64::new(0));
        Self { store, scope, outside: Outside::default(), clock }
    }

    pub(crate) fn settings(&self, place: &str) -> Settings {
        let ahead = self.clock.clone();
        let clock = Clock::new(move || Clock::default().now() + ahead.load(Ordering::SeqCst));
        Settings {
            slots: Slots { in_all: 1000, per_project: 1000 },
            tries: Tries {
                most: 3,
                first_pause: Duration::from_millis(1),
                longest_pause: Duration::from_millis(4),
            },
            look_every: Duration::from_millis(10),
            most_takes: 1000,
            retake_unit: Duration::from_millis(1),
            clock,
            ..Settings::at(place)
        }
    }

    /// A runner with the default settings at the default place.
    pub(crate) async fn runner(&self) -> Runner {
        self.runner_with(self.settings("here")).await
    }

    pub(crate) async fn runner_with(&self, settings: Settings) -> Runner {
        let kind: Arc<dyn Kind> = Arc::new(Trip { outside: self.outside.clone() });
        Runner::start(self.store.clone(), settings, vec![kind]).await.unwrap()
    }

    /// Advances the clock of runners.
    pub(crate) fn pass(&self, time: Millis) {
        self.clock.fetch_add(time, Ordering::SeqCst);
    }

    pub(crate) async fn queue(&self, input: Value) -> RunId {
        let id = RunId::generate();
        let subject = input["subject"].as_str().map_or_else(|| id.to_string(), String::from);
        let new = NewRun { id, kind: "trip", subject, input, rank: 0 };
        self.store.insert_run(&self.scope, new).await.unwrap();
        id
    }

    pub(crate) async fn run(&self, run: RunId) -> RunRow {
        self.store.run(&self.store.operator(), run).await.unwrap().unwrap()
    }

    /// Waits until a run matches.
    pub(crate) async fn until(&self, run: RunId, is_so: impl Fn(&RunRow) -> bool) -> RunRow {
        let mut last = None;
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                let row = self.run(run).await;
                if is_so(&row) {
                    return row;
                }
                last = Some(row);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("still {last:?}"))
    }

    pub(crate) async fn until_over(&self, run: RunId) -> RunRow {
        self.until(run, |row| row.state.is_over()).await
    }

    /// Everything is as after one undisturbed run.
    pub(crate) fn assert_made_once(&self, run: RunId) {
        let made: Vec<String> =
            self.outside.made().into_iter().filter(|name| name.starts_with(&run.to_string())).collect();
        let mut all: Vec<String> = STEPS.iter().map(|step| format!("{run}/{step}")).collect();
        all.sort();
        assert_eq!(made, all);
    }

    /// The kinds of the events about a subject, in order.
    pub(crate) async fn told(&self, subject: &str) -> Vec<String> {
        let events = self.store.events(&self.scope, 0, 1000).await.unwrap();
        events.into_iter().filter(|event| event.subject == subject).map(|event| event.kind).collect()
    }
}

pub(crate) async fn project(store: &Store, name: &str) -> ProjectScope {
    let operator = store.operator();
    let project = store.create_project(&operator, name).await.unwrap();
    let key = store.create_key(&operator, project, "test").await.unwrap();
    match store.authenticate(key.reveal()).await.unwrap() {
        Some(Authenticated::Project(principal)) => principal.scope,
        other => panic!("{other:?}"),
    }
}

/// Creates four things outside, one per step. Its input may ask for a wait between the second and the third.
pub(crate) struct Trip {
    pub(crate) outside: Outside,
}

#[async_trait::async_trait]
impl Kind for Trip {
    fn name(&self) -> &'static str {
        "trip"
    }

    async fn execute(&self, run: &mut Run) -> Result<Value, Stop> {
        let input: Value = run.input()?;
        let id = run.id().to_string();
        self.outside.pass("begin").await;
        let mut made = Vec::new();
        for step in STEPS {
            let (outside, name) = (self.outside.clone(), format!("{id}/{step}"));
            let removed = name.clone();
            let undo_outside = outside.clone();
            let work = {
                let (id, name) = (id.clone(), name.clone());
                move |start: coffer_flow::Start| {
                    let (outside, name, id) = (outside.clone(), name.clone(), id.clone());
                    async move {
                        outside.fence(&id, start.fence);
                        outside.pass(&format!("before {step}")).await;
                        if outside.fails(&format!("fatal {step}")) {
                            return Err(StepError::fatal(FailureCode::read("broken"), "it is broken"));
                        }
                        if outside.fails(&format!("panic {step}")) {
                            panic!("on purpose");
                        }
                        let made = outside.ensure(&name);
                        outside.pass(&format!("after {step}")).await;
                        if outside.fails(step) {
                            return Err(StepError::transient(FailureCode::read("away"), "it is away"));
                        }
                        Ok(made)
                    }
                }
            };
            let within = input["within_ms"].as_u64().map_or(PATIENCE, Duration::from_millis);
            let done: String = run
                .step(step)
                .within(within)
                .undo(move |done: Option<String>, _| {
                    let (outside, removed) = (undo_outside.clone(), removed.clone());
                    async move {
                        assert!(done.is_none_or(|done| done == format!("{removed}!")));
                        outside.pass(&format!("undo {step}")).await;
                        if outside.fails(&format!("undo {step}")) {
                            return Err(StepError::fatal(FailureCode::read("stays"), "it stays"));
                        }
                        outside.remove(&removed);
                        Ok(())
                    }
                })
                .run(work)
                .await?;
            made.push(done);
            self.outside.pass(&format!("past {step}")).await;
            if step == "clone"
                && let Some(time) = input["sleep_ms"].as_u64()
            {
                run.sleep("nap", Duration::from_millis(time)).await?;
            }
            if step == "clone"
                && let Some(until) = input["wait_until"].as_i64()
            {
                let said = run.wait_for("answer", "said", until).await?;
                made.push(said.map_or("nothing".into(), |said| said.to_string()));
            }
        }
        if input["fail"].as_bool() == Some(true) {
            return Err(Stop::failed(FailureCode::read("unhappy"), "nothing pleases it"));
        }
        Ok(json!(made))
    }
}

/// The names of the things that [`Trip`] has created, as it returns them.
pub(crate) fn all_of(run: RunId) -> Value {
    json!(STEPS.iter().map(|step| format!("{run}/{step}!")).collect::<Vec<_>>())
}

pub(crate) fn is(state: RunState) -> impl Fn(&RunRow) -> bool {
    move |row| row.state == state
}
