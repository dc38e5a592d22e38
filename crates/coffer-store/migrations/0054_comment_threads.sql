-- Comments on lines are edited, and their threads resolved.
ALTER TABLE forge_comments ADD COLUMN updated_ms BIGINT;
ALTER TABLE forge_comments ADD COLUMN resolved_by TEXT;
ALTER TABLE forge_comments ADD COLUMN resolved_ms BIGINT;
