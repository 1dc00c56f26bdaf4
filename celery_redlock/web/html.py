"""HTML that is safe by construction: a text is escaped unless it is `Html`."""

from __future__ import annotations

import html
from typing import Any

_VOID = {"br", "input", "link", "meta"}
# They would turn the rest of a sentence around: a key can have them.
_DIRECTIONS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "·")


class Html(str):
    """A text that is HTML. Templates of Django and Jinja do not escape it again."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text, as templates ask for it."""
        return str(self)


def join(*parts: Any) -> Html:
    """Return these parts one after the other, without those that are None."""
    return Html("".join(_escaped(part) for part in parts if part is not None))


def tag(name: str, /, *parts: Any, **attributes: Any) -> Html:
    """Return an element.

    Args:
        name: The name of the element.
        parts: Its content: texts, and other elements.
        attributes: An underscore at the end of a name is left out, and others are
            hyphens: ``class_``, ``data_label``. True is an attribute without a value;
            None and False are none.
    """
    words = [name]
    for given, value in attributes.items():
        attribute = given.removesuffix("_").replace("_", "-")
        if value is True:
            words.append(attribute)
        elif value is not None and value is not False:
            words.append(f'{attribute}="{html.escape(str(value))}"')
    head = f"<{' '.join(words)}>"
    return Html(head if name in _VOID else f"{head}{join(*parts)}</{name}>")


def _escaped(part: object) -> str:
    if isinstance(part, Html):
        return part
    return html.escape(str(part)).translate(_DIRECTIONS)
