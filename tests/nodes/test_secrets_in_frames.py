"""Tools that print the local variables of a traceback see no password of a node.

Sentry, rich and others do. An address keeps its password to itself from the place where
it is given to the one where a driver needs it.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext

from celery_redlock import Redlock, alock, lock, singleton_task
from celery_redlock.app.masking import mask
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.secret import SecretUrl
from celery_redlock.cli import redlock as command_line
from celery_redlock.locking import lock_or_exit
from celery_redlock.operations.doctor import diagnose
from celery_redlock.operations.doctor.placement import celery_servers
from celery_redlock.options import broker
from celery_redlock.settings import Settings
from tests.harness.frames import locals_with

SECRET = "s3cr3t"
NODE = f"redis://me:{SECRET}@127.0.0.1:1/0"  # nothing listens there
STORES = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/app",
    f"host=127.0.0.1 port=1 dbname=app user=me password={SECRET}",
    f"etcd://me:{SECRET}@127.0.0.1:1",
    f"zookeeper://me:{SECRET}@127.0.0.1:1",
]
WRONG: list[Any] = [
    NODE,
    {NODE: NODE},
    [NODE, NODE],
    [NODE, f"redis://me:{SECRET}@127.0.0.1:1/1"],
    [5, NODE],
    [None, NODE],
    [NODE, {"urls": NODE}],
    [NODE, {"url": NODE, "name": "a b"}],
    [{"url": NODE, "name": 5}],
    [f"redis://me:{SECRET}@127.0.0.1:port/0"],
    [f"redis://me:12/{SECRET}@127.0.0.1"],
    [f"redis://127.0.0.1?password={SECRET}&other=1"],
    [{NODE: "name"}],
    [f"redis://me:{SECRET}"],
    [f"unix://me:{SECRET}@"],
    [f"http://me:{SECRET}@127.0.0.1"],
    *([url, NODE] for url in STORES),
    [f"postgresql://me:{SECRET}@127.0.0.1:port/app"],
    [f"host=h password={SECRET} other"],
    [f"etcd://me:{SECRET}@127.0.0.1/path"],
    [f"etcds://me:{SECRET}@127.0.0.1?ca=/nowhere"],
    [f"zookeeper://me:{SECRET}@127.0.0.1?x=1"],
]


def leaks(call: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """Return the variables that show the secret when a call fails, as it must."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011  (what it is matters not)
        call(*args, **options)
    assert SECRET not in str(raised.value)
    # A command line can be seen by all users of the machine anyway.
    return locals_with(SECRET, raised.value, besides=["/click/", "/celery/bin/"])


def app_with(nodes: Any, **settings: Any) -> Celery:
    """Return an app with these nodes."""
    app = Celery("secretive", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=nodes, **settings)
    return app


@pytest.mark.parametrize("nodes", WRONG, ids=range(len(WRONG)))
def test_refused_nodes_are_in_no_frame(nodes: Any) -> None:
    """The same nodes are given to the service, a block, the settings and an app."""
    named = {"nodes": nodes}
    found = [
        leaks(Redlock, nodes),
        leaks(lambda: lock(nodes, "key").__enter__()),
        leaks(Settings.of, {"redlock_nodes": nodes}),
        leaks(runtime_of, app_with(nodes)),
        leaks(run_command, "ls", app=app_with(nodes)),
    ]

    assert found == [[]] * len(found), named


@pytest.mark.parametrize(
    "options", [{"ttl": "x"}, {"ttl": 99}, {"prefix": "a b"}, {"other": 1}], ids=str
)
def test_other_refused_settings_show_no_node(options: dict[str, Any]) -> None:
    """A setting beside the nodes is wrong."""
    settings = {f"redlock_{name}": value for name, value in options.items()}

    if "ttl" in options:
        assert leaks(Redlock, [NODE], **options) == []
    assert leaks(Settings.of, {"redlock_nodes": [NODE], **settings}) == []
    assert leaks(runtime_of, app_with([NODE], **settings)) == []
    spelt = {"REDLOCK_TTL": 5, "redlock_nodes": [NODE], **settings}
    assert leaks(Settings.of, spelt) == []


@pytest.mark.parametrize(
    "url", [NODE, *STORES[:3], pytest.param(STORES[3], marks=pytest.mark.long)]
)
def test_server_that_cannot_be_reached_is_in_no_frame(url: str) -> None:
    """The nodes are used, started anew, examined and asked by a command."""
    service = Redlock([url], node_timeout=0.05, connect_timeout=0.2)
    app = app_with([url], redlock_connect_timeout=0.2)

    found = [
        leaks(lambda: lock([url], "key").__enter__()),
        leaks(lambda: lock(service, "key").__enter__()),
        leaks(lambda: asyncio.run(alock([url], "key").__aenter__())),
        leaks(lambda: lock_or_exit([url], "key").__enter__()),
        leaks(service.initialize),
        leaks(run_command, "init", "--yes", app=app),
        leaks(run_command, "ls", "--node", url, app=app_with(None)),
        leaks(run_command, "show", "key", app=app),
        leaks(run_command, "doctor", app=app),
        leaks(run_command, "run", "--node", url, "key", "true", app=app_with(None)),
    ]
    service.close()

    assert found == [[]] * len(found)


def run_command(*words: str, app: Celery) -> None:
    """Run a command of ``celery redlock`` in this process; fail with its error."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    code = command_line.main(list(words), obj=context, standalone_mode=False)
    raise SystemExit(code)


def test_task_without_nodes_shows_no_address() -> None:
    """A task that runs eagerly fails: its nodes are away, or refused."""
    for nodes in ([NODE], [NODE, NODE]):
        app = app_with(nodes, redlock_eager=True, redlock_on_backend_error="raise")

        @singleton_task(app=app, name="secretive.task", shared=False)
        def task() -> None:
            """Do nothing."""

        assert leaks(task.apply, throw=True) == []
        assert leaks(task.delay, __unexpected=1) == []


def test_changed_settings_show_no_address() -> None:
    """The nodes are changed after their first use."""
    app = app_with([NODE])
    runtime = runtime_of(app)
    app.conf.redlock_nodes = [NODE.replace(":1/", ":2/")]

    assert leaks(runtime.refuse_changes, app) == []


def test_broker_shows_no_password() -> None:
    """A function that asks an unknown broker shows nothing of its URL."""
    unknown = f"nowhere://me:{SECRET}@127.0.0.1:1//"
    app = Celery("secretive", broker=unknown, set_as_current=False)
    calls: list[Callable[..., Any]] = [
        broker.visibility_timeout,
        broker.loses_publications,
        broker.is_in_memory,
    ]
    for call in calls:
        with pytest.raises(KeyError) as raised:
            call(app)
        # What Celery and kombu keep in their own frames is theirs.
        others = ["/celery/", "/kombu/"]
        assert locals_with(SECRET, raised.value, besides=others) == []


def test_doctor_shows_no_password_of_the_broker(monkeypatch: Any) -> None:
    """It looks whether the broker is a node, and an error comes in the middle."""
    app = app_with([NODE], redlock_connect_timeout=0.2)
    app.conf.update(broker_url=NODE, result_backend=NODE.replace("1/0", "1/3"))

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    place = "celery_redlock.operations.doctor.placement.each_node"
    monkeypatch.setattr(place, fail)
    redlock = runtime_of(app).redlock
    assert leaks(diagnose, redlock, app, rules=[celery_servers]) == []


def test_secret_url_shows_itself_masked() -> None:
    """In texts, in parts of it, in copies, and for tools that look into objects."""
    url = SecretUrl(NODE)

    assert repr(url) == "'redis://***@127.0.0.1:1/0'"
    assert f"{url} {url!s}" == "redis://***@127.0.0.1:1/0 redis://***@127.0.0.1:1/0"
    assert url.reveal() == NODE
    assert pickle.loads(pickle.dumps(url)) == url  # noqa: S301  (ours)
    assert len({url, SecretUrl(NODE), SecretUrl("redis://h")}) == 2
    assert not hasattr(url, "__dict__")


def test_nodes_in_the_configuration_are_masked_one_by_one() -> None:
    """Sentry goes through sequences; a masked list of nodes is none."""
    app = app_with([NODE])
    assert app.conf.redlock_nodes
    mask(app)

    with pytest.raises(ZeroDivisionError) as raised:
        fail_with(app.conf.redlock_nodes)
    frame = raised.value.__traceback__
    assert frame is not None
    assert list(app.conf.redlock_nodes) == [NODE]
    assert SECRET not in repr(app.conf.redlock_nodes)


def fail_with(nodes: Any) -> Any:
    """Raise an error in a frame that has the nodes."""
    return nodes and 1 / 0
