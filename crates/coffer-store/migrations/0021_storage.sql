-- What a project may keep in repositories, Git LFS and artifacts together, in MiB.
ALTER TABLE projects ADD COLUMN most_storage_mib BIGINT;
-- What a repository of this server takes, with Git LFS, as last counted; none where nobody has counted.
ALTER TABLE repositories ADD COLUMN size_bytes BIGINT;
-- Room for what is being pushed or uploaded. One whose server has died no longer counts after its time.
CREATE TABLE storage_reservations (
    id TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    bytes BIGINT NOT NULL,
    until_ms BIGINT NOT NULL
);
CREATE INDEX storage_reservations_by_project ON storage_reservations (project_id);
-- Forks are counted by project.
CREATE INDEX sandboxes_forked ON sandboxes (project_id)
    WHERE fork_position IS NOT NULL AND state IN ('creating', 'running', 'paused');
