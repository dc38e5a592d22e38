"""A bare ipykernel that jupyter_client drives, in an environment of its own; one order a line, one line of JSON back.

`start` starts a kernel, `run` runs `1+1` in it: both answer with the milliseconds to the result. `memory` tells the
kernel's process, `stop` ends it.
"""

import json
import sys
import time

from jupyter_client import KernelManager


class Kernel:
    def __init__(self):
        self.manager = self.client = None

    def start(self) -> float:
        since = time.perf_counter()
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.result()
        return (time.perf_counter() - since) * 1000

    def run(self) -> float:
        since = time.perf_counter()
        self.result()
        return (time.perf_counter() - since) * 1000

    def result(self):
        """Waits for the result and the end of the call, as our service does."""
        call, shown = self.client.execute("1+1"), None
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != call:
                continue
            if message["msg_type"] == "execute_result":
                shown = message["content"]["data"]["text/plain"]
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        self.client.get_shell_msg(timeout=60)
        assert shown == "2", shown

    def memory(self) -> int:
        return self.manager.provisioner.pid

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def main():
    kernel = Kernel()
    for order in sys.stdin:
        print(json.dumps(getattr(kernel, order.strip())()), flush=True)


if __name__ == "__main__":
    main()
