-- The tries of a call that did not succeed at once, as JSON; null for one that did.
ALTER TABLE model_calls ADD COLUMN tries TEXT;
