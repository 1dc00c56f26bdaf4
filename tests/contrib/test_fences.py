"""The contract of a fenced row: the same for both ORMs and both databases."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import ConfigurationError, StaleFence
from celery_redlock.locking import lock, watchdog_of
from celery_redlock.locks.redlock import Redlock
from tests.contrib.storages import SOON, Storage

Writer = subprocess.Popen[str]
Start = Callable[[int], Writer]

ROUNDS = 40
TTL = 2.0


# -- one row -----------------------------------------------------------------------


@pytest.mark.parametrize("fence", [7, 9], ids=["equal", "greater"])
@pytest.mark.parametrize("loaded", ["before", "after"])
def test_present_and_later_holders_write(
    storage: Storage, fence: int, loaded: str
) -> None:
    """A row stores the fence of its last write, and accepts no lesser one."""
    pk = storage.add()
    draft = storage.load(pk)
    storage.load(pk)("first", 7)
    assert storage.read(pk) == ("first", 7)
    if loaded == "after":
        draft = storage.load(pk)

    draft("second", fence)

    assert storage.read(pk) == ("second", fence)


def test_earlier_holder_is_refused(storage: Storage) -> None:
    """A lesser fence writes nothing, and the error has both numbers."""
    pk = storage.add("loaded", 3)
    draft = storage.load(pk)
    storage.load(pk)("newer", 9)

    with pytest.raises(StaleFence, match=r"fence 7\b.* fence 9\b") as refused:
        draft("late", 7)

    assert (refused.value.fence, refused.value.latest) == (7, 9)
    assert storage.read(pk) == ("newer", 9)


def test_earlier_holder_is_refused_on_a_fresh_row(storage: Storage) -> None:
    """Loading a row that was inserted under a fence does not help an old lease."""
    pk = storage.add("newer", 9)

    with pytest.raises(StaleFence):
        storage.load(pk)("late", 7)

    assert storage.read(pk) == ("newer", 9)


def test_write_without_a_fence_keeps_the_stored_one(storage: Storage) -> None:
    """A writer without a lock writes under the row's fence, and never lowers it."""
    pk = storage.add("first", 7)

    storage.load(pk)("edited")

    assert storage.read(pk) == ("edited", 7)


def test_write_without_a_fence_is_refused_when_overtaken(storage: Storage) -> None:
    """A writer without a lock does not overwrite a holder that wrote meanwhile."""
    pk = storage.add("first", 7)
    draft = storage.load(pk)
    storage.load(pk)("newer", 9)

    with pytest.raises(StaleFence) as refused:
        draft("edited")

    assert (refused.value.fence, refused.value.latest) == (7, 9)
    assert storage.read(pk) == ("newer", 9)


def test_deleted_row_does_not_come_back(storage: Storage) -> None:
    """A write to a row that was deleted meanwhile fails and inserts nothing."""
    pk = storage.add("first", 7)
    draft = storage.load(pk)
    storage.remove(pk)

    with pytest.raises(Exception, match=r"deleted after|expected to update 1 row"):
        draft("back", 9)

    with pytest.raises(Exception, match=r"does not exist|No row was found"):
        storage.read(pk)


@pytest.mark.parametrize("wrong", ["7", -1, True, 7.5, object()])
def test_what_is_no_fence_is_refused(storage: Storage, wrong: Any) -> None:
    """A fence is a lease or a whole number."""
    pk = storage.add("first")

    with pytest.raises(ConfigurationError, match="is not a fence"):
        storage.load(pk)("wrong", wrong)
    with pytest.raises(ConfigurationError, match="is not a fence"):
        storage.update([pk], "wrong", wrong)

    assert storage.read(pk) == ("first", 0)


# -- many rows ---------------------------------------------------------------------


def test_update_of_many_rows_stores_the_fence(storage: Storage) -> None:
    """One UPDATE of many rows gives all of them the fence."""
    pks = [storage.add("old", fence) for fence in (0, 5, 7)]

    assert storage.update(pks, "new", 7) == 3

    assert [storage.read(pk) for pk in pks] == [("new", 7)] * 3


def test_update_of_many_rows_is_all_or_nothing(storage: Storage) -> None:
    """One row with a greater fence refuses the UPDATE of all of them."""
    pks = [storage.add("old", fence) for fence in (0, 8, 9, 7)]

    with pytest.raises(StaleFence, match=r"fence 7\b.* fence 9\b") as refused:
        storage.update(pks, "new", 7)

    assert (refused.value.fence, refused.value.latest) == (7, 9)
    assert [storage.read(pk) for pk in pks] == [("old", n) for n in (0, 8, 9, 7)]


def test_update_of_no_row_writes_nothing(storage: Storage) -> None:
    """An UPDATE that selects no row is not refused."""
    assert storage.update([], "new", 7) == 0


# -- races -------------------------------------------------------------------------


def one_row(storage: Storage, pk: int) -> Callable[[str, int], object]:
    """Load a row, and return the function that writes it."""
    return storage.load(pk)


def many_rows(storage: Storage, pk: int) -> Callable[[str, int], object]:
    """Return the function that writes one row as many."""
    return functools.partial(storage.update, [pk])


@pytest.mark.parametrize(
    "prepare", [one_row, pytest.param(many_rows, marks=pytest.mark.long)]
)
def test_racing_writers_end_with_the_greater_fence(
    storage: Storage, prepare: Callable[[Storage, int], Callable[[str, int], object]]
) -> None:
    """If two write at once, the text of the later holder remains."""
    pk = storage.add()
    refusals = 0

    def race(write: Callable[[str, int], object], fence: int) -> StaleFence | None:
        start.wait(SOON)
        try:
            write(f"by {fence}", fence)
        except StaleFence as refused:
            return refused
        return None

    with ThreadPoolExecutor(2) as threads:
        for fence in range(1, 2 * ROUNDS, 2):
            start = threading.Barrier(2)
            earlier, later = prepare(storage, pk), prepare(storage, pk)
            first = threads.submit(race, earlier, fence)
            second = threads.submit(race, later, fence + 1)
            refused = first.result(SOON)
            if refused:
                refusals += 1
                assert (refused.fence, refused.latest) == (fence, fence + 1)
            assert second.result(SOON) is None, "the later holder was refused"
            assert storage.read(pk) == (f"by {fence + 1}", fence + 1)

    assert refusals, "the writers never raced"


# -- real locks --------------------------------------------------------------------


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a lock service on real nodes."""
    service = Redlock(shared_nodes.urls, node_timeout=0.6)
    yield service
    watchdog_of(service).stop()
    service.close()


@pytest.fixture
def start_writer(
    orm: str, database: str, shared_nodes: DevNodes, key: str
) -> Iterator[Start]:
    """Give a function that starts a holder in a process of its own."""
    writers: list[Writer] = []

    def start(pk: int) -> Writer:
        args = [orm, database, str(pk), key, str(TTL), *shared_nodes.urls]
        writer = subprocess.Popen(  # noqa: S603  (a program of these tests)
            [sys.executable, "-m", "tests.contrib.late_writer", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        writers.append(writer)
        return writer

    yield start
    for writer in writers:
        writer.kill()
        writer.communicate()


def ask(writer: Writer, line: str = "") -> dict[str, Any]:
    """Send a line, if any, and return the writer's next answer."""
    assert writer.stdin
    assert writer.stdout
    if line:
        writer.stdin.write(f"{line}\n")
        writer.stdin.flush()
    answer: dict[str, Any] = json.loads(writer.stdout.readline())
    return answer


@pytest.mark.parametrize(
    ("orm", "database"),
    [
        ("django", "postgresql"),
        pytest.param("sqlalchemy", "sqlite", marks=pytest.mark.long),
        pytest.param("django", "sqlite", marks=pytest.mark.long),
        pytest.param("sqlalchemy", "postgresql", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_paused_writer_is_refused(
    storage: Storage, redlock: Redlock, key: str, start_writer: Start
) -> None:
    """A process that is paused past its ttl writes nothing when it continues."""
    pk = storage.add()
    writer = start_writer(pk)
    fence = ask(writer)["fence"]
    assert ask(writer, "before the pause")["written"]

    writer.send_signal(signal.SIGSTOP)
    with lock(redlock, key, wait=SOON) as lease:
        storage.load(pk)("by the next", lease)
        writer.send_signal(signal.SIGCONT)
        answer = ask(writer, "after the pause")

    assert (answer["fence"], answer["latest"]) == (fence, lease.fence)
    assert f"fence {fence}" in answer["error"]
    assert storage.read(pk) == ("by the next", lease.fence)
