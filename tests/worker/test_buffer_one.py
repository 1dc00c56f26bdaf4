"""``buffer_one``: one run follows the running call, for any number of duplicates."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock import DuplicateTask
from tests.conftest import with_long
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.lock_nodes import LockNodes
from tests.harness.waiting import until
from tests.worker.support import assert_refused, pools, redelivery


def send_waiting(
    here: Deployment, name: str, key: str, *numbers: int
) -> list[AsyncResult]:
    """Publish calls in turn, each after a worker has handled the one before."""
    results = []
    for number in numbers:
        result = here.send(name, key, number)
        until(
            lambda: result.state in (states.RETRY, states.REVOKED),  # noqa: B023
            what=f"call {number} to be seen to",
        )
        results.append(result)
    return results


def numbers(here: Deployment, key: str) -> list[int]:
    """Return the arguments of the bodies that ran, in their order."""
    return [note["number"] for note in here.stage.notes(key, "arguments")]


def assert_one_follows(
    here: Deployment, name: str, key: str, *sent: int, runs: int
) -> tuple[AsyncResult, list[AsyncResult]]:
    """Check that of these duplicates of a running call one runs after it, alone.

    Returns:
        The duplicate that ran, and the others.
    """
    first = here.begin(name, key, 0)
    others = dict(zip(sent, send_waiting(here, name, key, *sent), strict=True))

    here.stage.open(key)

    assert first.get(timeout=60) == 0
    successor = others.pop(runs)
    assert successor.get(timeout=60) == runs
    for other in others.values():
        with pytest.raises(DuplicateTask, match="runs instead"):
            other.get(timeout=60)
        assert other.state == states.REVOKED
    assert numbers(here, key) == [0, runs]
    assert here.stage.overlaps(key) == []
    return successor, [*others.values()]


def test_newest_duplicate_runs_once_more(any_pool: Deployment, key: str) -> None:
    """Of any number of duplicates of a running call only the newest runs after it."""
    assert_one_follows(any_pool, "buffered", key, 1, 2, 3, 4, 5, runs=5)


def test_buffer_keep_first_runs_the_first(here: Deployment, key: str) -> None:
    """With ``buffer_keep="first"`` the duplicate that has waited longest runs."""
    oldest, others = assert_one_follows(here, "buffered-first", key, 1, 2, 3, runs=1)

    for other in others:
        assert_refused(other, oldest)


def test_call_sent_by_name_is_buffered_as_well(here: Deployment, key: str) -> None:
    """A call that was sent by name has no time of publishing, and is buffered too."""
    first = here.begin("buffered", key, 0)
    results = [here.app.send_task("buffered", [key, n]) for n in (1, 2)]
    until(lambda: all(r.state in (states.RETRY, states.REVOKED) for r in results))

    here.stage.open(key)

    assert first.get(timeout=60) == 0
    until(lambda: all(r.ready() for r in results), 20)
    assert sorted(r.state for r in results) == [states.REVOKED, states.SUCCESS]
    assert len(here.stage.runs(key)) == 2


# -- all processes are busy ----------------------------------------------------


@pytest.fixture(scope="module")
def single(site: Site, nodes: LockNodes) -> Iterator[Deployment]:
    """Give a worker that runs one call at a time."""
    with site.deploy(nodes, concurrency=1) as deployment:
        yield deployment


def send_ten(here: Deployment, name: str, key: str) -> list[AsyncResult]:
    """Publish ten calls that no process can look at."""
    results = [here.send(name, key, number) for number in range(1, 11)]
    until(lambda: here.nodes.published(key, name) == 10)
    return results


@pytest.mark.parametrize(("name", "runs"), [("buffered", 10), ("buffered-first", 1)])
def test_one_more_run_follows_although_no_process_is_free(
    single: Deployment, key: str, name: str, runs: int
) -> None:
    """Ten calls during one run of a worker with one process make two runs."""
    first = single.begin(name, key, 0)
    results = send_ten(single, name, key)

    single.stage.open(key)

    assert first.get(timeout=60) == 0
    assert results[runs - 1].get(timeout=60) == runs
    for result in results:
        until(result.ready, 20)
    assert [r.state for r in results].count(states.REVOKED) == 9
    assert numbers(single, key) == [0, runs]


# -- deaths --------------------------------------------------------------------


def assert_ran_again(number: int, call: AsyncResult, *newer: AsyncResult) -> None:
    """Check the end of a killed call: it ran, or a newer call ran instead.

    It comes back as a duplicate like any other. If it is refused, a newer one of the
    waiting calls runs: the newest, or one that starts when nodes have forgotten the
    newest, or when that has ended.
    """
    until(call.ready, 40)
    if call.state == states.REVOKED:
        named = [one for one in newer if f"{one.id} runs instead" in str(call.result)]
        assert len(named) == 1, call.result
        place = newer.index(named[0])
        assert_ran_again(number + 1 + place, named[0], *newer[place + 1 :])
    else:
        assert call.get() == number


def test_killed_holder_stops_no_other_call(prefork: Deployment, key: str) -> None:
    """The killed call runs again or is superseded, and one more run follows."""
    first = prefork.begin("buffered-late", key, 0)
    older, newer = send_waiting(prefork, "buffered-late", key, 1, 2)

    prefork.kill_child(key)
    prefork.stage.open(key)

    assert newer.get(timeout=60) == 2
    assert_ran_again(0, first, older, newer)
    with pytest.raises(DuplicateTask):
        older.get(timeout=60)
    assert prefork.stage.overlaps(key) == []


@pools
@pytest.mark.parametrize(
    "victims", with_long(["waiter", "holder", "both"], "waiter", "holder")
)
@pytest.mark.long
def test_killed_workers_lose_nothing(
    deploy: Deploy, key: str, pool: str, victims: str
) -> None:
    """SIGKILL the whole worker of the holder, of the waiting calls, or both workers."""
    here = deploy(pool=pool, workers=2, concurrency=1, settings=redelivery(after=4))
    first = here.begin("buffered-late", key, 0)
    holder = here.worker_of(key)
    others = send_waiting(here, "buffered-late", key, 1, 2)
    waiter = 1 - holder  # only this worker can have handled them

    dead = {"waiter": [waiter], "holder": [holder], "both": [holder, waiter]}[victims]
    for number in dead:
        here.kill_worker(key, number, [first, *others])
    for number in dead:
        here.start_worker(number)
    here.stage.open(key)

    assert others[-1].get(timeout=60) == 2
    if victims == "waiter":
        assert first.get(timeout=60) == 0
    assert_ran_again(1, *others)  # it may run, too, if nodes have forgotten by then
    assert_ran_again(0, first, *others)
    assert here.stage.overlaps(key) == []


def test_hung_majority_loses_no_call(frail: Deployment, key: str) -> None:
    """Without a majority no call knows the successor: all wait until nodes answer."""
    first = frail.begin("buffered", key, 0)
    older, newer = send_waiting(frail, "buffered", key, 1, 2)
    with frail.nodes.majority_paused():
        for result in (older, newer):
            until(
                lambda: re.search(
                    rf"\[{result.id}\] retry: .*QuorumUnreachable",  # noqa: B023
                    frail.logs(),
                ),
                20,
            )
    frail.stage.open(key)

    assert first.get(timeout=60) == 0
    assert newer.get(timeout=60) == 2
    until(older.ready, 60)
    assert frail.stage.overlaps(key) == []
