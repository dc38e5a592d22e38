-- A repository has one name: what is said as `local/app` is on record as `app`, so that whoever looks for the tasks of a
-- repository finds them all.
UPDATE tasks SET repository = substr(repository, 7)
WHERE substr(repository, 1, 6) = 'local/' AND length(repository) > 6;
UPDATE competitions SET repository = substr(repository, 7)
WHERE substr(repository, 1, 6) = 'local/' AND length(repository) > 6;

-- What a project's artifacts are together, counted as they come and go.
ALTER TABLE projects ADD COLUMN artifact_count BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN artifact_bytes BIGINT NOT NULL DEFAULT 0;
UPDATE projects SET
    artifact_count = (SELECT COUNT(*) FROM artifacts AS a WHERE a.project_id = projects.id),
    artifact_bytes = (SELECT CAST(COALESCE(SUM(a.size_bytes), 0) AS BIGINT) FROM artifacts AS a
        WHERE a.project_id = projects.id);

-- A webhook that was removed is here until its log, which may be long, is gone.
ALTER TABLE webhooks ADD COLUMN removed_ms BIGINT;
CREATE INDEX webhooks_removed ON webhooks (removed_ms) WHERE removed_ms IS NOT NULL;
