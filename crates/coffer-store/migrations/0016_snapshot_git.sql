-- The repositories that a sandbox had when a snapshot of it was made, so that whatever begins with the snapshot has a
-- gate to them: the snapshot may outlive the sandbox.

CREATE TABLE snapshot_git_remotes (
    snapshot_id TEXT NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    slug TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects (id),
    repository_id TEXT NOT NULL REFERENCES repositories (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    user_name TEXT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (snapshot_id, slug)
);
CREATE INDEX snapshot_git_remotes_by_repository ON snapshot_git_remotes (repository_id);

-- Snapshots from before: what their sandboxes have now is the nearest that is known.
INSERT INTO snapshot_git_remotes (snapshot_id, slug, project_id, repository_id, path, user_name, created_ms)
SELECT n.id, m.slug, m.project_id, m.repository_id, m.path, m.user_name, m.created_ms
FROM snapshots AS n JOIN git_remotes AS m ON m.sandbox_id = n.sandbox_id AND m.project_id = n.project_id;
