"""The virtual machine that e2e/vm/run started, for tests that run next to it."""

import os

import pytest

from machine import Machine


def pytest_configure(config):
    if "COFFER_VM" not in os.environ:
        pytest.exit("these tests need a virtual machine: start them with e2e/vm/run", returncode=2)


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine.attach(os.environ["COFFER_VM"])
