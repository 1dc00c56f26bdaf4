"""What docs/duplicates.md shows is what the package takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from celery_redlock import options, singleton_task
from celery_redlock.errors import ConfigurationError
from celery_redlock.policies import ON_CONFLICT

if TYPE_CHECKING:
    from celery import Celery

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "duplicates.md").read_text("utf-8")
PICTURES = sorted((ROOT / "docs" / "pictures" / "duplicates").glob("*.svg"))
NAMED = sorted(set(re.findall(r"`@singleton_task\((.+?)\)`", PAGE)))


def test_blocks_of_the_page_run(app: Celery) -> None:
    """In their order, each with the names of those before it."""
    names: dict[str, Any] = {"app": app, "singleton_task": singleton_task}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    for block in blocks:
        exec(compile(block, "docs/duplicates.md", "exec"), names)  # noqa: S102  (ours)

    assert len(blocks) >= 4
    assert names["found"].would_run
    names["settle"].run(7)


@pytest.mark.parametrize("arguments", NAMED)
def test_decorators_of_the_page_are_accepted(app: Celery, arguments: str) -> None:
    """Each row that says what to write instead."""
    given = eval(f"dict({arguments})", {})  # noqa: S307  (text of this project)

    @singleton_task(app=app, **given)
    def task(a: int = 1) -> int:
        return a

    assert task.lock_key() == task.lock_key(1) == task.lock_key(a=1)


def test_page_has_a_picture_of_every_word() -> None:
    """Each policy and each phase, and no picture that is not shown."""
    shown = set(re.findall(r"\]\(pictures/duplicates/(\w+)\.svg\)", PAGE))
    phases = {"queued", "queued_or_running", "unique_for", "hold_at_least"}

    assert shown == {picture.stem for picture in PICTURES}
    assert shown == set(ON_CONFLICT.words) | phases


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_picture_is_for_light_and_dark_pages(picture: Path) -> None:
    """It brings its own ground, has colors for both, and says what it shows."""
    text = picture.read_text("utf-8")
    root = ET.fromstring(text)  # noqa: S314  (a file of this project)

    assert "prefers-color-scheme: dark" in text
    assert root.find("{*}rect[@class='card']") is not None
    assert root.findtext("{*}title")


@pytest.mark.parametrize(
    "given",
    [
        {"on_conflict": "buffer_one", "unique_while": "queued"},
        {"on_conflict": "buffer_one", "unique_while": "queued_or_running"},
        {"on_conflict": "cancel_running", "unique_while": "queued_or_running"},
        {"on_conflict": "wait", "unique_for": 1},
        {"on_conflict": "buffer_one", "unique_for": 1},
        {"on_conflict": "cancel_running", "unique_for": 1},
        {"on_conflict": "cancel_running", "renew": False},
        {"on_conflict": {"publish": "raise"}},
        {"claim_ttl": 1},
        {"wait_timeout": 1},
        {"retry_countdown": 1},
        {"buffer_keep": "first"},
        {"cancel_grace": 1},
    ],
    ids=str,
)
def test_what_the_page_calls_refused_is_refused(given: dict[str, Any]) -> None:
    """Its table of what does not go together, row by row."""
    with pytest.raises(ConfigurationError):
        options.LockOptions(**given)
