-- Which commands may be started, and which requests to start one were answered already.

-- A project without a row lets every command pass. `policy` is JSON; nothing looks into it here.
CREATE TABLE command_policies (
    project_id TEXT NOT NULL PRIMARY KEY REFERENCES projects (id),
    policy TEXT NOT NULL,
    -- Raised by every change: two who change it at once find out, and other servers see that it is new.
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL
);

-- What an idempotency key started. The execution is recorded beside this and not before it, so nothing
-- refers to it.
CREATE TABLE execution_keys (
    project_id TEXT NOT NULL REFERENCES projects (id),
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    execution_id TEXT NOT NULL,
    expires_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, key)
);
CREATE INDEX execution_keys_by_sandbox ON execution_keys (sandbox_id);
CREATE INDEX execution_keys_by_expiry ON execution_keys (expires_ms);
