import hashlib
import io
import os

import pytest
from e2b import FileNotFoundException, FileType, InvalidArgumentException, NotFoundException, SandboxException
from e2b.sandbox.filesystem.filesystem import WriteEntry

TEXT = "Zwölf Boxkämpfer jagen Viktor\n" * 100


@pytest.mark.parametrize(
    "data", [TEXT, TEXT.encode(), b"", bytes(range(256)) * 300], ids=["text", "bytes", "empty", "binary"]
)
@pytest.mark.parametrize("options", [{}, {"use_octet_stream": True}, {"gzip": True}], ids=["default", "octets", "gzip"])
def test_write_then_read(box, here, data, options):
    written = box.files.write(f"{here}/new/dir/file", io.BytesIO(data) if isinstance(data, bytes) else data, **options)
    assert (written.path, written.name, written.type) == (f"{here}/new/dir/file", "file", FileType.FILE)
    raw = data if isinstance(data, bytes) else data.encode()
    path = written.path
    assert bytes(box.files.read(path, format="bytes")) == raw
    assert bytes(box.files.read(path, format="bytes", gzip=True)) == raw
    assert b"".join(box.files.read(path, format="stream")) == raw
    if isinstance(data, str):
        assert box.files.read(path) == data


def test_overwrite_truncates(box, here):
    for content in ("a long first content", "short"):
        box.files.write(f"{here}/file", content)
    assert box.files.read(f"{here}/file") == "short"


def test_many_files_in_one_request(box, here):
    entries = [WriteEntry(path=f"{here}/{n}/file {n}.txt", data=f"content {n}") for n in range(12)]
    written = box.files.write_files(entries)
    assert [info.path for info in written] == [entry["path"] for entry in entries]
    assert [box.files.read(entry["path"]) for entry in entries] == [entry["data"] for entry in entries]
    assert box.files.write_files([]) == []


def test_paths_are_relative_to_the_users_home(box):
    box.files.write("relative.txt", "of user")
    box.files.write("relative.txt", "of root", user="root")
    assert box.files.read("/home/user/relative.txt") == "of user"
    assert box.files.read("~/relative.txt", user="root") == "of root"
    assert box.files.get_info("/root/relative.txt").owner == "root"


def test_info_and_list(box, here):
    box.files.make_dir(f"{here}/dir/sub")
    box.files.write(f"{here}/file.txt", "hello")
    box.commands.run("ln -s file.txt link; ln -s nowhere broken; chmod 640 file.txt", cwd=here)
    info = box.files.get_info(f"{here}/file.txt")
    assert (info.name, info.path, info.type, info.size) == ("file.txt", f"{here}/file.txt", FileType.FILE, 5)
    assert (info.mode, info.permissions, info.owner, info.group) == (0o640, "-rw-r-----", "user", "user")
    assert info.modified_time is not None and info.symlink_target is None
    directory = box.files.get_info(f"{here}/dir")
    assert (directory.type, directory.mode, directory.permissions) == (FileType.DIR, 0o755, "drwxr-xr-x")
    assert directory.size > 0
    assert box.files.get_info(f"{here}/link").symlink_target == f"{here}/file.txt"
    shallow = [entry.name for entry in box.files.list(here)]
    assert shallow in (["dir", "file.txt", "link"], ["broken", "dir", "file.txt", "link"])
    deep = [entry.path for entry in box.files.list(here, depth=2) if entry.type == FileType.DIR]
    assert deep == [f"{here}/dir", f"{here}/dir/sub"]


def test_rename_remove_exists_make_dir(box, here):
    box.files.write(f"{here}/old", "content")
    moved = box.files.rename(f"{here}/old", f"{here}/made/new")
    assert moved.path == f"{here}/made/new" and box.files.read(moved.path) == "content"
    assert [box.files.exists(f"{here}/{name}") for name in ("old", "made/new", "made")] == [False, True, True]
    assert box.files.make_dir(f"{here}/x/y/z") is True
    assert box.files.make_dir(f"{here}/x/y/z") is False
    box.files.remove(f"{here}/x")
    box.files.remove(f"{here}/x")  # like rm -rf
    assert not box.files.exists(f"{here}/x")


def test_metadata_of_a_file(box, here):
    path, metadata = f"{here}/file", {"author": "me", "purpose": "test it"}
    assert box.files.write(path, "x", metadata=metadata).metadata == metadata
    assert box.files.get_info(path).metadata == metadata
    assert box.files.rename(path, f"{path}2").metadata == metadata
    assert [entry.metadata for entry in box.files.list(here)] == [metadata]
    assert box.files.write(f"{path}2", "y").metadata is None
    assert box.files.get_info(f"{path}2").metadata is None


def test_files_without_a_size_are_read_to_their_end(box):
    boot = box.files.read("/proc/sys/kernel/random/boot_id").strip()
    assert boot and boot == box.commands.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()


def test_big_file_both_ways(box, here, tmp_path):
    size = int(os.environ.get("E2E_BIG_MIB", "256")) << 20
    block, local, digest = os.urandom(1 << 20), tmp_path / "big", hashlib.sha256()
    with local.open("wb") as out:
        for _ in range(size >> 20):
            out.write(block)
            digest.update(block)
    with local.open("rb") as source:
        box.files.write(f"{here}/big", source, request_timeout=500)
    assert box.files.get_info(f"{here}/big").size == size
    inside = box.commands.run(f"sha256sum {here}/big | cut -d' ' -f1", timeout=300).stdout.strip()
    back = hashlib.sha256()
    for chunk in box.files.read(f"{here}/big", format="stream", request_timeout=500):
        back.update(chunk)
    assert digest.hexdigest() == inside == back.hexdigest()
    box.files.remove(f"{here}/big")


@pytest.mark.parametrize(
    "error, call",
    [
        (FileNotFoundException, lambda files, here: files.read(f"{here}/none")),
        (NotFoundException, lambda files, here: files.get_info(f"{here}/none")),
        (NotFoundException, lambda files, here: files.rename(f"{here}/none", f"{here}/other")),
        (NotFoundException, lambda files, here: files.list(f"{here}/none")),
        (NotFoundException, lambda files, here: files.watch_dir(f"{here}/none")),
        (InvalidArgumentException, lambda files, here: files.read(here)),
        (InvalidArgumentException, lambda files, here: files.list(f"{here}/file")),
        (InvalidArgumentException, lambda files, here: files.make_dir(f"{here}/file")),
        (SandboxException, lambda files, here: files.watch_dir(f"{here}/file")),
    ],
)
def test_refusals(box, here, error, call):
    box.files.write(f"{here}/file", "x")
    with pytest.raises(error):
        call(box.files, here)
    assert [entry.name for entry in box.files.list(here)] == ["file"]
