-- What a project may use, how long its sandboxes live unless they say otherwise, and how long records are
-- kept. Where a limit is NULL, the server's own holds.

-- Beside the counter of events: whoever raises that holds the row and has these in the same answer.
ALTER TABLE projects ADD COLUMN most_sandboxes BIGINT;
ALTER TABLE projects ADD COLUMN most_cpus BIGINT;
ALTER TABLE projects ADD COLUMN most_memory_mib BIGINT;
ALTER TABLE projects ADD COLUMN most_disk_mib BIGINT;
ALTER TABLE projects ADD COLUMN most_forks BIGINT;
-- The newest event that was removed for its age; what comes after it is without gaps.
ALTER TABLE projects ADD COLUMN pruned_event BIGINT NOT NULL DEFAULT 0;

CREATE TABLE project_settings (
    project_id TEXT NOT NULL PRIMARY KEY REFERENCES projects (id),
    settings TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL
);
CREATE INDEX project_settings_by_change ON project_settings (changed_ms);

-- Which installation's host holds the sandbox: only its server may touch it.
ALTER TABLE sandboxes ADD COLUMN installation TEXT;
ALTER TABLE sandboxes ADD COLUMN idle_s BIGINT;
ALTER TABLE sandboxes ADD COLUMN max_lifetime_s BIGINT;
ALTER TABLE sandboxes ADD COLUMN lease_s BIGINT;
ALTER TABLE sandboxes ADD COLUMN lease_until_ms BIGINT;

-- Everything that quotas add up, so that they need not look at the rows.
CREATE INDEX sandboxes_in_use ON sandboxes (project_id, state, cpu_count, memory_mib, disk_mib)
    WHERE state IN ('creating', 'running', 'paused');
CREATE INDEX sandboxes_by_end ON sandboxes (project_id, ended_ms) WHERE ended_ms IS NOT NULL;
