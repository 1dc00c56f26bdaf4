"""A URL that may hold a password, and what of it may be shown.

Tools such as Sentry and rich print the local variables of a traceback. So a URL that
may hold a password is hidden in an object as soon as this package gets it, and taken
out where a driver or a parser needs the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^\[\]:/?#%,]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*(?:[/?#]|$)")


class SecretUrl:
    """A URL whose repr and text show no password.

    It is no ``str``: tools print a text, or a part of it, without its ``repr``.
    """

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def reveal(self) -> str:
        """Return the URL as it was written."""
        return self._url

    @property
    def scheme(self) -> str:
        """The part before ``://``."""
        return self._url.partition("://")[0]

    def __str__(self) -> str:
        return mask_url(self._url)

    def __repr__(self) -> str:
        return repr(mask_url(self._url))

    def __bool__(self) -> bool:
        return bool(self._url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)


def hidden(nodes: Any) -> Any:
    """Return nodes, as they are given to this package, with their URLs hidden.

    Texts become `SecretUrl`, alone, in lists and as values of mappings; all else stays.
    Texts of Django's ``gettext_lazy`` are texts, too. Bytes become one that is no URL.
    A proxy of a lock service, such as a ``SimpleLazyObject``, is returned as it is,
    although its class has ``__iter__``. Assign the result to the argument that it came
    from, before anything can fail.
    """
    is_bytes = isinstance(nodes, (bytes, bytearray))
    if is_bytes or isinstance(nodes, str) or hasattr(nodes, "encode"):
        return SecretUrl(repr(nodes) if is_bytes else str(nodes))
    if isinstance(nodes, Mapping):
        # A URL in the place of a name is wrong, and only shown.
        return {mask_url(str(name)): hidden(value) for name, value in nodes.items()}
    if isinstance(nodes, (set, frozenset)):
        return {hidden(node) for node in nodes}
    if isinstance(nodes, Iterable):
        try:
            each = iter(nodes)
        except TypeError:  # a proxy of an object that cannot be iterated
            return nodes
        return [hidden(node) for node in each]
    return nodes


def mask_url(url: str) -> str:
    """Return the URL with everything that may be a credential replaced by ``***``.

    That is the part before the last ``@``, since a password that was not quoted may
    hold any character, and the values of all options except ``db``. Without an ``@`` it
    is all that follows the scheme, if a port is no number: a host may be missing.
    """
    if re.match(r"\s*\w+\s*=", url):  # libpq's keywords: a value may hold blanks
        return "***"
    scheme, _, rest = url.partition("://")
    if "@" not in rest and not _HOSTS.match(rest):
        return f"{scheme}://***"
    masked = re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"([?&](?!db=)[^=&]*=)[^&]*", r"\1***", masked)
