"""The pages of a long list of locks."""

from __future__ import annotations

import re

import pytest

from celery_redlock.locks.lease import Holder
from tests.web.conftest import Answer, Office

ROWS = 250


@pytest.fixture
def full(office: Office) -> Office:
    """Give a page of 250 locks, the first one the oldest."""
    for node in office.nodes.nodes:
        script = []
        for number in range(ROWS):
            holder = Holder("", task="proj.work", started=1_790_000_000.0 + number)
            value = (
                f"{number:032x}.{'0' * 16}\n{number}\n{holder.info(f'k:{number:03}')}"
            )
            script += [f"redlock:lock:k:{number:03}", value]
        node.command("MSET", *script)
    return office


def rows_of(answer: Answer) -> list[str]:
    """Return the keys on a page."""
    return re.findall(r'data-key="([^"]*)"', answer.body)


def test_pages_have_a_hundred_rows_and_lead_to_each_other(full: Office) -> None:
    """The oldest locks are on the first page; the links keep the search."""
    first, second, third = (
        full.get(f"/?q=k:*&page={number}") for number in ("", "2", "3")
    )

    assert [rows_of(page) for page in (first, second, third)] == [
        [f"k:{number:03}" for number in numbers]
        for numbers in (range(100), range(100, 200), range(200, 250))
    ]
    assert "Rows 101 to 200 of 250" in second.text
    links = re.findall(r'href="([^"]*page=[^"]*)"', second.body)
    assert links == 2 * ["/?q=k%3A%2A&amp;page=1", "/?q=k%3A%2A&amp;page=3"]
    assert "250 locks held whose key matches k:*, as seen on 3 of 3" in third.text


@pytest.mark.parametrize("number", ["0", "-1", "99", "x", "9" * 30, "²"])
def test_page_that_does_not_exist_is_the_nearest_one(full: Office, number: str) -> None:
    """Locks end between two clicks: there is no error and no empty page."""
    answer = full.get(f"/?page={number}")

    assert answer.status == 200
    assert len(rows_of(answer)) == (50 if number == "99" else 100)


def test_short_list_has_no_pages(office: Office) -> None:
    """One lock needs no links."""
    office.hold()

    answer = office.get()

    assert len(rows_of(answer)) == 1
    assert "Previous" not in answer.text
