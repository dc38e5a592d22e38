"""A database of a later version is refused, and opens again with the version that it is of."""

import pathlib
import sqlite3

from fixture import assert_nothing_left, fixtures, openable, place, unpacked

NEWER = 9999
COLUMNS = "version, description, success, checksum, execution_time"


def test_a_newer_database_is_refused():
    fixture = [each for each in fixtures() if each.database == "sqlite"][-1]
    openable(fixture)
    with place() as here, unpacked(fixture, here):
        database, up = here.data_dir / "server/coffer.db", here.up("--warm-slots=0")
        change(database, f"INSERT INTO _sqlx_migrations ({COLUMNS}) VALUES ({NEWER}, 'later', TRUE, x'', 0)")
        up.launch()
        try:
            ended = up.process.wait(60)
        finally:
            if up.process.poll() is None:
                up.stop()
        said = up.log.read_text(errors="replace")
        assert ended == 1, said
        assert f"was written by a newer version: it has migration {NEWER}" in said
        change(database, f"DELETE FROM _sqlx_migrations WHERE version = {NEWER}")
        assert up.start("--ephemeral").stop() == 0
        assert_nothing_left(up)


def change(database: pathlib.Path, statement: str):
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    connection.close()
