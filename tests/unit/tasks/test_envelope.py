"""What we write on a message is believed by whom it is for, and goes no further."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.task import Context

from celery_redlock.envelope import Envelope, address, clean, take_off


def test_child_believes_its_own_main_process() -> None:
    """The base that was minted for an execution is the one it locks with."""
    request: dict[str, Any] = {"id": "x"}

    base = address(request)

    assert take_off(Context(request)).base == base


def test_base_is_new_for_each_message() -> None:
    """Also when a header was copied from another one."""
    request: dict[str, Any] = {"id": "x"}
    first = address(request)

    second = address(request)

    assert first != second
    assert take_off(Context(request)).base == second


def test_base_of_another_boot_is_not_believed() -> None:
    """A header that was copied here names somebody else's execution."""
    request = {"redlock": {"base": "b" * 32, "boot": "another", "deferred": 2}}

    envelope = take_off(Context(request))

    assert envelope == Envelope(base=None, deferred=2)


def test_counts_travel_with_the_next_copy() -> None:
    """The base does not."""
    envelope = Envelope(base="b", deferred=2, outages=3, twin=True)

    request: dict[str, Any] = {"id": "x", **envelope.header()}
    address(request)

    again = take_off(Context(request))
    assert (again.deferred, again.outages, again.twin) == (2, 3, True)
    assert again.base != "b"


def test_header_is_taken_off_the_request() -> None:
    """User code, and Celery's retry, find nothing of ours to copy."""
    request: dict[str, Any] = {"id": "x", "mine": 1}
    address(request)
    context = Context(request)

    take_off(context)

    assert context.headers == {"mine": 1}
    assert "redlock" not in vars(context)
    assert "redlock" not in (Context(**vars(context)).headers or {})


@pytest.mark.parametrize("junk", [None, 7, "text", [], {"deferred": "2"}, {"twin": 1}])
def test_junk_in_the_header_is_nothing(junk: object) -> None:
    """Whoever writes our header by hand is not believed, and breaks nothing."""
    assert take_off(Context({"redlock": junk})) == Envelope()


def test_request_without_headers_is_left_as_it_is() -> None:
    """An eager task has none."""
    context = Context({"id": "x", "headers": None})

    assert take_off(context) == Envelope()


def test_clean_leaves_the_others() -> None:
    """Only ours is removed."""
    assert clean({"redlock": {}, "mine": 1}) == {"mine": 1}
