"""The surface that users and operators see stays the same when internals change.

Each test compares one part of the surface with `frozen_surface.json`. A difference is
a change that users see, so it belongs in CHANGELOG.md. When the change is intended,
write the file anew, and look at its diff::

    REDLOCK_FREEZE=1 pytest tests/test_frozen_surface.py

This file imports public modules only.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import json
import os
import queue
import re
import secrets
import socket
import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import date
from decimal import Decimal
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import redis
from celery import Celery
from celery.app.trace import build_tracer
from celery.bin.base import CLIContext
from celery.contrib.testing.worker import start_worker
from celery.signals import before_task_publish, task_received
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import celery_redlock
from celery_redlock import (
    LockHeld,
    LockLost,
    LockOptions,
    Redlock,
    election,
    errors,
    metrics,
    policies,
    pytest_plugin,
    runtime_of,
    signals,
    singleton_task,
    testing,
    tracing,
)
from celery_redlock import beat as redlock_beat
from celery_redlock.cli import redlock as redlock_command
from celery_redlock.operations import doctor
from celery_redlock.testing import (
    FakeNodes,
    force_release,
    freeze,
    held_elsewhere,
    lose_lock,
)
from tests.harness.source import finding_codes, log_events, source_nodes, texts_in
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.testing import SignalRecorder

pytestmark = pytest.mark.usefixtures("own_tasks")

FILE = Path(__file__).with_name("frozen_surface.json")
FREEZE = "REDLOCK_FREEZE"
PACKAGE = Path(celery_redlock.__file__).parent
KEY = "a"
SOON = 60.0  # seconds


# -- comparing ---------------------------------------------------------------------


def lines_of(value: Any) -> list[str]:
    """Return the lines of a JSON document."""
    return json.dumps(value, indent=2, sort_keys=True).splitlines()


def assert_unchanged(section: str, seen: Any) -> None:
    """Fail, and show the difference, unless a section is as it was."""
    frozen = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    if os.environ.get(FREEZE):
        lines = lines_of({**frozen, section: seen})
        FILE.write_text("\n".join(lines) + "\n", "utf-8")
    elif (before := lines_of(frozen.get(section))) != (now := lines_of(seen)):
        difference = difflib.unified_diff(before, now, "frozen", "now", lineterm="")
        pytest.fail(
            f"The frozen surface has changed ({section}):\n"
            + "\n".join(difference)
            + "\nUsers or operators see this change, so it belongs in CHANGELOG.md. "
            f"If it is intended, write it there, then run this test with {FREEZE}=1 "
            f"and commit {FILE.name}.",
            pytrace=False,
        )


def test_each_frozen_section_has_a_test() -> None:
    """Every section of the JSON file is compared by a test of this file."""
    source = Path(__file__).read_text("utf-8")
    compared = set(re.findall(r'assert_unchanged\(\s*"([^"]+)"', source))

    assert set(json.loads(FILE.read_text("utf-8"))) == compared


# -- apps --------------------------------------------------------------------------


@pytest.fixture
def new_app() -> Iterator[Callable[..., Celery]]:
    """Give a function that makes an app whose broker is in memory."""
    made = []

    def make(**settings: Any) -> Celery:
        app = Celery("frozen", set_as_current=False)
        app.conf.update(
            broker_url="memory://",
            broker_transport_options={"polling_interval": 0.01},
            result_backend="cache+memory://",
            task_default_queue=f"frozen-{secrets.token_hex(4)}",
            beat_schedule={"often": {"task": "job", "schedule": 0.01, "args": [KEY]}},
            redlock_beat_scheduler="celery.beat:Scheduler",
            redlock_eager=True,
            worker_hijack_root_logger=False,
        )
        app.conf.update(settings)
        made.append(app)
        return app

    yield make
    for app in made:
        with suppress(errors.ConfigurationError):
            runtime_of(app).redlock.close()
        app.close()


@pytest.fixture
def app(redlock_fake: FakeNodes, new_app: Callable[..., Celery]) -> Celery:
    """Give an app that locks in memory."""
    return new_app()


@pytest.fixture
def server(start_nodes: Callable[..., DevNodes]) -> Any:
    """Give a redis-server, which is the only node."""
    return start_nodes(1).nodes[0]


@pytest.fixture
def live_app(server: Any, new_app: Callable[..., Celery]) -> Celery:
    """Give an app that locks on one redis-server."""
    return new_app(redlock_nodes=[server.url], redlock_node_timeout=1.0)


def task_of(app: Celery, body: Callable[[], Any] | None = None, **options: Any) -> Any:
    """Return a task that locks; the body is called in each run."""
    options = {"name": "job", "key": "{key}", **options}

    @singleton_task(app=app, shared=False, **options)
    def job(key: str) -> str:
        if body is not None:
            body()
        return key

    return job


def run_as_worker(task: Any, **headers: Any) -> str:
    """Run a task in this thread as a worker does, and return its id."""
    task_id = str(uuid.uuid4())
    delivery = {"exchange": "", "routing_key": "", "redelivered": False}
    request = {"id": task_id, "delivery_info": delivery, "is_eager": False, **headers}
    build_tracer(task.name, task, app=task.app)(task_id, [KEY], {}, request)
    return task_id


def wait_to_be_stopped() -> None:
    """Wait until this thread is stopped by an error, or fail."""
    event = threading.Event()
    for _ in range(1000):
        event.wait(0.01)
    pytest.fail("the body was not stopped")


def lose_the_lock(app: Celery) -> None:
    """Run a task that loses its lock."""

    def body() -> None:
        lose_lock(task, KEY)
        wait_to_be_stopped()

    task = task_of(app, body, name="loses")
    with pytest.raises(LockLost):
        task.apply((KEY,)).get()


def lose_it_to_an_operator(app: Celery) -> None:
    """Run a task whose lock an operator releases."""

    def body() -> None:
        force_release(task, KEY)
        wait_to_be_stopped()

    task = task_of(app, body, name="released")
    with pytest.raises(LockLost, match="was released by an operator, tester"):
        task.apply((KEY,)).get()


def cancel_a_run(app: Celery) -> None:
    """Run a task that a newcomer, which is started by its body, has told to end."""
    newcomers: list[threading.Thread] = []

    def body() -> None:
        if not newcomers:
            newcomers.append(threading.Thread(target=task.apply, args=((KEY,),)))
            newcomers[0].start()
            wait_to_be_stopped()

    options = {"on_conflict": "cancel_running", "ttl": 2}
    task = task_of(app, body, name="cancelled", **options)
    testing.assert_skipped(task.apply((KEY,)))
    newcomers[0].join(SOON)


@contextmanager
def leading_beat(app: Celery) -> Iterator[Any]:
    """Let a beat of the app lead while the block runs."""
    scheduler = redlock_beat.RedlockScheduler(app=app)
    scheduler.tick()
    yield scheduler
    scheduler.close()


# -- names and signatures ----------------------------------------------------------

# Other public modules also export what the package itself needs.
MODULES = [
    *("celery_redlock", "celery_redlock.beat", "celery_redlock.cli"),
    *("celery_redlock.contrib.django", "celery_redlock.contrib.sqlalchemy"),
    *("celery_redlock.devnodes", "celery_redlock.election", "celery_redlock.errors"),
    *("celery_redlock.metrics", "celery_redlock.settings", "celery_redlock.signals"),
    "celery_redlock.web",
    *("celery_redlock.testing", "celery_redlock.tracing"),
]
ON_CONFLICT = ("BufferOne", "CancelRunning", "Raise", "Retry", "Run", "Skip", "Wait")
POLICIES = [
    *(*ON_CONFLICT, "Abort", "Warn", "Conflict", "Loss", "Outage"),
    *("ConflictDecision", "LossDecision", "OutageDecision", "PublishDecision"),
]


class _Value:
    """Stands for a default that has no simple text."""

    def __repr__(self) -> str:
        return "..."


def signature_of(function: Any) -> str:
    """Return the parameters of a callable with their defaults, without types."""
    simple = (str, int, float, type(None), type(inspect.Parameter.empty))
    kept: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if not kept and parameter.name in ("self", "cls"):
            continue
        is_simple = parameter.default == () or isinstance(parameter.default, simple)
        default = parameter.default if is_simple else _Value()
        kept.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(inspect.Signature(kept))


def public(names: Any) -> list[str]:
    """Return the names that do not begin with an underscore."""
    return sorted(name for name in names if not name.startswith("_"))


def offer_of(thing: Any) -> Any:
    """Return what users can do with a function or a class."""
    if not isinstance(thing, type):
        return signature_of(thing) if callable(thing) else type(thing).__name__
    offer: dict[str, Any] = {
        "bases": [base.__name__ for base in thing.__bases__],
        "made with": signature_of(thing),
    }
    if issubclass(thing, Exception):
        offer["is in"] = thing.__module__  # a result backend stores it
    own = (kind for kind in thing.__mro__ if kind.__module__.startswith(PACKAGE.name))
    for name in public({name for kind in own for name in vars(kind)}):
        value = inspect.getattr_static(thing, name)
        value = getattr(value, "__func__", value)
        is_method = inspect.isfunction(value)
        offer[name] = signature_of(value) if is_method else "an attribute"
    return offer


def test_public_modules_export_the_same_names() -> None:
    """Public modules export the names that users import."""
    exported = {name: sorted(import_module(name).__all__) for name in MODULES}

    assert_unchanged("exports", exported)


def test_exported_names_offer_the_same() -> None:
    """Functions take the same arguments; classes have the same methods and bases."""
    places = {
        getattr(module, name): f"{module.__name__}.{name}"
        for module in map(import_module, MODULES)
        if not module.__name__.endswith("django")  # which has a test of its own
        for name in module.__all__
    }
    places[doctor.diagnose] = f"{doctor.__name__}.diagnose"
    places |= {getattr(policies, name): f"policies.{name}" for name in POLICIES}

    offers = {place: offer_of(thing) for thing, place in places.items()}
    assert_unchanged("offers", offers)


def test_objects_have_the_same_attributes(app: Celery, redlock_fake: FakeNodes) -> None:
    """The objects that users are given have the attributes that users read."""
    task, redlock = task_of(app, unique_while="queued"), runtime_of(app).redlock
    elector = election.Elector(redlock, "leader")
    assert task.delay(KEY).conflict is None
    conflict = task.delay(KEY).conflict
    with task.lock(KEY) as lease:
        explained, seen = task.explain(KEY), redlock.inspect(task.lock_key(KEY))
    attributes = {
        "Elector": public(dir(elector)),
        "Explanation": public(dir(explained)),
        "Explanation.publish": public(dir(explained.publish)),
        "Explanation.running": sorted(
            field.name for field in fields(explained.running)
        ),
        "Inspection": sorted(field.name for field in fields(seen)),
        "Lease.state": [state.value for state in type(lease.state)],
        "what a duplicate's result has as conflict": type(conflict).__name__,
    }
    assert_unchanged("attributes", attributes)
    # Documented, and not all that there is.
    for thing, names in {
        runtime_of(app): ("redlock", "settings"),
        redlock: ("addresses", "clock", "labels", "quorum", "timing"),
        redlock_fake: ("clock", "labels", "nodes"),
    }.items():
        assert [name for name in names if not hasattr(thing, name)] == []


# -- options, keys of calls ---------------------------------------------------------


def refusal(**options: Any) -> str:
    """Return the message by which lock options are refused."""
    with pytest.raises(errors.ConfigurationError) as refused:
        LockOptions(**options)
    return str(refused.value)


def test_options_take_the_same_words() -> None:
    """An option takes the same words, and its refusal of any other one lists them."""
    given: dict[str, Callable[[str], dict[str, Any]]] = {
        "buffer_keep": lambda w: {"buffer_keep": w, "on_conflict": "buffer_one"},
        "on_backend_error": lambda w: {"on_backend_error": w},
        "on_conflict": lambda w: {"on_conflict": w},
        "on_conflict[execute]": lambda w: {"on_conflict": {"execute": w}},
        "on_conflict[publish]": lambda w: {
            "on_conflict": {"publish": w},
            "unique_while": "queued",
        },
        "on_lock_lost": lambda w: {"on_lock_lost": w},
        "unique_while": lambda w: {"unique_while": w},
    }
    words = {}
    for option, options in given.items():
        _, _, listed = refusal(**options("zzzzzz")).partition("There is ")
        words[option] = re.findall(r"'(\w+)'", listed)
        for word in words[option]:
            LockOptions(**options(word))

    assert_unchanged("words", words)


def test_options_take_the_same_decisions() -> None:
    """An option takes the same decisions, and its refusal lists them."""
    options = ("on_backend_error", "on_conflict", "on_lock_lost")
    decisions = {
        option: sorted(re.findall(r"(\w+)\(\)", refusal(**{option: object()})))
        for option in options
    }
    for option, names in decisions.items():
        for name in names:
            LockOptions(**{option: getattr(policies, name)()})

    assert_unchanged("decisions", decisions)


class Color(enum.Enum):
    """An argument."""

    RED = "red"


def test_calls_have_the_same_keys(app: Celery) -> None:
    """Two versions of the package reduce a call to the same key."""

    def send(user: Any, amount: int = 1, *, note: Any = None) -> None:
        """Do nothing."""

    def task(name: str, **options: Any) -> Any:
        return singleton_task(send, app=app, shared=False, name=name, **options)

    everything = task("app.send")
    template = task("app.template", key="send:{user}:{note[to]}")
    values = [
        *(1, "1", 1.0, True, None, (1, 2), {"b": 1, "a": [{}]}, {3, 1}, Color.RED),
        *(date(2026, 1, 2), Decimal("1.50"), uuid.UUID(int=1), float("nan"), "é"),
    ]
    keys = {f"user={value!r}": everything.lock_key(value) for value in values}
    keys |= {
        "two arguments": everything.lock_key(1, 2),
        "unique_on": task("app.one", unique_on=["user"]).lock_key(1, 2),
        "unique_on nothing": task("app.none", unique_on=[]).lock_key(1),
        "template": template.lock_key(42, note={"to": "x"}),
        "long template": template.lock_key("u" * 600, note={"to": "x"}),
        "function": task("app.named", key=lambda user: f"user {user}").lock_key(7),
    }

    assert_unchanged("keys of calls", keys)


# -- on the nodes ------------------------------------------------------------------


def shape_of(text: str) -> str:
    """Return a text with a word in place of what differs from run to run."""
    for pattern, word in {
        r"[0-9a-f]{32}\.[0-9a-f]{16}": "<base>.<attempt>",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "<task id>",
        r"\b[0-9a-f]{40}\b": "<run id>",
        r"(?<=deployment )[0-9a-f]{16}(?=, )": "<random>",
        r"(?<=epoch 1\.)[0-9a-f]{8}(?= )": "<random>",
        r"\bs[0-9a-f]{16}\b": "<identity>",
        r"\b[0-9a-f]{32}\b": "<random>",
        r"127\.0\.0\.1:\d+": "<server>",
        r"(?<=<random>)/\d+": "",
        r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00": "<due>",
        r"(?m)^\d+\.\d{3}$": "<seconds since 1970>",
        r"(?m)^\d{16}$": "<microseconds since 1970>",
        r"(?m)^\d{13}$": "<milliseconds since 1970>",
        r"elsewhere-[0-9a-f]{12}": "<task id>",
        rf"(?m)^{re.escape(socket.gethostname())}$": "<host>",
        rf"(?m)^{os.getpid()}$": "<pid>",
    }.items():
        text = re.sub(pattern, word, text)
    return text


def keys_on(server: Any) -> dict[str, Any]:
    """Return all keys on a server: how long they last, and what is in them."""
    found = {}
    plain: dict[str, Any] = {"protocol": 2, "decode_responses": True}
    with redis.Redis.from_url(server.url, **plain) as client:
        ask: Any = client  # its types are those of asynchronous clients as well
        for key in ask.scan_iter():
            kind: str = ask.type(key)
            value: Any = None
            if kind == "string":
                value = shape_of(ask.get(key))
            elif kind == "hash":
                pairs = ask.hgetall(key).items()
                value = {shape_of(field): shape_of(text) for field, text in pairs}
            lasts = "for ever" if ask.ttl(key) == -1 else "for a time"
            found[shape_of(key)] = {"type": kind, "lasts": lasts, "value": value}
    return found


def test_locks_are_the_same_keys_on_nodes(live_app: Celery, server: Any) -> None:
    """The nodes keep a lock, its fence and their configuration under the same names."""
    seen: list[dict[str, Any]] = []
    task = task_of(
        live_app, lambda: seen.append(keys_on(server)), on_conflict="cancel_running"
    )
    run_as_worker(task)

    assert_unchanged("keys of a lock", seen[0])


def test_cancelled_lock_has_the_same_value(live_app: Celery, server: Any) -> None:
    """A newcomer writes its name into the lock of the call that it wants to end."""
    task = task_of(live_app, on_conflict="cancel_running", cancel_grace=0.01)
    with held_elsewhere(task, KEY):
        with pytest.raises(errors.DuplicateTask):
            task.apply((KEY,)).get()
        value = keys_on(server)[f"redlock:lock:{KEY}"]["value"]

    assert_unchanged("value of a cancelled lock", value)


def test_claims_are_the_same_keys_on_nodes(live_app: Celery, server: Any) -> None:
    """The nodes keep claims and cool-downs under the same names."""
    task_of(live_app, unique_while="queued").delay(KEY)
    cooled = task_of(live_app, name="cooled", unique_for=60, unique_while="running")
    cooled.apply(("b",)).get()

    seen = {key: value for key, value in keys_on(server).items() if key[-2] == ":"}
    assert_unchanged("keys of claims", seen)


def test_beats_are_the_same_keys_on_nodes(live_app: Celery, server: Any) -> None:
    """The nodes keep a leader, its standbys and its slots under the same names."""
    task = task_of(live_app)
    with leading_beat(live_app), leading_beat(live_app):
        run_as_worker(task, redlock={"slot": "often@2026-01-01T00:00:00+00:00"})
        seen = keys_on(server)

    kept = {key: value for key, value in seen.items() if key.count(":") > 1}
    assert_unchanged("keys of beats", kept)


def test_restarted_node_has_the_same_key(server: Any) -> None:
    """A node that has lost its memory keeps its quarantine under the same name."""
    server.restart()
    redlock = Redlock([server.url], node_timeout=1.0)
    with pytest.raises(errors.QuorumUnreachable):
        redlock.acquire(KEY)
    redlock.close()

    assert_unchanged("keys of a restarted node", keys_on(server))


def test_waiters_use_the_same_names_on_nodes(server: Any) -> None:
    """Waiters line up for a lock, and are woken, under the same names."""
    ours, others = (Redlock([server.url], node_timeout=1.0) for _ in range(2))
    others.acquire(KEY)
    ours.check()  # connects
    names: set[str] = set()
    with redis.Redis.from_url(server.url) as client, client.monitor() as monitor:
        with pytest.raises(LockHeld):
            ours.acquire(KEY, wait=0.3)
        server.command("ECHO", "the end")
        for said in monitor.listen():
            names.update(map(shape_of, re.findall(r"\bredlock:\S*", said["command"])))
            if "the end" in said["command"]:
                break
    for redlock in (ours, others):
        redlock.close()

    assert_unchanged("names while a lock is waited for", sorted(names))


# -- messages, signals, events -----------------------------------------------------


@contextmanager
def headers_of(signal: Any) -> Iterator[queue.SimpleQueue[Any]]:
    """Give what the header `redlock` has on messages that are published or received."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive(headers: Any = None, request: Any = None, **_: Any) -> None:
        headers = request.request_dict if request is not None else headers
        fields = headers.get("redlock", {})
        found.put({name: type(value).__name__ for name, value in fields.items()})

    signal.connect(receive, weak=False)
    yield found
    signal.disconnect(receive)


def test_messages_have_the_same_header(app: Celery) -> None:
    """Publishers, beats, workers and tasks write the same fields into the header."""
    usual = task_of(app)
    buffered = task_of(app, name="buffered", on_conflict="buffer_one")
    seen = {}
    with headers_of(before_task_publish) as published:
        usual.delay(KEY)
        seen["a call"] = published.get(timeout=SOON)
        buffered.delay(KEY)
        seen["a call that lines up"] = published.get(timeout=SOON)
        with held_elsewhere(buffered, KEY):
            run_as_worker(buffered)
        seen["a call that was republished"] = published.get(timeout=SOON)
        with leading_beat(app) as scheduler:
            while published.empty():
                scheduler.tick()
        seen["a call by beat"] = published.get(timeout=SOON)
    with (
        headers_of(task_received) as received,
        start_worker(app, perform_ping_check=False, shutdown_timeout=SOON),
    ):
        seen["a call that a worker has received"] = received.get(timeout=SOON)

    assert_unchanged("header of messages", seen)


def test_signals_are_sent_with_the_same_arguments(
    app: Celery, redlock_fake: FakeNodes, redlock_events: SignalRecorder
) -> None:
    """Each signal is sent with the arguments that it is documented to have."""
    renewed = task_of(
        app, lambda: redlock_events.wait_for("lock_renewed"), name="renewed", ttl=2
    )
    renewed.apply((KEY,)).get()
    usual = task_of(app, unique_while="queued", on_backend_error="skip")
    with held_elsewhere(usual, KEY):
        usual.apply((KEY,))
    with freeze(redlock_fake):
        usual.apply((KEY,))
    usual.delay(KEY)
    usual.delay(KEY)
    lose_the_lock(app)
    lose_it_to_an_operator(app)
    cancel_a_run(app)
    with leading_beat(app):
        pass
    names = ("lock_lost", "lock_force_released", "lock_cancelled", "leader_resigned")
    for name in names:
        redlock_events.wait_for(name)

    sent = {event.name: sorted(event.named) for event in redlock_events.seen}
    sent["lock_heartbeat"] = []  # users send it
    declared = {
        name: sorted(getattr(signals, name).providing_args) for name in signals.__all__
    }
    assert_unchanged("signals", sent)
    assert sent == declared


OF_CELERY = {
    *("clock", "expired", "hostname", "pid", "signum", "terminated", "timestamp"),
    *("type", "utcoffset", "uuid"),
}


@contextmanager
def events_of(app: Celery) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Give a function that returns the events that were sent until it is called."""
    with app.connection_for_read() as connection:
        box = app.events.Receiver(connection).queue(connection.channel())
        box.declare()

        def events() -> list[dict[str, Any]]:
            found = []
            while (message := box.get(no_ack=True)) is not None:
                said = message.payload
                found += said if isinstance(said, list) else [said]
            return found

        yield events


def test_events_have_the_same_fields(app: Celery, redlock_fake: FakeNodes) -> None:
    """Celery's monitors receive events about duplicates with the same fields."""
    ids: dict[str, str] = {}

    def send(case: str, task: Any, **headers: Any) -> Any:
        result = task.apply_async((KEY,), headers={"redlock": headers})
        ids[result.id] = case
        return result

    def end(case: str, task: Any, **headers: Any) -> None:
        send(case, task, **headers).get(
            timeout=SOON, interval=0.01, propagate=False, disable_sync_subtasks=False
        )

    def be_replaced() -> None:
        runs.put(None)
        if runs.qsize() == 1:
            wait_to_be_stopped()
        # By name, without a number on the nodes: its own time decides.
        old = {"redlock": {"published": 1}}
        result = app.send_task(replaced.name, (KEY,), headers=old)
        ids[result.id] = "superseded"
        with suppress(errors.DuplicateTask):
            result.get(timeout=SOON, interval=0.01, disable_sync_subtasks=False)

    runs: queue.SimpleQueue[None] = queue.SimpleQueue()
    usual = task_of(app, on_backend_error="skip")
    allowed = task_of(app, name="allowed", on_conflict="allow")
    options = {"on_conflict": "cancel_running", "ttl": 2}
    replaced = task_of(app, be_replaced, name="replaced", **options)

    def be_released() -> None:
        force_release(lost, KEY)
        wait_to_be_stopped()

    lost = task_of(app, be_released, name="lost")
    with events_of(app) as events:
        with start_worker(
            app, perform_ping_check=False, shutdown_timeout=SOON, task_events=True
        ):
            with held_elsewhere(usual, KEY):
                end("skipped", usual)
            with held_elsewhere(allowed, KEY):
                end("allowed", allowed)
            with freeze(redlock_fake):
                end("skipped because too few nodes answer", usual)
            for case in ("first of a slot", "second of a slot"):
                end(case, usual, slot=f"often@{id(ids)}")
            send("cancelled", replaced)
            while runs.empty():
                threading.Event().wait(0.01)
            replaced.apply((KEY,)).get()
            end("lost", lost)
        told = [event for event in events() if event["uuid"] in ids]

    kinds = ("task-conflict", "task-lock-lost", "task-revoked")
    seen = {
        f"{ids[event['uuid']]}: {event['type']}": sorted(set(event) - OF_CELERY)
        for event in told
        if event["type"] in kinds
    }
    assert_unchanged("events", seen)


# -- metrics and traces ------------------------------------------------------------


def test_metrics_have_the_same_names_and_labels(live_app: Celery) -> None:
    """Prometheus receives the same metrics, with the same labels and words."""
    registry = CollectorRegistry()
    installed = metrics.install(live_app, registry=registry)
    task, words = task_of(live_app), {}
    asked = task_of(live_app, name="asked", on_conflict=lambda _: "skip")
    with task.lock(KEY) as lease:
        conflict = policies.Conflict(key=KEY, task=task.name)
        about = {"lease": lease, "task_id": "", "waited": 0.0, "conflict": conflict}
        signals.lock_renewed.send(sender=task, lateness=0.0, **about)
        signals.lock_cancelled.send(sender=task, cancelled_by="", **about)
        sent = {
            signals.lock_lost: ("Abort", "Retry", "Warn"),
            signals.lock_outage: ("Raise", "Retry", "Run", "Skip"),
            signals.lock_conflict: ON_CONFLICT,
            signals.publish_deduplicated: ON_CONFLICT,
        }
        for signal, kinds in sent.items():
            for decision in (getattr(policies, kind)() for kind in kinds):
                signal.send(sender=task, decision=decision, **about)
                signal.send(sender=asked, decision=decision, **about)
    with leading_beat(live_app):
        families = {family.name: family for family in installed.registry.collect()}
    installed.uninstall()

    seen = {}
    for name, family in families.items():
        labels = [dict(sample.labels) for sample in family.samples]
        names = {label for own in labels for label in own} - {"le"}
        counted = f"{name}_total" if family.type == "counter" else name
        seen[counted] = {"type": family.type, "labels": sorted(names)}
        for label in names & {"decision", "outcome", "policy"}:
            values = {own[label] for own in labels if label in own}
            words[f"{counted} {label}"] = sorted(values)
    assert_unchanged("metrics", seen)
    assert_unchanged("words in metrics", words)


def test_spans_have_the_same_attributes(app: Celery, redlock_fake: FakeNodes) -> None:
    """OpenTelemetry receives the same spans, with the same attributes and events."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    installed = tracing.install(app, tracer_provider=provider)
    task = task_of(app, on_backend_error="skip")
    seen = {}

    def note(case: str) -> None:
        for span in exporter.get_finished_spans():
            seen[f"{case}: {span.name}"] = {
                "attributes": sorted(span.attributes or {}),
                "events": [event.name for event in span.events],
                "status": span.status.status_code.name,
                "outcome": str((span.attributes or {}).get("redlock.outcome")),
            }
        exporter.clear()

    run_as_worker(task)
    note("a run")
    with held_elsewhere(task, KEY):
        run_as_worker(task)
    note("a conflict")
    with freeze(redlock_fake):
        run_as_worker(task)
    note("an outage")
    lose_the_lock(app)
    note("a loss")
    installed.uninstall()
    provider.shutdown()

    assert_unchanged("spans", seen)


# -- the log, the doctor -----------------------------------------------------------


def test_log_has_the_same_events() -> None:
    """Lines in the log carry the same names of events, with the same fields."""
    events = {event: sorted(named) for event, named in log_events().items()}

    assert_unchanged("log events", events)


def test_doctor_finds_the_same_codes() -> None:
    """The doctor gives its findings the same codes."""
    assert_unchanged("codes of findings", sorted(finding_codes()))


def test_environment_has_the_same_variables() -> None:
    """The package reads the same environment variables and Django settings."""
    texts = texts_in(source_nodes())
    found = {name for text in texts for name in re.findall(r"\bREDLOCK_[A-Z_]+", text)}

    assert_unchanged("variables", sorted(found))


# -- the command -------------------------------------------------------------------


def parameter_of(parameter: click.Parameter) -> str:
    """Return how a parameter of a command is written."""
    words = [*parameter.opts, *parameter.secondary_opts]
    if isinstance(parameter, click.Argument):
        words = [str(parameter.name).upper()]
        words += [] if parameter.required else ["(may be left out)"]
    elif isinstance(parameter, click.Option) and parameter.is_flag:
        words.append("(flag)")
    else:
        words.append(f"({parameter.type.name})")
    default = parameter.default
    is_simple = isinstance(default, (str, int, float))
    if is_simple and not isinstance(default, bool):
        words.append(f"default {default}")
    return " ".join(words)


def test_commands_take_the_same_options() -> None:
    """`celery redlock` has the same commands, with the same options."""
    context = click.Context(redlock_command)
    commands = {}
    for name in redlock_command.list_commands(context):
        command = redlock_command.get_command(context, name)
        assert command is not None
        commands[name] = sorted(map(parameter_of, command.params))

    assert_unchanged("commands", commands)


def run_command(app: Celery, *words: str) -> Any:
    """Run `celery redlock` in this process."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    return CliRunner().invoke(redlock_command, words, obj=context)


def test_commands_end_with_the_same_exit_codes(
    live_app: Celery, new_app: Callable[..., Celery]
) -> None:
    """Commands end with the exit codes by which scripts decide."""
    nowhere = new_app(redlock_nodes=["redis://127.0.0.1:1"])
    codes = {
        "done": run_command(live_app, "ls"),
        "there is a warning": run_command(live_app, "doctor"),
        "there is an error": run_command(nowhere, "doctor"),
        "there is no such lock": run_command(live_app, "show", KEY),
        "nothing was released": run_command(live_app, "release", KEY, "--yes"),
        "no leader": run_command(live_app, "leader"),
        "the answer was no": run_command(live_app, "init"),
        "an argument is missing": run_command(live_app, "show"),
        "there is no such task": run_command(live_app, "explain", "nothing"),
        "a setting is wrong": run_command(new_app(), "ls"),
        "too few nodes answer": run_command(nowhere, "ls"),
    }

    assert_unchanged(
        "exit codes", {case: result.exit_code for case, result in codes.items()}
    )


def places_in(document: Any, place: str = "") -> set[str]:
    """Return the places in a JSON document at which there is a value."""
    if isinstance(document, dict) and document:
        inner = (places_in(v, f"{place}.{shape_of(k)}") for k, v in document.items())
        return set().union(*inner)
    if isinstance(document, list) and document:
        return set().union(*(places_in(item, f"{place}[]") for item in document))
    return {place}


def test_commands_print_the_same_json(
    live_app: Celery,
    new_app: Callable[..., Celery],
    start_nodes: Callable[..., DevNodes],
    tmp_path: Path,
) -> None:
    """Programs find the same fields in what a command prints with `--json`."""
    # Nothing is due meanwhile: a call that beat sends would be one that waits.
    live_app.conf.beat_schedule["often"]["schedule"] = 3600.0
    task = task_of(live_app, unique_while="queued", unique_for=60)
    task.apply(("succeeded",)).get()
    until(lambda: task.explain("succeeded").waiting is None)  # its claim is released
    task.delay("waits")
    new = start_nodes(1, max_ttl=0.4, initialize=False)
    (tmp_path / "settings.py").write_text(
        f"redlock_nodes = {new.urls}\nredlock_max_ttl = redlock_ttl = 0.4\n"
        "redlock_node_timeout = 0.13\n"
    )
    with held_elsewhere(task, KEY), leading_beat(live_app), leading_beat(live_app):
        printed = {
            words: run_command(live_app, *words.split(), "--json").stdout
            for words in [
                "bench --count 1",
                "doctor",
                "doctor --acl",
                f'explain job --args ["{KEY}"]',
                'explain job --args ["succeeded"]',
                'explain job --args ["waits"]',
                "leader",
                "leaked",
                "ls",
                "release --claims --dry-run",
                "release --cool-downs --dry-run",
                f"release {KEY} --dry-run",
                f"show {KEY}",
            ]
        }
    for words in ("init --yes", "reconfigure --max-ttl 0.5 --yes"):
        command = [sys.executable, "-m", "celery", "--config", "settings", "redlock"]
        printed[words] = subprocess.run(  # noqa: S603  (the command under test)
            [*command, *words.split(), "--json"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{PACKAGE.parent}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    rules = json.loads(printed["doctor --acl"] or '"nothing"')
    documents = {
        words: sorted(places_in(json.loads(text or '"nothing"')))
        for words, text in printed.items()
    }

    assert_unchanged("documents", documents)
    assert_unchanged("rules for the nodes' user", rules)


# -- packaging ---------------------------------------------------------------------


def test_package_has_the_same_entry_points() -> None:
    """Celery and pytest find the package under the same names; pip knows its extras."""
    found = metadata.distribution("celery-redlock")
    points = {f"{point.group}: {point.name}": point for point in found.entry_points}
    extras = found.metadata.get_all("Provides-Extra") or []

    assert points["celery.commands: redlock"].load() is redlock_command
    scheduler = points["celery.beat_schedulers: redlock"].load()
    assert scheduler is redlock_beat.RedlockScheduler
    assert points["pytest11: celery_redlock"].load() is pytest_plugin
    assert_unchanged("entry points", sorted(points))
    assert_unchanged("extras", sorted(extras))


def test_pytest_plugin_has_the_same_fixtures(pytestconfig: pytest.Config) -> None:
    """The pytest plugin has the same fixtures and the same marker."""
    kind: type = type(pytest_plugin.redlock_fake)
    own = vars(pytest_plugin).items()
    fixtures = sorted(name for name, value in own if isinstance(value, kind))
    markers = [line for line in pytestconfig.getini("markers") if "redlock" in line]

    assert_unchanged("fixtures", fixtures)
    assert_unchanged("markers", [marker.partition(": ")[0] for marker in markers])


OF_DJANGO = """
import inspect, json
import django
from celery import Celery
from django.apps import apps
from django.conf import settings
from django.core.checks import run_checks
from celery_redlock import singleton_task

app = Celery("site")
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "celery_redlock.contrib.django",
    ],
    REDLOCK_CELERY_APP=app,
)
django.setup()

from celery_redlock.contrib.django import FencedModel, FencedQuerySet

def ids():
    return [found.id for found in run_checks(tags=["celery_redlock"])]

own = apps.get_app_config("celery_redlock")
checks = ids()
app.conf.update(redlock_nodes=["redis://nowhere"], redlock_restart_guard=False)

@singleton_task(app=app, ttl=1e6)
def job(): ...


checks += ids()
settings.REDLOCK_CELERY_APP = "nowhere:app"
checks += ids()
print(json.dumps({
    "app": [own.name, own.label, str(own.verbose_name)],
    "checks": checks,
    "model": [field.name for field in FencedModel._meta.get_fields()],
    "model is abstract": FencedModel._meta.abstract,
    "model's manager": type(FencedModel._meta.managers[0]).__name__,
    "permissions": [
        [model._meta.label, *model._meta.default_permissions, *permission]
        for model in own.get_models() for permission in model._meta.permissions
    ],
    "save": list(inspect.signature(FencedModel.save).parameters),
    "fenced": list(inspect.signature(FencedQuerySet.fenced).parameters),
}))
"""


def test_django_app_is_the_same() -> None:
    """Django finds the same app, models, permissions and checks."""
    done = subprocess.run(  # noqa: S603  (the program above)
        [sys.executable, "-c", OF_DJANGO], capture_output=True, text=True, check=True
    )

    assert_unchanged("Django", json.loads(done.stdout))
