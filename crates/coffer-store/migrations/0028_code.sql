-- Code that ran in a sandbox's code interpreter: its language, and its context if the caller named one. Null for commands.
ALTER TABLE executions ADD COLUMN language TEXT;
ALTER TABLE executions ADD COLUMN code_context TEXT;
CREATE INDEX executions_of_code ON executions (sandbox_id, id) WHERE language IS NOT NULL;
