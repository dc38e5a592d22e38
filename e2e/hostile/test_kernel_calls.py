"""System calls that reach the machine itself, or kernel code that a sandbox has no need of."""


def test_new_namespaces_are_refused(attacker):
    """A new user namespace would bring every capability back."""
    found = attacker.attack(
        """
        flags = dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000, ipc=0x8000000, uts=0x4000000,
                     cgroup=0x2000000, time=0x80)
        report(**{name: attempt(lambda: call(SYS.unshare, flag)) for name, flag in flags.items()},
               clone=call(SYS.clone, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), clone3=call(SYS.clone3, 0, 0))
        """
    )
    assert found.pop("clone3") == "ENOSYS"
    assert set(found.values()) == {"EPERM"}, found
