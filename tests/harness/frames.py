"""Local variables of a traceback, as Sentry and rich show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import FrameType
from typing import Any

from rich.pretty import pretty_repr

_TESTS = Path(__file__).parents[1]
_DEPTH = 4


def locals_with(
    secret: str, error: BaseException, *, besides: Sequence[str] = ()
) -> list[str]:
    """Return the local variables of an error's frames that show a secret.

    The frames of the tests do not count: they have the secret.

    Args:
        secret: The text.
        error: The error. What it was raised from, or while, counts as tools print it.
        besides: Parts of paths of files that do not count.
    """
    found = []
    for frame in _frames(error):
        path = frame.f_code.co_filename
        if Path(path).is_relative_to(_TESTS) or any(part in path for part in besides):
            continue
        for name, value in frame.f_locals.items():
            if any(secret in text for text in _shown(value)):
                where = f"{'/'.join(Path(path).parts[-3:])}:{frame.f_lineno}"
                found.append(f"{where} {frame.f_code.co_name}: {name}")
    return found


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        step = error.__traceback__
        while step is not None:
            yield step.tb_frame
            step = step.tb_next
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)


def _shown(value: Any, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the texts in which tools show a value.

    All call `repr`. Sentry also goes through mappings and sequences, and rich through
    data classes, and cuts texts.
    """
    try:
        yield repr(value)
    except Exception:  # noqa: BLE001  (of an object that is half made: tools go on)
        return
    if depth == _DEPTH:
        yield pretty_repr(value, max_length=10, max_string=80, max_depth=_DEPTH)
    if not depth or isinstance(value, (str, bytes)):
        return
    if isinstance(value, Mapping):
        for name, item in list(value.items()):
            yield from _shown(name, depth - 1)
            yield from _shown(item, depth - 1)
    elif isinstance(value, (Sequence, AbstractSet)):
        for item in value:
            yield from _shown(item, depth - 1)
