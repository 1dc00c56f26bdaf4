"""What tests of locked blocks compare with."""

from __future__ import annotations

__all__ = ["NOBODY", "TTL"]

TTL = 10.0  # seconds
NOBODY = [""] * 3  # the holders that three nodes name where there is none
