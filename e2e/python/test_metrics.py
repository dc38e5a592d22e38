from datetime import UTC, datetime, timedelta


def test_samples_come_and_make_sense(make, eventually):
    sandbox = make()
    sandbox.commands.run("head -c 20000000 /dev/urandom > ballast")
    sample = eventually(sandbox.get_metrics)[-1]
    assert sample.cpu_count >= 1 and sample.cpu_used_pct >= 0
    assert 0 < sample.mem_used <= sample.mem_total
    assert 0 < sample.disk_used <= sample.disk_total
    assert abs(datetime.now(UTC) - sample.timestamp.astimezone(UTC)) < timedelta(minutes=5)


def test_a_range_before_the_sandbox_is_empty(make, eventually):
    sandbox = make()
    eventually(sandbox.get_metrics)
    now = datetime.now(UTC)
    assert sandbox.get_metrics(start=now - timedelta(hours=2), end=now - timedelta(hours=1)) == []
