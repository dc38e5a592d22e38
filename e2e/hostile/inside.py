"""What every Python attack starts with: this file is put before it, inside the sandbox."""

import ctypes
import errno
import fcntl
import glob
import json
import mmap
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)


class Numbers:
    """`SYS.mount` is the number of that system call on this processor."""

    def __getattr__(self, name):
        headers = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h"]
        text = next(read(path, 1 << 20) for path in headers if os.path.exists(path))
        number = int(re.search(rf"#define __NR(?:3264)?_{name}\s+(\d+)", text)[1])
        setattr(self, name, number)
        return number


SYS = Numbers()


def call(number, *arguments):
    """A raw system call: its result, or the name of the error."""
    ctypes.set_errno(0)
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]


def attempt(what, *arguments):
    """What a Python call gives, `done` for nothing, or the name of the error."""
    try:
        result = what(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "done" if result is None else result


def read(path, most=1 << 16):
    with open(path, "rb") as file:
        return file.read(most).decode(errors="replace")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def report(**found):
    """What the test gets to see. An attack reports once, when it has run to its end."""
    print("REPORT " + json.dumps(found), flush=True)
