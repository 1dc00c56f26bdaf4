"""What a fenced row promises, whatever writes it and wherever it is stored."""

from __future__ import annotations

import functools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.errors import ConfigurationError, StaleFence
from tests.contrib.support import SOON

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contrib.storages import Storage

ROUNDS = 40


# -- one row -----------------------------------------------------------------------


def test_write_stores_its_fence(storage: Storage) -> None:
    """A row remembers the fence that it was written under."""
    pk = storage.add()

    storage.load(pk).write("first", 7)

    assert storage.read(pk) == ("first", 7)


def test_present_holder_writes_twice(storage: Storage) -> None:
    """A fence that is equal to the stored one is not stale."""
    pk = storage.add()

    storage.load(pk).write("first", 7)
    draft = storage.load(pk)
    draft.write("second", 7)

    assert storage.read(pk) == ("second", 7)


def test_later_holder_writes(storage: Storage) -> None:
    """A greater fence is accepted, even on a row that was loaded before."""
    pk = storage.add()
    draft = storage.load(pk)
    storage.load(pk).write("first", 7)

    draft.write("second", 9)

    assert storage.read(pk) == ("second", 9)


def test_earlier_holder_is_refused(storage: Storage) -> None:
    """A lesser fence writes nothing and is told both numbers."""
    pk = storage.add("loaded", 3)
    draft = storage.load(pk)
    storage.load(pk).write("newer", 9)

    with pytest.raises(StaleFence, match=r"fence 7\b.* fence 9\b") as refused:
        draft.write("late", 7)

    assert (refused.value.fence, refused.value.latest) == (7, 9)
    assert storage.read(pk) == ("newer", 9)


def test_earlier_holder_is_refused_on_a_fresh_row(storage: Storage) -> None:
    """Loading the row again does not make an old lease good."""
    pk = storage.add("newer", 9)

    with pytest.raises(StaleFence):
        storage.load(pk).write("late", 7)

    assert storage.read(pk) == ("newer", 9)


def test_error_survives_pickling(storage: Storage) -> None:
    """The error reaches another process with both numbers."""
    pk = storage.add("newer", 9)

    with pytest.raises(StaleFence) as refused:
        storage.load(pk).write("late", 7)
    copy = pickle.loads(pickle.dumps(refused.value))  # noqa: S301  (our own bytes)

    assert (copy.fence, copy.latest, str(copy)) == (7, 9, str(refused.value))


def test_write_without_a_fence_keeps_the_stored_one(storage: Storage) -> None:
    """Whoever has no lock writes under the fence of the row, and never lowers it."""
    pk = storage.add("first", 7)

    storage.load(pk).write("edited")

    assert storage.read(pk) == ("edited", 7)


def test_write_without_a_fence_is_refused_when_overtaken(storage: Storage) -> None:
    """Whoever has no lock does not overwrite a holder who wrote meanwhile."""
    pk = storage.add("first", 7)
    draft = storage.load(pk)
    storage.load(pk).write("newer", 9)

    with pytest.raises(StaleFence) as refused:
        draft.write("edited")

    assert (refused.value.fence, refused.value.latest) == (7, 9)
    assert storage.read(pk) == ("newer", 9)


def test_row_can_be_inserted_under_a_fence(storage: Storage) -> None:
    """A new row has the fence of whoever made it."""
    pk = storage.add("new", 7)

    with pytest.raises(StaleFence):
        storage.load(pk).write("late", 6)

    assert storage.read(pk) == ("new", 7)


def test_deleted_row_does_not_come_back(storage: Storage) -> None:
    """A write to a row that was deleted meanwhile fails and inserts nothing."""
    pk = storage.add("first", 7)
    draft = storage.load(pk)
    storage.remove(pk)

    with pytest.raises(Exception, match=r"deleted after|expected to update 1 row"):
        draft.write("back", 9)

    with pytest.raises(Exception, match=r"does not exist|No row was found"):
        storage.read(pk)


@pytest.mark.parametrize("wrong", ["7", -1, True, 7.5, object()])
def test_what_is_no_fence_is_refused(storage: Storage, wrong: Any) -> None:
    """A fence is a lease or a whole number."""
    pk = storage.add("first")

    with pytest.raises(ConfigurationError, match="is no fence"):
        storage.load(pk).write("wrong", wrong)
    with pytest.raises(ConfigurationError, match="is no fence"):
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
    assert [storage.read(pk).text for pk in pks] == ["old"] * 4
    assert [storage.read(pk).fence for pk in pks] == [0, 8, 9, 7]


def test_update_of_no_row_writes_nothing(storage: Storage) -> None:
    """Where no row was chosen there is nothing to be late for."""
    assert storage.update([], "new", 7) == 0


# -- races -------------------------------------------------------------------------


def one_row(storage: Storage, pk: int) -> Callable[[str, int], object]:
    """Load a row, and return what writes it."""
    return storage.load(pk).write


def many_rows(storage: Storage, pk: int) -> Callable[[str, int], object]:
    """Return what writes a row among many."""
    return functools.partial(storage.update, [pk])


@pytest.mark.parametrize("prepare", [one_row, many_rows])
def test_racing_writers_end_with_the_greater_fence(
    storage: Storage, prepare: Callable[[Storage, int], Callable[[str, int], object]]
) -> None:
    """Of two that write at once the later holder's text is what remains."""
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
