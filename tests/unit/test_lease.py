"""The lease of a holder, and the holder as the nodes store it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.errors import LockLost, NotHolder
from celery_redlock.locks.lease import (
    TOKEN_LENGTH,
    Holder,
    Lease,
    LeaseState,
    family_of,
    new_base,
    new_token,
    note_body,
)
from celery_redlock.locks.limits import Limit
from celery_redlock.testing import FakeClock

TOKEN = new_token(new_base())


def lease_on(clock: FakeClock, asked: list[Lease] | None = None) -> Lease:
    """Return a lease that is valid for 10 s from now."""

    def confirm(lease: Lease) -> None:
        if asked is None:
            raise NotHolder("Another client.")
        asked.append(lease)

    return Lease(
        key="invoice:42",
        token=TOKEN,
        holder_info="",
        fence=7,
        ttl=12.0,
        started_at=clock.monotonic(),
        until=clock.monotonic() + 10.0,
        votes=3,
        clock=clock,
        confirm=confirm,
    )


# -- Tokens ----------------------------------------------------------------------


def test_tokens_of_one_execution_share_their_base() -> None:
    """No other execution can guess, or happen to have, the base. Lengths are fixed."""
    base = new_base()
    one, other = new_token(base), new_token(base)

    assert one != other
    assert Holder(one).base == Holder(other).base == base
    assert len(one) == len(other) == TOKEN_LENGTH
    assert len({new_base() for _ in range(1000)}) == 1000


def test_bases_in_a_body_are_of_its_family() -> None:
    """Bases that the body of a task mints begin as its own, and are all different."""
    base = new_base()

    note_body(base)
    minted = {new_base() for _ in range(1000)}
    note_body("")

    assert len(minted) == 1000
    assert {family_of(each) for each in minted} == {family_of(base)}
    assert all(Holder(new_token(each)).is_ours for each in minted)
    assert family_of(new_base()) != family_of(base)


def test_forked_process_mints_bases_of_no_family() -> None:
    """It may outlive the body that forked it, and so do its locks."""
    base, (reader, writer) = new_base(), os.pipe()
    note_body(base)
    if not (pid := os.fork()):
        os.write(writer, new_base().encode())
        os._exit(0)
    note_body("")
    os.waitpid(pid, 0)

    with os.fdopen(reader) as pipe:
        os.close(writer)
        minted = pipe.read()

    assert len(minted) == len(base)
    assert family_of(minted) != family_of(base)


# -- Holders ---------------------------------------------------------------------

words = st.text()
lines = words.map(lambda word: word.replace("\n", " "))


holders = st.builds(
    Holder,
    token=st.just(TOKEN),
    fence=st.integers(0, 2**53),
    task=lines,
    task_id=lines,
    host=lines,
    pid=st.integers(0, 2**31),
    started=st.floats(0, 1e10).map(lambda seconds: round(seconds, 3)),
)


@given(holders)
def test_value_names_the_holder(holder: Holder) -> None:
    """A client reads what a holder wrote, to the millisecond."""
    again = Holder.parse(f"{holder.token}\n{holder.fence}\n{holder.info()}")

    assert again == holder


@given(words)
def test_line_breaks_in_a_task_name_do_no_harm(task: str) -> None:
    """A task name cannot move the fields that follow it."""
    holder = Holder(TOKEN, task=task, task_id="id", host="host", pid=7)

    again = Holder.parse(f"{TOKEN}\n1\n{holder.info()}")

    assert (again.task_id, again.host, again.pid) == ("id", "host", 7)


@given(words)
def test_foreign_value_is_read_as_far_as_it_goes(value: str) -> None:
    """Any value under the key can be read without an error."""
    holder = Holder.parse(value)

    assert holder.token == value.partition("\n")[0]
    assert str(holder)


@given(
    words.filter(lambda key: key and "\n" not in key),
    st.integers(2, 1000),
    st.floats(0, 1e6),
)
def test_value_names_the_limits_of_its_permits(
    key: str, most: int, period: float
) -> None:
    """A limit of one holder is a plain lock, and stands in no value."""
    limits = (Limit(key, most, period), Limit("account:1", 1))
    holder = Holder(TOKEN, task="t", published=42)

    info = holder.info("account:1\naccount:2", limits)

    again = Holder.parse(f"{TOKEN}\n0\n{info}")
    assert again.limits == limits[:1]
    assert again.keys == ("account:1", "account:2")


def test_missing_fields_are_empty() -> None:
    """A token alone is a value, too."""
    assert Holder.parse(TOKEN) == Holder(TOKEN)


def test_holder_here_is_this_process() -> None:
    """The holder of a lock that is taken here is this host and process."""
    holder = Holder.here(task="send", task_id="id", started=1.5)

    assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    assert (holder.token, holder.task, holder.task_id) == ("", "send", "id")


def test_holder_may_have_a_publication_and_a_newcomer() -> None:
    """The value says when the call was published, and which newcomer asked to end."""
    info = Holder("t", 1, "job", "id", "host", 7, 2.5, published=42).info()

    holder = Holder.parse(f"t\n1\n{info}\ncancelled job[newcomer]")

    assert (holder.published, holder.cancelled_by) == (42, "job[newcomer]")
    assert Holder.parse(f"t\n1\n{info}").cancelled_by == ""
    assert (holder.task, holder.task_id, holder.started) == ("job", "id", 2.5)


@pytest.mark.parametrize("newcomer", ["", "job[newcomer]"])
def test_name_of_a_holder_is_no_newcomer(newcomer: str) -> None:
    """The last line alone names one, and no task id that begins as it does."""
    holder = Holder("t", 1, "job", "cancelled 42", "host", 7, 2.5, published=42)
    last = f"\ncancelled {newcomer}" if newcomer else ""

    again = Holder.parse(f"t\n1\n{holder.info()}{last}")

    assert again == replace(holder, cancelled_by=newcomer)


def test_holder_without_a_publication_has_five_fields() -> None:
    """A lock that is taken outside of a task has no publication."""
    assert Holder("t", 1, "job", "id", "host", 7, 2.5).info().count("\n") == 4
    assert Holder.parse("t\n1\njob\nid\nhost\n7\n2.500").published == 0


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (Holder(TOKEN, 1, "send", "id", "host", 7), "send[id] on host (pid 7)"),
        (Holder(TOKEN, 1, "send", "", "host", 7), "send on host (pid 7)"),
        (
            Holder(TOKEN, host="host", pid=7),
            "code outside of a task on host (pid 7)",
        ),
        (Holder(TOKEN), "code outside of a task on an unknown host (pid 0)"),
    ],
)
def test_holder_reads_as_words(holder: Holder, words: str) -> None:
    """In an error a holder is described in words, without its token."""
    assert str(holder) == words


# -- Leases ----------------------------------------------------------------------


def test_lease_is_valid_until_its_validity_ends(clock: FakeClock) -> None:
    """The validity ends by the local clock, at the instant and not after it."""
    lease = lease_on(clock)
    assert lease.remaining() == 10.0

    clock.advance(9.999)
    assert lease.is_valid()
    lease.ensure()

    clock.advance(0.001)
    assert not lease.is_valid()
    assert lease.remaining() == 0.0
    clock.advance(5)
    assert lease.remaining() == 0.0


@pytest.mark.parametrize(
    ("state", "fault"),
    [(LeaseState.RELEASED, "was already released"), (LeaseState.LOST, "was lost")],
)
def test_lease_that_is_not_held_is_not_valid(
    clock: FakeClock, state: LeaseState, fault: str
) -> None:
    """A released or lost lease is not valid, however much time was left."""
    lease = lease_on(clock)
    lease.state = state

    assert lease.remaining() == 0.0
    assert not lease.is_valid()
    with pytest.raises(LockLost, match=fault):
        lease.ensure()


def test_ensure_raises_once_validity_has_ended(clock: FakeClock) -> None:
    """The error names the lock and the time, and says to write nothing more."""
    lease = lease_on(clock)
    clock.advance(11)

    with pytest.raises(LockLost, match=r"'invoice:42' \(ttl 12 s\) was lost") as caught:
        lease.ensure()
    assert "write nothing more under fence 7" in str(caught.value)
    assert (caught.value.key, caught.value.fence) == ("invoice:42", 7)


def test_ensure_asks_the_nodes_only_with_network(clock: FakeClock) -> None:
    """With ``network`` the nodes decide, unless the validity has ended."""
    asked: list[Lease] = []
    lease = lease_on(clock, asked)

    lease.ensure()
    assert asked == []
    lease.ensure(network=True)
    assert asked == [lease]
    with pytest.raises(NotHolder):
        lease_on(clock).ensure(network=True)
    clock.advance(10)
    with pytest.raises(LockLost):
        lease.ensure(network=True)
    assert asked == [lease]


def test_lease_hides_its_token(clock: FakeClock) -> None:
    """A lease in a log does not show the proof of ownership."""
    shown = repr(lease_on(clock))

    assert shown == "<Lease 'invoice:42' held fence=7 10.0 s left>"
    assert TOKEN not in shown
