import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from coffer_up import CofferUp, free_port
from stack import Provider, Stack, Webhook, tool

# A sandbox costs one a second, and nobody listens where spans are sent.
SETTINGS = {"COFFER_USAGE_SANDBOX_SECOND": "1", "COFFER_USAGE_INTERVAL_S": "1"}


@pytest.fixture(scope="session")
def scratch():
    path = pathlib.Path(tempfile.mkdtemp(prefix="coffer-monitoring-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def up(scratch):
    for name in ("prometheus", "promtool", "prometheus-alertmanager"):
        if not tool(name):
            pytest.skip(f"SKIPPED: no {name}; `scripts/setup test` gets it")
    provider = Provider()
    # Without slots sandboxes bear their own ids on the host; one may fill most of the disk.
    options = ["--warm-slots=0", "--sandbox-disk=2800MiB", "--sandbox-memory=256MiB", "--ephemeral"]
    options.append(f"--set=models.anthropic_url={provider.url}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}.items():
            patch.setenv(name, value)
        up = CofferUp(scratch / "data", *options, pool_size="3GiB").start()
    yield up
    if up.process.poll() is None:
        up.stop()
    provider.close()


@pytest.fixture(scope="session")
def webhook():
    webhook = Webhook()
    yield webhook
    webhook.close()


@pytest.fixture(scope="session")
def stack(scratch, up, webhook):
    stack = Stack(scratch, f"127.0.0.1:{up.port}", up.data_dir / "operator-key", webhook.url)
    yield stack
    stack.close()
