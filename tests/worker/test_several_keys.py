"""Tasks with several keys in real workers: all of the keys or none, and none left."""

from __future__ import annotations

import pytest
from celery.exceptions import WorkerLostError

from tests.harness.deployment import Deployment
from tests.harness.waiting import until


def until_both_held(deployment: Deployment, key: str) -> None:
    """Wait until a majority has the locks of ``a`` and ``b``, by one token."""
    deployment.nodes.until_held(f"{key}-a")
    deployment.nodes.until_held(f"{key}-b")
    tokens = [deployment.nodes.tokens(f"{key}-{part}") for part in "ab"]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_killed_child_frees_all_keys(
    prefork: Deployment, key: str, order: tuple[str, str]
) -> None:
    """The main process releases the locks of both keys, and the next call runs."""
    result = prefork.begin("pair", key, *order)
    until_both_held(prefork, key)

    prefork.kill_child(key)

    prefork.nodes.until_free(key)
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    prefork.finish(key, prefork.send("pair", key, *order))


def test_call_that_waits_runs_when_all_keys_are_free(
    here: Deployment, key: str
) -> None:
    """The end of one holder of two is not enough."""
    firsts = [here.begin("job", f"{key}-{part}") for part in "ab"]
    waiting = here.send("pair-wait", key, "a", "b")
    until(lambda: f"[{waiting.id}] will wait" in here.logs(), what="it to wait")

    here.finish(f"{key}-a", firsts[0])
    here.nodes.until_free(f"{key}-a")
    assert here.stage.runs(key) == []
    here.finish(f"{key}-b", firsts[1])

    here.until_running(key, waiting.id)
    until_both_held(here, key)
    here.finish(key, waiting)


def test_calls_that_share_a_key_never_run_at_once(
    prefork: Deployment, key: str
) -> None:
    """Of many calls with two of three keys each ends, and one at a time has a key."""
    pairs = ["ab", "bc", "ca", "ba"]
    calls = [prefork.send("pair-storm", key, *pairs[n % 4]) for n in range(24)]

    assert [call.get(timeout=60) for call in calls] == [call.id for call in calls]
    for part in "abc":
        assert prefork.stage.overlaps(f"{key}-{part}") == []


def test_same_keys_in_another_order_are_the_same_call(
    here: Deployment, key: str
) -> None:
    """One waits in the queue; a call with another set is published beside it."""
    with here.worker_paused():
        first = here.send("pair-queued", key, "a", "b")
        assert here.send("pair-queued", key, "b", "a").id == first.id
        other = here.send("pair-queued", key, "b", "c")

    assert other.id != first.id
    here.finish(key, first, other)
    assert here.stage.overlaps(key) == []
