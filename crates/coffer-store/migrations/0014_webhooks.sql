-- What is told to others: webhooks that go out, and each event on its way to one.

CREATE TABLE webhooks (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    url TEXT NOT NULL,
    -- JSON: kinds of events, or `task.*`, or `*`.
    events TEXT NOT NULL,
    -- Only what is about tasks and artifacts of this context.
    context_id TEXT,
    description TEXT NOT NULL,
    -- What deliveries are signed with: a secret of the project by name, or one of its own, sealed.
    secret_name TEXT,
    key_secret TEXT,
    enabled BIGINT NOT NULL,
    disabled_reason TEXT,
    -- The newest event of the project that was looked at.
    position BIGINT NOT NULL,
    -- In a row, since when, and until when it is left alone for that.
    failures BIGINT NOT NULL DEFAULT 0,
    failing_since_ms BIGINT,
    rests_until_ms BIGINT NOT NULL DEFAULT 0,
    succeeded_ms BIGINT,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);
CREATE INDEX webhooks_by_project ON webhooks (project_id, id);

CREATE TABLE webhook_sends (
    id TEXT NOT NULL PRIMARY KEY,
    webhook_id TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id),
    -- Its number in the project's log; none for a test.
    event BIGINT,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    -- waiting, delivered, failed
    state TEXT NOT NULL,
    -- A person asked for it: it goes though the webhook is disabled or rests.
    asked BIGINT NOT NULL,
    tries BIGINT NOT NULL DEFAULT 0,
    next_ms BIGINT NOT NULL,
    -- The server that sends it now, and until when it is that server's.
    holder TEXT,
    held_until_ms BIGINT NOT NULL DEFAULT 0,
    status BIGINT,
    response TEXT,
    error TEXT,
    duration_ms BIGINT,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT
);
-- An event goes to a webhook once. Tests have no number, and so are no event's second time.
CREATE UNIQUE INDEX webhook_sends_by_event ON webhook_sends (webhook_id, event);
CREATE INDEX webhook_sends_by_webhook ON webhook_sends (webhook_id, id);
CREATE INDEX webhook_sends_waiting ON webhook_sends (webhook_id, next_ms) WHERE state = 'waiting';
CREATE INDEX webhook_sends_by_age ON webhook_sends (project_id, ended_ms) WHERE ended_ms IS NOT NULL;
