-- What the agent itself reported, as JSON, where the model gateway's figures are in the other columns: a cross-check.
ALTER TABLE task_attempts ADD COLUMN reported TEXT;
