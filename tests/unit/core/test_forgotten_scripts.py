"""A node that forgot its scripts is taught them, and no command overtakes another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.scripts import INSPECT
from celery_redlock.core.wire import ErrorReply
from tests.unit.core.stage import Stage, release, said
from tests.unit.core.wires import Sock, commands, question

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock


NOSCRIPT = ErrorReply("NOSCRIPT No matching script. Please use EVAL.")


def test_forgotten_script_is_sent_with_its_source(stage: Stage, sock: Sock) -> None:
    """After a restart, or SCRIPT FLUSH: the question is answered all the same."""
    asked = question()
    stage.ask(asked)
    sock.replies(NOSCRIPT)
    stage.node.receive()
    assert said(asked) is None
    sock.replies([3])

    stage.node.receive()

    assert commands(sock.sent)[1][:2] == [b"EVAL", INSPECT.source.encode()]
    assert said(asked) == [3]


def test_forgotten_script_does_not_overtake_a_later_command(
    clock: FakeClock, stage: Stage, sock: Sock
) -> None:
    """An acquire that ran after its own release would lock for a whole ttl."""
    acquire, let_go = question(), release(clock)
    stage.ask(acquire)
    stage.ask(let_go)
    sock.replies(NOSCRIPT, 0)
    stage.node.receive()

    assert said(acquire) == "had forgotten its scripts"
    assert said(let_go) == 0
    *_, lesson = commands(sock.sent)
    assert lesson == [b"SCRIPT", b"LOAD", INSPECT.source.encode()]
    assert [command[0] for command in commands(sock.sent)].count(b"EVAL") == 1


def test_forgotten_script_may_overtake_commands_of_other_keys(
    stage: Stage, sock: Sock
) -> None:
    """They have nothing to do with each other."""
    first, second = question("a"), question("b")
    stage.ask(first)
    stage.ask(second)
    sock.replies(NOSCRIPT, [3], [2, b"t", 1])

    stage.node.receive()

    assert commands(sock.sent)[2][0] == b"EVAL"
    assert (said(first), said(second)) == ([2, b"t", 1], [3])


@pytest.mark.parametrize("outcome", [("OK",), ErrorReply("OOM"), NOSCRIPT, b"sha"])
def test_answer_to_a_lesson_is_nobodys(
    clock: FakeClock, stage: Stage, sock: Sock, outcome: Any
) -> None:
    """Whatever it is, it is not taken for that to the next question."""
    stage.ask(question())
    stage.ask(release(clock))
    sock.replies(NOSCRIPT, 0)
    stage.node.receive()
    after = question("z")
    stage.ask(after)

    sock.replies(outcome, [3])
    stage.node.receive()

    assert said(after) == [3]
    assert stage.node.facts
