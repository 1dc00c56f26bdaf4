"""One runtime per app, checked when a worker starts, and masked where it is printed."""

from __future__ import annotations

import logging
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, _state, signals
from celery.beat import ScheduleEntry
from celery.local import Proxy
from celery.utils.dispatch import Signal
from celery.utils.serialization import jsonify
from kombu.utils.encoding import safe_repr

from celery_redlock import ConfigurationError, lock, singleton_task
from celery_redlock.app.masking import MaskedNodes, mask
from celery_redlock.app.runtime import SignalDispatcher, runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.locking import watchdog_of
from celery_redlock.signals import lock_renewed
from celery_redlock.task.header import TaskHeader
from celery_redlock.testing import FakeNodes
from tests.harness.threads import threads_started_here
from tests.harness.waiting import until
from tests.nodes.support import run_threads
from tests.unit.tasks.support import LONG


class Starting:
    """The sender of the signals of a worker that starts."""

    def __init__(self, app: Celery, **options: Any) -> None:
        self.app, self.options = app, options
        self.on_decode_error: Any = None  # of the consumer, which Celery calls


def locking_app(**settings: Any) -> Celery:
    """Return an app with one locked task; a setting that is None is not set."""
    app = Celery("runtime", broker="memory://", set_as_current=False)
    settings = {"redlock_nodes": ["redis://a:1"], **settings}
    app.conf.update({name: v for name, v in settings.items() if v is not None})

    @singleton_task(app=app, shared=False, name="job", ttl=30)
    def job() -> None: ...

    return app


def test_runtime_is_one_per_app() -> None:
    """Each lookup for an app returns the same runtime; another app has its own."""
    app = locking_app()

    assert runtime_of(app) is runtime_of(app)
    assert runtime_of(app) is not runtime_of(locking_app())
    bare = Celery(set_as_current=False)
    with pytest.raises(ConfigurationError):
        runtime_of(Proxy(lambda: bare))


def test_runtime_is_one_for_threads_that_come_at_once() -> None:
    """Two runtimes would not know each other's locks, and not exclude each other."""
    app = locking_app()
    services: list[object] = []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait(LONG)
        services.append(runtime_of(app).redlock)

    run_threads(*[ask] * 8)

    assert len({id(service) for service in services}) == 1


def test_runtime_opens_nothing() -> None:
    """A runtime that only publishes opens no connection and starts no thread."""
    app = locking_app(redlock_nodes=["redis://192.0.2.1:1"])

    with threads_started_here() as started:
        assert runtime_of(app).redlock.labels == ("192.0.2.1:1/0",)

    assert started == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"redlock_nodes": None}, "redlock_nodes"),
        ({"redlock_nodes": ["http://x"]}, "not a Redis URL"),
        ({"redlock_max_ttl": 5}, "redlock_ttl"),
        ({"redlock_ttl": 4, "redlock_max_ttl": 5}, "job: .*ttl of 30 s"),
        ({"redlock_tl": 5}, "redlock_ttl"),
        ({"task_protocol": 1}, "task_protocol is 1"),
    ],
)
def test_worker_with_a_wrong_setting_does_not_start(
    settings: dict[str, Any], message: str
) -> None:
    """The worker exits with an error that names the wrong setting."""
    worker = Starting(locking_app(**settings))

    with pytest.raises(SystemExit, match=message):
        signals.worker_init.send(sender=worker)


def start_beat(app: Celery) -> None:
    """Start a beat, as far as its signal, in a thread: the signal marks its thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(signals.beat_init.send, sender=Starting(app)).result()


def scheduled(options: dict[str, Any]) -> dict[str, Any]:
    """Return a schedule with one entry, of the lock task, with these options."""
    return {"nightly": {"task": "job", "schedule": 60.0, "options": options}}


@pytest.mark.parametrize("options", [{"ttl": 5}, {"redlock": {}}, {"lock_timeout": 5}])
def test_beat_with_a_lock_option_in_its_schedule_does_not_start(
    options: dict[str, Any],
) -> None:
    """Each call of the entry would be refused when it is due. Workers start."""
    app = locking_app(beat_schedule=scheduled(options))
    message = f"The entry 'nightly' of beat_schedule gives {next(iter(options))}"

    with pytest.raises(SystemExit, match=message):
        start_beat(app)

    signals.worker_init.send(sender=Starting(app, beat=False))


def test_worker_whose_beat_would_not_start_does_not_start() -> None:
    """``worker -B``: it would run on, and no entry of the schedule would be sent."""
    app = locking_app(beat_schedule=scheduled({"ttl": 5}))

    with pytest.raises(SystemExit, match="The entry 'nightly' of beat_schedule"):
        signals.worker_init.send(sender=Starting(app, beat=True))


def test_beat_starts_where_a_class_of_the_project_takes_the_option() -> None:
    """So it does with options of Celery, and with entries of other tasks."""

    class Tenants(Task):
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            options.pop("key", None)
            return super().apply_async(*args, **options)

    app = locking_app()

    @singleton_task(app=app, base=Tenants, name="tenants")
    def tenants() -> None: ...

    crontab = {"schedule": 60.0}
    app.conf.beat_schedule = {
        **scheduled({"expires": 5, "priority": 3}),
        "tenants": {"task": "tenants", "options": {"key": "red"}, **crontab},
        "elsewhere": {"task": "elsewhere", "options": {"ttl": 5}, **crontab},
        "entry": ScheduleEntry("entry", "job", options={"countdown": 1}, app=app),
    }

    start_beat(app)


def test_worker_without_locked_tasks_needs_no_nodes() -> None:
    """A worker without locked tasks starts without `redlock_nodes`."""
    app = Celery("without", broker="memory://", set_as_current=False)

    signals.worker_init.send(sender=Starting(app))
    signals.worker_ready.send(sender=Starting(app))


def test_thread_without_a_current_app_is_told_to_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Celery gives its fallback to a shared task there, and not the app with nodes."""
    monkeypatch.setattr(_state, "default_app", None)
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(lambda: runtime_of(_state.get_current_app()))
        with pytest.raises(ConfigurationError) as error:
            refused.result()

    assert "Celery's fallback app" in str(error.value)
    assert "app.set_default()" in str(error.value)


def test_worker_without_nodes_discards_what_it_cannot_decode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A claim of another project cannot be released. That ends no consumer."""
    consumer = Starting(locking_app(redlock_nodes=None))
    discarded: list[object] = []
    consumer.on_decode_error = lambda message, _: discarded.append(message)
    signals.worker_ready.send(sender=consumer)
    claim = TaskHeader(claim="key").for_next_copy()
    message = SimpleNamespace(headers={"id": "id", "task": "task", **claim})

    consumer.on_decode_error(message, ValueError())

    assert discarded == [message]
    assert "redlock_nodes is not set" in caplog.text


def test_worker_that_is_ready_says_what_it_waits_for(
    nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs one line, which names the nodes that do not vote."""
    app = locking_app(redlock_nodes=nodes.urls)
    runtime_of(app).use(nodes.redlock())
    said = []

    with caplog.at_level(logging.INFO, "celery_redlock.app.worker_hooks"):
        for cut in ([], [0], [0, 1]):
            caplog.clear()
            if cut:
                nodes.partition(*cut)
            signals.worker_ready.send(sender=Starting(app))
            said += [(r.levelname, r.getMessage()) for r in caplog.records]

    assert [level for level, _ in said] == ["INFO", "WARNING", "ERROR"]
    assert said[0][1] == "All nodes vote: 3 (quorum: 2)."
    assert "node-1" in said[1][1]
    assert "redlock init" not in said[2][1]  # it ends no outage


@pytest.mark.parametrize("knows_them", [True, False], ids=["restarted", "new"])
def test_worker_that_waits_for_nodes_names_one_duration(
    nodes: FakeNodes, caplog: pytest.LogCaptureFixture, *, knows_them: bool
) -> None:
    """It says of a node and of its tasks that they wait for as long.

    It names `init` only where the deployment may be brand-new.
    """
    app = locking_app(redlock_nodes=nodes.urls)
    redlock = nodes.redlock()
    for node in nodes.nodes:
        node.restart()
    if not knows_them:
        redlock = nodes.another_client().redlock()
    runtime_of(app).use(redlock)

    with caplog.at_level(logging.ERROR, "celery_redlock.app.worker_hooks"):
        signals.worker_ready.send(sender=Starting(app))

    said = caplog.messages[0]
    assert set(re.findall(r"\d+(?:\.\d+)? s\b", said)) == {"62.2 s"}
    init = "(For a brand-new deployment, run `celery -A proj redlock init`.)"
    assert (init in said) is not knows_them


def test_worker_with_a_single_node_names_no_majority(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A store is one node, too: tasks wait until it votes."""
    nodes = FakeNodes(1)
    app = locking_app(redlock_nodes=nodes.urls)
    runtime_of(app).use(nodes.redlock())
    nodes.partition(0)

    with caplog.at_level(logging.ERROR, "celery_redlock.app.worker_hooks"):
        signals.worker_ready.send(sender=Starting(app))

    said = caplog.messages[0]
    assert said.startswith("The only node does not vote: ")
    assert "Tasks that need a lock do not run until it votes." in said
    runtime_of(app).stop()


def test_worker_with_other_settings_than_nodes_is_told_the_remedy(
    nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Such nodes never vote by themselves. Else the first call would tell it."""
    nodes.redlock(max_ttl=60.0).check()
    app = locking_app(redlock_nodes=nodes.urls)
    runtime_of(app).use(nodes.redlock(max_ttl=30.0))

    with caplog.at_level(logging.WARNING, "celery_redlock.app.worker_hooks"):
        signals.worker_ready.send(sender=Starting(app))

    assert " The nodes are at epoch 1 with max_ttl 60 s; this client" in caplog.text
    assert "`celery -A proj redlock reconfigure`." in caplog.text
    runtime_of(app).stop()


def test_lock_of_a_program_outlives_its_worker() -> None:
    """A worker that ran in one of its threads is over. It ends what only it used."""
    nodes = FakeNodes(clock=SYSTEM_CLOCK)
    app = locking_app(redlock_nodes=nodes.urls)
    runtime_of(app).use(nodes.redlock())
    redlock = runtime_of(app).redlock

    with lock(redlock, "mine"):
        signals.worker_shutdown.send(sender=None)
        assert watchdog_of(redlock).is_running
    signals.worker_shutdown.send(sender=None)

    assert not watchdog_of(redlock).is_running


def test_dispatcher_calls_receivers_in_another_thread() -> None:
    """The thread of the dispatcher calls the receivers in order."""
    told: list[tuple[int, str]] = []
    done = threading.Event()

    def receive(number: int, **_: Any) -> None:
        told.append((number, threading.current_thread().name))
        if number == 2:
            done.set()

    dispatcher = SignalDispatcher()
    lock_renewed.connect(receive)
    try:
        for number in range(3):
            dispatcher.dispatch(signal=lock_renewed, sender=None, number=number)
        assert done.wait(LONG)
    finally:
        lock_renewed.disconnect(receive)
        dispatcher.stop()
        dispatcher.stop()

    assert told == [(number, "redlock-dispatcher") for number in range(3)]


def test_signals_of_several_threads_are_sent_one_at_a_time() -> None:
    """Two threads would change their order, and only one of them would end."""
    signal, usual, threads = Signal(), sys.getswitchinterval(), 8
    inside: list[object] = []
    most: list[int] = []

    def receive(**named: object) -> None:
        inside.append(named)
        threading.Event().wait(0.001)  # a receiver is slower than a dispatch
        most.append(len(inside))
        inside.remove(named)

    def dispatch(dispatcher: SignalDispatcher, start: threading.Barrier) -> None:
        start.wait(LONG)
        dispatcher.dispatch(signal=signal, sender=None)

    signal.connect(receive)
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            most.clear()
            args = dispatcher, _ = SignalDispatcher(), threading.Barrier(threads)
            run_threads(*[partial(dispatch, *args)] * threads)
            until(lambda: len(most) == threads, what="all signals")
            dispatcher.stop()
            assert max(most) == 1
    finally:
        sys.setswitchinterval(usual)


def test_dispatcher_that_was_idle_sends_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread has ended meanwhile, and the next signal starts another one."""
    monkeypatch.setattr("celery_redlock.app.runtime._IDLE", 0.01)
    signal, sent = Signal(), threading.Event()
    signal.connect(lambda **_: sent.set(), weak=False)
    dispatcher = SignalDispatcher()

    for _ in range(2):
        sent.clear()
        dispatcher.dispatch(signal=signal, sender=None)
        assert sent.wait(LONG)
        until(lambda: not dispatcher._background.is_running, what="the end")  # noqa: SLF001


def test_dispatcher_does_nothing_without_receivers() -> None:
    """Without a receiver there is no thread."""
    unheard = Signal(name="unheard")  # ours may have receivers of other tests

    with threads_started_here() as started:
        SignalDispatcher().dispatch(signal=unheard, sender=None)

    assert started == []


def test_worker_says_what_a_guard_that_is_off_gives_up(
    nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning at start names the setting, without which two may hold a lock."""
    app = locking_app(redlock_nodes=nodes.urls, redlock_restart_guard=False)
    runtime_of(app).use(nodes.redlock(restart_guard=False))

    with caplog.at_level(logging.WARNING):
        signals.worker_ready.send(sender=Starting(app))

    assert "redlock_restart_guard is off" in caplog.text
    runtime_of(app).stop()


# -- the printed configuration shows no passwords ----------------------------------

SECRET = "correct-horse"
NODES = [
    f"redis://:{SECRET}@a:6379/0",
    {"url": f"rediss://user:{SECRET}@b:6379/0", "name": "b"},
    f"redis://c:6379/0?password={SECRET}",
]


def printed(app: Celery) -> str:
    """Return the configuration as ``celery report`` and ``inspect conf`` print it."""
    table = jsonify(app.conf.table(), unknown_type_filter=safe_repr)
    return f"{app.conf.humanize()}\n{table}"


def django(**settings: Any) -> Celery:
    """Return an app that is configured as in a Django project."""
    app = Celery("masked", set_as_current=False)
    app.config_from_object(SimpleNamespace(**settings), namespace="CELERY")
    return app


def test_nodes_are_masked_when_a_task_is_bound() -> None:
    """An app that has a locked task shows node names only."""
    app = locking_app(redlock_nodes=NODES)
    app.finalize()

    assert SECRET not in printed(app)
    assert "redlock_nodes" in printed(app)
    assert "a:6379/0" in printed(app)


def test_nodes_are_masked_when_modules_are_imported() -> None:
    """``celery report`` imports the tasks and finalizes nothing."""
    app = Celery("masked", set_as_current=False)
    app.conf.redlock_nodes = NODES

    signals.import_modules.send(sender=app)

    assert SECRET not in printed(app)


def test_nodes_are_masked_under_the_users_spelling() -> None:
    """Settings with the prefix of a Django project are masked, too."""
    app = django(CELERY_REDLOCK_NODES=NODES)

    mask(app)

    assert SECRET not in printed(app)
    assert "CELERY_REDLOCK_NODES" in printed(app)


@pytest.mark.parametrize("configured", [False, True])
def test_masked_nodes_are_used_as_they_were_written(*, configured: bool) -> None:
    """Masked nodes still give their URLs with passwords to the package."""
    app = django(CELERY_REDLOCK_NODES=NODES)
    if configured:
        assert app.conf.redlock_nodes

    mask(app)

    urls = [node.url.reveal() for node in runtime_of(app).settings.nodes]
    assert [SECRET in url for url in urls] == [True, True, True]
    assert app.conf.redlock_nodes[0] == NODES[0]
    assert list(app.conf.redlock_nodes) == NODES


@pytest.mark.parametrize("masked_first", [False, True])
def test_nodes_that_are_assigned_replace_those_of_the_namespace(
    *, masked_first: bool
) -> None:
    """An assignment counts in a Django project, too, before and after the mask.

    Commands make it for ``--node``, and tests for nodes of their own.
    """
    app = django(CELERY_REDLOCK_NODES=NODES)
    if masked_first:
        assert app.conf.redlock_nodes
        mask(app)
    app.conf.redlock_nodes = [f"redis://:{SECRET}@other:6379/0"]

    mask(app)

    assert [node.name for node in runtime_of(app).settings.nodes] == ["other:6379/0"]
    assert SECRET not in printed(app)


def test_nodes_of_a_module_may_be_replaced_there() -> None:
    """An override of Django's settings counts, and is masked, as long as it lasts."""
    module = SimpleNamespace(CELERY_REDLOCK_NODES=NODES)
    app = Celery("masked", set_as_current=False)
    app.config_from_object(module, namespace="CELERY")
    app.finalize()
    assert app.conf.redlock_nodes
    mask(app)

    module.CELERY_REDLOCK_NODES = [f"redis://:{SECRET}@other:6379/0"]

    assert [node.name for node in runtime_of(app).settings.nodes] == ["other:6379/0"]
    assert SECRET not in printed(app)

    del module.CELERY_REDLOCK_NODES

    assert app.conf.get("redlock_nodes") is None
    assert "REDLOCK_NODES" not in printed(app)


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(NODES[0], id="URL"),
        pytest.param(NODES[1], id="node"),
        pytest.param({NODES[0]}, id="set"),
        pytest.param({"a": [NODES[0]]}, id="mapping"),
        pytest.param(str(NODES[0]).encode(), id="bytes"),
        pytest.param([str(NODES[0]).encode()], id="list-of-bytes"),
        pytest.param([bytearray(str(NODES[0]).encode())], id="list-of-bytearrays"),
    ],
)
def test_wrong_nodes_are_masked(nodes: Any) -> None:
    """The reports of those who look for their mistake show no password."""
    app = locking_app(redlock_nodes=nodes)
    assert app.conf.redlock_nodes

    mask(app)
    mask(app)

    assert SECRET not in printed(app)
    with pytest.raises(ConfigurationError, match=r"^redlock_nodes") as raised:
        runtime_of(app)
    assert SECRET not in str(raised.value)


def test_masked_nodes_travel_to_spawned_children() -> None:
    """An app is pickled with its settings, so masked nodes can be pickled."""
    nodes = MaskedNodes(NODES)

    assert list(pickle.loads(pickle.dumps(nodes))) == NODES  # noqa: S301  (ours)
    assert len(nodes) == 3
