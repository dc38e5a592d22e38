"""The server is killed at random moments, under creates, executions and streams of our own API.

SOAK_SEED=7 SOAK_KILLS=100 e2e/run soak -- -k ledger
"""

import random
import time

import pytest

from conftest import KILLS, SEED
from ledger import CANARY, Ledger, holds
from test_soak import say


@pytest.mark.timeout(300 + 30 * KILLS)
def test_what_the_ledger_holds_survives_the_server(place, capsys):
    dice, ledger = random.Random(SEED), Ledger(place, SEED)
    try:
        with ledger.busy():
            time.sleep(1)
        for number in range(KILLS):
            try:
                with ledger.busy():
                    time.sleep(dice.uniform(0.05, 0.8))
                    ledger.kill("server")
                    time.sleep(dice.uniform(0, 0.3))
                ledger.check()
            except BaseException:
                say(capsys, f"ledger: failed at kill {number + 1}, seed {SEED}")
                raise
        ledger.check_executions()
        ledger.destroy_all()
        ledger.settle()
        ledger.check_canary()
    finally:
        ledger.finish()
    seen, cuts = ledger.followers[0].last, sum(follower.cuts for follower in ledger.followers)
    assert cuts >= KILLS, "the streams were never cut, so nothing was shown"
    assert ledger.executions and ledger.made
    say(capsys, f"ledger: {KILLS} kills, {len(ledger.made)} sandboxes, {len(ledger.executions)} executions answered")
    say(capsys, f"ledger: {seen} events, each seen once by 4 readers over {cuts} cuts; {ledger.counts}")


def test_a_canary_would_be_found(tmp_path):
    file = tmp_path / "sparse"
    with file.open("wb") as out:
        out.seek((1 << 24) + (1 << 20) - 5)
        out.write(CANARY.encode())
        out.truncate(1 << 30)
    assert holds(file, CANARY)
    assert not holds(file, CANARY + "x")
