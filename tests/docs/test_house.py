"""Storeys, arrows and circles in a picture. `tests/test_docs.py` has that of ours."""

from __future__ import annotations

from pathlib import Path

from docs.contributing import draw_house


def make(package: Path, **modules: str) -> Path:
    """Make a package with these modules."""
    package.mkdir()
    for name, code in {"__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(code, encoding="utf-8")
    return package


def test_house_leaves_out_arrows_that_a_longer_way_replaces(tmp_path: Path) -> None:
    """An arrow over two storeys is not drawn where a third room is between."""
    package = make(
        tmp_path / "celery_redlock",
        a="from celery_redlock import b, c",
        b="from celery_redlock import c",
        c="",
    )

    picture = draw_house.picture(package)

    assert "a_ --> b_" in picture
    assert "b_ --> c_" in picture
    assert "a_ --> c_" not in picture
    assert draw_house.storeys(draw_house.imports(package)) == [["c"], ["b"], ["a"]]


def test_house_shows_a_circle(tmp_path: Path) -> None:
    """Rooms that import each other share a storey, and both arrows are drawn."""
    package = make(
        tmp_path / "celery_redlock",
        a="from celery_redlock import b",
        b="from celery_redlock import a",
    )

    picture = draw_house.picture(package)

    assert "a_ --> b_" in picture
    assert "b_ --> a_" in picture
    assert draw_house.storeys(draw_house.imports(package)) == [["a", "b"]]
