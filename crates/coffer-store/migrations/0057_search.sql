-- The newest pull requests of a project, which a search looks through.
CREATE INDEX pulls_by_project ON pulls (project_id, updated_ms);
