import asyncio

from e2b import AsyncSandbox, FilesystemEventType

CREATE, CHMOD, WRITE = FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE


def kinds(events):
    return [(event.type, event.name) for event in events]


def test_uploading_one_file_makes_exactly_three_events(box, here):
    watch = box.files.watch_dir(here)
    box.files.write(f"{here}/file", "content")
    assert kinds(watch.get_new_events()) == [(CREATE, "file"), (CHMOD, "file"), (WRITE, "file")]
    assert watch.get_new_events() == []
    box.files.write(f"{here}/file", "other")
    assert (WRITE, "file") in kinds(watch.get_new_events())
    watch.stop()


def test_recursive_watch_follows_new_directories(box, here):
    watch = box.files.watch_dir(here, recursive=True)
    box.files.make_dir(f"{here}/a/b")
    box.files.write(f"{here}/a/b/file", "x")
    events = kinds(watch.get_new_events())
    assert (CREATE, "a") in events and (WRITE, "a/b/file") in events
    watch.stop()


def test_rename_remove_and_entries(box, here, eventually):
    box.files.write(f"{here}/file", "x")
    watch = box.files.watch_dir(here, include_entry=True)
    box.commands.run("mv file moved; touch other; rm moved", cwd=here)
    seen = []
    eventually(lambda: seen.extend(watch.get_new_events()) or (FilesystemEventType.REMOVE, "moved") in kinds(seen))
    assert (FilesystemEventType.RENAME, "file") in kinds(seen)
    created = next(event for event in seen if event.type == CREATE and event.name == "other")
    assert created.entry is not None and created.entry.path == f"{here}/other"
    watch.stop()


def test_a_plain_watch_does_not_look_below(box, here):
    box.files.make_dir(f"{here}/sub")
    watch = box.files.watch_dir(here)
    box.files.write(f"{here}/sub/file", "x")
    box.files.write(f"{here}/file", "x")
    assert {name for _, name in kinds(watch.get_new_events())} == {"file"}
    watch.stop()


def test_streamed_watch(box, here):
    async def watch():
        sandbox = await AsyncSandbox.connect(box.sandbox_id)
        seen: asyncio.Queue = asyncio.Queue()
        handle = await sandbox.files.watch_dir(here, on_event=seen.put_nowait, recursive=True)
        await sandbox.files.write(f"{here}/file", "x")
        events = [await asyncio.wait_for(seen.get(), 60) for _ in range(3)]
        await handle.stop()
        return events

    assert kinds(asyncio.run(watch())) == [(CREATE, "file"), (CHMOD, "file"), (WRITE, "file")]
