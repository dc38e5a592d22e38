-- What holds a key: 'person' or 'service'; a key with an agent is an agent's. Keys from before this keep what they could do.
ALTER TABLE api_keys ADD COLUMN kind TEXT NOT NULL DEFAULT 'person';
