"""The plugin's fixtures, and the faults and assertions of ``testing``."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Ignore

from celery_redlock import (
    DuplicateTask,
    LockHeld,
    LockLost,
    QuorumUnreachable,
    Redlock,
    lock,
    runtime_of,
    singleton_task,
)
from celery_redlock.app.runtime import instead
from celery_redlock.devnodes import DevNodes
from celery_redlock.locking import watchdog_of
from celery_redlock.testing import (
    FakeClock,
    FakeNodes,
    SignalRecorder,
    assert_skipped,
    force_release,
    freeze,
    held_elsewhere,
    lose_lock,
    partition,
)

KEY = "a"
SOON = 10.0  # seconds


# -- redlock_fake ------------------------------------------------------------------


def test_fake_serves_an_app_without_nodes(redlock_fake: FakeNodes, task: Any) -> None:
    """Locks are taken in memory, though the settings name no node."""
    assert task.apply((KEY,)).get() == KEY

    with task.lock(KEY) as lease:
        assert lease.votes == 3
    assert redlock_fake.asked


def test_fake_is_shared_by_all_apps(redlock_fake: FakeNodes, task: Any) -> None:
    """An app that is made later locks on the same nodes."""
    other = Celery("other", set_as_current=False)
    with (
        task.lock(KEY),
        pytest.raises(LockHeld),
        lock(runtime_of(other).redlock, task.lock_key(KEY)),
    ):
        pass
    other.close()


def test_fake_replaces_a_service_in_use(app: Celery, task: Any) -> None:
    """An app that has locked before has its own service again after the test."""
    app.conf.redlock_nodes = ["redis://nowhere"]
    own = runtime_of(app).redlock

    with instead(lambda _: FakeNodes(3).redlock()):
        assert runtime_of(app).redlock is not own
        assert task.apply((KEY,)).get() == KEY

    assert runtime_of(app).redlock is own


@pytest.mark.redlock(5, clock=FakeClock())
def test_marker_sets_the_options_of_the_nodes(task: Any) -> None:
    """The marker works without a fixture: here five nodes whose clock stands still."""
    redlock = runtime_of(task.app).redlock

    assert len(redlock.labels) == 5
    assert isinstance(redlock.clock, FakeClock)


def test_fake_serves_a_worker(redlock_fake: FakeNodes, task: Any, worker: Any) -> None:
    """A worker in this process locks on the fake nodes."""
    assert task.delay(KEY).get(timeout=SOON) == KEY
    with held_elsewhere(task, KEY):
        error = assert_skipped(task.delay(KEY))

    assert isinstance(error, DuplicateTask)
    assert "work[elsewhere-" in str(error)
    assert task.delay(KEY).get(timeout=SOON) == KEY


# -- faults and assertions -----------------------------------------------------------


def test_skipped_eager_call_is_recognised(redlock_fake: FakeNodes, task: Any) -> None:
    """The error names the holder."""
    with held_elsewhere(task, KEY):
        error = assert_skipped(task.apply((KEY,)))

    assert isinstance(error, DuplicateTask)
    assert "elsewhere" in str(error)


def claimed(app: Celery, **options: Any) -> Any:
    """Return a task whose publishers look for duplicates."""

    @singleton_task(app=app, name="claimed", shared=False, **options)
    def task(key: str) -> str:
        return key

    return task


def test_call_that_was_not_published_was_skipped(
    redlock_fake: FakeNodes, app: Celery
) -> None:
    """Its result is that of the holder, which may still run, and end in a success."""
    queued = claimed(app, unique_while="queued_or_running")
    with held_elsewhere(queued, KEY):
        error = assert_skipped(queued.delay(KEY))
    first, second = queued.delay(KEY), queued.delay(KEY)
    app.backend.store_result(first.id, KEY, "SUCCESS")

    assert isinstance(error, DuplicateTask)
    assert "elsewhere" in str(error)
    assert first.id in str(assert_skipped(second))
    with pytest.raises(AssertionError, match="not skipped: it ended as SUCCESS"):
        assert_skipped(first)


def test_call_that_was_published_all_the_same_was_not_skipped(
    redlock_fake: FakeNodes, app: Celery
) -> None:
    """Its result names the conflict, and is its own."""
    on_conflict = {"publish": "allow", "execute": "skip"}
    queued = claimed(app, unique_while="queued", on_conflict=on_conflict)
    first, second = queued.delay(KEY), queued.delay(KEY)
    app.backend.store_result(second.id, KEY, "SUCCESS")

    assert second.id != first.id
    with pytest.raises(AssertionError, match="not skipped: it ended as SUCCESS"):
        assert_skipped(second)


def test_call_that_ran_was_not_skipped(redlock_fake: FakeNodes, task: Any) -> None:
    """The error says how the call ended."""
    result = task.apply((KEY,))

    with pytest.raises(AssertionError, match="not skipped: it ended as SUCCESS"):
        assert_skipped(result)


def test_eager_call_that_took_no_lock_names_the_setting(
    redlock_fake: FakeNodes, task: Any, app: Celery
) -> None:
    """Eager calls take locks if the app says so; one that was published needs none."""
    app.conf.redlock_eager = False
    with held_elsewhere(task, KEY):
        result = task.apply((KEY,))
    app.backend.store_result("published", KEY, "SUCCESS")

    with pytest.raises(AssertionError, match=r"eager call takes a lock only.*_eager"):
        assert_skipped(result)
    with pytest.raises(AssertionError, match=r"with 'a'\.$"):
        assert_skipped(app.AsyncResult("published"))


def test_call_that_does_not_end_was_not_skipped(app: Celery, task: Any) -> None:
    """The error asks whether there is a worker."""
    result = task.delay(KEY)

    with pytest.raises(AssertionError, match=r"within 0\.1 s: it is PENDING"):
        assert_skipped(result, timeout=0.1)


def test_result_that_cannot_be_read_is_an_error_of_celery() -> None:
    """It says that there is no result backend, and nothing of a time-out."""
    result = Celery("bare", set_as_current=False).AsyncResult("an-id")

    with pytest.raises(NotImplementedError, match="No result backend"):
        assert_skipped(result)


def test_revoked_call_was_not_skipped(app: Celery) -> None:
    """A revoked call did not meet another holder."""
    app.backend.mark_as_failure("revoked", Ignore("revoked"), state="REVOKED")

    with pytest.raises(AssertionError, match="ended as REVOKED"):
        assert_skipped(app.AsyncResult("revoked"))


def test_lock_can_be_held_elsewhere(redlock_fake: FakeNodes, task: Any) -> None:
    """To this process, the holder is another process, until the block ends."""
    with (
        held_elsewhere(task, key=KEY),
        pytest.raises(LockHeld) as refused,
        task.lock(KEY),
    ):
        pass

    assert refused.value.holder
    assert refused.value.holder.task == "work"
    with task.lock(KEY):
        pass


def test_lost_lock_stops_the_body(
    redlock_fake: FakeNodes, redlock_events: SignalRecorder, app: Celery
) -> None:
    """The loss is signalled, the body ends with `LockLost`, the lock is free."""
    released = threading.Event()

    @singleton_task(app=app, name="long", key="{key}", shared=False)
    def long(key: str) -> None:
        while not released.wait(0.01):
            pass

    with start_worker(app, perform_ping_check=False, shutdown_timeout=SOON):
        result = long.delay(KEY)
        redlock_events.wait_for("lock_acquired")
        lease = lose_lock(long, KEY)
        with held_elsewhere(long, KEY) as successor, pytest.raises(LockLost):
            result.get(timeout=SOON)
        released.set()

    assert redlock_events.wait_for("lock_lost").lease is lease
    assert successor.fence > lease.fence


def test_loss_is_signalled_when_lose_lock_returns() -> None:
    """Also where a receiver takes a moment: a test can look at what it did."""
    redlock = FakeNodes(3, clock=FakeClock()).redlock(ttl=10.0)
    lost: list[object] = []

    def signal(lease: object) -> None:
        threading.Event().wait(0.1)
        lost.append(lease)

    with ExitStack() as stack:
        stack.enter_context(pytest.raises(LockLost))
        stack.enter_context(lock(redlock, KEY, renew=False, on_lost=signal))
        lease = lose_lock(redlock, KEY)
        assert lost == [lease]


def test_lock_that_is_not_held_cannot_be_lost(
    redlock_fake: FakeNodes, task: Any
) -> None:
    """The error says that this process does not hold it."""
    with held_elsewhere(task, KEY), pytest.raises(AssertionError, match="not hold"):
        lose_lock(task, KEY)


def test_fault_of_no_lock_is_refused(redlock_fake: FakeNodes, app: Celery) -> None:
    """The error says what names a lock: a task, or a service and a key."""
    plain = app.task(enter_held_elsewhere, name="plain", shared=False)

    for what in (redlock_fake, plain, KEY):
        for fault in (lose_lock, force_release, enter_held_elsewhere):
            with pytest.raises(TypeError, match="neither a task that takes a lock nor"):
                fault(what, KEY)
    with pytest.raises(TypeError, match=r"redlock_fake\.redlock\(\)"):
        lose_lock(redlock_fake, KEY)
    with pytest.raises(TypeError, match="one key"):
        lose_lock(redlock_fake.redlock())


def enter_held_elsewhere(what: Any, *args: Any) -> None:
    """Hold a lock elsewhere for a moment."""
    with held_elsewhere(what, *args):
        pass


@pytest.fixture
def limited(app: Celery) -> Any:
    """Give a task of which two calls of a key may run at once."""

    @singleton_task(app=app, name="limited", key="{key}", limit=2, shared=False)
    def limited(key: str) -> str:
        return key

    return limited


def test_all_permits_are_held_elsewhere(redlock_fake: FakeNodes, limited: Any) -> None:
    """So no call gets one. A single one is held by its name."""
    redlock = runtime_of(limited.app).redlock

    with held_elsewhere(limited, KEY), pytest.raises(LockHeld), limited.lock(KEY):
        pass
    with held_elsewhere(redlock, f"{KEY}##2"), limited.lock(KEY) as lease:
        assert lease.key == KEY
        with held_elsewhere(limited, "another"):
            pass
    assert not redlock.inspect([KEY, f"{KEY}##2"]).holder


def test_one_permit_of_this_process_is_lost(
    redlock_fake: FakeNodes, limited: Any
) -> None:
    """The others stay, and another client can take the lost one."""
    redlock = runtime_of(limited.app).redlock
    watchdog, lost = watchdog_of(redlock), threading.Event()
    _, limits = limited.lock_wanted(KEY)
    both = [redlock.acquire(KEY, limits=limits) for _ in range(2)]
    for lease in both:
        watchdog.watch(lease, on_lost=lambda _: lost.set())

    gone = lose_lock(limited, KEY)

    assert lost.wait(SOON)
    (kept,) = [lease for lease in both if lease is not gone]
    assert kept.is_valid()
    with held_elsewhere(limited, KEY) as successor:
        assert successor.key == gone.key
    watchdog.forget(kept)
    redlock.release(kept)


def test_one_permit_is_released_by_force(redlock_fake: FakeNodes, limited: Any) -> None:
    """The first that is held, also if that is not the first of the key."""
    redlock = runtime_of(limited.app).redlock
    blocker = redlock.acquire(KEY)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(LockLost, match="tester"))
        lease = stack.enter_context(limited.lock(KEY))
        redlock.release(blocker)
        force_release(limited, KEY)
        assert not redlock.inspect(lease.key).holder
        lease.ensure()


def test_release_by_force_on_frozen_nodes_tells_no_holder(
    redlock_fake: FakeNodes, task: Any
) -> None:
    """They cannot tell that the lock is free."""
    redlock = runtime_of(task.app).redlock
    lease = redlock.acquire(KEY)

    with (
        freeze(redlock_fake, 0, 1),
        pytest.raises(AssertionError, match="No majority of the nodes names a holder"),
    ):
        force_release(task, KEY)
    redlock.release(lease)


def test_frozen_majority_grants_nothing(redlock_fake: FakeNodes, task: Any) -> None:
    """After the block the nodes grant again."""
    with freeze(redlock_fake, 0, 1), pytest.raises(QuorumUnreachable), task.lock(KEY):
        pass
    with task.lock(KEY):
        pass


def test_partition_cuts_off_this_process_only(
    redlock_fake: FakeNodes, task: Any
) -> None:
    """Another client reaches the nodes in the meantime."""
    other = redlock_fake.another_client().redlock()
    with partition(redlock_fake):
        with pytest.raises(QuorumUnreachable), task.lock(KEY):
            pass
        other.release(other.acquire(KEY))
    with task.lock(KEY):
        pass


def test_real_nodes_can_be_frozen(three_nodes: DevNodes) -> None:
    """The servers run on after the block, except one that was killed."""
    redlock = Redlock(three_nodes.urls, node_timeout=0.5)
    redlock.release(redlock.acquire(KEY, wait=SOON))

    with freeze(three_nodes, 0, 1):
        three_nodes.nodes[1].kill()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire(KEY)

    redlock.release(redlock.acquire(KEY, wait=SOON))
    redlock.close()


def test_real_nodes_are_not_partitioned(three_nodes: DevNodes) -> None:
    """The error names ``freeze``."""
    nodes: Any = three_nodes
    with pytest.raises(TypeError, match="freeze"), partition(nodes):
        pass
