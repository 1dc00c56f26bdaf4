"""The names that the documentation gives to users, and what signals carry.

Settings, options, words, errors, metrics and commands are in generated tables, which
`tests/test_docs.py` compares with the code.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_redlock import (
    LockLost,
    beat,
    cli,
    pytest_plugin,
    runtime_of,
    signals,
    singleton_task,
)
from celery_redlock.testing import (
    FakeNodes,
    SignalRecorder,
    force_release,
    freeze,
    held_elsewhere,
    lose_lock,
)
from tests.harness.source import source_nodes, texts_in

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IMPORT = re.compile(
    r"^from (celery_redlock[.\w]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE
)
KEY = "a"
TTL = 3  # seconds; a renewal, which learns of a release, comes after a third


def documented() -> Iterator[tuple[str, str]]:
    """Yield module and name of what pages import, and of what the reference lists."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for module, several, one in IMPORT.findall(text):
            for name in re.findall(r"\w+", several or one.partition("#")[0]):
                yield module, name
    reference = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    for kind, path, members in re.findall(
        r"auto(\w+):: ([.\w]+)\n(?:   :members: (.*))?", reference
    ):
        module, _, name = path.rpartition(".")
        if kind == "module":
            module, name = path, ""
        yield module, name
        for member in re.findall(r"\w+", members):
            yield module, f"{name}.{member}".lstrip(".")


def is_there(module: str, path: str) -> bool:
    """Tell whether a module has this name; that of Django only by its source."""
    if module.endswith(".django"):  # can be imported in a Django site only
        spec = find_spec(module)
        source = Path(str(spec and spec.origin)).read_text("utf-8")
        return f'"{path.partition(".")[0]}"' in source
    found: Any = import_module(module)
    for name in filter(None, path.split(".")):
        if not hasattr(found, name) and find_spec(f"{module}.{name}"):
            import_module(f"{module}.{name}")
        found = getattr(found, name, None)
    return found is not None


def test_documented_names_are_there() -> None:
    """Each name that a page imports, or the reference lists, is in its module."""
    names = set(documented())

    assert {
        ("celery_redlock", "singleton_task"),
        ("celery_redlock", "SingletonTask.lock_key"),
        ("celery_redlock.policies", "ConflictDecision"),
    } <= names
    assert [name for name in sorted(names) if not is_there(*name)] == []


def test_entry_points_lead_to_the_package() -> None:
    """Celery finds the command and the scheduler, and pytest the plugin."""
    found = metadata.distribution("celery-redlock").entry_points
    points = {(point.group, point.name): point.load() for point in found}

    assert points == {
        ("celery.commands", "redlock"): cli.redlock,
        ("celery.beat_schedulers", "redlock"): beat.RedlockScheduler,
        ("pytest11", "celery_redlock"): pytest_plugin,
    }


def test_environment_variables_are_documented() -> None:
    """Each variable that the package reads is in a page."""
    texts = texts_in(source_nodes("REDLOCK_"))
    read = {name for text in texts for name in re.findall(r"\bREDLOCK_[A-Z_]+", text)}
    pages = "\n".join(page.read_text("utf-8") for page in PAGES)

    assert read
    assert {name for name in read if name not in pages} == set()


# -- signals -----------------------------------------------------------------------


@pytest.fixture
def app(redlock_fake: FakeNodes, own_tasks: None) -> Iterator[Celery]:
    """Give an app that locks in memory."""
    app = Celery("documented", set_as_current=False)
    app.conf.update(
        broker_url="memory://",
        result_backend="cache+memory://",
        task_default_queue=f"documented-{secrets.token_hex(4)}",
        beat_schedule={"often": {"task": "job", "schedule": 0.01, "args": [KEY]}},
        redlock_beat_scheduler="celery.beat:Scheduler",
        redlock_eager=True,
    )
    yield app
    runtime_of(app).redlock.close()
    app.close()


def task_of(app: Celery, body: Callable[[], Any] = bool, **options: Any) -> Any:
    """Return a task that locks; the body is called in each run."""

    @singleton_task(app=app, shared=False, key="{key}", **options)
    def job(key: str) -> None:
        body()

    return job


def wait_to_be_stopped() -> None:
    """Wait until this thread is stopped by an error, or fail."""
    event = threading.Event()
    for _ in range(1000):
        event.wait(0.01)
    pytest.fail("the body was not stopped")


def test_signals_are_sent_with_their_documented_arguments(
    app: Celery, redlock_fake: FakeNodes, redlock_events: SignalRecorder
) -> None:
    """Each signal is sent with the arguments that its table names."""
    task_of(
        app, lambda: redlock_events.wait_for("lock_renewed"), name="renewed", ttl=TTL
    ).apply((KEY,)).get()
    usual = task_of(app, name="job", unique_while="queued", on_backend_error="skip")
    with held_elsewhere(usual, KEY):
        usual.apply((KEY,))
    with freeze(redlock_fake):
        usual.apply((KEY,))
    usual.delay(KEY)
    usual.delay(KEY)
    newcomers: list[threading.Thread] = []

    def lose() -> None:
        lose_lock(loser, KEY)
        wait_to_be_stopped()

    def be_released() -> None:
        force_release(released, KEY)
        wait_to_be_stopped()

    def be_cancelled() -> None:
        if not newcomers:
            newcomers.append(threading.Thread(target=cancelled.apply, args=((KEY,),)))
            newcomers[0].start()
            wait_to_be_stopped()

    loser = task_of(app, lose, name="loses", ttl=TTL)
    with pytest.raises(LockLost):
        loser.apply((KEY,)).get()
    released = task_of(app, be_released, name="released", ttl=TTL)
    with pytest.raises(LockLost, match="was released by an operator, tester"):
        released.apply((KEY,)).get()
    cancelled = task_of(
        app, be_cancelled, name="cancelled", ttl=TTL, on_conflict="cancel_running"
    )
    cancelled.apply((KEY,))
    newcomers[0].join(60)
    scheduler = beat.RedlockScheduler(app=app)
    scheduler.tick()
    scheduler.close()
    for name in (
        *("lock_lost", "lock_force_released", "lock_cancelled", "leader_resigned"),
    ):
        redlock_events.wait_for(name)

    sent = {event.name: sorted(event.named) for event in redlock_events.seen}
    sent["lock_heartbeat"] = []  # users send it
    assert sent == {
        name: sorted(getattr(signals, name).providing_args) for name in signals.__all__
    }
