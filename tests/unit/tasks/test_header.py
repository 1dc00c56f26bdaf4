"""The package's header: a child trusts its base, and copies carry the counts."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.task import Context

from celery_redlock.task.header import TaskHeader, clean, extract, mint


def test_child_believes_its_own_main_process() -> None:
    """The child reads the base that the main process minted for its execution."""
    request: dict[str, Any] = {"id": "x"}

    base = mint(request)

    assert extract(Context(request)).base == base


def test_base_is_new_for_each_message() -> None:
    """Minting replaces a base that was copied from another message."""
    request: dict[str, Any] = {"id": "x"}
    first = mint(request)

    second = mint(request)

    assert first != second
    assert extract(Context(request)).base == second


def test_base_of_another_boot_is_not_believed() -> None:
    """A base that another main process minted is ignored; the counts are kept."""
    request = {"redlock": {"base": "b" * 32, "boot": "another", "deferred": 2}}

    header = extract(Context(request))

    assert header == TaskHeader(base=None, deferred=2)


def test_counts_travel_with_the_next_copy() -> None:
    """The next copy has the counts, but not the base."""
    header = TaskHeader(base="b", deferred=2, outages=3, redelivered=True)

    request: dict[str, Any] = {"id": "x", **header.for_next_copy()}
    mint(request)

    again = extract(Context(request))
    assert (again.deferred, again.outages, again.redelivered) == (2, 3, True)
    assert again.base != "b"


def test_header_is_taken_off_the_request() -> None:
    """User code and Celery's retry find no header of the package to copy."""
    request: dict[str, Any] = {"id": "x", "mine": 1}
    mint(request)
    context = Context(request)

    extract(context)

    assert context.headers == {"mine": 1}
    assert "redlock" not in vars(context)
    assert "redlock" not in (Context(**vars(context)).headers or {})


@pytest.mark.parametrize(
    "junk", [None, 7, "text", [], {"deferred": "2"}, {"redelivered": 1}]
)
def test_junk_in_the_header_is_nothing(junk: object) -> None:
    """A malformed header is ignored and raises no error."""
    assert extract(Context({"redlock": junk})) == TaskHeader()


def test_request_without_headers_is_left_as_it_is() -> None:
    """An eager task has no headers."""
    context = Context({"id": "x", "headers": None})

    assert extract(context) == TaskHeader()


def test_clean_leaves_the_others() -> None:
    """Only the package's header is removed."""
    assert clean({"redlock": {}, "mine": 1}) == {"mine": 1}
