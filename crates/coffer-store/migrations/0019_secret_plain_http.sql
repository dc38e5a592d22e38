-- Whether headers may carry a secret that is limited to hosts over plain HTTP: 0 or 1, set by an admin.
ALTER TABLE secrets ADD COLUMN plain_http BIGINT NOT NULL DEFAULT 0;
