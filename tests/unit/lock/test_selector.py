"""Which selector is used depends on what has replaced ``select`` in the process."""

from __future__ import annotations

import selectors
import sys
from types import ModuleType

import pytest

from celery_redlock.basics.selector import new_selector


@pytest.mark.parametrize("library", ["eventlet.patcher", "gevent.monkey"])
def test_library_that_is_just_being_imported_has_replaced_nothing(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has begun to import it, and its functions are not there yet."""
    monkeypatch.setitem(sys.modules, library, ModuleType(library))

    with new_selector() as selector:
        assert type(selector) is selectors.DefaultSelector
