"""The signals that child processes inherit as ignored."""

from __future__ import annotations

import signal

_SENT_BY_TESTS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def handle_ignored_signals() -> None:
    """Replace ignored signals by handlers, which children do not inherit.

    A shell starts a background command with Ctrl-C ignored, and ``nohup`` ignores
    SIGHUP. Children inherit this, but tests end them by these signals. This process
    goes on as before; only Ctrl-C interrupts it, because tests press it here too.
    """
    for number in _SENT_BY_TESTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(
                number, signal.default_int_handler if is_ctrl_c else lambda *_: None
            )
