-- What a template is for, in its owner's words; none where nobody said.
ALTER TABLE templates ADD COLUMN summary TEXT;
-- The disk of its sandboxes; NULL for the default.
ALTER TABLE templates ADD COLUMN disk_mib BIGINT;
ALTER TABLE template_builds ADD COLUMN disk_mib BIGINT;
-- JSON: what its sandboxes start with, such as the user; none until it is ready, and in older rows.
ALTER TABLE template_builds ADD COLUMN defaults TEXT;
