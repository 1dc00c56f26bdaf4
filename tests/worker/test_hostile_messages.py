"""Messages that no version of this package writes, in real workers.

Every client of the broker can write anything into a message. Such a message may fail.
It must not keep a worker from locking for others.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import states
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.harness.deployment import Deploy, Deployment

HALF = "s\ud800"  # JSON can carry it, and UTF-8 cannot
QUICK = ("quick", "quick-buffered", "quick-limited", "quick-unique")
SOON = 20.0  # seconds
WRONG_IDS: list[Any] = [HALF, f"{HALF}-2", "a\nb", "i" * 5000, 7, True, ["x"], {}]
WRONG_HEADERS: list[Any] = [
    *({"claim": HALF}, {"next": HALF}, {"slot": HALF}, {"published": True}),
    *({"claim": "c" * 10**6}, {"slot": "s" * 10**5}, {"deferred": 10**300}),
    *({"refused": 10**400}, {"outages": 1.5, "next": "zzz"}, {"claim": ["k"]}),
    *(["x"], "x", 5, {"base": HALF, "boot": HALF}),
]


def forge(deployment: Deployment, name: str, *args: Any, **headers: Any) -> None:
    """Publish a message as another program could: no code of this package sees it."""
    message = deployment.app.amqp.as_task_v2("id", name, args=args)
    with deployment.app.amqp.producer_pool.acquire(block=True) as producer:
        producer.publish(
            message.body,
            routing_key="celery",
            headers={**message.headers, **headers},
            serializer="json",
            correlation_id="id",
        )


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_goes_on_locking_after_messages_that_nobody_writes(
    deploy: Deploy, key: str, pool: str
) -> None:
    """Each is rejected, or runs as a call without a header; the log stays short."""
    deployment = deploy(pool=pool, concurrency=2)
    for number, task_id in enumerate(WRONG_IDS):
        forge(deployment, "quick", f"{key}-id-{number}", id=task_id)
    sent = []
    for number, header in enumerate(WRONG_HEADERS):
        for name in QUICK:
            task_id = f"{key}-{name}-{number}"
            forge(deployment, name, task_id, id=task_id, redlock=header)
            sent.append(task_id)

    good = [deployment.send("quick", f"{key}-{n}") for n in range(4)]

    assert [job.get(timeout=SOON) for job in good] == [job.id for job in good]
    for task_id in sent:
        result = deployment.app.AsyncResult(task_id)
        result.get(timeout=SOON, propagate=False)
        assert result.state == states.SUCCESS, task_id
    ran = [run for n in range(len(WRONG_IDS)) for run in stage_runs(deployment, key, n)]
    assert ran == []
    assert len(deployment.logs()) < 1000 * (len(WRONG_IDS) + len(sent) + len(good))


def stage_runs(deployment: Deployment, key: str, number: int) -> list[Any]:
    """Return the runs of a call with a wrong id."""
    return deployment.stage.runs(f"{key}-id-{number}")


# -- messages that hypothesis writes -----------------------------------------------

FIELDS = [
    *("base", "boot", "deferred", "outages", "redelivered", "met_copy", "ended"),
    *("slot", "published", "refused", "next", "events", "claim", "follows", "other"),
]
halves = st.text(st.characters(codec=None), max_size=20)
texts = halves | st.sampled_from(["latest", "first", "\x1b[2J", "k" * 9000, "a\nb", ""])
numbers = st.integers() | st.sampled_from([0, 1, -1, 2**31, 2**53, 10**400, 1.5, -0.0])
scalars = st.none() | st.booleans() | numbers | texts
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars)
headers = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6) | values
messages = st.tuples(st.sampled_from(QUICK), st.none() | texts | values, headers)


def fuzz(deployment: Deployment, key: str, *, batches: int, size: int) -> None:
    """Publish batches of messages; after each, calls of all tasks must end well."""
    keys = (f"{key}-{number}" for number in range(10**9))
    batch_of = st.lists(messages, min_size=size, max_size=size)

    @settings(
        max_examples=batches,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=False,
    )
    @given(batch_of)
    def all_go_on(batch: list[tuple[str, Any, Any]]) -> None:
        for name, task_id, header in batch:
            one = next(keys)
            chosen = {"id": one if task_id is None else task_id, "redlock": header}
            forge(deployment, name, one, **chosen)
        good = [deployment.send(name, next(keys)) for name in QUICK]
        assert [job.get(timeout=60) for job in good] == [job.id for job in good]

    all_go_on()
    sent = batches * (size + len(QUICK))
    assert len(deployment.logs()) < 30_000 + 3000 * sent


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_goes_on_locking_after_two_thousand_generated_messages(
    deploy: Deploy, key: str, pool: str
) -> None:
    """The same for longer, in two pools."""
    fuzz(deploy(pool=pool, concurrency=2), key, batches=40, size=50)
