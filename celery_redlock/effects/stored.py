"""Values in a column of text, as Celery's serializers write them.

Some serializers make bytes that are no text; those are stored in base64.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.serialization import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Collection

_BINARY = ("binary", "ascii-8bit")


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A serialized value.

    Attributes:
        text: The value; in base64 if its serializer makes no text.
        content_type: The serializer, as kombu knows it.
        content_encoding: The encoding of what the serializer made.
    """

    text: str
    content_type: str
    content_encoding: str

    @classmethod
    def of(cls, value: Any, serializer: str | None) -> StoredValue:
        """Serialize a value.

        Raises:
            kombu.exceptions.EncodeError: The serializer refuses it.
        """
        content_type, encoding, payload = dumps(  # type: ignore[no-untyped-call]
            value, serializer=serializer
        )
        if isinstance(payload, bytes):
            is_binary = encoding in _BINARY
            payload = (base64.b64encode(payload) if is_binary else payload).decode()
        return cls(payload, content_type, encoding)

    def load(self, accept: Collection[str] | None) -> Any:
        """Deserialize the value.

        Args:
            accept: The serializers that may be used, by name or content type.

        Raises:
            kombu.exceptions.ContentDisallowed: Its serializer is not among them.
        """
        payload: Any = self.text
        if self.content_encoding in _BINARY:
            payload = base64.b64decode(payload)
        return loads(  # type: ignore[no-untyped-call]
            payload, self.content_type, self.content_encoding, accept=accept
        )
