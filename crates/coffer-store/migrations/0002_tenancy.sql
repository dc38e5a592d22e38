-- Who may do what: roles of keys, agents that own sandboxes, the operator's keys, and what was asked.

-- An agent acts by keys of its own and can touch only the sandboxes that it owns.
CREATE TABLE agents (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    removed_ms BIGINT
);
CREATE INDEX agents_by_project ON agents (project_id, id);
-- A name is free again once its agent was removed.
CREATE UNIQUE INDEX agents_by_name ON agents (project_id, name) WHERE removed_ms IS NULL;

-- Keys from before there were roles could do everything.
ALTER TABLE api_keys ADD COLUMN role TEXT NOT NULL DEFAULT 'admin';
ALTER TABLE api_keys ADD COLUMN agent_id TEXT REFERENCES agents (id);
CREATE INDEX api_keys_by_agent ON api_keys (agent_id) WHERE agent_id IS NOT NULL;

ALTER TABLE sandboxes ADD COLUMN agent_id TEXT REFERENCES agents (id);
CREATE INDEX sandboxes_by_agent ON sandboxes (agent_id, started_ms, id) WHERE agent_id IS NOT NULL;

-- Keys of no project: they see all of them.
CREATE TABLE operator_keys (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT,
    last_used_ms BIGINT
);
CREATE INDEX operator_keys_by_prefix ON operator_keys (prefix);

ALTER TABLE projects ADD COLUMN version BIGINT NOT NULL DEFAULT 1;
ALTER TABLE projects ADD COLUMN removed_ms BIGINT;

-- What was asked for, by whom, and what became of it. Rows outlive what they are about, so nothing is
-- referenced; where no project was found out, as for a wrong key, there is none.
CREATE TABLE audit (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT,
    status BIGINT NOT NULL,
    code TEXT,
    request_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL
);
CREATE INDEX audit_by_project ON audit (project_id, id);
CREATE INDEX audit_by_subject ON audit (project_id, subject, id);
