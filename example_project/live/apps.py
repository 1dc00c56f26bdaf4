"""The app of the live page."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["LiveConfig"]


class LiveConfig(AppConfig):
    """The live page."""

    name = "live"

    def ready(self) -> None:
        """Connect the receivers of the package's signals."""
        from live import receivers  # noqa: F401, PLC0415  (needs the models)
