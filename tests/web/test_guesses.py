"""Wrong tokens: how many a client may try, and all clients together."""

from __future__ import annotations

from celery_redlock.testing.clock import FakeClock
from celery_redlock.web.guesses import AT_ONCE, EVERY, Guesses


def test_client_has_some_tries_and_then_one_in_a_while() -> None:
    """The wait ends when a try has come back."""
    clock = FakeClock()
    guesses = Guesses(clock)
    assert [guesses.take("10.0.0.1") for _ in range(AT_ONCE)] == [0] * AT_ONCE

    left = guesses.take("10.0.0.1")

    assert 0 < left <= EVERY
    assert guesses.take("10.0.0.2") == 0
    clock.advance(left)
    assert guesses.take("10.0.0.1") == 0
    assert guesses.take("10.0.0.1") > 0


def test_right_token_takes_no_try() -> None:
    """An operator may release many locks."""
    guesses = Guesses(FakeClock())
    for _ in range(100):
        assert guesses.take("10.0.0.1") == 0
        guesses.give_back("10.0.0.1")


def test_addresses_of_one_network_are_one_client() -> None:
    """A machine has all addresses of its network."""
    guesses = Guesses(FakeClock())
    for number in range(AT_ONCE):
        assert guesses.take(f"2001:db8::{number}") == 0

    assert guesses.take("2001:db8::ffff") > 0
    assert guesses.take("2001:db8:0:1::1") == 0


def test_all_clients_together_have_a_bound() -> None:
    """Many clients cannot guess faster than ten."""
    guesses = Guesses(FakeClock())

    tried = [guesses.take(f"10.0.{n // 250}.{n % 250}") == 0 for n in range(5000)]

    assert sum(tried) == 10 * AT_ONCE
