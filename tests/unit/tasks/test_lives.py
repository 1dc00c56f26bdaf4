"""Random lives of calls: however they end, nothing of them is left on the nodes.

A life has a task with random options. Its calls are published, and run as in a worker:
its main process receives each message, and learns how the child has ended. Hooks and
bodies fail, retry themselves, or are killed; nodes and the broker are away for a while.
In the end all messages that are left run undisturbed.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Terminated, WorkerLostError
from celery.worker.request import create_request_cls
from kombu.exceptions import OperationalError
from kombu.message import Message

from celery_redlock import DuplicateTask, QuorumUnreachable
from celery_redlock.task.execution import Execution
from celery_redlock.task.request import RedlockRequest
from tests.conftest import with_long
from tests.unit.tasks.support import Worker

LIVES = with_long(range(100), *(str(life) for life in range(40, 100)))
MOST_RUNS = 200  # of the calls that are left in the end
POLICIES = ("skip", "raise", "retry", "buffer_one", "cancel_running")
ERRORS = (DuplicateTask, QuorumUnreachable, LookupError)
HOOKS = ("ignore", "reject", "fail", "retry")
BODIES = (*HOOKS, "retry with other arguments", "replace", "killed", "killed")
NUMBERS = 1e12  # scores of calls that wait are above


class Killed(BaseException):
    """Ends a body whose process is killed."""


@dataclass
class Life:
    """The life of the calls of one task, as this random generator decides."""

    worker: Worker
    random: random.Random
    dead: int  # pid of a process that has ended
    task: Any = None
    is_late: bool = False
    hook: str = ""  # what the hook of the call does that runs now
    body: str = ""
    is_broker_away: bool = False  # for the next message
    requeued: list[Message] = field(default_factory=list)

    def options(self) -> dict[str, Any]:
        """Choose the options of the task."""
        choose = self.random.choice
        orders: list[dict[str, Any]] = [{}, {}, {"in_order": True}, {"limit": 2}]
        order = choose(orders)
        policy: Any = "retry" if order else choose(POLICIES)
        while_ = choose(["running", "queued"])
        if while_ == "queued" and policy not in ("skip", "raise"):
            at_publish = (
                "allow" if policy == "buffer_one" else choose(["skip", "allow"])
            )
            policy = {"publish": at_publish, "execute": policy}
        self.is_late = self.maybe()
        return {
            "unique_while": while_,
            "on_conflict": policy,
            "on_backend_error": choose(["retry", "raise", "skip", "run"]),
            "acks_late": self.is_late,
            "reject_on_worker_lost": self.maybe(),
            "retry_on_worker_lost": self.maybe(),
            "ignore_result": self.maybe(),
            "autoretry_for": (choose(ERRORS),) if self.maybe() else (),
            "max_retries": choose([0, 1, 3]),
            "default_retry_delay": 1,
            **order,
        }

    def maybe(self) -> bool:
        """Toss a coin."""
        return self.random.random() < 0.4

    def begin(self) -> None:
        """Define the task."""

        def before_start(task: Any, *_: Any) -> None:
            end(task, self.hook)

        def run(task: Any, n: int = 0) -> int:
            end(task, self.body, n)
            return n

        options = {"bind": True, "before_start": before_start, **self.options()}
        self.task = self.worker.task(key="k:{n}", **options)(run)

    def publish(self) -> None:
        """Publish a call."""
        number, name = self.random.randrange(2), f"id-{self.random.randrange(3)}"
        ours: list[dict[str, Any]] = [
            *({}, {}, {"countdown": 1}, {"expires": 3600}, {"shadow": "shown"}),
            {"task_id": f"{self.worker.call_id}-{name}"},
        ]
        try:
            self.task.apply_async((number,), **self.random.choice(ours))
        except (DuplicateTask, OperationalError):
            return

    def disturb(self) -> None:
        """Decide what the next call meets."""
        choose = self.random.choice
        self.hook = choose([*[""] * 8, *HOOKS])
        self.body = choose([*[""] * 6, *BODIES])
        self.is_broker_away = self.random.random() < 0.1

    def calm(self) -> None:
        """Let the next call meet nothing."""
        self.hook = self.body = ""
        self.is_broker_away = False

    def run(self) -> bool:
        """Let a worker run the next call; tell whether there was one."""
        message = self._next()
        if message is None:
            return False
        ends: list[bool] = []
        kind = create_request_cls(RedlockRequest, self.task, _Pool(), "here", None)
        request = kind(
            message,
            app=self.worker.app,
            task=self.task,
            on_ack=lambda *_: ends.append(False),
            on_reject=lambda *rejected: ends.append(rejected[-1]),
        )
        if not self.is_late:
            request.acknowledge()
        self._execute(request)
        if True in ends:
            self.requeued.append(message)
        return True

    def _next(self) -> Message | None:
        is_redelivered = bool(self.requeued) and self.random.random() < 0.5
        message: Message | None = None
        with self.worker.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.worker.app.conf.task_default_queue)
            if queue.qsize() and not is_redelivered:
                message = queue.get(block=False)
                message.ack()
            queue.close()
        if message is None and self.requeued:
            message, is_redelivered = self.requeued.pop(0), True
        if message is not None:
            known: Any = message.delivery_info
            message.delivery_info = {**known, "redelivered": is_redelivered}
        return message

    def _execute(self, request: Any) -> None:
        """Run a call in its child, and tell the main process of its end."""
        if self.body == "killed" and self.random.random() < 0.3:  # before it begins
            return self._kill(request, self.random.choice([Terminated(9), _LOST]))
        args, kwargs, embed = request._payload  # noqa: SLF001  (Celery's)
        about = {**request.request_dict, "args": args, "kwargs": kwargs, **embed}
        tracer = build_tracer(self.task.name, self.task, app=self.worker.app)
        try:
            returned, info, runtime, text = tracer(
                request.id, args, kwargs, {**about, "is_eager": False}
            )
        except Killed:
            return self._kill(request, _LOST)
        finally:
            self.is_broker_away = False
        request.on_success((1, returned, runtime) if info else (0, text, runtime))
        return None

    def _kill(self, request: Any, error: BaseException) -> None:
        request.worker_pid = self.dead
        try:
            raise error
        except type(error):
            request.on_failure(ExceptionInfo())

    def left(self) -> Iterator[str]:
        """Yield what the nodes have of calls that have ended."""
        backend = self.task.backend
        for number, node in itertools.product(range(4), self.worker.nodes.nodes):
            key, redis = f"k:{number}", node.memory.redis
            redis.look_at_clock()
            for kind in ("claim", "lock"):
                if redis.get(f"redlock:{kind}:{key}".encode()):
                    yield f"{kind} of {key}"
            yield from (f"place of {m!r}" for m in redis.zset(_name("backlog", key)))
            for member, score in redis.zset(_name("order", f"{key}:job")).items():
                state = backend.get_task_meta(member.decode(), cache=False)["status"]
                # The next call takes the place of one that has a result.
                if score > NUMBERS and state not in states.READY_STATES:
                    yield f"candidate {member!r}"


class _Pool:
    """A pool with all that ``create_request_cls`` needs."""

    apply_async = None


_LOST = WorkerLostError("gone")


def _name(kind: str, key: str) -> bytes:
    return f"redlock:{kind}:{key}".encode()


def end(task: Any, how: str, n: int = 0) -> None:
    """End a hook or a body in this way."""
    if how == "killed":
        raise Killed
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject("why")
    if how == "fail":
        raise LookupError
    if how == "retry":
        raise task.retry(countdown=1)
    if how == "retry with other arguments":
        raise task.retry(args=(n + 2,), countdown=1)
    if how == "replace":
        raise task.replace(task.si(n))


@pytest.fixture(scope="module")
def dead() -> int:
    """Give the pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def life(
    request: pytest.FixtureRequest,
    worker: Worker,
    dead: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Life:
    """Give the life with this seed. What a killed process would do, is not done."""
    life = Life(worker, random.Random(request.param), dead)  # noqa: S311
    send, release = worker.app.send_task, Execution.release

    def send_task(*args: Any, **options: Any) -> Any:
        if life.is_broker_away:
            life.is_broker_away = False
            raise OperationalError("the broker is away")
        return send(*args, **options)

    def released(execution: Execution) -> None:
        if not isinstance(sys.exc_info()[1], Killed):
            release(execution)
            return
        if execution.own is not None:
            execution._watchdog.forget(execution.own)  # noqa: SLF001
        if execution._block is not None:  # noqa: SLF001
            execution._block.end()  # noqa: SLF001  (this process goes on without it)

    monkeypatch.setattr(worker.app, "send_task", send_task)
    monkeypatch.setattr(Execution, "release", released)
    life.begin()
    return life


@pytest.mark.parametrize("life", LIVES, indirect=True)
def test_nothing_is_left_of_calls_however_they_end(life: Life) -> None:
    """No claim, no place, no candidate and no lock; and each call comes to an end."""
    worker, choose = life.worker, life.random.random
    with ExitStack() as holding:
        for _ in range(life.random.randrange(3, 14)):
            step = choose()
            if step < 0.4:
                life.publish()
            elif step < 0.8:
                life.disturb()
                life.run()
            elif step < 0.9:
                holding.close()
                if not worker.rival.inspect("k:0").holder:
                    holding.enter_context(worker.held("outside", "k:0"))
            else:
                worker.nodes.partition(0, 1)
                life.run()
                worker.nodes.heal()

    life.calm()
    runs = 0
    while life.run():
        worker.nodes.clock.sleep(1.0)
        runs += 1
        assert runs < MOST_RUNS
    assert sorted({*life.left()}) == []
