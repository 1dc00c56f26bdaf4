"""The plugin that keeps the tests of a mutant short."""

from __future__ import annotations

import signal

import pytest

from tests.mutation import selection


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_CPU_SECONDS", 0.05)
    monkeypatch.delenv(selection.WITH_SERVERS, raising=False)


def test_loop_without_an_end_fails() -> None:
    """A mutant that never is done keeps no other one from being judged."""

    def loop() -> None:
        with selection.limited():
            while True:
                pass

    with pytest.raises(pytest.fail.Exception, match=r"0.05 s of the processor"):
        loop()


def test_time_of_the_processor_is_not_limited_afterwards() -> None:
    """The next test begins with all of it."""
    with selection.limited():
        pass

    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
