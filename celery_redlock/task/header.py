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
``again``        a result under its id is of an earlier call, or    the task
                 of the run that retries: it says nothing of this
``follows``      begins the tokens of the run that has sent this    the task
                 call under its own id: a retry, a replacement
``ended``        the call has ended, and is only to be counted in   the task
                 its chord
``slot``         the tick of a beat schedule that the call is for   beat
``published``    µs since 1970 when the call was published first,   publisher or
                 or else when it arrived; with ``in_order`` its     main process
                 number in the line, which may be later
``refused``      µs since 1970 when the call joined a backlog        the task
``next``         order of the successor register that the call has  the task
                 entered: "latest" or "first"
``events``       whether its worker sends events                    main process
``claim``        the key that its publisher has claimed for it      publisher
``waits``        what a refused call waits for: the text of its     the task
                 keys; the most, period and key of each limit;
                 whether it waits on after its countdown;
                 and the key in whose backlog it is
``line``         the key in whose line the call is since it was     publisher
                 published (``in_order``), and for how many
                 seconds its place lives
``serializer``   name of the serializer of its message, as kombu    main process
                 knows it
===============  =================================================  ============

Celery copies the headers of a message into its retries. The header is therefore
removed before user code runs: a base belongs to one execution. A child process
recognizes its own main process by 16 random bytes drawn before the fork and not by
a pid, because pids repeat in containers. (A child that was spawned has other bytes. It
mints a base of its own; if it is killed, its lock lasts for a ttl.)

Every client of the broker can write any header. `TaskHeader.read` checks each field
once: its type, its bounds, and that UTF-8 can carry its text. A header with one field
that fails is none: the call is then like one without a header. Fields with other names
are left out, and never sent on.
"""

from __future__ import annotations

import re
import secrets
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

from kombu.serialization import registry

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.text import is_encodable, is_line
from celery_redlock.line.backlog import MARGIN
from celery_redlock.locks.lease import new_base
from celery_redlock.locks.limits import MOST_PERMITS, Limit, Waits, Wanted
from celery_redlock.records.beat_slots import MOST_SLOT
from celery_redlock.scripts.keys import MOST, MOST_BYTES, is_permit, keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from celery.app.task import Context

HEADER = "redlock"
_PUBLISHED = "redlock_published"  # attribute of a request
_BOOT = secrets.token_hex(16)
_BASE = re.compile("[0-9a-f]{32}")
_FAMILY = re.compile("[0-9a-f]{16}")
_MOST_COUNT = 2**31 - 1
_MOST_LIMITS = 2 * MOST  # a number at once and a rate of each key
_MOST_US = 2**53  # µs since 1970: the year 2255, and the largest whole number of Lua


def _is_count(value: object, most: int = _MOST_COUNT) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_family(value: object) -> bool:
    return type(value) is str and (not value or bool(_FAMILY.fullmatch(value)))


_is_instant = partial(_is_count, most=_MOST_US)
_is_slot = partial(is_line, most=MOST_SLOT)


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_order(value: object) -> bool:
    return type(value) is str and value in ("", "latest", "first")


def _is_serializer(value: object) -> bool:
    return type(value) is str and (not value or value in registry.name_to_type)


def _is_key(value: object) -> bool:
    """Tell whether a value can be the text of one key or of several, one a line."""
    if type(value) is not str or len(value) > MOST_BYTES or not is_encodable(value):
        return False
    if len(value.encode()) > MOST_BYTES:
        return False
    return not any(map(is_permit, keys_of(value)))


def _is_limit(value: object) -> bool:
    match value:
        case [int() as most, int() | float() as period, str() as key]:
            is_right = 1 <= most <= MOST_PERMITS and 0 <= period <= _MOST_COUNT
            return is_right and type(most) is int and _is_key(key)
    return False


def _is_waits(value: object) -> bool:
    """Tell whether a value can be what a call waits for; see `waits_of`."""
    match value:
        case []:
            return True
        case [str() as key, [*limits], bool(), str() as backlog]:
            is_right = key != "" and len(limits) <= _MOST_LIMITS
            are_keys = _is_key(key) and _is_key(backlog)
            return is_right and are_keys and all(map(_is_limit, limits))
    return False


def _is_line(value: object) -> bool:
    match value:
        case []:
            return True
        case [str() as key, int() | float() as seconds]:
            return key != "" and _is_key(key) and 0 < seconds <= _MOST_COUNT
    return False


_OF_ONE_EXECUTION = ("base", "events", "serializer")


class TaskHeader(NamedTuple):
    """The fields of one header, as in the table above, each with its check.

    ``base`` is None if another main process minted it. Not known: ``published`` and
    ``refused`` are 0, ``slot``, ``next`` and ``serializer`` are ``""``; so are
    ``claim`` of a call without a claim, and ``follows`` of one that follows no run.
    """

    base: str | None = None
    deferred: Annotated[int, _is_count] = 0
    outages: Annotated[int, _is_count] = 0
    redelivered: Annotated[bool, _is_bool] = False
    met_copy: Annotated[bool, _is_bool] = False
    again: Annotated[bool, _is_bool] = False
    follows: Annotated[str, _is_family] = ""
    ended: Annotated[bool, _is_bool] = False
    slot: Annotated[str, _is_slot] = ""
    published: Annotated[int, _is_instant] = 0
    refused: Annotated[int, _is_instant] = 0
    next: Annotated[str, _is_order] = ""
    events: Annotated[bool, _is_bool] = False
    claim: Annotated[str, _is_key] = ""
    waits: Annotated[tuple[Any, ...], _is_waits] = ()
    line: Annotated[tuple[Any, ...], _is_line] = ()
    serializer: Annotated[str, _is_serializer] = ""

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> TaskHeader:
        """Read the header among those of a message, which any client may have written.

        It is empty, if there is none or one of its fields fails its check.
        """
        fields = _fields(headers)
        if not fields or fault_of(headers):
            return _NONE
        header = cls(**{name: fields[name] for name in _CHECKS if name in fields})
        if fields.get("boot") != _BOOT:
            return header
        base = fields.get("base")
        is_base = type(base) is str and _BASE.fullmatch(base)
        return header._replace(base=base if is_base else None)

    @property
    def wait(self) -> Waits | None:
        """The wait of a refused call; None if the header says nothing of one."""
        if not self.waits:
            return None
        key, limits, stays_after_countdown, backlog = self.waits
        wanted = tuple(Limit(one, most, float(period)) for most, period, one in limits)
        return Waits(
            Wanted(key, wanted, in_order=bool(self.line)),
            self.published,
            stays_after_countdown,
            backlog,
            float(self.line[1] if self.line else MARGIN),
        )

    @property
    def place(self) -> str:
        """The keys in whose backlogs the call may be, or ``""``."""
        if self.waits and self.waits[3]:
            return str(self.waits[0])
        return str(self.line[0]) if self.line else ""

    def for_next_copy(self) -> dict[str, dict[str, Any]]:
        """Return the headers of the next copy: all but what is of this execution."""
        fields = self._asdict().items()
        kept = {n: v for n, v in fields if v and n not in _OF_ONE_EXECUTION}
        return {HEADER: kept}


_CHECKS: dict[str, Callable[[object], bool]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(TaskHeader, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
_NONE = TaskHeader()


def fault_of(headers: Mapping[str, Any] | None) -> str:
    """Return why the header of a message counts as none, in a clause, or ``""``."""
    fields = (headers or {}).get(HEADER)
    if fields is None:
        return ""
    if not isinstance(fields, dict):
        return f"it is {type(fields).__name__} and not a dictionary"
    for name, is_right in _CHECKS.items():
        if name in fields and not is_right(fields[name]):
            return f"its field {name!r} has another type, or is out of bounds"
    return ""


def mint(
    request: MutableMapping[str, Any], content_type: str = "", *, events: bool = False
) -> str:
    """Mint the base of an execution, in the main process, and note it in the headers.

    The content type of the body says with which serializer it was sent. ``events``:
    this worker sends events about tasks.
    """
    base, header = new_base(), TaskHeader.read(request)
    published = header.published or round(SYSTEM_CLOCK.wall() * 1e6)
    request[HEADER] = {
        **{name: value for name, value in header._asdict().items() if value},
        "base": base,
        "boot": _BOOT,
        "published": published,
        "events": events,
        "serializer": registry.type_to_name.get(content_type, ""),
    }
    return base


def with_published(
    headers: Mapping[str, Any] | None, published: int = 0
) -> dict[str, Any]:
    """Return headers that say when the call was published first: now by default."""
    known = {"published": published or round(SYSTEM_CLOCK.wall() * 1e6)}
    return with_fields(headers, **known | _fields(headers))


def with_fields(headers: Mapping[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """Return headers with these fields in the header of this package."""
    headers = headers or {}
    return {**headers, HEADER: {**_fields(headers), **fields}}


def waits_of(
    wanted: Wanted, *, stays_after_countdown: bool = False, backlog: str = ""
) -> tuple[Any, ...]:
    """Return the field ``waits``, for what a call waits for."""
    limits = [[limit.most, limit.period, limit.key] for limit in wanted.limits]
    return (wanted.key, limits, stays_after_countdown, backlog)


def extract(request: Context) -> TaskHeader:
    """Remove the header from a ``task.request`` and return it."""
    fields = vars(request).pop(HEADER, None)
    headers = request.headers
    if headers and HEADER in headers:
        request.headers = without_header(headers)
    return TaskHeader.read({HEADER: fields})


def note_published_at(request: Context, published: int) -> None:
    """Note on a ``task.request`` without its header when the call was published."""
    vars(request)[_PUBLISHED] = published


def published_at(request: Context) -> int:
    """Return when the call of a ``task.request`` was published first; 0: not known."""
    known = vars(request)
    return int(known.get(_PUBLISHED) or TaskHeader.read(known).published)


def was_received(headers: Mapping[str, Any] | None) -> bool:
    """Tell whether headers have the one of a call that a worker has received.

    A hook of that call, such as ``before_start``, has passed its headers on.
    """
    return "boot" in _fields(headers)


def without_header(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without the one of this package."""
    return {name: value for name, value in headers.items() if name != HEADER}


def _fields(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    fields = (headers or {}).get(HEADER)
    return fields if isinstance(fields, dict) else {}
