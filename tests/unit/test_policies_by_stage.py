"""``on_conflict`` at publish and in a worker: one policy for both, or one for each."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError
from celery_redlock.policies import (
    ON_CONFLICT,
    ON_PUBLISH,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
    policy_from,
    publish_policy,
)
from tests.unit.support import CONFLICT


def test_policy_can_be_given_for_each_stage() -> None:
    """``{"publish": ..., "execute": ...}`` says when it is asked; else it is "skip"."""
    assert policy_from({"execute": "raise"})(CONFLICT) == Raise()
    assert policy_from({"execute": lambda _: "wait"})(CONFLICT) == Wait()
    assert policy_from({"publish": "raise"})(CONFLICT) == Skip()
    assert publish_policy({"publish": "raise", "execute": "wait"})(CONFLICT) == Raise()
    assert publish_policy({"execute": "raise"})(CONFLICT) == Skip()
    for value in ({}, {"publsh": "skip"}, {"execute": "skip", "before": "skip"}):
        with pytest.raises(ConfigurationError, match="is no policy"):
            policy_from(value)


@pytest.mark.parametrize("word", sorted(ON_CONFLICT.words))
def test_word_for_both_stages_is_carried_out_where_it_can_be(word: str) -> None:
    """What only a worker can do means at publish: it is not published."""
    here = {"skip": Skip(), "raise": Raise(), "allow": Run()}.get(word, Skip())

    assert publish_policy(word)(CONFLICT) == here
    if word not in ON_PUBLISH.words:
        with pytest.raises(ConfigurationError, match=r"on_conflict\['publish'\]="):
            publish_policy({"publish": word})


def test_decision_for_both_stages_is_carried_out_where_it_can_be() -> None:
    """The same as with words."""
    assert publish_policy(Raise())(CONFLICT) == Raise()
    assert publish_policy(Run())(CONFLICT) == Run()
    assert publish_policy(Retry(5))(CONFLICT) == Skip()


@pytest.mark.parametrize(
    ("answer", "decision"),
    [("skip", Skip()), (Raise(), Raise()), ("allow", Run()), ("wait", Run())],
)
def test_callable_for_both_stages_can_let_a_call_be_queued(
    answer: Any, decision: Any
) -> None:
    """To answer what only a worker can do is to let it come to a worker."""
    assert publish_policy(lambda _: answer)(CONFLICT) == decision


def test_callable_for_publish_answers_for_publish() -> None:
    """There it must not answer what only a worker can do."""
    assert publish_policy({"publish": lambda _: "raise"})(CONFLICT) == Raise()
    with pytest.raises(ConfigurationError, match="'wait'"):
        publish_policy({"publish": lambda _: "wait"})(CONFLICT)
    with pytest.raises(ConfigurationError, match="is no policy"):
        publish_policy(17)
