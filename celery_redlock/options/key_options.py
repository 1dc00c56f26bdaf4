"""Options of the key: which calls are the same, and how many of them may run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.limits import limit_of, mosts_of, rate_of
from celery_redlock.options.call_key import KeyTemplate

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The options that say which calls are the same.

    Raises:
        ConfigurationError: From ``check``: a value cannot be used, or two do not go
            together.
    """

    key: str | Callable[..., str] | None = None
    keys: Sequence[str] | Mapping[str, int] | None = None
    unique_on: Sequence[str] | None = None

    def check(self) -> None:
        """Refuse values that cannot be used."""
        if isinstance(self.key, str):
            KeyTemplate(self.key)
        elif self.key is not None and not callable(self.key):
            raise ConfigurationError(
                f"key is {self.key!r}; it must be a template such as "
                "'invoice:{invoice_id}' or a callable that returns the key."
            )
        names = self.unique_on if isinstance(self.unique_on, (list, tuple)) else [None]
        if self.unique_on is not None and not all(isinstance(n, str) for n in names):
            raise ConfigurationError(
                f"unique_on is {self.unique_on!r}; it must be a list of argument names "
                'such as ["user_id"].'
            )
        if self.unique_on is not None and self.key is not None:
            raise ConfigurationError(
                "key and unique_on both say which calls are the same. Leave one out."
            )
        if self.keys is not None:
            self._check_keys()

    def _check_keys(self) -> None:
        texts = self.keys if isinstance(self.keys, (list, tuple, Mapping)) else ()
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigurationError(
                f"keys is {self.keys!r}; it must be a list of templates such as "
                '["account:{source}", "account:{target}"], or a mapping of templates '
                'to limits such as {"tenant:{tenant}": 1, "imports": 10}.'
            )
        for text in texts:
            KeyTemplate(text)
        for other in ("key", "unique_on"):
            if getattr(self, other) is not None:
                raise ConfigurationError(
                    f"keys and {other} both say what a call locks. Leave one out."
                )


@dataclass(frozen=True, kw_only=True)
class LimitOptions(KeyOptions):
    """The options that say how many calls may have a key at once, or start."""

    limit: int | None = None
    rate: str | tuple[int, float | timedelta] | None = None

    def check(self) -> None:
        """Refuse values that cannot be used."""
        super().check()
        if self.limit is not None:
            limit_of("limit", self.limit)
            if self.keys is not None:
                with_limits = dict.fromkeys(self.keys, self.limit)
                raise ConfigurationError(
                    "limit is for one key. With keys, write the limit of each of them: "
                    f"keys={with_limits}."
                )
        if isinstance(self.keys, Mapping):
            for text, most in self.keys.items():
                limit_of(f"The limit of the key {text!r}", most)
        if self.rate is not None:
            rate_of(self.rate)

    @property
    def mosts(self) -> dict[str, int]:
        """The number of calls that may have each key at once, by its text."""
        return mosts_of(self.keys, self.limit, self.rate)

    @property
    def most_at_once(self) -> int:
        """The greatest number of calls that may have a key of the task at once."""
        return max(self.mosts.values())

    @property
    def has_permits(self) -> bool:
        """Whether several calls may have a key, or its starts are counted."""
        return self.most_at_once > 1 or self.rate is not None

    @property
    def is_limited(self) -> bool:
        """Whether a limit or a rate was written, also a limit of 1."""
        return self.limit is not None or self.has_permits

    @property
    def knows_one_running_call(self) -> bool:
        """Whether one call at most keeps another one from running."""
        return self.keys is None and not self.has_permits

    @property
    def several(self) -> str:
        """The option by which several calls may have a key, as it was written."""
        names = ("keys", "limit", "rate") if self.most_at_once > 1 else ("rate",)
        name = next(name for name in names if getattr(self, name) is not None)
        return f"{name}={getattr(self, name)!r}"
