"""What we write on a message, and how it is read and taken off again.

One header, ``redlock``:

============  ====================================================  ============
field         meaning                                               written by
============  ====================================================  ============
``base``      first part of the token of this execution             main process
``boot``      which main process; a child believes only its own     main process
``deferred``  how often this call was put back for its lock         the task
``outages``   how often because too few nodes answered              the task
``twin``      another copy with this task id may run or have run    the task
``slot``      the slot of a beat schedule that the call is for      beat
============  ====================================================  ============

Celery copies the headers of a message into its retries, so ours are taken off
before user code runs: a base belongs to one execution. A child tells its own
main process by 16 random bytes made before the fork, not by a pid: pids repeat
in containers. (A child that was spawned instead cannot tell. It mints a base of
its own, and if it is killed its lock lasts for a ttl.)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from celery_redlock.core.lease import new_base

__all__ = ["HEADER", "Envelope", "address", "clean", "take_off"]

HEADER = "redlock"
_BOOT = secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What one message says to us.

    Attributes:
        base: The base that the main process minted for this execution, or None.
        deferred: How often the call was put back because of its lock.
        outages: How often because too few nodes answered.
        twin: Whether another copy with this task id may run or have run.
        slot: The slot of a beat schedule that the call is for; see ``slots``.
    """

    base: str | None = None
    deferred: int = 0
    outages: int = 0
    twin: bool = False
    slot: str = ""

    def header(self) -> dict[str, dict[str, Any]]:
        """Return the header that carries this, without the base, to the next copy."""
        carried = {
            "deferred": self.deferred,
            "outages": self.outages,
            "twin": self.twin,
        }
        return {HEADER: {**carried, "slot": self.slot} if self.slot else carried}


def address(request: MutableMapping[str, Any]) -> str:
    """Mint the base of an execution, in the main process, and write it down."""
    base = new_base()
    request[HEADER] = {**_fields(request), "base": base, "boot": _BOOT}
    return base


def take_off(request: Any) -> Envelope:
    """Read the envelope of a ``task.request`` and remove it, so that none copies it."""
    fields = _fields(vars(request))
    vars(request).pop(HEADER, None)
    if request.headers:
        request.headers = clean(request.headers)
    return Envelope(
        base=fields.get("base") if fields.get("boot") == _BOOT else None,
        deferred=_count(fields, "deferred"),
        outages=_count(fields, "outages"),
        twin=fields.get("twin") is True,
        slot=str(fields.get("slot") or ""),
    )


def clean(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without ours."""
    return {name: value for name, value in headers.items() if name != HEADER}


def _fields(request: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = request.get(HEADER)
    return fields if isinstance(fields, Mapping) else {}


def _count(fields: Mapping[str, Any], name: str) -> int:
    count = fields.get(name)
    return count if isinstance(count, int) and count > 0 else 0
