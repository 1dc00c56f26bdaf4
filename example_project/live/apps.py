"""The app, and where it finds what it may break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from live.stage import Stage

__all__ = ["LiveConfig"]


class LiveConfig(AppConfig):
    """The live page.

    Attributes:
        stage: The processes that the page can stop and start: set by ``run.py``.
            Without it the page only watches.
    """

    name = "live"
    stage: Stage | None = None

    def ready(self) -> None:
        """Listen to what happens to locks."""
        from live import receivers  # noqa: F401, PLC0415  (needs the models)
