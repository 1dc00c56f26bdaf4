"""Constants for the tests of locked blocks."""

from __future__ import annotations

__all__ = ["FREE", "TTL"]

TTL = 10.0  # seconds
FREE = [""] * 3  # the holders on three nodes without the lock
