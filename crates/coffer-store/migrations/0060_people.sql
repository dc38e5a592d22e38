-- People of a project. They stay on record when they leave, so that what they did keeps their name.
CREATE TABLE people (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    -- The name in lower case: names that differ only in case would be taken for each other.
    folded TEXT NOT NULL,
    role TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    removed_ms BIGINT
);
CREATE UNIQUE INDEX people_by_name ON people (project_id, folded) WHERE removed_ms IS NULL;

-- The person who holds a key, a link or a session; null for services, agents, and people who gave no name.
ALTER TABLE api_keys ADD COLUMN person_id TEXT;
CREATE INDEX api_keys_by_person ON api_keys (person_id) WHERE person_id IS NOT NULL;

-- Sessions of browsers. A session is also a row of api_keys, or of operator_keys, which has its digest, rights and times.
CREATE TABLE sessions (
    key_id TEXT NOT NULL PRIMARY KEY,
    -- The key that it was begun with; null if a link of the server began it.
    root_id TEXT,
    -- Such as `Firefox on Linux`.
    browser TEXT NOT NULL,
    -- The network that it was begun from, without the host's part.
    address TEXT NOT NULL,
    -- It ends when it is not used for this long.
    idle_ms BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE INDEX sessions_by_root ON sessions (root_id) WHERE root_id IS NOT NULL;
