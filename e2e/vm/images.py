"""Disks of virtual machines with stock Debian, built from its packages once per recipe."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = ROOT / "target/vm"
KEY = HOME / "key"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DISK_SIZE = "24G"  # sparse

PACKAGES = "systemd systemd-sysv udev dbus initramfs-tools openssh-server iproute2 btrfs-progs python3 procps"
PACKAGES += " kmod git ca-certificates nftables"


@dataclasses.dataclass(frozen=True)
class Recipe:
    suites: tuple[str, ...]
    # Debian's stock kernel with only the drivers that virtual machines need: a smaller image, a faster boot.
    kernel: str = "linux-image-cloud-amd64"
    boot_options: str = ""

    def key(self) -> str:
        """Changes with everything that goes into the image; the boot options do not."""
        parts = [*self.suites, self.kernel, PACKAGES, DISK_SIZE, (HERE / "guest").read_text(), public_key().read_text()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


MACHINES = {
    "debian12": Recipe(("bookworm",)),
    "debian13": Recipe(("trixie",)),
    # The newest kernel that a stable Debian can run.
    "newest": Recipe(("trixie", "trixie-backports"), "linux-image-cloud-amd64/trixie-backports"),
    # Controllers in cgroup v1, as on older hosts: the image of debian12 with another boot option.
    "hybrid": Recipe(("bookworm",), boot_options="systemd.unified_cgroup_hierarchy=0"),
}


@dataclasses.dataclass(frozen=True)
class Image:
    disk: pathlib.Path
    kernel: pathlib.Path
    initrd: pathlib.Path
    boot_options: str


def public_key() -> pathlib.Path:
    public = KEY.with_suffix(".pub")
    if not public.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "coffer-vm", "-f", KEY], check=True)
    return public


@contextlib.contextmanager
def building():
    """One process builds at a time; the next one finds what the first has built."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def image(name: str) -> Image:
    """The image of that machine, built first where there is none of its recipe."""
    recipe = MACHINES[name]
    kind = "image-" + "+".join(recipe.suites)
    home = HOME / f"{kind}-{recipe.key()}"
    with building():
        if not home.exists():
            for stale in HOME.glob(f"{kind}-*"):
                shutil.rmtree(stale)
            build(recipe, home)
    return Image(home / "disk", home / "vmlinuz", home / "initrd", recipe.boot_options)


def build(recipe: Recipe, home: pathlib.Path):
    print(f"vm: building {home.relative_to(ROOT)} from {' and '.join(recipe.suites)}", flush=True)
    draft = home.with_name("draft-" + home.name)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        tree = draft / "root"
        with (HOME / "build.log").open("w") as log:
            done = subprocess.run(bootstrap(recipe, tree), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"vm: error: mmdebstrap failed; its output is in {log.name}")
        # The only kernel and the only initramfs of the tree.
        shutil.copy(*tree.glob("boot/vmlinuz-*"), draft / "vmlinuz")
        shutil.copy(*tree.glob("boot/initrd.img-*"), draft / "initrd")
        make_disk(tree, draft / "disk", "root", DISK_SIZE)
        shutil.rmtree(tree)
        draft.rename(home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def make_disk(tree: pathlib.Path, disk: pathlib.Path, label: str, size: str):
    disk.unlink(missing_ok=True)
    command = ["mke2fs", "-q", "-t", "ext4", "-m", "0", "-L", label, "-d", tree, disk, size]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def bootstrap(recipe: Recipe, tree: pathlib.Path) -> list:
    packages = ",".join([*PACKAGES.split(), recipe.kernel])
    command = ["mmdebstrap", "--mode=root", "--variant=apt", "--architectures=amd64", f"--include={packages}"]
    command += [f"--aptopt={setting}" for setting in apt_settings()]
    command += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale", "info")]
    command += [f'--essential-hook={HERE / "guest"} early "$1"']
    command += [f'--customize-hook={HERE / "guest"} late "$1" {public_key()} {recipe.suites[0]}']
    sources = [f"deb [signed-by={KEYRING}] {mirror()} {suite} main" for suite in recipe.suites]
    return [*command, recipe.suites[0], tree, *sources]


def mirror() -> str:
    """The Debian mirror that this machine's apt uses."""
    if given := os.environ.get("DEBIAN_MIRROR"):
        return given
    form = "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)"
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], capture_output=True, text=True
    )
    for line in targets.stdout.splitlines():
        *kind, address = line.split(" ")
        if kind == ["Debian", "Debian", "main"]:
            return address
    raise SystemExit("vm: error: apt on this machine knows no Debian mirror\nvm: hint: name one in DEBIAN_MIRROR")


def apt_settings() -> list[str]:
    """How this machine's apt reaches its mirrors: proxies, certificates, retries."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout.splitlines()
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Retries")
    return [line for line in dump if line.startswith(wanted) and not line.endswith('"";')]
