//! Every shape reads back what it writes. Examples are made from the schemas, so that the description and serde agree.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coffer_api_types::{
    ErrorShape, Page, PageQuery, agents, artifacts, attempts, audit, budgets, code, competitions,
    connections, events, exec, executions, files, forks, git, host, keys, limits, logs, models, network,
    people, policy, projects, pulls, queue, repositories, sandboxes, schedules, search, secrets, session,
    snapshots, tasks, templates, transcripts, usage, volumes, webhooks,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use utoipa::openapi::path::ParameterIn;
use utoipa::{IntoParams, ToSchema};

/// How much of a shape an example has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filling {
    /// Every field, with a value.
    Full,
    /// Required fields, null where that is allowed, empty lists.
    Sparse,
}

/// Makes examples of schemas, which may refer to each other.
struct Examples {
    schemas: BTreeMap<String, Value>,
    filling: Filling,
}

impl Examples {
    fn of<T: ToSchema>(filling: Filling) -> Self {
        let mut schemas = Vec::new();
        T::schemas(&mut schemas);
        let json = |schema| serde_json::to_value(schema).expect("a schema is JSON");
        Self { schemas: schemas.into_iter().map(|(name, schema)| (name, json(schema))).collect(), filling }
    }

    fn value(&self, field: &str, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            let schema =
                self.schemas.get(name).unwrap_or_else(|| panic!("{field} refers to {name}, unknown"));
            return self.value(field, schema);
        }
        if let Some(example) = schema.get("example") {
            return if field == "headers" { with_lower_case_names(example) } else { example.clone() };
        }
        if let Some(variants) = schema["oneOf"].as_array() {
            return self.variant(field, variants);
        }
        if let Some(parts) = schema["allOf"].as_array() {
            let parts = parts.iter().map(|part| self.value(field, part));
            return Value::Object(parts.filter_map(|part| part.as_object().cloned()).flatten().collect());
        }
        if let Some(values) = schema["enum"].as_array() {
            return values[0].clone();
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(only) => vec![only],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ => vec![],
        };
        if types.contains(&"null") && self.filling == Filling::Sparse {
            return Value::Null;
        }
        match types.first().copied() {
            Some("object") => self.object(field, schema),
            Some("array") if self.filling == Filling::Full => json!([self.value(field, &schema["items"])]),
            Some("array") => json!([]),
            Some("string") => text(field).into(),
            Some("integer") => schema["minimum"].as_i64().unwrap_or(1).into(),
            Some("number") => json!(1.5),
            Some("boolean") => (self.filling == Filling::Full).into(),
            // Anything.
            _ => json!({"some": "JSON"}),
        }
    }

    fn variant(&self, field: &str, variants: &[Value]) -> Value {
        let is_null = |variant: &&Value| variant["type"] == "null";
        match self.filling {
            Filling::Sparse if variants.iter().any(|variant| is_null(&variant)) => Value::Null,
            Filling::Sparse => self.value(field, &variants[variants.len() - 1]),
            Filling::Full => {
                self.value(field, variants.iter().find(|variant| !is_null(variant)).expect("a variant"))
            }
        }
    }

    fn object(&self, field: &str, schema: &Value) -> Value {
        if field == "commits" {
            return serde_json::to_value(coffer_core::commit::CommitPolicy::default()).expect("plain data");
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut object = Map::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if self.filling == Filling::Full || required.contains(&name.as_str()) {
                object.insert(name.clone(), self.value(name, property));
            }
        }
        if schema["additionalProperties"].is_object() && self.filling == Filling::Full {
            object.insert("key".to_string(), self.value("key", &schema["additionalProperties"]));
        }
        object.into()
    }
}

/// Names of headers are written in lower case, however they were read.
fn with_lower_case_names(headers: &Value) -> Value {
    let headers = headers.as_object().into_iter().flatten();
    Value::Object(headers.map(|(name, value)| (name.to_lowercase(), value.clone())).collect())
}

/// A text that fits a field whose schema says no more than that it is one.
fn text(field: &str) -> &'static str {
    match field {
        "commit" | "merge_commit" | "base_commit" | "head_commit" | "merge_base" => {
            "0123456789abcdef0123456789abcdef01234567"
        }
        "state" => "success",
        "deny" => "example.com",
        "kind" => "connection",
        "address" => "192.0.2.1",
        _ if field.ends_with("_id") => "01234567890123456789abcdef",
        "sandbox" | "agent" | "project" | "after" => "01234567890123456789abcdef",
        _ => "x",
    }
}

fn round<T: Serialize + DeserializeOwned>(value: &Value) -> Result<Value, String> {
    let read: T = serde_json::from_value(value.clone()).map_err(|error| format!("{error} in {value}"))?;
    serde_json::to_value(read).map_err(|error| error.to_string())
}

fn check<T: ToSchema + Serialize + DeserializeOwned>() -> Result<(), String> {
    let schema = serde_json::to_value(T::schema()).expect("a schema is JSON");
    let full = Examples::of::<T>(Filling::Full).value("", &schema);
    let written = round::<T>(&full)?;
    if written != full {
        return Err(format!("{full} is written as {written}"));
    }
    let sparse = Examples::of::<T>(Filling::Sparse).value("", &schema);
    let written = round::<T>(&sparse)?;
    let again = round::<T>(&written)?;
    if written != again {
        return Err(format!("{written} is written as {again}"));
    }
    Ok(())
}

/// Also with a field of a newer server, unless it is a request.
fn check_response<T: ToSchema + Serialize + DeserializeOwned>() -> Result<(), String> {
    check::<T>()?;
    let schema = serde_json::to_value(T::schema()).expect("a schema is JSON");
    let mut example = Examples::of::<T>(Filling::Full).value("", &schema);
    if let Some(object) = example.as_object_mut() {
        object.insert("from_a_newer_server".to_string(), json!(1));
        round::<T>(&example)?;
    }
    Ok(())
}

fn check_query<T: IntoParams + Serialize + DeserializeOwned>() -> Result<(), String> {
    let mut query = String::new();
    for parameter in T::into_params(|| Some(ParameterIn::Query)) {
        let schema = serde_json::to_value(&parameter.schema).expect("a schema is JSON");
        let examples = Examples { schemas: BTreeMap::new(), filling: Filling::Full };
        let value = match examples.value(&parameter.name, &schema) {
            Value::String(text) => text,
            // One value of a parameter that may be repeated.
            Value::Array(several) => several[0].as_str().expect("a list of texts").to_string(),
            other => other.to_string(),
        };
        write!(query, "{}={value}&", parameter.name).expect("memory suffices");
    }
    let query = query.trim_end_matches('&');
    let read: T = serde_html_form::from_str(query).map_err(|error| format!("{error} in {query}"))?;
    let written = serde_html_form::to_string(read).map_err(|error| error.to_string())?;
    // Commas and equals signs are encoded.
    if written.replace("%2C", ",").replace("%3D", "=") == query {
        Ok(())
    } else {
        Err(format!("{query} is written as {written}"))
    }
}

macro_rules! all {
    ($check:ident: $($shape:ty),* $(,)?) => {
        [$((stringify!($shape), $check::<$shape>())),*]
    };
}

/// Names as `module::Shape`, in the order of the source, of shapes that derive `derive`.
fn declared(derive: &str) -> Vec<String> {
    let mut names = Vec::new();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for entry in std::fs::read_dir(directory).expect("the source") {
        let path = entry.expect("the source").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_string();
        let mut derived = false;
        for line in text.lines() {
            if line.starts_with("#[derive(") {
                derived = line.contains(derive) && line.contains("Serialize");
            }
            let name = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
            if let (true, Some(name)) = (derived, name) {
                let name = name.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
                names.push(format!("{module}::{name}"));
            }
        }
    }
    names
}

fn report(results: &[(&str, Result<(), String>)]) {
    let failed: Vec<String> = results
        .iter()
        .filter_map(|(name, result)| result.as_ref().err().map(|why| format!("{name}: {why}")))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_shape_reads_back_what_it_writes() {
    let requests = all![check:
        agents::AgentSetup, agents::NewAgent, artifacts::NewArtifact, attempts::Cancel, attempts::NewAnswer, attempts::NewMessage,
        attempts::Start, budgets::ChangedBudget, budgets::NewBudget, code::NewCode,
        code::NewCodeContext, competitions::Cancel,
        competitions::NewCompetition, competitions::NewEntry, competitions::Pick,
        competitions::Terms, connections::NewConnection, exec::NewCommand, files::FileAction,
        forks::NewFork, git::NewBranch, git::NewClone, git::NewCommit, git::NewPullRequest,
        git::NewPush, keys::NewKeyRequest, keys::RotateRequest, policy::Question,
        projects::ProjectName, pulls::ChangeIssue, pulls::ChangeLineComment, pulls::ChangePull, pulls::GiveReview,
        pulls::LineComment, pulls::Merge, pulls::OpenIssue, pulls::OpenPull, pulls::Say,
        pulls::SetStatus, repositories::ChangedRepository, repositories::NewProtection,
        repositories::NewRepository, sandboxes::Extension, sandboxes::NewSandbox,
        sandboxes::PauseBody, sandboxes::ResumeBody, schedules::ChangedSchedule, schedules::NewSchedule,
        schedules::ScheduledTask, secrets::NewValue, session::SignIn, session::NewSessionRequest, session::OwnName,
        people::NewPerson, people::PersonPatch, people::NewInvite,
        snapshots::NewSnapshot, snapshots::RollbackBody, tasks::ChangedTask, tasks::NewTask,
        templates::CatalogueBuildRequest, templates::NewTemplateBuild, templates::NewTemplateStep,
        templates::RegistryLogin,
        volumes::NewMount, volumes::NewVolume, webhooks::ChangedWebhook, webhooks::NewWebhook,
    ];
    let responses = all![check_response:
        ErrorShape, agents::Agent, agents::AgentTemplate, agents::AgentTest, agents::Definition,
        agents::PresetInfo, agents::PresetLogin, agents::PresetRecipe, agents::SetUpAgent, artifacts::Artifact,
        attempts::Attempt, attempts::Failure, attempts::Message, attempts::Move, attempts::ReportedUsage,
        attempts::StepShape, attempts::StepStateShape, attempts::TaskQuestion, audit::Audited, budgets::Action,
        budgets::Budget, budgets::Period, code::CodeArtifact, code::CodeContext, code::CodeEnd,
        code::CodeError, code::CodeFailed, code::CodeRan, code::CodeResult, code::CodeStarted,
        code::CodeSummary, competitions::Check, competitions::ComparedFile,
        competitions::Comparison, competitions::Competition, competitions::Diff,
        competitions::Entry, competitions::Failure, competitions::FileChange, competitions::Side,
        competitions::Size, connections::AppIds, connections::Connection,
        connections::MissingPermission, connections::Permissions, connections::Taken,
        events::Event, exec::Process, exec::Program, exec::Ran, exec::Running,
        executions::Execution, executions::ExecutionOutput, executions::OutputPage,
        executions::Piece, files::Entry, forks::Child, forks::ChildError, forks::Family,
        forks::Fork, forks::Node, git::Branched, git::Cloned, git::Committed, git::GitOperation,
        git::PathChange, git::PullRequest, git::Pushed, git::WorkTree, git::WorkTreeDiff,
        host::Health, host::Host, host::HostFailure, host::HostReport, host::KernelFeature, host::LargestSandbox,
        keys::Key, keys::MadeKey, limits::GitShape, limits::Lease, limits::QuotaState,
        limits::QuotasShape, limits::RetentionShape, limits::Settings, limits::SettingsShape, limits::TaskRulesShape,
        limits::UseShape, logs::FoundLine, logs::LogLine, models::ModelCall, models::ModelCallDetail,
        models::ModelPrice, models::ModelPrices, models::ModelTry, network::Reach, policy::Answer,
        policy::CommandWords, policy::JudgedShape, projects::Project, pulls::Comment, pulls::Diff,
        pulls::CommittedFile, pulls::DiffFile, pulls::InlineComment, pulls::Mergeability, pulls::Issue, pulls::Pull, pulls::Review,
        pulls::Status, pulls::Statuses, queue::Queue, queue::QueueCounts, queue::QueueLimits,
        queue::Run, repositories::Branch, repositories::Protection, repositories::Repository,
        repositories::RepositoryDetail, repositories::RepositoryInfo, sandboxes::AtTimeout,
        sandboxes::LifeStep, sandboxes::OwnedSandbox, sandboxes::Sandbox, sandboxes::SandboxSample, schedules::Schedule, schedules::ScheduleRun, schedules::TaskOfSchedule, secrets::MasterKey,
        search::SearchHit, search::SearchResults, secrets::Missing, secrets::Secret, session::Identity, session::OwnProject, session::SignInLink,
        session::BegunSession, session::Session, session::EndedSessions, people::Person, people::ActorName,
        snapshots::Snapshot, tasks::AttentionShape, tasks::OnReview, tasks::PlaceShape,
        tasks::Task, templates::CatalogueBuild, templates::CatalogueTemplate,
        templates::RequestedTemplateBuild, templates::Template,
        templates::TemplateBuild, templates::TemplateBuildFailure, templates::TemplateBuildLine,
        templates::TemplateFiles, transcripts::TranscriptEntry, usage::Prices, usage::UsageEntry, volumes::Volume,
        volumes::VolumeDetail, volumes::VolumeMount, webhooks::Delivery,
        webhooks::DeliveryDetail, webhooks::MadeWebhook, webhooks::SigningSecret,
        webhooks::Webhook,
    ];
    let results: Vec<_> = requests.into_iter().chain(responses).collect();
    report(&results);
    let checked: Vec<&str> = results.iter().map(|(name, _)| *name).collect();
    for name in declared("ToSchema") {
        let short = name.trim_start_matches("error::");
        assert!(
            checked.contains(&short) || name == "page::Page",
            "{name} is not checked: add it to this test, as a request if it has `deny_unknown_fields`"
        );
    }
}

#[test]
fn every_query_reads_back_what_it_writes() {
    let queries = all![check_query:
        artifacts::ArtifactQuery, artifacts::UploadQuery, audit::AuditQuery, code::NotebookQuery,
        competitions::CompareQuery, competitions::CompetitionQuery, connections::ReachableQuery,
        connections::RemoteQuery,
        events::AfterQuery, events::EventQuery, exec::SignalQuery, exec::WatchQuery,
        executions::ExecutionQuery, executions::OutputQuery, executions::PlaceQuery,
        files::ListQuery, files::RemoveQuery, files::UserQuery, git::DiffQuery,
        git::RepositoryQuery, logs::FormQuery, logs::LogQuery, models::ModelCallQuery, network::ReachQuery,
        pulls::CompareQuery, pulls::DiffQuery, pulls::FileQuery, pulls::IssueQuery, pulls::PullQuery, sandboxes::SampleQuery, sandboxes::SandboxQuery, search::SearchQuery, snapshots::SnapshotQuery,
        tasks::TaskQuery, templates::CatalogueLogQuery, templates::TemplateBuildLogQuery, templates::TemplateBuildQuery,
        templates::TemplateQuery, transcripts::TranscriptQuery, usage::ProjectQuery, usage::UsageQuery, webhooks::DeliveryQuery,
        PageQuery,
    ];
    report(&queries);
    for name in declared("IntoParams") {
        let short = name.trim_start_matches("page::");
        assert!(
            queries.iter().any(|(checked, _)| *checked == short),
            "{name} is not checked: add it to this test"
        );
    }
}

#[test]
fn a_page_reads_back_what_it_writes() {
    let project = json!({"id": "01234567890123456789abcdef", "name": "x", "created_at": "x"});
    for next in [json!(null), json!("x")] {
        let page = json!({"items": [project], "next": next});
        assert_eq!(round::<Page<projects::Project>>(&page), Ok(page));
    }
}
