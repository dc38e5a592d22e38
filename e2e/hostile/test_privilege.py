"""Root inside is nobody outside, and stays with what it was given."""

import os
import pathlib

import pytest

from coffer_up import eventually
from traces import DATA_DIR

KEPT = 0xA00405FB  # docs/threat-model.md names them


def ids_outside(attacker, command: str) -> set[int]:
    """The host's view of the user ids of a program that runs inside."""
    marker = f"coffer-{os.urandom(6).hex()}"
    attacker.sandbox.commands.run(f"exec -a {marker} {command}", user=attacker.user, background=True, timeout=0)

    def find():
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cmdline").read_bytes().split(b"\0")[0] == marker.encode():
                    status = (entry / "status").read_text()
                    return {
                        int(word)
                        for line in status.splitlines()
                        if line[:3] in ("Uid", "Gid")
                        for word in line.split()[1:]
                    }
            except OSError:
                continue
        return None

    return eventually(find, f"{command} seen from the host")


def test_user_ids(attacker):
    """What runs inside runs outside as a user of the sandbox's own range, sudo or not."""
    base = attacker.traces.uid_base
    for command in ("sleep 1000", "sudo sleep 1000"):
        ids = ids_outside(attacker, command)
        assert ids and all(base <= each < base + 65536 for each in ids), ids
    assert base >= 0x70000000
    found = attacker.attack(
        """
        open("/tmp/file", "w").close()
        report(
            map=read("/proc/self/uid_map").split(),
            remap=attempt(write, "/proc/self/uid_map", "0 0 4294967295"),
            unmapped=[attempt(os.setuid, 65536), attempt(os.setgid, 100000), attempt(os.chown, "/tmp/file", 70000, 0)],
            agentd=attempt(write, "/proc/1/uid_map", "0 0 1"),
        )
        """
    )
    assert found["map"] == ["0", str(base), "65536"]
    assert found["remap"] in ("EPERM", "EACCES") and found["agentd"] in ("EPERM", "EACCES")
    assert set(found["unmapped"]) <= {"EINVAL", "EPERM"}, found


def test_capabilities(attacker):
    """Those that were cut stay away: by sudo, by set-uid programs, by file capabilities, by ambient ones, by exec."""
    program = attacker.compile(
        """
        #include <stdio.h>
        #include <string.h>
        int main(void) {
            char line[256];
            FILE *status = fopen("/proc/self/status", "r");
            while (fgets(line, sizeof line, status))
                if (!strncmp(line, "CapPrm", 6) || !strncmp(line, "CapEff", 6) || !strncmp(line, "CapBnd", 6)) fputs(line, stdout);
            return 0;
        }
        """
    )
    everything = "=eip"
    as_root = "" if attacker.user == "root" else "sudo "
    seen = attacker.shell(
        f"""
        {program}; sudo {program}
        {as_root}cp {program} {program}-setuid && {as_root}chown root {program}-setuid && {as_root}chmod 6755 {program}-setuid
        {program}-setuid
        {as_root}cp {program} {program}-caps && ({as_root}setcap all{everything} {program}-caps || echo setcap refused)
        {program}-caps || echo exec refused
        {as_root}setcap cap_sys_admin,cap_net_admin+ep {program}-caps && {program}-caps || echo exec refused
        """
    ).stdout
    sets = [int(line.split()[1], 16) for line in seen.splitlines() if line.startswith("Cap")]
    assert len(sets) >= 9 and all(each & ~KEPT == 0 for each in sets), seen
    assert seen.splitlines().count("exec refused") == 2, seen  # with a right that it cannot have, it does not start
    found = attacker.attack(
        """
        def prctl(*arguments):
            return call(SYS.prctl, *arguments)
        header, data = struct.pack("II", 0x20080522, 0), struct.pack("6I", *[0xffffffff] * 6)
        report(
            ambient=prctl(47, 2, 21, 0, 0),  # raise SYS_ADMIN
            bounding=[bit for bit in range(64) if prctl(23, bit, 0, 0, 0) == 1],
            capset=call(SYS.capset, header, data),
            securebits=prctl(28, 0, 0, 0, 0),
        )
        """
    )
    assert found["ambient"] == "EPERM" and found["capset"] == "EPERM"
    assert sum(1 << bit for bit in found["bounding"]) == KEPT


def test_setuid_programs_stay_inside(attacker):
    """A set-uid root program of a sandbox would be root's on the host, if someone there could start it."""
    as_root = "" if attacker.user == "root" else "sudo "
    attacker.shell(f"cp /usr/bin/id /tmp/id && {as_root}chown root:root /tmp/id && {as_root}chmod 6755 /tmp/id")
    assert "euid=0(root)" in attacker.shell("/tmp/id", user="user").stdout, "inside it works"
    upper = DATA_DIR / "node/pool/s" / attacker.sandbox.sandbox_id / "u0/tmp/id"
    assert upper.stat().st_uid == attacker.traces.uid_base, "root inside owns files as its own range"
    assert os.statvfs(upper).f_flag & os.ST_NOSUID, "and the host ignores the bit"
    assert (DATA_DIR / "node/pool/s").stat().st_mode & 0o077 == 0, "and nobody gets there"


def test_chroot(attacker):
    """The old way out: a directory kept open, a chroot, and many steps up. What is above is the sandbox's root."""
    found = attacker.attack(
        """
        os.makedirs("/tmp/jail", exist_ok=True)
        root = os.stat("/")
        outside = os.open("/", os.O_RDONLY)
        chroot = attempt(os.chroot, "/tmp/jail")
        os.fchdir(outside)
        for _ in range(64):
            os.chdir("..")
        again = attempt(os.chroot, ".")
        here = os.stat(".")
        report(chroot=chroot, again=again, same=(here.st_dev, here.st_ino) == (root.st_dev, root.st_ino),
               agentd=os.path.exists("run/coffer/agentd"))
        """
    )
    assert found["chroot"] == found["again"] == ("done" if attacker.user == "root" else "EPERM")
    assert found["same"] and found["agentd"]


@pytest.mark.parametrize("user", ["root"])
def test_agentd_cannot_be_replaced(attacker, bystanders):
    """Its file is one for all sandboxes: a change would run as root in the next one."""
    program = next((DATA_DIR / "node/pool/bin").glob("agentd-*"))
    before = program.read_bytes()
    found = attacker.attack(
        """
        path = "/run/coffer/agentd"
        def overwrite():
            os.close(os.open(path, os.O_WRONLY))
        report(
            write=attempt(overwrite), truncate=attempt(os.truncate, path, 0), chmod=attempt(os.chmod, path, 0o777),
            unlink=attempt(os.unlink, path), rename=attempt(os.rename, path, "/run/coffer/old"),
            link=attempt(os.link, path, "/run/coffer/link"), xattr=attempt(os.setxattr, path, "user.x", b"1"),
            proc_exe=attempt(lambda: os.close(os.open("/proc/1/exe", os.O_RDWR))),
        )
        """
    )
    assert set(found.values()) <= {"EROFS", "EBUSY", "ETXTBSY", "EPERM", "EXDEV", "EACCES"}, found
    assert program.read_bytes() == before
