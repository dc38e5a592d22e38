-- The id of a secret, which its later values keep; none in older rows, where it is the id of the row.
ALTER TABLE secrets ADD COLUMN secret_id TEXT;
-- JSON: text by key, from the client that set the secret; none where there is none.
ALTER TABLE secrets ADD COLUMN metadata TEXT;
