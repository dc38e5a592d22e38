"""A server that runs on the data of an older release."""

import pathlib

from coffer_up import CofferUp
from fill import Project, neutral
from fixture import host_mark

# Fields that change without a request: when a key was used, use of a quota, deliveries that are retried.
VOLATILE = {"last_used_at", "used", "waiting", "failures"}
# What a server's settings say, not its data.
VOLATILE |= {"in_force"}
# Wrong in 0.1.0, so later versions may correct it: the level of a line of stdout is `debug`.
VOLATILE |= {"level"}
# Fields that identify an item of a list, in order of preference.
NAMES = ["id", "number", "sequence", "execution_id", "name", "sandbox_id"]


class Opened:
    def __init__(self, manifest: dict, up: CofferUp, scratch: pathlib.Path):
        self.manifest, self.up, self.scratch = manifest, up, scratch
        self.url = up.env()["E2B_API_URL"]
        self.first, self.second = self.project("first"), self.project("second")

    def project(self, key: str) -> Project:
        """A project, through the key of that name, which the older release issued."""
        return Project(self.url, self.manifest["keys"][key])

    def sandbox(self, name: str) -> str:
        return self.manifest["sandboxes"][name]

    def must_restore(self) -> bool:
        """Whether saved memory must go on here: the fixture has some, and was made on a host like this one."""
        able = self.manifest["memory_on_disk"] and self.first.get("/host")["memory_snapshot"]
        return able and self.manifest["host"] == host_mark()

    def missing(self, view: dict) -> list[str]:
        """What has changed or is missing in the answer to a recorded request."""
        found = neutral(self.project(view["key"]).get(view["path"]), self.url)
        return list(differences(view["answer"], found, view["path"]))


def differences(then, now, where: str):
    """What of `then` has changed or is missing in `now`, which may have more."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name, value in then.items():
            if name in VOLATILE:
                continue
            if name not in now:
                yield f"{where}: no {name}"
            else:
                yield from differences(value, now[name], f"{where}.{name}")
    elif isinstance(then, list) and isinstance(now, list):
        for place, item in enumerate(then):
            name = next((name for name in NAMES if isinstance(item, dict) and name in item), None)
            same = [each for each in now if each.get(name) == item[name]] if name else now[place : place + 1]
            if same:
                yield from differences(item, same[0], f"{where}[{item[name] if name else place}]")
            else:
                yield f"{where}: no {item}"
    elif then != now:
        yield f"{where}: {then!r} became {now!r}"
