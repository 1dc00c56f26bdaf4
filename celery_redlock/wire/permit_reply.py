"""The answer of a node about permits, as ``scripts/shared/permits.lua`` writes it.

The last item of such a reply is one text for all limits: of each permit in turn the
last characters of its holder's token, and of a permit for a start its ttl_ms, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.scripts import GRANTED, TAKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_FREE = b"--------"  # in place of a holder
_HOLDER, _TTL = 8, 12  # bytes


class PermitReply(NamedTuple):
    """The answer of one node about the permits of one limit.

    Attributes:
        text: The part of the text for this limit.
        has_ttls: Whether the text has ttls.
        first_end_ms: The ms until the first permit ends if it is not renewed; -1: a
            permit is free, or the node was not asked.
    """

    text: bytes
    has_ttls: bool
    first_end_ms: int = -1

    @property
    def is_full(self) -> bool:
        """Whether each permit has a holder."""
        return _FREE not in self.text

    def holder(self, number: int) -> bytes:
        """Return the end of the token of a permit's holder; ``b""`` for a free one.

        Args:
            number: The number of the permit, counted from 1.
        """
        at = (number - 1) * _width(self.has_ttls)
        holder = self.text[at : at + _HOLDER]
        return b"" if holder == _FREE else holder

    def ttl_ms(self, number: int) -> int:
        """Return for how many ms a permit for a start is kept; 0 for a free one."""
        at = number * _width(self.has_ttls)
        return int(self.text[at - _TTL : at])


def permit_replies(
    replies: Iterable[Any], shapes: Sequence[tuple[int, bool]]
) -> list[list[PermitReply]]:
    """Return the replies about permits, each as one `PermitReply` for each limit.

    Args:
        replies: The replies of nodes; errors and other replies are left out.
        shapes: The number of permits of each limit, and whether the text has ttls.
    """
    found = []
    for reply in replies:
        if not isinstance(reply, list) or reply[0] not in (TAKEN, GRANTED):
            continue
        if not isinstance(text := reply[-1], bytes):
            continue
        ends = reply[2:-1] if reply[0] == GRANTED else []
        parts, at = [], 0
        for place, (most, has_ttls) in enumerate(shapes):
            end = at + most * _width(has_ttls)
            first_end_ms = ends[place] if ends else -1
            parts.append(PermitReply(text[at:end], has_ttls, first_end_ms))
            at = end
        found.append(parts)
    return found


def _width(has_ttls: bool) -> int:  # noqa: FBT001  (as in a `PermitReply`)
    """Return the number of bytes for one permit."""
    return _HOLDER + _TTL if has_ttls else _HOLDER
