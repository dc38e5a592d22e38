-- How often an agent may correct its work after the check failed; the default of the server without a value.
ALTER TABLE tasks ADD COLUMN check_tries BIGINT;
