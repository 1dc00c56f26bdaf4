"""What a node that was away has to be told when it is back."""

from __future__ import annotations

from celery_redlock.core.debts import Debts
from celery_redlock.core.question import Question, by_majority
from celery_redlock.core.scripts import RELEASE


def release(token: str, until: float = 60.0) -> Question:
    """Return a release that insists until then."""
    return Question(
        RELEASE,
        ["redlock:lock:k"],
        [token, 0],
        labels=["a", "b"],
        settle=by_majority,
        insist_until=until,
    )


def told(debts: Debts, now: float) -> list[tuple[object, int]]:
    """Return the tokens that are told now, and to which node."""
    return [(question.call[2][0], node) for question, node in debts.due(now)]


def test_debt_is_told_twice_a_second_apart() -> None:
    """The node may find the acquire in an old buffer after the first telling."""
    debts = Debts()
    debts.owe(release("t"), 1, now=10.0)

    assert told(debts, 10.0) == [("t", 1)]
    assert told(debts, 10.9) == []
    assert debts
    assert told(debts, 11.0) == [("t", 1)]
    assert not debts
    assert told(debts, 12.0) == []


def test_debt_ends_with_what_it_is_about() -> None:
    """After one max_ttl there is nothing left to release."""
    debts = Debts()
    debts.owe(release("t", until=20.0), 0, now=10.0)

    assert told(debts, 20.0) == []
    assert not debts


def test_question_that_may_be_dropped_is_not_owed() -> None:
    """Only what insists is told again."""
    debts = Debts()

    debts.owe(release("t", until=0.0), 0, now=10.0)
    debts.owe(release("t", until=10.0), 0, now=10.0)

    assert not debts


def test_debt_is_owed_once() -> None:
    """The same release, failed again and again, does not pile up."""
    debts = Debts()
    for _ in range(3):
        debts.owe(release("t"), 0, now=10.0)
    debts.owe(release("u"), 0, now=10.0)

    assert told(debts, 10.0) == [("t", 0), ("u", 0)]


def test_debt_that_fails_again_is_told_twice_again() -> None:
    """A telling that did not get through was none."""
    debts = Debts()
    debts.owe(release("t"), 0, now=10.0)
    assert told(debts, 10.0) == [("t", 0)]
    debts.owe(release("t"), 0, now=10.5)

    assert told(debts, 10.6) == [("t", 0)]
    assert told(debts, 11.0) == []
    assert told(debts, 11.6) == [("t", 0)]
    assert not debts


def test_old_debts_are_dropped_when_new_ones_come() -> None:
    """A node that never comes back costs no memory."""
    debts = Debts()
    for number in range(100):
        debts.owe(release(f"t{number}", until=number + 2.0), 0, now=float(number))

    assert told(debts, 100.0) == [("t99", 0)]


def test_debt_is_told_as_a_new_question() -> None:
    """The votes on the one that failed stay as they are."""
    debts = Debts()
    question = release("t")
    question.fail(0, "is gone")
    question.fail(1, "is gone")
    debts.owe(question, 0, now=10.0)

    ((again, _),) = debts.due(10.0)

    assert again is not question
    assert again.call == question.call
    assert again.ballot.pending == 2
    assert again.packed() == question.packed()
    assert again.insist_until == question.insist_until


def test_debt_that_fails_while_debts_are_told() -> None:
    """The connection breaks in the middle: each is owed again, and none is lost."""
    debts = Debts()
    for token in "abc":
        debts.owe(release(token), 0, now=10.0)

    for question, node in debts.due(10.0):
        debts.owe(question, node, now=10.0)

    assert [token for token, _ in told(debts, 10.0)] == ["a", "b", "c"]


def test_debt_that_ends_while_debts_are_told() -> None:
    """Time goes on meanwhile: what has ended by then is dropped without ado."""
    debts = Debts()
    debts.owe(release("b", until=10.5), 0, now=10.0)
    debts.owe(release("a"), 0, now=10.0)
    debts.owe(release("c", until=10.5), 0, now=10.0)
    debts.owe(release("d", until=10.5), 0, now=10.0)

    for question, node in debts.due(10.4):
        debts.owe(question, node, now=10.6)

    assert [token for token, _ in told(debts, 10.7)] == ["a"]
