"""Prometheus and Alertmanager of a test's own, and a webhook that hears what fires."""

import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading

from coffer_up import ROOT, free_port

MONITORING = ROOT / "monitoring"
TOOLS = ROOT / "target/test-tools"
SHARE = TOOLS / "share"


def tool(name: str) -> str | None:
    """Debian's packages, unpacked by `scripts/setup test` or installed."""
    path = os.pathsep.join([str(TOOLS), os.environ.get("PATH", ""), "/usr/local/bin"])
    return shutil.which(name, path=path)


def surroundings() -> list[str]:
    """Debian's Alertmanager reads its templates from one place only. Where its package was unpacked and not installed,
    they are shown to it there, in a mount namespace of its own."""
    if pathlib.Path("/usr/share/prometheus/alertmanager").exists() or not SHARE.exists():
        return []
    show = f'mount -t overlay -o ro,lowerdir={SHARE}:/usr/share overlay /usr/share && exec "$@"'
    return ["unshare", "--mount", "sh", "-euc", show, "sh"]


def shortened(rules: str) -> str:
    """The one substitution that alerts.yml tells of: the same rules, in the time of a test."""
    rules = re.sub(r"\bfor: \d+[smhd]", "for: 1s", rules)
    return re.sub(r"\[\d+m\]", "[20s]", rules)


class Webhook:
    """Keeps the names of the alerts that Alertmanager sends as firing."""

    def __init__(self):
        self.fired: set[str] = set()
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    if alert["status"] == "firing":
                        webhook.fired.add(alert["labels"]["alertname"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Provider:
    """Answers Anthropic's Messages with one key, and is overloaded for every other."""

    KEY = "sk-ant-second"

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("x-api-key") == Provider.KEY:
                    told = {"model": "claude-haiku-4-5", "usage": {"input_tokens": 1000, "output_tokens": 20}}
                    status = 200
                else:
                    told = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
                    status = 529
                body = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()


class Stack:
    """Both, on ports of their own, watching a server."""

    def __init__(self, scratch: pathlib.Path, coffer: str, key_file: pathlib.Path, webhook: str):
        self.scratch = scratch
        self.processes: list[subprocess.Popen] = []
        alertmanager, self.prometheus = free_port(), free_port()
        (scratch / "alerts.yml").write_text(shortened((MONITORING / "alerts.yml").read_text()))
        config = (MONITORING / "prometheus.yml").read_text()
        for ours, theirs in [
            ("_interval: 15s", "_interval: 2s"),
            ("/etc/prometheus/coffer-operator-key", str(key_file)),
            ("127.0.0.1:3000", coffer),
            ("127.0.0.1:9093", f"127.0.0.1:{alertmanager}"),
        ]:
            assert ours in config, f"monitoring/prometheus.yml has no {ours!r} any more"
            config = config.replace(ours, theirs)
        (scratch / "prometheus.yml").write_text(config)
        route = {"receiver": "test", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
        receiver = {"name": "test", "webhook_configs": [{"url": webhook, "send_resolved": False}]}
        # JSON is YAML.
        (scratch / "alertmanager.yml").write_text(json.dumps({"route": route, "receivers": [receiver]}))
        self.start(
            "prometheus-alertmanager",
            f"--config.file={scratch}/alertmanager.yml",
            f"--storage.path={scratch}/alertmanager",
            f"--web.listen-address=127.0.0.1:{alertmanager}",
            "--cluster.listen-address=",
        )
        self.start(
            "prometheus",
            f"--config.file={scratch}/prometheus.yml",
            f"--storage.tsdb.path={scratch}/prometheus",
            f"--web.listen-address=127.0.0.1:{self.prometheus}",
            # An alert that Alertmanager was not up for in time is sent again soon.
            "--rules.alert.resend-delay=1s",
        )

    def start(self, name: str, *arguments: str):
        with (self.scratch / f"{name}.log").open("wb") as log:
            command = [*surroundings(), tool(name), *arguments]
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def log(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in self.scratch.glob("*.log"))

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
