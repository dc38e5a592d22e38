-- The installation whose server began a run: its sandbox will be there, and so may be its repository. Null is any.
ALTER TABLE runs ADD COLUMN installation TEXT;
