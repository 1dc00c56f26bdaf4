"""From the value of a task option to a decision: words, decisions, callables."""

from __future__ import annotations

import ast
import functools
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock import policies
from celery_redlock.errors import ConfigurationError
from celery_redlock.policies import (
    ON_BACKEND_ERROR,
    ON_CONFLICT,
    ON_LOCK_LOST,
    ON_PUBLISH,
    Abort,
    BufferOne,
    CancelRunning,
    Conflict,
    ConflictDecision,
    Decision,
    LossDecision,
    Outage,
    OutageDecision,
    PolicyOption,
    PublishDecision,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
    Warn,
    given_at,
    label_of,
    publish_policy,
)
from celery_redlock.policies.base import POLICIES
from tests.unit.support import CONFLICT, LOSS, OUTAGE, delay

Option: TypeAlias = PolicyOption[Any, Any]
EVERY_OPTION: list[Option] = [ON_CONFLICT, ON_LOCK_LOST, ON_BACKEND_ERROR]
TIMED_OUT = Conflict(key="k", task="proj.f", waited=10.0)
any_option = pytest.mark.parametrize("option", EVERY_OPTION, ids=lambda o: o.name)


# -- words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "situation", "word", "decision"),
    [
        (ON_CONFLICT, CONFLICT, "skip", Skip()),
        (ON_CONFLICT, CONFLICT, "raise", Raise()),
        (ON_CONFLICT, CONFLICT, "retry", Retry()),
        (ON_CONFLICT, CONFLICT, "wait", Wait()),
        (ON_CONFLICT, CONFLICT, "allow", Run()),
        (ON_CONFLICT, CONFLICT, "buffer_one", BufferOne()),
        (ON_CONFLICT, CONFLICT, "cancel_running", CancelRunning()),
        (ON_LOCK_LOST, LOSS, "abort", Abort()),
        (ON_LOCK_LOST, LOSS, "retry", Retry()),
        (ON_LOCK_LOST, LOSS, "warn", Warn()),
        (ON_BACKEND_ERROR, OUTAGE, "raise", Raise()),
        (ON_BACKEND_ERROR, OUTAGE, "run", Run()),
        (ON_BACKEND_ERROR, OUTAGE, "skip", Skip()),
    ],
)
def test_word_names_a_decision(
    option: Option, situation: Any, word: str, decision: Any
) -> None:
    """A decision has the name of its word, but for "run", which is "allow"."""
    assert option.policy(word)(situation) == decision
    assert decision.name == ("allow" if word == "run" else word)


@given(st.integers(0, 10_000))
def test_retry_after_an_outage_backs_off(deferrals: int) -> None:
    """The countdown is random: up to 1 s, doubled each time, at most 30 s."""
    outage = Outage(key="k", task="proj.f", deferrals=deferrals)

    decision = ON_BACKEND_ERROR.policy("retry")(outage)

    longest = min(30.0, 2.0 ** min(deferrals, 10))
    assert longest / 4 <= delay(decision) <= longest


def test_retry_after_an_outage_is_random() -> None:
    """Calls that fail together do not return together."""
    retry = ON_BACKEND_ERROR.policy("retry")

    assert len({retry(OUTAGE) for _ in range(100)}) > 90


@pytest.mark.parametrize(
    ("deferrals", "left", "least", "most"),
    [(9, 3.0, 3.0, 3.6), (0, 62.2, 0.25, 1.0), (9, 62.2, 7.5, 30.0)],
    ids=["its end is near", "new", "it goes on"],
)
def test_retry_in_a_quarantine_waits_for_its_end_at_most(
    deferrals: int, left: float, least: float, most: float
) -> None:
    """A quarantine may end before the nodes said: ``init`` ends it."""
    outage = Outage(key="k", task="proj.f", retry_after=left, deferrals=deferrals)

    decision = ON_BACKEND_ERROR.policy("retry")(outage)

    assert least <= delay(decision) <= most


# -- decisions ---------------------------------------------------------------------


def test_each_policy_of_the_package_is_exported() -> None:
    """A policy whose file is not imported has no word."""
    files = Path(policies.__file__).parent.glob("*.py")
    found = {
        node.name
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(each) == "policy" for each in node.decorator_list)
    }

    assert found == {kind.__name__ for kind in POLICIES.values()}
    assert found <= {*policies.__all__}


@pytest.mark.parametrize("kind", POLICIES.values(), ids=POLICIES)
def test_each_policy_has_its_texts(kind: type[Decision]) -> None:
    """Its file begins with its word; log and ``explain`` say what becomes of a call."""
    bases = (ConflictDecision, PublishDecision, LossDecision, OutageDecision)

    assert str(sys.modules[kind.__module__].__doc__).startswith(f"``{kind.name}``: ")
    assert kind.words or kind.describe not in {base.describe for base in bases}
    assert getattr(kind, "words_at_publish", True)


@pytest.mark.parametrize("value", [5, 5.0, timedelta(seconds=5)])
def test_duration_of_a_decision_is_in_seconds(value: Any) -> None:
    """A duration may be a timedelta and is read as float seconds."""
    for duration in (Retry(value).countdown, Wait(value).timeout):
        assert isinstance(duration, float)
        assert duration == 5.0


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
def test_duration_of_a_decision_is_checked(value: Any) -> None:
    """A value that is no duration is refused by the decision."""
    with pytest.raises(ConfigurationError, match=r"countdown is .* above 0"):
        Retry(value)
    with pytest.raises(ConfigurationError, match=r"timeout is .* above 0"):
        Wait(value)


@pytest.mark.parametrize("keep", ["last", "", 1])
def test_keep_of_buffer_one_is_checked(keep: Any) -> None:
    """It is "latest" or "first"."""
    with pytest.raises(ConfigurationError, match="latest"):
        BufferOne(keep=keep)


# -- callables ---------------------------------------------------------------------


class Urgent:
    """A policy with a memory."""

    def __init__(self) -> None:
        self.seen: list[Conflict] = []

    def __call__(self, conflict: Conflict) -> str:
        """Return a word."""
        self.seen.append(conflict)
        return "allow"

    def ask(self) -> str:
        """Return a word, but take no situation."""
        return "skip" if self.seen else "raise"

    def skip(self, conflict: Conflict) -> Skip:
        """Return a decision."""
        self.seen.append(conflict)
        return Skip()


def by_deferrals(limit: int, conflict: Conflict) -> Raise | Retry:
    """Republish the call until it was republished so often."""
    return Raise() if conflict.deferrals >= limit else Retry(countdown=1)


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (lambda _: "raise", Raise()),
        (lambda _: Wait(timeout=60), Wait(60)),
        (Urgent(), Run()),
        (Urgent().skip, Skip()),
        (functools.partial(by_deferrals, 0), Raise()),
        (functools.partial(by_deferrals, 1), Retry(1)),
        (lambda _, default="skip": default, Skip()),
        (lambda *situation: "skip" if situation else "raise", Skip()),
    ],
)
def test_callable_returns_a_decision_or_a_word(policy: Any, decision: object) -> None:
    """Anything that can be called with the situation is a policy."""
    assert ON_CONFLICT.policy(policy)(CONFLICT) == decision


def test_word_that_a_callable_returns_is_asked_in_its_turn() -> None:
    """Always returning "wait" waits once; always returning ``Wait()`` goes on."""
    assert ON_CONFLICT.policy(lambda _: "wait")(TIMED_OUT) == Raise()
    assert ON_CONFLICT.policy(lambda _: Wait())(TIMED_OUT) == Wait()


def test_callable_is_a_policy_for_every_option() -> None:
    """Callables decide losses and outages as well."""
    by_fence = ON_LOCK_LOST.policy(lambda loss: "warn" if loss.fence else "abort")

    assert by_fence(LOSS) == Warn()
    assert ON_BACKEND_ERROR.policy(lambda _: Run())(OUTAGE) == Run()


@pytest.mark.parametrize(
    "answer", [None, "", "skp", "buffer_all", True, 5, Skip, Abort(), ["skip"]]
)
def test_callable_that_returns_no_decision_is_refused(answer: Any) -> None:
    """The error names all words and decisions."""
    policy = ON_CONFLICT.policy(lambda _: answer)

    with pytest.raises(ConfigurationError, match="on_conflict returned") as caught:
        policy(CONFLICT)
    for choice in ("'skip'", "'raise'", "'retry'", "'wait'", "'allow'", "Retry()"):
        assert choice in str(caught.value)


def test_long_answer_is_cut() -> None:
    """An answer that is a document does not fill the log."""
    with pytest.raises(ConfigurationError) as caught:
        ON_CONFLICT.policy(lambda _: "x" * 1000)(CONFLICT)

    assert len(str(caught.value)) < 300


def test_error_of_a_callable_is_passed_on() -> None:
    """An error of ours does not hide it."""
    with pytest.raises(ZeroDivisionError):
        ON_CONFLICT.policy(lambda _: 1 / 0)(CONFLICT)


@pytest.mark.parametrize("policy", [Skip, Retry, Urgent, by_deferrals, Urgent().ask])
def test_callable_must_take_the_situation(policy: Callable[..., object]) -> None:
    """A class, or a callable that takes another number of arguments, is refused."""
    with pytest.raises(ConfigurationError, match="callable that takes the situation"):
        ON_CONFLICT.policy(policy)


# -- values that are no policy -----------------------------------------------------


@any_option
@pytest.mark.parametrize("value", [None, 5, True, [], {}, ["skip"], object(), b"skip"])
def test_value_that_is_no_policy_is_refused(option: Option, value: Any) -> None:
    """The error names the option, and all words and decisions."""
    with pytest.raises(ConfigurationError, match=f"^{option.name}=.* is not a policy"):
        option.policy(value)


@pytest.mark.parametrize(
    ("option", "word", "near"),
    [
        (ON_CONFLICT, "skipp", "skip"),
        (ON_CONFLICT, "Raise", "raise"),
        (ON_CONFLICT, "RETRY", "retry"),
        (ON_LOCK_LOST, "abrot", "abort"),
        (ON_BACKEND_ERROR, "rerty", "retry"),
    ],
)
def test_unknown_word_gets_the_nearest(option: Option, word: str, near: str) -> None:
    """The error for a typing error suggests the nearest word."""
    with pytest.raises(ConfigurationError, match=f"Did you mean '{near}'"):
        option.policy(word)


@pytest.mark.parametrize("word", ["return_existing", "terminate", ""])
def test_word_that_does_not_exist_is_refused(word: str) -> None:
    """Where no word is near, the error names all words."""
    with pytest.raises(ConfigurationError, match=r"There are 'allow', .*'buffer_one'"):
        ON_CONFLICT.policy(word)


@any_option
def test_word_of_another_option_is_refused(option: Option) -> None:
    """Each option has its own words."""
    every = {word for other in EVERY_OPTION for word in other.words}

    for word in every - set(option.words):
        with pytest.raises(ConfigurationError, match=f"{option.name}='{word}'"):
            option.policy(word)


# -- a policy for each stage -------------------------------------------------------


def test_policy_can_be_given_for_each_stage() -> None:
    """A stage that ``{"publish": ..., "execute": ...}`` does not name is "skip"."""
    at_execution = ON_CONFLICT.policy
    assert at_execution({"execute": "raise"})(CONFLICT) == Raise()
    assert at_execution({"execute": lambda _: "wait"})(CONFLICT) == Wait()
    assert at_execution({"publish": "raise"})(CONFLICT) == Skip()
    assert publish_policy({"publish": "raise", "execute": "wait"})(CONFLICT) == Raise()
    assert publish_policy({"execute": "raise"})(CONFLICT) == Skip()
    for value in ({}, {"publsh": "skip"}, {"execute": "skip", "before": "skip"}):
        with pytest.raises(ConfigurationError, match="is not a policy"):
            at_execution(value)
    with pytest.raises(ConfigurationError, match=r"'publsh'.* Did you mean 'publish'"):
        at_execution({"publsh": "skip"})


@pytest.mark.parametrize("word", sorted(ON_CONFLICT.words))
def test_word_for_both_stages_means_the_same_where_it_can(word: str) -> None:
    """A publisher skips a duplicate whose word only a worker can perform."""
    here = POLICIES[word]() if word in ON_PUBLISH.words else Skip()

    assert publish_policy(word)(CONFLICT) == here
    assert given_at(word, "publish") is type(here)
    if word not in ON_PUBLISH.words:
        with pytest.raises(ConfigurationError, match=r"on_conflict\['publish'\]="):
            publish_policy({"publish": word})


@pytest.mark.parametrize(
    ("value", "decision"),
    [
        (Raise(), Raise()),
        (Run(), Run()),
        (Retry(5), Skip()),
        (lambda _: "skip", Skip()),
        (lambda _: Raise(), Raise()),
        (lambda _: "allow", Run()),
        (lambda _: "wait", Run()),
    ],
)
def test_value_for_both_stages_means_the_same_where_it_can(
    value: Any, decision: Any
) -> None:
    """If only a worker can perform a callable's answer, the call is published."""
    assert publish_policy(value)(CONFLICT) == decision


def test_callable_for_publish_decides_for_publishers() -> None:
    """It must not return a decision that only a worker can perform."""
    assert publish_policy({"publish": lambda _: "raise"})(CONFLICT) == Raise()
    with pytest.raises(ConfigurationError, match="'wait'"):
        publish_policy({"publish": lambda _: "wait"})(CONFLICT)
    with pytest.raises(ConfigurationError, match="is not a policy"):
        publish_policy(17)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("wait", "wait"),
        (Run(), "allow"),
        (lambda _: "skip", "callable"),
        ({"execute": BufferOne()}, "buffer_one"),
        ({"publish": "raise"}, "skip"),
    ],
)
def test_label_of_a_policy_is_one_word(value: Any, label: str) -> None:
    """Metrics show a few words, however many callables there are."""
    assert label_of(value, "execute") == label


# -- situations --------------------------------------------------------------------


def test_situation_hides_the_arguments() -> None:
    """Arguments may be private: the repr of a conflict does not show them."""
    conflict = Conflict(key="k", task="t", args=("secret",), kwargs={"a": "secret"})

    assert "secret" not in repr(conflict)
    assert conflict.kwargs["a"] == "secret"


def test_examples_of_the_package_are_policies() -> None:
    """The callables of its docstring decide by the arguments of the call."""
    _, _, text = str(policies.__doc__).partition("::\n\n")
    found: dict[str, Any] = dict(vars(policies))
    exec(textwrap.dedent(text.partition("\n\nA conflict")[0]), found)  # noqa: S102  (ours)

    def decided(name: str, **kwargs: Any) -> object:
        conflict = Conflict(key="k", task="t", kwargs=kwargs)
        return ON_CONFLICT.policy(found[name])(conflict)

    assert decided("urgent_ones_wait", urgent=True) == Wait(60)
    assert decided("urgent_ones_wait") == Skip()
    assert decided("replays_in_order", replay=True) == BufferOne("first")
    assert decided("forced_ones_replace", force=True) == CancelRunning(5)
