-- A repository has one name: what is said as `local/app` is on record as `app`, so that whoever looks for the tasks of a
-- repository finds them all.
UPDATE tasks SET repository = substr(repository, 7)
WHERE substr(repository, 1, 6) = 'local/' AND length(repository) > 6;
UPDATE competitions SET repository = substr(repository, 7)
WHERE substr(repository, 1, 6) = 'local/' AND length(repository) > 6;
