//! A sample event of each kind, with as many fields as possible.

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::agent::{AgentProgress, Preset};
use crate::command::Effect;
use crate::compete::{CompetitionState, DiffSize, EntryState, Placing, Rule};
use crate::forge::{ForgeKind, IssueState, ProtectionRules, PullState, StatusState, Verdict};
use crate::network::{Refusal, RefusedKind};
use crate::{
    Answer, ArtifactKind, Attention, BudgetAction, BudgetPeriod, Code, DestroyReason, ExecutionSource,
    ExecutionState, Fault, Id, Kept, Question, RunFailure, RunState, SandboxState, StateName, TaskState,
    Unwinding,
};

fn id<K>(number: u128) -> Id<K> {
    Id::from_uuid(Uuid::from_u128(number))
}

fn text(text: &str) -> String {
    text.to_string()
}

fn some(it: &str) -> Option<String> {
    Some(text(it))
}

fn moved(from: Option<StateName>, to: SandboxState, reason: &str) -> Event {
    SandboxMoved { from, to, reason: text(reason) }.event()
}

fn schedule() -> ScheduleNote {
    ScheduleNote {
        name: text("nightly"),
        task: Some(id(9)),
        reason: some("its last task is still open"),
        actor: some("key:ada"),
    }
}

fn failure() -> RunFailure {
    RunFailure {
        step: some("push"),
        not_undone: vec![text("sandbox")],
        ..RunFailure::new(Code::PushRejected, "the branch has moved")
    }
}

fn attention() -> Attention {
    Attention { code: Code::PushRejected.into(), message: text("the branch has moved"), step: some("push") }
}

fn progress() -> AgentProgress {
    AgentProgress { message: some("Running the tests"), tool: some("bash"), about: some("make test") }
}

fn template_build(reason: Option<&str>) -> TemplateBuild {
    let reason = reason.map(text);
    let step = reason.as_ref().map(|_| text("2"));
    TemplateBuild { build_id: id(4), name: text("my-app"), tags: vec![text("default")], reason, step }
}

fn volume() -> VolumeNote {
    VolumeNote { volume_id: id(4), name: text("cache"), size_mib: 1024 }
}

fn gone() -> SnapshotGone {
    SnapshotGone { snapshot_id: id(3), name: some("base"), tag: text("v1"), reason: some("requested") }
}

fn artifact() -> ArtifactNote {
    ArtifactNote {
        artifact: id(11),
        kind: ArtifactKind::Report,
        name: text("report.md"),
        size_bytes: 1024,
        url: some("https://example.com/report"),
        run: Some(id(5)),
        task: Some(id(6)),
        sandbox: Some(id(1)),
        context_id: some("chat-7"),
    }
}

fn pull(state: PullState) -> PullNote {
    let commit = |digit: &str| digit.repeat(40).parse().unwrap();
    PullNote {
        number: 7,
        head: "fix".parse().unwrap(),
        base: "main".parse().unwrap(),
        state,
        head_commit: commit("a"),
        merge_commit: (state == PullState::Merged).then(|| commit("b")),
    }
}

fn comment(verdict: Option<Verdict>, path: Option<&str>) -> CommentMade {
    CommentMade { number: 7, comment_id: id(12), verdict, path: path.map(text), line: path.map(|_| 12) }
}

fn github() -> GithubBy {
    GithubBy { action: some("created"), sender: some("ada"), sender_type: some("User") }
}

fn check() -> GithubCheck {
    GithubCheck {
        by: github(),
        commit: Some("a".repeat(40)),
        name: some("test"),
        status: some("completed"),
        conclusion: some("failure"),
    }
}

fn budget(percent: i64) -> BudgetReached {
    BudgetReached {
        budget: id(13),
        sandbox: Some(id(1)),
        period: BudgetPeriod::Day,
        percent,
        spent: 4.5,
        amount: 5.0,
        currency: text("USD"),
        action: BudgetAction::Pause,
    }
}

fn webhook() -> WebhookTerms {
    WebhookTerms { host: text("example.com"), events: vec![text("task.*")], enabled: true }
}

/// In the order of the kinds.
pub(super) fn samples() -> Vec<Event> {
    let commit = |digit: &str| digit.repeat(40).parse().unwrap();
    let running = Some(StateName::Running);
    let run = id(5);
    let competition = id(8);
    vec![
        moved(None, SandboxState::Creating, "requested"),
        moved(Some(StateName::Creating), SandboxState::Running, "ready"),
        moved(running, SandboxState::Paused { kept: Kept::MemoryAndFiles }, "requested"),
        moved(running, SandboxState::Terminated { reason: DestroyReason::Timeout }, "timeout"),
        moved(running, SandboxState::Error { fault: Fault::Died { message: text("killed") } }, "died"),
        Event::SandboxForked(SandboxForked {
            snapshot_id: id(3),
            children: vec![id(2)],
            asked: 2,
            memory: false,
            note: some("this host cannot save memory"),
            paused_us: 1500,
        }),
        Event::SandboxNetworkRefused(NetworkRefused {
            refusals: vec![Refusal {
                sequence: 4,
                at_ms: 1_700_000_000_000,
                kind: RefusedKind::Connection,
                name: Some("evil.example".parse().unwrap()),
                address: Some([192, 0, 2, 1].into()),
                port: Some(443),
                rule: text("base:web"),
            }],
            refused: 1,
            sequence: 4,
        }),
        Event::SandboxOrphanRemoved(OrphanRemoved { had: vec![text("cgroup")] }),
        Event::CommandRefused(CommandRefused {
            command: text("git push"),
            reason: text("only to origin"),
            rule: Some(1),
            source: ExecutionSource::Api,
        }),
        Event::ExecutionStarted(ExecutionStarted {
            execution: id(4),
            command: text("make test"),
            source: ExecutionSource::E2b,
            actor: Some(id(20)),
            language: some("python"),
        }),
        Event::ExecutionEnded(ExecutionEnded {
            execution: id(4),
            state: ExecutionState::Exited,
            exit_code: Some(1),
            status: some("exit status 1"),
            bytes: 2048,
            truncated: false,
        }),
        Event::SnapshotCreating(SnapshotCreating {
            snapshot_id: id(3),
            name: some("base"),
            tag: text("v1"),
            memory: true,
        }),
        Event::SnapshotReady(SnapshotReady {
            snapshot_id: id(3),
            name: some("base"),
            tag: text("v1"),
            memory: true,
            note: some("without memory: a process could not be saved"),
            files_bytes: 4096,
            memory_bytes: 8192,
            paused_us: 1500,
        }),
        Event::SnapshotFailed(gone()),
        Event::SnapshotDeleting(gone()),
        Event::SnapshotDeleted(gone()),
        Event::TemplateBuildStarted(template_build(None)),
        Event::TemplateBuildReady(template_build(None)),
        Event::TemplateBuildFailed(template_build(Some("failed to run command 'make': exit status 2"))),
        Event::TemplateDeleted(TemplateGone { name: text("my-app") }),
        Event::VolumeCreated(volume()),
        Event::VolumeDeleted(volume()),
        Event::GitStarted(GitStarted {
            operation: id(10),
            kind: text("commit"),
            repository: text("app"),
            actor: text("agent:reviewer"),
        }),
        Event::GitSucceeded(GitSucceeded {
            operation: id(10),
            kind: text("commit"),
            repository: text("app"),
            result: json!({ "commit": "a".repeat(40) }),
        }),
        Event::GitFailed(GitFailed {
            operation: id(10),
            kind: text("push"),
            repository: text("app"),
            error: GitFailure { code: some("push_rejected"), message: some("the branch has moved") },
        }),
        Event::ArtifactCreated(artifact()),
        Event::ArtifactRemoved(artifact()),
        Event::TaskCreated(TaskMoved {
            from: None,
            to: TaskState::Todo,
            reason: text("created"),
            actor: some("key:ada"),
        }),
        Event::TaskMoved(TaskMoved {
            from: Some(TaskState::InProgress),
            to: TaskState::InReview,
            reason: text("the attempt is done"),
            actor: None,
        }),
        Event::TaskChanged(TaskChanged::Edited { version: 3, actor: text("key:ada") }),
        Event::TaskDeleted(TaskDeleted { title: text("Fix the tests") }),
        Event::TaskMessage(TaskSaid {
            number: 2,
            author: text("ada"),
            source: some("github/comment/9"),
            about: Some(json!({ "file": "src/lib.rs", "line": 12 })),
            body: text("Please use the other function."),
        }),
        Event::TaskProgress(TaskProgress {
            run,
            sandbox: Some(id(1)),
            execution: Some(id(4)),
            branch: some("fix"),
            commit: Some("a".repeat(40)),
            pull_url: some("https://example.com/pull/7"),
            input_tokens: Some(1000),
            output_tokens: Some(200),
            cost_nanos: Some(15_000_000),
            doing: Some(progress()),
        }),
        Event::TaskNeedsAttention(TaskNeedsAttention { run: Some(run), attention: Some(attention()) }),
        Event::TaskAnswered(TaskAnswered {
            run,
            question: Question::Budget,
            answer: Answer::Raise,
            budget_nanos: Some(5_000_000_000),
            actor: Some(text("key:ada")),
        }),
        Event::TaskInterrupted(TaskInterrupted { run, actor: text("key:ada") }),
        Event::ScheduleCreated(schedule()),
        Event::ScheduleChanged(schedule()),
        Event::ScheduleRemoved(schedule()),
        Event::ScheduleStarted(schedule()),
        Event::ScheduleSkipped(schedule()),
        Event::ScheduleFailed(schedule()),
        Event::RunQueued(RunKind { run, kind: text("task") }),
        Event::RunStarted(RunKind { run, kind: text("task") }),
        Event::RunSignalled(RunSignalled { run, signal: text("picked"), number: 1 }),
        Event::RunCancelling(RunCancelling { run, reason: text("requested"), state: RunState::Running }),
        Event::RunParked(RunParked { run, until_ms: 1_700_000_000_000, signal: some("picked") }),
        Event::RunUnwinding(RunUnwinding {
            run,
            why: Unwinding::Failed,
            code: Code::PushRejected.into(),
            message: text("the branch has moved"),
        }),
        Event::RunEnded(RunEnded {
            run,
            state: RunState::Failed,
            reason: some("requested"),
            failure: Some(failure()),
        }),
        Event::RunStepStarted(StepStarted { run, step: text("push"), start: 1, failures: 0 }),
        Event::RunStepFinished(StepFinished { run, step: text("push"), duration_ms: 800 }),
        Event::RunStepFailed(StepFailed {
            run,
            step: text("push"),
            code: Code::PushRejected.into(),
            message: text("the branch has moved"),
            again: true,
        }),
        Event::RunStepUndone(StepUndone { run, step: text("push"), failed: some("no answer") }),
        Event::CompetitionCreated(CompetitionCreated {
            competition,
            run,
            task: Some(id(6)),
            title: text("Fix the tests"),
            entries: 3,
            rule: Rule::Best,
            actor: text("key:ada"),
        }),
        Event::CompetitionState(CompetitionMoved {
            competition,
            from: CompetitionState::Publishing,
            to: CompetitionState::Failed,
            pull_url: some("https://example.com/pull/7"),
            error: Some(failure()),
        }),
        Event::CompetitionEntry(CompetitionEntry {
            competition,
            number: 2,
            state: Some(EntryState::Checking),
            sandbox: Some(id(1)),
            execution: Some(id(4)),
            exit_code: Some(0),
            passed: Some(true),
            diff: Some(DiffSize { files: 2, added: 10, removed: 3 }),
            duration_ms: Some(60_000),
            commit: Some("a".repeat(40)),
            error: Some(failure()),
            agent_cost_nanos: Some(15_000_000),
            input_tokens: Some(1000),
            output_tokens: Some(200),
            doing: Some(progress()),
        }),
        Event::CompetitionRanked(CompetitionRanked {
            competition,
            places: vec![Placing { number: 2, rank: 1, reasons: vec![text("its checks passed")] }],
        }),
        Event::CompetitionWinner(CompetitionWinner { competition, entry: 2, by: some("key:ada") }),
        Event::RepositoryCreated(RepositoryCreated {
            name: "app".parse().unwrap(),
            kind: ForgeKind::GitHub,
            remote: some("octo/app"),
        }),
        Event::RepositoryChanged(RepositoryChanged { default_branch: "main".parse().unwrap() }),
        Event::RepositoryRemoved(RepositoryRemoved { name: text("app") }),
        Event::RepositoryPushed(RepositoryPushed {
            by: text("key:ada"),
            refs: vec![MovedRef { name: text("refs/heads/fix"), before: commit("0"), after: commit("a") }],
            count: 1,
        }),
        Event::RepositoryImported(RepositoryImported { by: text("key:ada"), branches: 3 }),
        Event::RepositoryProtection(Protected {
            branch: "main".parse().unwrap(),
            rules: Some(ProtectionRules::default()),
        }),
        Event::ConnectionCreated(ConnectionCreated {
            name: text("github"),
            kind: ForgeKind::GitHub,
            base_url: text("https://api.github.com"),
        }),
        Event::ConnectionRemoved(Nothing {}),
        Event::PullOpened(pull(PullState::Open)),
        Event::PullUpdated(pull(PullState::Open)),
        Event::PullHeadMoved(PullHeadMoved { pull: pull(PullState::Open), before: commit("c") }),
        Event::PullClosed(pull(PullState::Closed)),
        Event::PullReopened(pull(PullState::Open)),
        Event::PullMerged(pull(PullState::Merged)),
        Event::PullReviewed(comment(Some(Verdict::RequestChanges), None)),
        Event::PullLineCommented(comment(None, Some("src/lib.rs"))),
        Event::PullLineCommentChanged(comment(None, Some("src/lib.rs"))),
        Event::ForgeCommented(comment(None, None)),
        Event::IssueOpened(IssueNote { number: 8, state: IssueState::Open }),
        Event::IssueUpdated(IssueNote { number: 8, state: IssueState::Open }),
        Event::IssueClosed(IssueNote { number: 8, state: IssueState::Closed }),
        Event::IssueReopened(IssueNote { number: 8, state: IssueState::Open }),
        Event::StatusSet(CommitStatus {
            commit: commit("a"),
            context: "test".parse().unwrap(),
            state: StatusState::Failure,
        }),
        Event::GithubPullRequest(GithubPull {
            by: GithubBy { action: some("closed"), ..github() },
            number: Some(7),
            state: some("closed"),
            merged: Some(true),
            head: some("fix"),
            head_commit: Some("a".repeat(40)),
            base: some("main"),
            merge_commit: Some("b".repeat(40)),
        }),
        Event::GithubPullRequestReview(GithubReview {
            by: GithubBy { action: some("submitted"), ..github() },
            number: Some(7),
            review_id: Some(9),
            verdict: some("changes_requested"),
            commit: Some("a".repeat(40)),
            body: some("Please use the other function."),
            association: some("MEMBER"),
        }),
        Event::GithubPullRequestReviewComment(GithubLineComment {
            by: github(),
            number: Some(7),
            comment_id: Some(9),
            path: some("src/lib.rs"),
            line: Some(12),
            body: some("Why?"),
            association: some("MEMBER"),
        }),
        Event::GithubIssueComment(GithubIssueComment {
            by: github(),
            number: Some(7),
            comment_id: Some(9),
            on_pull: true,
            body: some("Why?"),
            association: some("MEMBER"),
        }),
        Event::GithubIssues(GithubIssue {
            by: github(),
            number: Some(8),
            state: some("open"),
            label: some("cofferdam"),
            assignee: None,
        }),
        Event::GithubStatus(GithubStatus {
            by: github(),
            commit: Some("a".repeat(40)),
            context: some("test"),
            state: some("failure"),
        }),
        Event::GithubCheckRun(check()),
        Event::GithubCheckSuite(check()),
        Event::GithubPush(GithubPush {
            by: github(),
            name: some("refs/heads/fix"),
            before: Some("0".repeat(40)),
            after: Some("a".repeat(40)),
        }),
        Event::AgentDefined(AgentDefined { version: 2, preset: Some(Preset::ClaudeCode) }),
        Event::ProjectSettingsChanged(SettingsChanged { settings: json!({ "timeout_s": 600 }) }),
        Event::ProjectQuotasChanged(QuotasChanged { quotas: json!({ "sandboxes": 10 }) }),
        Event::PolicyChanged(PolicyChanged { version: 2, rules: 3, default: Effect::Allow }),
        Event::SecretCreated(SecretVersion { name: text("API_KEY"), version: 1 }),
        Event::SecretReplaced(SecretVersion { name: text("API_KEY"), version: 2 }),
        Event::SecretDeleted(SecretVersion { name: text("API_KEY"), version: 2 }),
        Event::BudgetWarned(budget(90)),
        Event::BudgetExceeded(budget(100)),
        Event::ModelBudgetReached(ModelBudgetReached {
            sandbox: id(1),
            task: Some(id(2)),
            run: Some(id(3)),
            agent: Some(id(4)),
            model: text("claude-haiku-4-5"),
            limit: text("task"),
            left: 0.02,
            amount: 5.0,
            currency: text("USD"),
        }),
        Event::WebhookCreated(webhook()),
        Event::WebhookChanged(webhook()),
        Event::WebhookRemoved(Nothing {}),
        Event::WebhookDisabled(WebhookDisabled { reason: text("50 deliveries failed in a row") }),
        Event::WebhookPing(Nothing {}),
        Event::Gap(Gap { after: 10, until: 500 }),
    ]
}
