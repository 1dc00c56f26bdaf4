"""The header of this package on a message: how it is written, read and removed.

One header, ``redlock``:

===============  =================================================  ============
field            meaning                                            written by
===============  =================================================  ============
``base``         first part of the token of this execution          main process
``boot``         names the main process that minted the base        main process
``deferred``     how often this call was republished for its lock   the task
``outages``      how often because too few nodes answered           the task
``redelivered``  another copy with this task id may run or have     the task
                 run
``met_copy``     another copy with this task id had the lock when   the task
                 this one was published
``ended``        the call has ended, and is only to be counted in   the task
                 its chord
``slot``         the tick of a beat schedule that the call is for   beat
``published``    µs since 1970 when the call was published first,   publisher or
                 or else when it arrived                            main process
``refused``      µs since 1970 when the call joined a backlog        the task
``next``         order of the successor register that the call has  the task
                 entered: "latest" or "first"
``events``       whether its worker sends events                    main process
``claim``        the key that its publisher has claimed for it      publisher
===============  =================================================  ============

Celery copies the headers of a message into its retries. The header is therefore
removed before user code runs: a base belongs to one execution. A child process
recognizes its own main process by 16 random bytes drawn before the fork and not by
a pid, because pids repeat in containers. (A child that was spawned has other bytes. It
mints a base of its own; if it is killed, its lock lasts for a ttl.)
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import new_base

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

__all__ = [
    "HEADER",
    "TaskHeader",
    "attach",
    "attach_claim",
    "claim_in",
    "clean",
    "extract",
    "has_ended_before",
    "mint",
]

HEADER = "redlock"
_BOOT = secrets.token_hex(16)
_CARRIED = frozenset(
    (
        *("deferred", "outages", "redelivered", "met_copy", "ended"),
        *("slot", "refused", "next", "claim"),
    )
)


class TaskHeader(NamedTuple):
    """The fields of one header, as in the table above.

    ``base`` is None if another main process minted it. Not known: ``published`` and
    ``refused`` are 0, ``slot`` and ``next`` are ``""``; so is ``claim`` of a call
    without a claim.
    """

    base: str | None = None
    deferred: int = 0
    outages: int = 0
    redelivered: bool = False
    met_copy: bool = False
    ended: bool = False
    slot: str = ""
    published: int = 0
    refused: int = 0
    next: str = ""
    events: bool = False
    claim: str = ""

    def for_next_copy(self) -> dict[str, dict[str, Any]]:
        """Return the headers of the next copy: all but what is of this execution."""
        fields, always = self._asdict(), ("deferred", "outages", "redelivered")
        carried = {name: fields[name] for name in always}
        others = ("met_copy", "ended", "slot", "published", "refused", "next", "claim")
        return {HEADER: carried | {n: fields[n] for n in others if fields[n]}}


def mint(request: MutableMapping[str, Any], *, events: bool = False) -> str:
    """Mint the base of an execution, in the main process, and note it in the headers.

    ``events`` says whether this worker sends events about tasks.
    """
    base, fields = new_base(), _fields(request)
    request[HEADER] = {
        **fields,
        "base": base,
        "boot": _BOOT,
        "published": _count(fields, "published") or round(SYSTEM_CLOCK.wall() * 1e6),
        "events": events,
    }
    return base


def attach(headers: Mapping[str, Any] | None, published: int = 0) -> dict[str, Any]:
    """Return headers that say when the call was published, if they do not yet.

    It was published now, unless ``published`` says when it was before.
    """
    headers = {**(headers or {})}
    known = {"published": published or round(SYSTEM_CLOCK.wall() * 1e6)}
    headers[HEADER] = {**known, **_fields(headers)}
    return headers


def attach_claim(headers: Mapping[str, Any] | None, key: str) -> dict[str, Any]:
    """Return headers that say which key was claimed for the call."""
    headers = headers or {}
    return {**headers, HEADER: {**_fields(headers), "claim": key}}


def claim_in(headers: Mapping[str, Any] | None) -> str:
    """Return the key that was claimed for the call, as its headers say, or ``""``."""
    return str(_fields(headers or {}).get("claim") or "")


def has_ended_before(headers: Mapping[str, Any] | None) -> bool:
    """Tell whether the call has ended, and is only to be counted in its chord."""
    return _fields(headers or {}).get("ended") is True


def extract(request: Any) -> TaskHeader:
    """Remove the header from a ``task.request`` and return it."""
    fields = vars(request).pop(HEADER, None)
    headers = request.headers
    if headers and HEADER in headers:
        request.headers = clean(headers)
    if not isinstance(fields, dict):
        return TaskHeader()
    minted = TaskHeader(
        base=fields.get("base") if fields.get("boot") == _BOOT else None,
        published=_count(fields, "published"),
        events=fields.get("events") is True,
    )
    if _CARRIED.isdisjoint(fields):
        return minted
    return minted._replace(
        deferred=_count(fields, "deferred"),
        outages=_count(fields, "outages"),
        redelivered=fields.get("redelivered") is True,
        met_copy=fields.get("met_copy") is True,
        ended=fields.get("ended") is True,
        slot=str(fields.get("slot") or ""),
        refused=_count(fields, "refused"),
        next=str(fields.get("next") or ""),
        claim=str(fields.get("claim") or ""),
    )


def clean(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without the one of this package."""
    others = dict(headers)
    others.pop(HEADER, None)
    return others


def _fields(request: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = request.get(HEADER)
    return fields if isinstance(fields, dict) else {}


def _count(fields: Mapping[str, Any], name: str) -> int:
    count = fields.get(name)
    return count if isinstance(count, int) and count > 0 else 0
