"""Serializers of the project: the key is that of what the worker gets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import states
from kombu.serialization import registry

from celery_redlock import FingerprintError, LockHeld
from celery_redlock.task.header import mint
from tests.unit.tasks.support import Worker

ORDER = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
PLAIN = "application/x-plain-json"


def as_text(value: object) -> str:
    """Return text for what JSON does not have; refuse a set."""
    if isinstance(value, set):
        message = "a set has no order"
        raise TypeError(message)
    return str(value)


@pytest.fixture(autouse=True)
def _plain_json(worker: Worker) -> Iterator[None]:
    """Register a JSON that makes a UUID text, as many projects have one."""
    serializers: Any = registry  # has no types
    serializers.register(
        "plain-json",
        lambda value: json.dumps(value, default=as_text),
        json.loads,
        content_type=PLAIN,
        content_encoding="utf-8",
    )
    worker.app.conf.accept_content = ["json", "pickle", "plain-json"]
    yield
    serializers.unregister("plain-json")


def test_key_is_that_of_the_text_that_the_worker_gets(worker: Worker) -> None:
    """So ``task.lock`` and the claim are those of the call in the worker."""
    worker.app.conf.task_serializer = "plain-json"
    task = worker.unique_job()

    first, second = task.delay(ORDER), task.delay(ORDER)

    assert second.id == first.id
    worker.collect()
    ((_, body),) = worker.published
    assert task.lock_key(ORDER) == task.lock_key(body[0][0]) == f"k:{ORDER}"
    assert worker.run(task, body[0][0], id=first.id).stored == states.SUCCESS
    assert worker.claims(f"k:{ORDER}") == {}


def test_hashed_key_is_that_of_what_the_worker_gets(worker: Worker) -> None:
    """A hash would differ, because it has the types of its arguments."""

    @worker.task(key=None, serializer="plain-json")
    def job(order: Any) -> None:
        """Do nothing."""

    held = worker.rival.acquire(job.lock_key(str(ORDER)))
    with pytest.raises(LockHeld), job.lock(ORDER):
        pytest.fail("the lock of the call was granted twice")
    worker.rival.release(held)


def test_call_may_have_a_serializer_of_its_own(worker: Worker) -> None:
    """The serializer of ``apply_async`` counts, and not that of the task."""
    task = worker.unique_job()

    first = task.apply_async((ORDER,), serializer="plain-json")

    assert list(worker.claims(f"k:{ORDER}")) == [first.id]
    assert task.delay(str(ORDER)).id == first.id


def test_json_that_the_project_has_replaced_is_used(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some projects register another function under the name json."""
    monkeypatch.setitem(
        registry._encoders,  # noqa: SLF001
        "json",
        registry._encoders["plain-json"],  # noqa: SLF001
    )

    @worker.task(key=None)
    def job(order: Any) -> None:
        """Do nothing."""

    assert job.lock_key(ORDER) == job.lock_key(str(ORDER))


def test_argument_that_the_serializer_refuses_is_refused(worker: Worker) -> None:
    """The error names the serializer. Nothing is claimed."""
    worker.app.conf.task_serializer = "plain-json"

    with pytest.raises(FingerprintError, match="'plain-json' refuses them"):
        worker.unique_job().delay({1})

    assert worker.claims("k:{1}") == {}


def test_publisher_need_not_be_able_to_read_what_it_sends(worker: Worker) -> None:
    """With Celery's ``auth`` it may sign, and have no certificate to verify that."""

    def unreadable(_: object) -> None:
        message = "unknown certificate"
        raise ValueError(message)

    serializers: Any = registry  # has no types
    kind = "application/x-signed"
    serializers.register("signed", json.dumps, unreadable, content_type=kind)
    worker.app.conf.task_serializer = "signed"
    task = worker.unique_job()
    try:
        first, second = task.delay("a"), task.delay("a")
    finally:
        serializers.unregister("signed")

    assert second.id == first.id
    assert list(worker.claims("k:a")) == [first.id]


def test_call_is_republished_as_it_came(worker: Worker) -> None:
    """With its own serializer, which may take more than that of the task."""
    task = worker.leased_job(on_conflict="retry")
    header: dict[str, Any] = {}
    mint(header, PLAIN)
    ours = {**header, "compression": "application/x-gzip"}

    assert worker.refuse(task, ORDER, **ours).stored == states.RETRY

    ((headers, body),) = worker.published
    assert headers["compression"] == "application/x-gzip"
    assert body[0] == [str(ORDER)]  # kombu's JSON would make a UUID of it again


def test_number_that_is_too_long_for_a_key_function_is_refused(worker: Worker) -> None:
    """Python refuses to write a number of more than 4,300 digits."""

    @worker.task(key=lambda n: f"n:{n}")
    def job(n: int) -> None:
        """Do nothing."""

    with pytest.raises(FingerprintError, match="cannot be part of a key"):
        job.lock_key(10**5000)
