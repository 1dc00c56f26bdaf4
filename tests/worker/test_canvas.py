"""Chains, groups and chords end, also when members are skipped or have to wait."""

from __future__ import annotations

import celery
import pytest
from celery import chain, chord, states
from celery.canvas import Signature
from celery.exceptions import ChordError

from tests.conftest import with_long
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.waiting import until
from tests.worker.support import assert_refused, stored_by


def sig(deployment: Deployment, name: str, *args: object) -> Signature:
    """Return an immutable signature of a task."""
    return deployment.task(name).si(*args)


def test_chain_of_one_call_twice_runs_it_twice(prefork: Deployment, key: str) -> None:
    """``chain(t, t)``: the lock is free before the tail is published."""
    for number in range(15):
        quick = sig(prefork, "quick", f"{key}-{number}")

        result = chain(quick, quick)()

        assert result.get(timeout=60) == result.id
        assert len(prefork.stage.runs(f"{key}-{number}")) == 2
        assert prefork.stage.overlaps(f"{key}-{number}") == []


def test_chain_after_a_skipped_member_ends(prefork: Deployment, key: str) -> None:
    """A tail whose head was skipped does not run, and does not wait for ever."""
    first = prefork.begin("job", key)

    tail = chain(sig(prefork, "job", key), prefork.task("tail").s(key))()

    assert_refused(tail, first)
    until(lambda: tail.state == states.REVOKED)
    assert prefork.stage.runs(f"{key}-tail") == []


def test_chain_whose_head_waits_runs_to_its_end(prefork: Deployment, key: str) -> None:
    """A duplicate that is republished under ``retry`` keeps the tail of its chain."""
    first = prefork.begin("job-retry", key)

    tail = chain(sig(prefork, "job-retry", key), prefork.task("tail").s(key))()
    until(lambda: tail.parent.state == states.RETRY)
    prefork.stage.open(key)

    assert tail.get(timeout=60) == tail.parent.id
    assert first.get(timeout=60) == first.id


@pytest.mark.parametrize("how", ["chain", "group"])
def test_call_that_replaces_itself_runs_what_it_has_sent_with_its_key(
    prefork: Deployment, key: str, how: str
) -> None:
    """A call that it has sent is no duplicate, although it meets the lock."""
    result = prefork.begin("replaced", key, how)
    member = f"{key}-member"

    prefork.until_received(member, times=2)  # itself, and republished
    prefork.stage.open(key)

    assert result.get(timeout=60)
    assert [run.task_id for run in prefork.stage.runs(key)] == [result.id, member]
    assert prefork.stage.overlaps(key) == []


def test_chord_with_equal_members_fails_under_skip(
    prefork: Deployment, key: str
) -> None:
    """A chord with a skipped member fails; it never hangs."""
    header = [sig(prefork, "job", key), sig(prefork, "job", key)]

    result = chord(header)(prefork.task("tail").s(key))
    until(lambda: prefork.stage.running(key))
    until(lambda: any(member.ready() for member in result.parent))
    prefork.stage.open(key)

    until(lambda: result.state == states.FAILURE)
    assert isinstance(result.result, ChordError)
    assert prefork.stage.runs(f"{key}-tail") == []
    assert len(prefork.stage.runs(key)) == 1


def test_chord_with_a_skipped_chain_ends(prefork: Deployment, key: str) -> None:
    """A skipped call in a chain of a chord's header fails the chord's body."""
    first = prefork.begin("job", key)
    middle = chain(sig(prefork, "job", key), sig(prefork, "quick", f"{key}-inner"))
    header = [middle, sig(prefork, "quick", f"{key}-other")]

    result = chord(header)(prefork.task("tail").s(key))

    until(lambda: result.state == states.FAILURE)
    assert isinstance(result.result, ChordError)
    assert_refused(result, first)  # it has the error of the skipped member
    assert prefork.stage.runs(f"{key}-tail") == []


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
def test_member_that_was_revoked_elsewhere_ends_a_chord(
    prefork: Deployment, key: str
) -> None:
    """Celery stores REVOKED at once, and leaves the chord to the worker with the call.

    A worker that does not know of the revocation drops the call, because it has ended.
    """
    first = prefork.begin("job-retry", key)
    header = [sig(prefork, "job-retry", key), sig(prefork, "quick", f"{key}-other")]
    result = chord(header)(prefork.task("tail").s(key))
    until(lambda: result.parent[0].state == states.RETRY)

    prefork.app.backend.mark_as_revoked(result.parent[0].id, "revoked")
    prefork.stage.open(key)

    until(lambda: result.state == states.FAILURE)
    assert isinstance(result.result, ChordError)
    assert first.get(timeout=60) == first.id
    assert len(prefork.stage.runs(key)) == 1
    assert prefork.stage.runs(f"{key}-tail") == []


@pytest.mark.parametrize(
    "how",
    with_long(
        ["KilledInChords", "KilledAndCutOffInChords", "KilledAndLateInChords"],
        *("KilledAndCutOffInChords", "KilledAndLateInChords"),
    ),
)
@pytest.mark.long
def test_member_that_is_killed_while_it_sends_the_body_of_a_chord_loses_no_chord(
    deploy: Deploy, site: Site, key: str, how: str
) -> None:
    """Celery lets no other process send the body for some seconds.

    The message of the member comes back at once. Its copy must look at the chord again
    later. It does not run, and has no error of its own.
    """
    backend = stored_by(site, how)
    soon = {"result_chord_join_timeout": 2, "broker_connection_timeout": 0.5}
    worker = deploy(settings=backend | soon)
    header = [sig(worker, "late", key), sig(worker, "quick", f"{key}-other")]

    result = chord(header)(worker.task("tail").s(key))
    until(lambda: worker.stage.notes(f"{key}-other", "counted-in-chord"))
    worker.stage.open(key)

    assert result.get(timeout=60) == [result.parent[0].id, result.parent[1].id]
    assert worker.stage.notes(key, "killed-in-chord")
    assert len(worker.stage.runs(key)) == 1
    assert len(worker.stage.runs(f"{key}-tail")) == 1


@pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="Celery counts it twice, and sends no body"
)
@pytest.mark.long
def test_member_that_is_terminated_while_it_sends_the_body_of_a_chord_loses_no_chord(
    deploy: Deploy, site: Site, key: str
) -> None:
    """The worker that ends it counts it, and may not send the body for some seconds."""
    backend = stored_by(site, "HangsInChords")
    soon = {"result_chord_join_timeout": 2, "broker_connection_timeout": 0.5}
    worker = deploy(settings=backend | soon)
    header = [sig(worker, "late", key), sig(worker, "quick", f"{key}-other")]

    result = chord(header)(worker.task("tail").s(key))
    last, first = result.parent
    until(lambda: worker.stage.notes(f"{key}-other", "counted-in-chord"))
    worker.stage.open(key)
    until(lambda: worker.stage.notes(key, "killed-in-chord"))
    worker.app.control.revoke(last.id, terminate=True, signal="SIGKILL")

    assert result.get(timeout=60) == [last.id, first.id]
    assert len(worker.stage.runs(key)) == 1
    assert len(worker.stage.runs(f"{key}-tail")) == 1


@pytest.mark.parametrize("name", ["job-retry", "job-wait"])
def test_waiting_members_end_a_chord(prefork: Deployment, key: str, name: str) -> None:
    """Under ``retry`` and ``wait`` equal members run one after the other."""
    header = [sig(prefork, name, key), sig(prefork, name, key)]

    result = chord(header)(prefork.task("tail").s(key))
    until(lambda: prefork.stage.notes(key, "signal-conflict"))
    prefork.stage.open(key)

    assert sorted(result.get(timeout=60)) == sorted(m.id for m in result.parent)
    assert len(prefork.stage.runs(key)) == 2
    assert prefork.stage.overlaps(key) == []
