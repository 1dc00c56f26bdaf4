"""The printed configuration of an app shows no passwords."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.utils.serialization import jsonify
from kombu.utils.encoding import safe_repr

from celery_redlock import singleton_task
from celery_redlock.app.masking import MaskedNodes, mask
from celery_redlock.app.runtime import runtime_of

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
    source = SimpleNamespace(**settings)
    app.config_from_object(source, namespace="CELERY")
    return app


def test_nodes_are_masked_when_a_task_is_bound() -> None:
    """An app that has a locked task shows node names only."""
    app = Celery("masked", set_as_current=False)
    app.conf.redlock_nodes = NODES

    @singleton_task(app=app, shared=False)
    def job() -> None: ...

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

    urls = [address.url for address in runtime_of(app).settings.nodes]
    assert [SECRET in url for url in urls] == [True, True, True]
    assert app.conf.redlock_nodes[0] == NODES[0]
    assert list(app.conf.redlock_nodes) == NODES


def test_url_that_was_given_instead_of_a_list_is_masked() -> None:
    """A wrong setting is masked as well."""
    app = Celery("masked", set_as_current=False)
    app.conf.redlock_nodes = NODES[0]
    assert app.conf.redlock_nodes

    mask(app)

    assert SECRET not in printed(app)


def test_masked_nodes_travel_to_spawned_children() -> None:
    """An app is pickled with its settings, so masked nodes can be pickled."""
    nodes = MaskedNodes(NODES)

    assert list(pickle.loads(pickle.dumps(nodes))) == NODES  # noqa: S301  (ours)
    assert len(nodes) == 3
