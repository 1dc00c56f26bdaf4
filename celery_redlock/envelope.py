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
``published`` µs since 1970 when the call was published first; a    publisher or
              call of which that is not known was when it came      main process
``next``      it has offered itself as the next to run: "latest"    the task
              or "first"; see ``buffering``
``events``    whether its worker sends events                       main process
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

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import new_base

__all__ = ["HEADER", "Envelope", "address", "clean", "stamp", "take_off"]

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
        published: Microseconds since 1970 when it was published first; 0: not known.
        next: Who stands before whom among those of whom it may be the next to run:
            ``"latest"`` or ``"first"``; ``""``: it has not offered itself.
        events: Whether its worker sends events about tasks.
    """

    base: str | None = None
    deferred: int = 0
    outages: int = 0
    twin: bool = False
    slot: str = ""
    published: int = 0
    next: str = ""
    events: bool = False

    def header(self) -> dict[str, dict[str, Any]]:
        """Return the header that carries this to the next copy, but for the base."""
        carried = {
            "deferred": self.deferred,
            "outages": self.outages,
            "twin": self.twin,
        }
        known = {"slot": self.slot, "published": self.published, "next": self.next}
        return {
            HEADER: carried | {name: value for name, value in known.items() if value}
        }


def address(request: MutableMapping[str, Any], *, events: bool = False) -> str:
    """Mint the base of an execution, in the main process, and write it down.

    Args:
        request: The headers of its message.
        events: Whether this worker sends events about tasks.
    """
    base, fields = new_base(), _fields(request)
    request[HEADER] = {
        **fields,
        "base": base,
        "boot": _BOOT,
        "published": _count(fields, "published") or SYSTEM_CLOCK.wall_us(),
        "events": events,
    }
    return base


def stamp(headers: Mapping[str, Any] | None, published: int = 0) -> dict[str, Any]:
    """Return headers that tell when the call was published, if they do not yet.

    Args:
        headers: Of the message that is about to be sent.
        published: When it was, where it was published before; now by default.
    """
    headers = {**(headers or {})}
    known = {"published": published or SYSTEM_CLOCK.wall_us()}
    headers[HEADER] = {**known, **_fields(headers)}
    return headers


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
        published=_count(fields, "published"),
        next=str(fields.get("next") or ""),
        events=fields.get("events") is True,
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
