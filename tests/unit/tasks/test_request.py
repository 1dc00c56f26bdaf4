"""The package's header, and the request in the main process that reads it.

A child trusts the base in the header, and copies carry the counts. The main process
releases the lock of a dead child, and no other lock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.task import Context
from celery.backends.redis import RedisBackend
from celery.exceptions import (
    InvalidTaskError,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.worker.request import Request, create_request_cls
from kombu.exceptions import OperationalError

# pytest rewrites modules as they are imported. In two threads at once that is an error
# in CPython 3.11, and the thread that looks for a lock imports this one.
import celery_redlock.operations.scan  # noqa: F401
from celery_redlock import DuplicateTask
from celery_redlock.basics import process
from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import FingerprintError
from celery_redlock.line.backlog import MARGIN, join_backlog, place_of_newcomer
from celery_redlock.line.claims import Claims
from celery_redlock.locks.lease import Holder, family_of
from celery_redlock.locks.limits import Limit, Waits, Wanted
from celery_redlock.task.ends import EndedAsRevoked
from celery_redlock.task.header import (
    TaskHeader,
    extract,
    fault_of,
    mint,
    waits_of,
)
from celery_redlock.task.request import RedlockRequest
from tests.harness.waiting import until
from tests.unit.tasks.support import KEY, Worker, message_of

# -- the header --------------------------------------------------------------------


def test_base_is_new_for_each_message() -> None:
    """Minting replaces a base that was copied from another message."""
    request: dict[str, Any] = {"id": "x"}
    first = mint(request)

    second = mint(request)

    assert first != second
    assert extract(Context(request)).base == second


@pytest.mark.parametrize("limits", [(), (Limit("k", 3), Limit("k", 5, 60.0))])
def test_main_process_learns_what_a_refused_call_waits_for(
    limits: tuple[Limit, ...],
) -> None:
    """The key and its limits, and since when the call waits, by its publishing."""
    wanted = Wanted("k", limits)
    headers = TaskHeader(
        published=7, waits=waits_of(wanted, stays_after_countdown=True, backlog="b")
    ).for_next_copy()

    received = json.loads(json.dumps(headers))

    assert TaskHeader.read(received).wait == Waits(
        wanted, 7, stays_after_countdown=True, backlog="b", margin=MARGIN
    )


@pytest.mark.parametrize(
    "waits",
    [
        *("k", ["k"], ["", [], True, ""], [7, [], True, ""], ["k", [], 1, ""]),
        *(["k", 7, True, ""], ["k", [], True, 7]),
        *(["k", [one], True, ""] for one in (7, [1, 0], [0, 0, "k"], [1, -1, "k"])),
    ],
)
def test_field_of_another_form_means_that_a_call_waits_for_nothing(waits: Any) -> None:
    """A message that another program has sent must not end a worker."""
    request = {"redlock": {"waits": waits}}

    assert TaskHeader.read(request).wait is None
    assert "'waits'" in fault_of(request)


def test_base_of_another_boot_is_not_believed() -> None:
    """A base that another main process minted is ignored; the counts are kept."""
    request = {"redlock": {"base": "b" * 32, "boot": "another", "deferred": 2}}

    assert extract(Context(request)) == TaskHeader(base=None, deferred=2)


def test_counts_travel_with_the_next_copy() -> None:
    """The next copy has the counts, but not the base."""
    header = TaskHeader("b", deferred=2, outages=3, redelivered=True, refused=7)

    request: dict[str, Any] = {"id": "x", **header.for_next_copy()}
    mint(request)

    again = extract(Context(request))
    assert (again.deferred, again.outages, again.redelivered) == (2, 3, True)
    assert again.refused == 7
    assert again.base != "b"


def test_header_is_taken_off_the_request() -> None:
    """User code and Celery's retry find no header of the package to copy."""
    request: dict[str, Any] = {"id": "x", "mine": 1}
    mint(request)
    context = Context(request)

    extract(context)

    assert context.headers == {"mine": 1}
    assert "redlock" not in vars(context)
    assert "redlock" not in (Context(**vars(context)).headers or {})


def shortened(value: object) -> str:
    """Return a short name of a parameter, in ASCII."""
    return ascii(value)[:30]


def each(field: str, values: list[Any]) -> list[Any]:
    """Return a header for each of these values of a field."""
    return [{field: value} for value in values]


JUNK: list[Any] = [
    *(7, "text", [], {"redelivered": 1}, {"events": 1}, {"ended": "yes"}),
    *each("deferred", ["2", True, -1, 2.0, 2**31, 10**400]),
    *each("published", [True, 1.5, -1, 2**53 + 1, [1], None]),
    *each("slot", ["s\ud800", "a\nb", "s" * 1025, "ü" * 600, {}, 7]),
    *each("claim", ["c\udfff", "c" * 8193, "ü" * 5000, ["k"], 0]),
    *each("next", ["zzz", "first\ud800", 7, True]),
]


@pytest.mark.parametrize("junk", JUNK, ids=shortened)
def test_header_with_one_wrong_field_counts_as_none(junk: object) -> None:
    """A header that this package does not write is ignored whole, by both processes."""
    good = {"slot": "s", "claim": "k", "deferred": 1}
    forged = good | junk if isinstance(junk, dict) else junk
    request: dict[str, Any] = {"id": "x", "redlock": forged}

    assert extract(Context(request)) == TaskHeader()
    assert TaskHeader.read(request).claim == ""
    assert fault_of(request)

    mint(request)
    seen = extract(Context(request))
    assert (seen.slot, seen.claim, seen.next, seen.deferred) == ("", "", "", 0)


def test_header_carries_no_foreign_field_on() -> None:
    """A field that another program adds to the header is not sent to the child."""
    request: dict[str, Any] = {"id": "x", "redlock": {"deferred": 2, "x": "y" * 10**6}}

    mint(request)

    assert "x" not in request["redlock"]
    assert extract(Context(request)).deferred == 2


def test_request_without_headers_is_left_as_it_is() -> None:
    """An eager task has no headers."""
    assert extract(Context({"id": "x", "headers": None})) == TaskHeader()


# -- the request of the main process -----------------------------------------------


class Pool:
    """A pool with all that ``create_request_cls`` needs."""

    apply_async = None


class Eventer:
    """An event dispatcher that keeps its events."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        """Keep an event."""
        self.sent.append((kind, fields))


def receive(
    worker: Worker,
    redlock: dict[str, Any] | None = None,
    chord: Any = None,
    received: Any = None,
    sent_with: dict[str, Any] | None = None,
    **delivery: Any,
) -> RedlockRequest:
    """Receive a message as a worker's main process does, with these callbacks.

    ``sent_with`` are further options of ``apply_async``.
    """
    app = worker.app
    task, eventer = app.tasks.get("job") or worker.leased_job(), Eventer()
    options = {"expires": 60, "chord": chord, **(sent_with or {})}
    sent = app.amqp.task_protocols[2](worker.call_id, "job", (), {}, **options)
    sent.headers["redlock"] = redlock
    message = message_of(sent, **delivery)
    made = create_request_cls(RedlockRequest, task, Pool(), "here", eventer)
    request = made(message, app=app, task=task, eventer=eventer, **(received or {}))
    assert isinstance(request, RedlockRequest)
    return request


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process, and return when it is dead, but not reaped."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def run_in_child(worker: Worker, pid: int) -> RedlockRequest:
    """Receive a message, and take the lock as its execution in a child would."""
    request = receive(worker)
    request.worker_pid = pid
    base = request.request_dict["redlock"]["base"]
    worker.rival.acquire(KEY, base=base, holder=Holder.here(task_id=str(request.id)))
    return request


def is_locked(worker: Worker) -> bool:
    """Tell whether the lock of the task has a holder."""
    return worker.rival.inspect(KEY).holder is not None


def failure(error: BaseException) -> ExceptionInfo:
    """Return what the pool reports of an error."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


@pytest.mark.parametrize(
    "task_id", ["s\ud800", "a\nb", "s" * 1025, "", 7, ["x"], {"a": 1}, True, None]
)
def test_message_with_an_id_that_nodes_cannot_store_is_invalid(
    worker: Worker, task_id: Any
) -> None:
    """Celery rejects such a message with a line in its log, and goes on."""
    worker.call_id = task_id

    with pytest.raises(InvalidTaskError, match="must be one line of text"):
        receive(worker)


def test_wrong_header_is_told_in_one_short_line(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the field, and not its value."""
    request = receive(worker, {"slot": "s\ud800" * 10**6})

    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "its field 'slot' has another type, or is out of bounds" in record.message
    assert len(record.message) < 300
    assert record.redlock_event == "header-ignored"  # type: ignore[attr-defined]
    assert request.request_dict["redlock"]["base"]


@pytest.mark.parametrize("error", [WorkerLostError("gone"), Terminated(9)])
def test_lock_of_a_dead_child_is_released_at_once(
    worker: Worker, child: subprocess.Popen[bytes], error: Exception
) -> None:
    """The lock of a lost child that is dead is released before any requeue."""
    request = run_in_child(worker, child.pid)
    kill(child)

    request.on_failure(failure(error))

    assert not is_locked(worker)


def test_lock_of_a_living_child_is_released_when_it_has_died(
    worker: Worker, child: subprocess.Popen[bytes]
) -> None:
    """A hard time limit is announced while the body still runs."""
    request = run_in_child(worker, child.pid)

    request.on_timeout(soft=False, timeout=1)

    assert is_locked(worker)
    child.kill()
    until(lambda: not is_locked(worker))


PROCESSES = SimpleNamespace(terminate_job=os.kill, is_green=False)
GREENLETS = SimpleNamespace(terminate_job=lambda *_: None, is_green=True)


def test_lock_of_a_child_that_a_revocation_kills_is_released_at_its_death(
    worker: Worker, child: subprocess.Popen[bytes]
) -> None:
    """Celery reports the death in 0 to 5 s. Until then, a call would be a duplicate."""
    request = run_in_child(worker, child.pid)
    request.time_start = 1.0

    request.terminate(PROCESSES, signal="KILL")

    until(lambda: not is_locked(worker))


def test_revocation_with_a_signal_that_has_no_name_is_carried_out(
    worker: Worker,
) -> None:
    """Python names two of the real-time signals only."""
    request = run_in_child(worker, os.getpid())
    request.time_start = 1.0

    request.terminate(GREENLETS, signal=35)

    assert is_locked(worker)


def test_lock_of_a_greenlet_that_is_revoked_is_its_own_to_release(
    worker: Worker,
) -> None:
    """The number that Celery has of it names no process. It may go on for a while."""
    request = run_in_child(worker, id(worker))
    request.time_start = 1.0

    request.terminate(GREENLETS, signal="KILL")

    assert is_locked(worker)


@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "living"])
def test_end_of_a_lost_call_is_told_though_no_thread_can_start(
    worker: Worker,
    child: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_dead: bool,
) -> None:
    """An error here would leave its message without an answer to the broker."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    request = run_in_child(worker, child.pid)
    if is_dead:
        kill(child)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(process, "_thread", SimpleNamespace(start_new_thread=refuse))

    request.on_failure(failure(WorkerLostError("gone")))

    assert is_locked(worker) is not is_dead
    assert "No further thread can start" in caplog.text
    assert isinstance(request.eventer, Eventer)
    assert [kind for kind, _ in request.eventer.sent] == ["task-failed"]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
def test_hard_limit_is_the_result_of_a_call_that_was_about_to_be_republished(
    worker: Worker,
    start_nodes: Callable[..., DevNodes],
    child: subprocess.Popen[bytes],
) -> None:
    """Celery stores FAILURE, then the child stores RETRY, then Celery kills it."""
    worker.app.conf.result_backend = start_nodes(1).urls[0]
    request = receive(worker)
    request.worker_pid = child.pid

    request.on_timeout(soft=False, timeout=1)
    worker.app.backend.mark_as_retry(request.id, DuplicateTask("it waits"))
    kill(child)

    result = worker.app.AsyncResult(request.id)
    until(lambda: result.state == states.FAILURE)
    with pytest.raises(TimeLimitExceeded):
        result.get()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has none")
@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
def test_process_that_is_forked_while_the_end_is_stored_can_store_results(
    worker: Worker,
    start_nodes: Callable[..., DevNodes],
    child: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker forks in place of the killed process just then."""
    worker.app.conf.result_backend = start_nodes(1).urls[0]
    is_created, create = threading.Event(), RedisBackend._create_client  # noqa: SLF001

    def slowly(*args: Any, **kwargs: Any) -> Any:  # `client` is locked meanwhile
        is_created.set()
        time.sleep(0.05)  # so that a fork that does not wait is earlier
        return create(*args, **kwargs)

    monkeypatch.setattr(RedisBackend, "_create_client", slowly)
    request = receive(worker)
    request.worker_pid = child.pid
    request.on_timeout(soft=False, timeout=1)
    is_created.clear()
    kill(child)
    assert is_created.wait(60)

    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # ends it if it hangs
        try:
            worker.app.backend.store_result("another", 1, states.SUCCESS)
        finally:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert worker.app.AsyncResult("another").state == states.SUCCESS


def test_lock_of_another_execution_is_left_alone(
    worker: Worker, child: subprocess.Popen[bytes]
) -> None:
    """The base names one execution; the next run of the call has another base."""
    request = receive(worker)
    request.worker_pid = child.pid
    worker.rival.acquire(KEY, holder=Holder.here(task_id=str(request.id)))
    kill(child)

    request.on_failure(failure(WorkerLostError("gone")))

    assert is_locked(worker)


def test_permit_of_a_dead_child_is_released_at_once(
    worker: Worker, child: subprocess.Popen[bytes]
) -> None:
    """Whichever it had. Those of others are left alone, and so are starts."""
    worker.leased_job(limit=3, rate="3/m")
    request = receive(worker)
    request.worker_pid = child.pid
    base = request.request_dict["redlock"]["base"]
    limits = (Limit(KEY, 3), Limit(KEY, 3, 60.0))
    others = [worker.rival.acquire(KEY, limits=limits[:1]) for _ in range(2)]
    lease = worker.rival.acquire(KEY, base=base, limits=limits)
    kill(child)

    request.on_failure(failure(WorkerLostError("gone")))

    assert worker.rival.acquire(KEY, limits=limits[:1]).key == lease.key
    for other in others:
        worker.rival.confirm(other)
    in_use = worker.rival.permits_in_use(limits)
    assert in_use is not None
    assert [len(occupancy.held) for occupancy in in_use] == [3, 1]


def test_lock_of_an_ordinary_failure_is_the_childs_affair(worker: Worker) -> None:
    """After an error of the body, the child itself releases the lock."""
    request = run_in_child(worker, os.getpid())

    request.on_failure(failure(ValueError("x")), return_ok=True)

    assert is_locked(worker)


class Starts:
    """A line of waiting calls, which notes the calls that end."""

    def __init__(self) -> None:
        self.ends: list[object] = []

    def ended(self, call: object) -> None:
        """Note an end."""
        self.ends.append(call)


def test_success_ends_the_wait_of_a_call_that_was_started_early(worker: Worker) -> None:
    """The line starts the next call then, and not a second later.

    Celery makes a class of the request class, and overrides its ``on_success``.
    """
    request, starts = receive(worker), Starts()
    waiting: Any = SimpleNamespace(starts=starts)
    request.redlock_waiting = waiting

    request.on_success((0, None, 0.1))

    assert starts.ends == [waiting]
    assert isinstance(request.eventer, Eventer)
    assert [kind for kind, _ in request.eventer.sent] == ["task-succeeded"]


def test_skip_sends_an_event_with_its_reasons(worker: Worker) -> None:
    """Without the event Flower shows the duplicate as started for ever."""
    request = receive(worker)

    request.on_failure(failure(EndedAsRevoked("why", {"key": "k", "holder": "who"})))

    ((kind, fields),) = request.eventer.sent
    usual = {"terminated": False, "signum": None, "expired": False}
    assert kind == "task-revoked"
    assert fields == {"uuid": request.id, "key": "k", "holder": "who", **usual}
    assert str(EndedAsRevoked("why", {})) == "why"


def claim(worker: Worker, key: str) -> dict[str, Any]:
    """Claim a key for the call; return the header of its message."""
    job = Holder.here(task="job", task_id=worker.call_id)
    Claims(worker.rival).take(key, job, at_lock=False, at_cooldown=False)
    return {"claim": key}


def test_revoked_message_releases_the_claim_that_it_carries(worker: Worker) -> None:
    """The task need not claim its calls any more, and its key may be another."""
    request = receive(worker, redlock=claim(worker, "key-of-the-publisher"))

    request._announce_revoked("revoked", False, None, False)  # noqa: FBT003, SLF001  (Celery's)

    assert worker.claims("key-of-the-publisher") == {}


def test_call_whose_arguments_do_not_fit_has_no_claim_to_release(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """It was sent by name, so no publisher has claimed it, and no line says so."""

    def job(number: int) -> int:
        return number

    worker.task(unique_while="queued")(job)
    request = receive(worker)
    error = FingerprintError("it cannot be called like this")

    request.on_failure(failure(error), return_ok=True)

    assert "was not released" not in caplog.text


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_killed_child_ends_the_entries_of_a_job_that_does_not_come_back(
    worker: Worker, child: subprocess.Popen[bytes], *, late: bool
) -> None:
    """Its claim, for the body may not have begun, and its place in a backlog.

    A message that comes back waits again.
    """
    worker.leased_job(acks_late=late, reject_on_worker_lost=late)
    waits = waits_of(Wanted("k", (Limit("k", 2),)), backlog="k")
    request = receive(worker, redlock={**claim(worker, "k"), "waits": waits})
    request.worker_pid = child.pid
    join_backlog(worker.rival, "k", worker.call_id, since=1)
    kill(child)

    request.on_failure(failure(WorkerLostError("gone")))

    assert list(worker.claims("k")) == [worker.call_id] * late
    place = place_of_newcomer(worker.rival, "k")
    assert place is not None
    assert place.before == late


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("exits_with", [SystemExit, KeyboardInterrupt])
def test_call_whose_body_exits_has_lost_its_child(
    worker: Worker,
    start_nodes: Callable[..., DevNodes],
    child: subprocess.Popen[bytes],
    exits_with: type[BaseException],
    *,
    late: bool,
) -> None:
    """It comes back with ``reject_on_worker_lost``, and else it has failed.

    billiard 4.3 reports it as an error of the body. Celery before 5.7 acknowledges the
    message of such an error, and cannot store it.
    """
    worker.app.conf.result_backend = start_nodes(1).urls[0]
    worker.leased_job(acks_late=late, reject_on_worker_lost=late)
    outcomes: list[str] = []
    callbacks = {
        "on_ack": lambda *_: outcomes.append("acked"),
        "on_reject": lambda *rejected: outcomes.append("requeued" * rejected[-1]),
    }
    request = receive(worker, redlock=claim(worker, "k"), received=callbacks)
    request.worker_pid = child.pid

    request.on_failure(failure(exits_with()))
    kill(child)

    assert outcomes == ["requeued"] * late
    until(lambda: list(worker.claims("k")) == [worker.call_id] * late)
    result = worker.app.AsyncResult(request.id)
    assert result.state == (states.PENDING if late else states.FAILURE)
    assert late or isinstance(result.result, WorkerLostError)


@pytest.mark.parametrize("ends", ["killed", "revoked"])
def test_candidate_of_a_call_that_is_shown_under_another_name_ends(
    worker: Worker, child: subprocess.Popen[bytes], ends: str
) -> None:
    """Monitors show the name that ``shadow`` gives; its register has that of its task.

    An older call would else end, because this one is to run instead of it.
    """
    task = worker.buffered()
    task.apply_async((1,), task_id=worker.call_id, shadow="shown")
    assert worker.announced() == [worker.call_id]
    request = receive(worker, sent_with={"shadow": "shown"})
    request.worker_pid = child.pid
    kill(child)

    if ends == "killed":
        request.on_failure(failure(WorkerLostError("gone")))
    else:
        request._announce_revoked("revoked", False, None, False)  # noqa: FBT003, SLF001  (Celery's)

    assert worker.announced() == []


@pytest.mark.parametrize(
    ("ends", "place_is_kept"),
    [
        ("killed", True),
        ("terminated", False),
        ("revoked", False),
        ("over its limit", False),
        ("over its limit, requeued", True),
    ],
)
def test_place_in_the_line_ends_with_the_call(
    worker: Worker, child: subprocess.Popen[bytes], ends: str, *, place_is_kept: bool
) -> None:
    """A place that is kept for a call that never comes would stop its key."""
    requeued = ends.endswith("requeued")
    worker.leased_job(
        acks_late=True,
        reject_on_worker_lost=True,
        acks_on_failure_or_timeout=not requeued,
    )
    request = receive(worker, redlock={"line": ["k", 3600.0], "published": 1})
    request.worker_pid = child.pid
    join_backlog(worker.rival, "k", worker.call_id, since=1)
    kill(child)

    if "limit" in ends:  # billiard calls both, in this order
        request.on_failure(failure(TimeLimitExceeded(1)))
        request.on_timeout(soft=False, timeout=1)
    elif ends == "killed":
        request.on_failure(failure(WorkerLostError("gone")))
    else:
        if ends == "revoked":
            request._announce_revoked("terminated", True, "9", False)  # noqa: FBT003, SLF001  (Celery's)
        request.on_failure(failure(Terminated(9)))

    place = place_of_newcomer(worker.rival, "k")
    assert place is not None
    assert place.before == place_is_kept


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
@pytest.mark.skipif(not hasattr(Request, "_success_was_stored"), reason="it runs again")
def test_place_in_the_line_of_a_call_that_succeeded_ends(
    worker: Worker,
    start_nodes: Callable[..., DevNodes],
    child: subprocess.Popen[bytes],
) -> None:
    """Its child was killed after it had stored the result."""
    worker.app.conf.result_backend = start_nodes(1).urls[0]
    worker.leased_job(acks_late=True, reject_on_worker_lost=True)
    request = receive(worker, redlock={"line": ["k", 3600.0], "published": 1})
    request.worker_pid = child.pid
    worker.app.backend.mark_as_done(request.id, result=True)
    kill(child)

    request.on_failure(failure(WorkerLostError("gone")))

    place = place_of_newcomer(worker.rival, "k")
    assert place is not None
    assert place.before == 0


lost_calls = pytest.mark.skipif(
    not hasattr(Request, "_retry_worker_lost"), reason="Celery does not retry them"
)


def lost(worker: Worker, child: subprocess.Popen[bytes], **options: Any) -> Any:
    """Receive a call that Celery retries if its process is lost, and let it run."""
    worker.leased_job(
        on_conflict={"publish": "skip", "execute": "retry"},
        unique_while="queued",
        in_order=True,
        **{"retry_on_worker_lost": True, **options},
    )
    header = {**claim(worker, KEY), "line": [KEY, 3600.0], "published": 7}
    queue = worker.app.conf.task_default_queue
    request = receive(worker, redlock=header, routing_key=queue)
    request.worker_pid = child.pid
    join_backlog(worker.rival, KEY, worker.call_id, since=7)
    base = request.request_dict["redlock"]["base"]
    worker.rival.acquire(KEY, base=base, holder=Holder.here(task_id=str(request.id)))
    return request


@lost_calls
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("exits", [False, True], ids=["killed", "exits"])
def test_retry_of_a_lost_call_keeps_its_number_and_its_claim(
    worker: Worker, child: subprocess.Popen[bytes], *, late: bool, exits: bool
) -> None:
    """It is like a retry of the body: no newer, and no second one waits beside it.

    billiard reports ``sys.exit`` while the process still runs.
    """
    request = lost(worker, child, acks_late=late, reject_on_worker_lost=late)

    if exits:
        request.on_failure(failure(SystemExit(1)))
        kill(child)
    else:
        kill(child)
        request.on_failure(failure(WorkerLostError("gone")))

    until(lambda: not is_locked(worker), what="the release of the lock")
    worker.collect()
    ((headers, _),) = worker.published
    assert (headers["id"], headers["retries"]) == (worker.call_id, 1)
    family = family_of(request.request_dict["redlock"]["base"])  # of the lost run
    assert headers["redlock"] == {"published": 7, "claim": KEY, "follows": family}
    assert list(worker.claims(KEY)) == [worker.call_id]


@lost_calls
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_lost_call_without_a_retry_left_ends_its_entries(
    worker: Worker, child: subprocess.Popen[bytes], *, late: bool
) -> None:
    """Celery does not deliver it again then, also with ``reject_on_worker_lost``."""
    options = {"acks_late": late, "reject_on_worker_lost": late, "max_retries": 0}
    request = lost(worker, child, **options)
    kill(child)

    request.on_failure(failure(WorkerLostError("gone")))

    assert worker.claims(KEY) == {}
    place = place_of_newcomer(worker.rival, KEY)
    assert place is not None
    assert place.before == 0


@lost_calls
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_lost_call_whose_retry_cannot_be_sent_waits_only_if_it_comes_back(
    worker: Worker,
    child: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    *,
    late: bool,
) -> None:
    """Celery then does what it does without ``retry_on_worker_lost``."""
    request = lost(worker, child, acks_late=late, reject_on_worker_lost=late)
    kill(child)

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("the broker is away")

    monkeypatch.setattr(worker.app, "send_task", refuse)
    request.on_failure(failure(WorkerLostError("gone")))

    place = place_of_newcomer(worker.rival, KEY)
    assert place is not None
    assert place.before == late


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
@pytest.mark.skipif(
    not hasattr(Request, "_success_was_stored"), reason="requeues it in any case"
)
@pytest.mark.parametrize("ends", ["killed", "over its limit"])
@pytest.mark.parametrize(
    ("broker", "outcome"), [("redis://localhost", "requeued"), ("memory://", "acked")]
)
def test_call_that_succeeded_comes_back_to_be_counted_in_its_chord(
    worker: Worker,
    start_nodes: Callable[..., DevNodes],
    broker: str,
    outcome: str,
    ends: str,
) -> None:
    """Celery acknowledges it. Where no copy is known as such, it would run again."""
    app, outcomes = worker.app, list[str]()
    app.conf.update(broker_url=broker, result_backend=start_nodes(1).urls[0])
    worker.leased_job(acks_late=True, reject_on_worker_lost=True)
    callbacks = {
        "on_ack": lambda *_: outcomes.append("acked"),
        "on_reject": lambda *rejected: outcomes.append("requeued" * rejected[-1]),
    }
    request = receive(worker, chord=app.signature("body"), received=callbacks)
    app.backend.mark_as_done(request.id, result=True)

    if ends == "killed":
        request.on_failure(failure(WorkerLostError("gone")))
    else:  # billiard calls both, in this order
        request.on_failure(failure(TimeLimitExceeded(1)))
        request.on_timeout(soft=False, timeout=1)

    assert outcomes == [outcome]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
@pytest.mark.parametrize(
    ("stored", "outcome"),
    [
        pytest.param({".c": "a process", ".s": 5}, "requeued", id="body-is-owed"),
        pytest.param({".c": "a process"}, "acked", id="chord-has-failed"),
        pytest.param({".c": "done"}, "acked", id="body-was-sent"),
        pytest.param({".s": 5}, "acked", id="others-run"),
    ],
)
def test_revoked_call_comes_back_while_a_process_owes_its_chord_the_body(
    worker: Worker,
    start_nodes: Callable[..., DevNodes],
    monkeypatch: pytest.MonkeyPatch,
    stored: dict[str, Any],
    outcome: str,
) -> None:
    """The task itself counts the copy again, and later: the worker would do it now."""
    app, outcomes = worker.app, list[str]()
    app.conf.update(
        broker_url="redis://localhost", result_backend=start_nodes(1).urls[0]
    )
    worker.leased_job(acks_late=True)
    callbacks = {
        "on_ack": lambda *_: outcomes.append("acked"),
        "on_reject": lambda *rejected: outcomes.append("requeued" * rejected[-1]),
    }
    member = {"chord": app.signature("body"), "sent_with": {"group_id": "g"}}
    request = receive(worker, received=callbacks, **member)
    again = receive(worker, received=callbacks, redelivered=True, **member)
    for suffix, value in stored.items():
        app.backend.client.set(app.backend.get_key_for_group("g", suffix), value)
    monkeypatch.setattr("celery.worker.request.revoked_tasks", {worker.call_id})

    assert request.revoked()

    assert outcomes == [outcome]
    assert again.revoked() == (outcome == "acked")


def test_redelivered_message_does_not_expire_here(worker: Worker) -> None:
    """Its first copy may be running, so the task itself checks the expiry."""
    first, again = receive(worker), receive(worker, redelivered=True)
    republished = receive(worker, redlock={"redelivered": True})
    for request in (first, again, republished):
        request.expires = first.expires.replace(year=2000)

    assert first.maybe_expire()
    assert not again.maybe_expire()
    assert not republished.maybe_expire()
