"""A project whose keys come from wrappers, headers and a serializer of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from decimal import Decimal

import pytest

from celery_redlock import FingerprintError, LockHeld
from celery_redlock.app.runtime import runtime_of
from celery_redlock.operations.doctor import Case
from celery_redlock.operations.doctor.workers import called_by_others
from celery_redlock.policies import Conflict
from tests.harness.waiting import until
from tests.projects.app import note, notes
from tests.projects.conftest import Project


@pytest.fixture
def project(start: Callable[..., Project]) -> Project:
    """Give the project, with a worker."""
    return start("keys")


@pytest.mark.long
def test_calls_of_a_body_that_gets_a_session_are_told_apart(project: Project) -> None:
    """The key is made of the arguments of the wrapper, which the caller gives."""
    waiting = project.report.apply_async((1,), queue="later")
    assert isinstance(project.report.delay(1).conflict, Conflict)
    project.consume("later")

    other, third = project.report.delay(1, 30), project.report.delay(2)

    assert [one.get(timeout=60) for one in (waiting, other, third)] == [
        "account 1",
        "account 1",
        "account 2",
    ]
    runs = {(one["account"], one["days"]) for one in notes("report")}
    assert runs == {(1, 7), (1, 30), (2, 7)}
    assert len(notes("report")) == 3


@pytest.mark.long
def test_bytes_that_msgpack_sends_have_one_key(project: Project) -> None:
    """A bytearray comes as bytes: the worker finds and ends the claim of the caller."""
    pytest.importorskip("msgpack", reason="pip install msgpack")
    waiting = project.save.apply_async((bytearray(b"ab"),), queue="later")

    assert project.nodes.claimant("blob:ab")
    assert isinstance(project.save.delay(b"ab").conflict, Conflict)
    project.consume("later")
    assert waiting.get(timeout=60) == "b'ab'"

    project.until_unclaimed("blob:ab")
    assert [one["type"] for one in notes("save")] == ["bytes"]
    with pytest.raises(FingerprintError, match="Nothing was sent"):
        project.save.delay(10**5000)


def test_doctor_names_the_worker_that_runs_a_body_without_its_lock(
    project: Project,
) -> None:
    """It asks the workers for calls of `.map`, `.starmap` and `.chunks`."""
    case = Case(runtime_of(project.app).redlock, [], project.app)
    result = project.clean.starmap([(1,)]).apply_async()
    project.until_noted("clean")

    # A busy worker may not answer within the second that the doctor gives it.
    found = until(lambda: [*called_by_others(case)], what="the call in a worker")

    note("looked")
    result.get(timeout=60)
    assert [(one.code, one.about) for one in found] == [("without-lock", "clean")]
    assert project.workers[0].node_name in found[0].fact
    until(lambda: not [*called_by_others(case)], what="a worker without the call")


def test_tenants_in_a_header_run_side_by_side(project: Project) -> None:
    """Each run waits for one of the other tenant: with one key, neither would end."""
    results = [
        project.rebuild.apply_async((42,), headers={"_schema_name": schema})
        for schema in ("acme", "umbrella")
    ]

    for result in results:
        result.get(timeout=60)
    assert len(notes("rebuild")) == 2


@pytest.mark.long
def test_view_and_worker_have_one_key_with_a_serializer_of_the_project(
    project: Project,
) -> None:
    """The worker gets a UUID and a Decimal as texts; the view has the objects."""
    order, amount = uuid.uuid4(), Decimal("9.90")
    result = project.pay.delay(order, amount)
    project.until_noted("pay")

    with pytest.raises(LockHeld), project.pay.lock(order, amount):
        pass

    note("looked")
    result.get(timeout=60)
    assert notes("pay")[0]["amount"] == "9.90"
