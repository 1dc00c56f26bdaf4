"""Values in a column of text, as Celery's serializers write them.

Some serializers make bytes that are no text; those are stored in base64.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from kombu.serialization import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Collection

MOST_NAMED = 255
"""The characters of the longest id, or name of a task, that the tables store."""

_BINARY = ("binary", "ascii-8bit")


def stored(value: object, serializer: str | None) -> tuple[str, str, str]:
    """Return the text of a value, its content type and encoding; or EncodeError."""
    content_type, encoding, payload = dumps(  # type: ignore[no-untyped-call]
        value, serializer=serializer
    )
    if isinstance(payload, bytes):
        is_binary = encoding in _BINARY
        payload = (base64.b64encode(payload) if is_binary else payload).decode()
    return payload, content_type, encoding


def loaded(
    text: str, content_type: str, encoding: str, accept: Collection[str] | None
) -> Any:
    """Return a value that was stored in this form, by one of these serializers.

    Raises:
        kombu.exceptions.ContentDisallowed: It was stored by another one.
    """
    payload: Any = base64.b64decode(text) if encoding in _BINARY else text
    return loads(  # type: ignore[no-untyped-call]
        payload, content_type, encoding, accept=accept
    )
