-- Which attempt works with a login that is a file: its program may renew it, and two would make each other's worthless.
CREATE TABLE login_leases (
    project_id TEXT NOT NULL REFERENCES projects (id),
    secret TEXT NOT NULL,
    -- A run, while it has not ended; or anything else until a time.
    holder TEXT NOT NULL,
    until_ms BIGINT NOT NULL,
    PRIMARY KEY (project_id, secret)
);
