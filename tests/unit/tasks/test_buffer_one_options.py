"""Which options go with ``buffer_one`` and ``cancel_running``, and which do not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock import ConfigurationError
from celery_redlock.policies import BufferOne, CancelRunning, Conflict
from tests.unit.tasks.support import buffered

if TYPE_CHECKING:
    from celery import Celery


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_conflict": "skip", "buffer_keep": "first"}, "no effect without"),
        ({"on_conflict": "skip", "cancel_grace": 5}, "no effect without"),
        ({"on_conflict": "buffer_one", "cancel_grace": 5}, "cancel_running"),
        ({"on_conflict": "cancel_running", "buffer_keep": "latest"}, "buffer_one"),
        ({"on_conflict": "buffer_one", "buffer_keep": "last"}, "does not exist"),
        ({"on_conflict": "cancel_running", "renew": False}, "needs renew=True"),
        ({"on_conflict": CancelRunning(), "renew": False}, "needs renew=True"),
        ({"on_conflict": "cancel_running", "cancel_grace": 0}, "above 0"),
        ({"on_conflict": "buffer_one", "wait_timeout": 5}, "no effect"),
        ({"on_conflict": {"publish": "buffer_one"}}, "does not exist"),
        ({"on_conflict": {"publish": "cancel_running"}}, "does not exist"),
    ],
)
def test_combination_without_sense_is_refused_at_decoration(
    app: Celery, options: dict[str, Any], reason: str
) -> None:
    """With the reason, and what to write instead."""
    with pytest.raises(ConfigurationError, match=reason):
        buffered(app, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"on_conflict": "buffer_one", "buffer_keep": "first", "retry_countdown": 5},
        {"on_conflict": "cancel_running", "cancel_grace": timedelta(seconds=5)},
        {"on_conflict": lambda _: "skip", "buffer_keep": "first", "renew": False},
        {"on_conflict": {"execute": "buffer_one"}, "buffer_keep": "first"},
    ],
)
def test_combination_with_sense_is_taken(app: Celery, options: dict[str, Any]) -> None:
    """A callable may come to any decision."""
    assert buffered(app, **options).lock_options.lines_up


@pytest.mark.parametrize("keep", ["last", "", 1])
def test_decision_that_makes_no_sense_is_refused(keep: Any) -> None:
    """Where it is written."""
    with pytest.raises(ConfigurationError, match="latest"):
        BufferOne(keep=keep)


def test_examples_of_the_documentation_are_policies(app: Celery) -> None:
    """As in ``policies``."""

    def replays_in_order(conflict: Conflict) -> BufferOne:
        return BufferOne(keep="first" if conflict.kwargs.get("replay") else "latest")

    def forced_ones_replace(conflict: Conflict) -> CancelRunning | str:
        return CancelRunning(grace=5) if conflict.kwargs.get("force") else "skip"

    for policy in (replays_in_order, forced_ones_replace):
        options = buffered(app, on_conflict=policy, name=policy.__name__).lock_options
        assert options.lines_up
