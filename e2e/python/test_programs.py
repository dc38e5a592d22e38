"""Real programs under the system call filter: what agents use all day must not notice it.

Each runs without a network, in the templates that there are; what a template does not have is skipped by name.
"""

import pytest

GIT = """
git init -q one && cd one && git config user.name Ada && git config user.email ada@example.com
seq 5000 > file && git add file && git commit -qm first && git checkout -qb next && seq 6000 > file
git commit -qam second && git gc -q && git fsck --strict && cd .. && git clone -q one two && cd two
git worktree add -q ../three HEAD~1 && git -C ../three log --oneline | wc -l
"""

GCC = r"""
cat > main.c <<'END'
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *sum) { for (int i = 0; i < 1000; i++) __sync_fetch_and_add((int *)sum, 1); return 0; }
int main(void) {
    int *sum = mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, sum);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    if (fork() == 0) { work(sum); _exit(0); }
    wait(0);
    printf("%d %d\n", *sum, eventfd(0, 0) > 0 && timerfd_create(1, 0) > 0);
    return 0;
}
END
gcc -g -O1 -Wall -pthread -o main main.c && ./main
"""

PYTHON = """
cat > main.py <<'END'
import asyncio, multiprocessing, os, socket, sqlite3, subprocess, tempfile, threading
def square(n): return n * n
async def talk():
    async def serve(reader, writer): writer.write(await reader.readline()); writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    return (await reader.readline()).decode().strip()
if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool: print(sum(pool.map(square, range(100))))
    print(asyncio.run(talk()))
    print(sqlite3.connect(os.path.join(tempfile.mkdtemp(), "db")).execute("select 6 * 7").fetchone()[0])
    thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
    print(subprocess.run(["sh", "-c", "echo child"], capture_output=True, text=True).stdout.strip())
END
python3 main.py
"""

PIP = """
cat > wheel.py <<'END'
import zipfile
with zipfile.ZipFile("coffer_probe-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("coffer_probe.py", "print('imported')")
    wheel.writestr("coffer_probe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: coffer-probe\\nVersion: 1.0\\n")
    wheel.writestr("coffer_probe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("coffer_probe-1.0.dist-info/RECORD", "")
END
python3 wheel.py && python3 -m pip install -q --no-index --target there ./coffer_probe-1.0-py3-none-any.whl 2>/dev/null
PYTHONPATH=there python3 -c 'import coffer_probe'
"""

NODE = """
cat > main.mjs <<'END'
import http from "node:http"; import fs from "node:fs/promises"; import { execFileSync } from "node:child_process";
import { Worker } from "node:worker_threads";
const server = http.createServer((_, response) => response.end("served")).listen(0, "127.0.0.1", async () => {
  console.log(await (await fetch(`http://127.0.0.1:${server.address().port}/`)).text());
  await fs.writeFile("file", "written"); console.log(await fs.readFile("file", "utf8"));
  console.log(execFileSync("sh", ["-c", "echo child"]).toString().trim());
  const worker = new Worker("require('worker_threads').parentPort.postMessage('worker')", { eval: true });
  worker.on("message", (said) => { console.log(said); server.close(); });
});
END
node main.mjs
"""

NPM = """
mkdir package && cd package && npm init -y >/dev/null && echo "console.log('required')" > index.js && npm pack --silent >/dev/null
mkdir ../use && cd ../use && npm init -y >/dev/null
npm install --offline --no-audit --no-fund --silent ../package/*.tgz && node -e "require('package')"
"""

STRACE = "strace -f -e trace=openat -o trace sh -c 'cat /etc/hostname >/dev/null' && grep -c /etc/hostname trace"

GDB = (
    GCC.replace("&& ./main", "&&")
    + """
gdb -q -batch -ex 'break work' -ex run -ex 'print *(int *)sum' -ex delete -ex continue ./main 2>&1 | grep -cE '^\\$1 = 0|^8000|^9000 1'
"""
)

CASES = {
    "git": (GIT, "1"),
    "gcc": (GCC, "9000 1"),
    "python3": (PYTHON, "328350\nhello\n42\nthread\nchild"),
    "pip3": (PIP, "imported"),
    "node": (NODE, "served\nwritten\nchild\nworker"),
    "npm": (NPM, "required"),
    "strace": (STRACE, "1"),
    "gdb": (GDB, "2"),
}


@pytest.fixture(scope="module", params=["base", "host"])
def template_box(request):
    from e2b import Sandbox

    sandbox = Sandbox.create(request.param, timeout=1800)
    yield sandbox
    sandbox.kill()


@pytest.mark.parametrize("program", CASES)
@pytest.mark.parametrize("user", ["root", "user"])
def test_programs_run_under_the_filter(template_box, program, user):
    script, expected = CASES[program]
    if template_box.commands.run(f"command -v {program} || echo none").stdout == "none\n":
        pytest.skip(f"SKIPPED: this template has no {program}")
    command = f"set -e; cd $(mktemp -d); export HOME=$PWD\n{script}"
    result = template_box.commands.run(command, user=user, timeout=300)
    assert result.stdout.strip() == expected, result


def test_calls_of_newer_kernels_do_not_exist(template_box):
    """Whatever the host's kernel knows, numbers that the table does not know are missing inside."""
    script = "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nfound = set()\n"
    script += "for number in (400, 459, 461, 468, 469, 470, 500, 599, 0x40000027):\n"
    script += " assert libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) == -1\n"
    script += " found.add(errno.errorcode[ctypes.get_errno()])\nprint(*found)"
    template_box.files.write("/tmp/calls.py", script)
    assert template_box.commands.run("python3 /tmp/calls.py").stdout == "ENOSYS\n"
