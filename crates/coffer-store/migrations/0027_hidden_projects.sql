-- Projects of the installation itself, such as the one that owns the catalogue's templates: no key opens them, and no
-- list shows them.
ALTER TABLE projects ADD COLUMN is_hidden BIGINT NOT NULL DEFAULT 0;
