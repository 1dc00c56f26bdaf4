"""The key of a task call: the name that it locks.

Two calls are the same when they name the same task and their arguments have the same
*wire form*: the JSON that kombu writes for them, after they are bound to the task's
signature. So a publisher with Python objects and a worker with decoded JSON compute the
same key. An argument that is equal to its default does not count, so that old and new
workers compute the same key when a task gets one more argument with a default.

============================================  ===============================
``f(1)``, ``f(a=1)``, ``f(1, b=<default>)``   one call; the default does not count
``(1, 2)``, ``[1, 2]``                        one call: JSON has only lists
``{1: "x"}``, ``{"1": "x"}``, any key order   one call: JSON keys are text
``1``, ``"1"``, ``1.0``, ``True``             four calls: four texts
``0.0``, ``-0.0``                             two calls; every NaN is one
``date``, ``datetime``, ``UUID``, ``Decimal`` by kombu's text, with their type
dataclass, pydantic model                     by their fields: JSON has no classes
set, enum member                              sorted members, the value
============================================  ===============================

A key is made in one of three ways: as a hash of the arguments (all, or those in
``unique_on``; they may be private, so the key does not show them), by a template, or
by a callable that returns it. The latter two get the defaults, too. Several templates
(``keys``) make several keys, which are taken together. Where a key may have several
holders, or starts are counted, the limits are made with the key: ``wanted_by``.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import hashlib
import inspect
import json
import re
import string
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils import json as kombu_json

from celery_redlock.basics.signature import hidden_parameters, signature_of
from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.errors import ConfigurationError, FingerprintError
from celery_redlock.locks.limits import rate_of, wanted
from celery_redlock.scripts.keys import fault_of, is_permit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_redlock.locks.limits import Limits

_LONGEST_KEY = 512  # characters
_HASH_BYTES = 16
_SHORT = 64  # bits
_HEADERS = "headers"  # the argument by which a key function asks for them
_FIELD = re.compile(r"([^\W\d]\w*)((?:\.\w+|\[[^\[\]]+\])*)")
_STEP = re.compile(r"[^.\[\]]+")
_NOT_REDUCIBLE = (TypeError, ValueError, RecursionError, ArithmeticError)
_KOMBU: Any = kombu_json  # has no types
_KOMBU_ENCODER = _KOMBU.JSONEncoder()
_canonical = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    check_circular=False,  # it gets wire forms only, which are trees
).encode
_P = inspect.Parameter
_OF_CATCH_ALL = {_P.VAR_POSITIONAL: "[]", _P.VAR_KEYWORD: "{}"}


class KeyRule:
    """The rule by which the calls of one task get their keys; checked when it is made.

    A ``key`` that is a callable gets the bound arguments that it names, as a worker
    sees them: a tuple as a list, and an object that JSON cannot carry as it is. If it
    names ``headers``, which the task does not take, it gets those of the message. It
    gets all by name: ``*args`` of its own would be empty for each call.

    Args:
        task: Name of the task, in front of a hashed key and in errors.
        signature: The task's parameters, without ``self``.
        options: The `LimitOptions` of the task, which are checked.
        hidden: The parameters of its function that a decorator around it does not have,
            each with the name of the wrapper.
        positional: Names of the arguments by position, where that decorator takes any;
            a hash of all arguments counts these by name.

    Raises:
        ConfigurationError: The rule names an argument that the task does not have,
            or the default of an argument that counts cannot be part of a key.
    """

    def __init__(
        self,
        task: str,
        signature: inspect.Signature,
        options: Any,
        hidden: Mapping[str, str] | None = None,
        positional: Sequence[str] = (),
    ) -> None:
        key, keys, unique_on = options.key, options.keys, options.unique_on
        self.task = task
        bare = [p.replace(annotation=_P.empty) for p in signature.parameters.values()]
        self.signature = inspect.Signature(bare)  # errors show it
        texts = [key] if isinstance(key, str) else [*(keys or ())]
        self._templates = tuple(map(KeyTemplate, texts))
        self.key: Callable[..., str] | None = None  # None: a hash
        self._hidden = hidden or {}
        self._by_position: dict[str, Any] = {}  # of a key function, with defaults
        self.wants_headers = False  # of the message
        kinds = {p.kind: name for name, p in signature.parameters.items()}
        self._rest = kinds.get(_P.VAR_KEYWORD)
        self._form: Callable[[Any], Any] = _wire_form
        self._names, self._needed, what = unique_on, unique_on or (), "unique_on"
        if self._templates:
            self.key, self._form = self._templates[0], _decoded_form
            names = [name for one in self._templates for name in one.names]
            self._names = self._needed = tuple(dict.fromkeys(names))
        elif callable(key):
            self.key, self._form = key, _as_a_worker_sees
            what, taken = "The key function", _Taken.by(key, self.signature)
            self._names, self._needed, self._by_position, self.wants_headers = taken
        elif unique_on is None:
            self._needed = tuple(signature.parameters)
        is_of_all = key is keys is unique_on is None
        self._positional = tuple(positional) if is_of_all else ()
        self._defaults: dict[str, Any] = {}
        self._wire_defaults: dict[str, str] = {}
        if self.key is None:
            for name, parameter in signature.parameters.items():
                self._defaults[name] = parameter.default
                if parameter.kind in _OF_CATCH_ALL:
                    self._wire_defaults[name] = _OF_CATCH_ALL[parameter.kind]
        self._check_names(what, are_several=keys is not None)
        rate = options.rate
        self._limit, self._rate = options.limit, rate and rate_of(rate)
        self._mosts: dict[str, int] = options.mosts
        self._takes_several, self._has_limits = keys is not None, options.has_permits

    def __repr__(self) -> str:
        """Return all on which the keys depend. The doctor compares it among workers."""
        texts = [one.text for one in self._templates]
        key: Any = texts[0] if len(texts) == 1 else None if texts else self.key
        unique_on = None if texts or key else self._names
        rule = {
            "key": key,
            "keys": texts if texts[1:] else None,
            "unique_on": unique_on,
            "positional": self._positional or None,
        }
        given = [f", {n}={v!r}" for n, v in rule.items() if v is not None]
        return f"<KeyRule {self.task}{self.signature}{''.join(given)}>"

    def of_task(self, name: str) -> KeyRule:
        """Return the same rule for a task with another name."""
        other = copy.copy(self)
        other.task = name
        return other

    def key_of(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        **how: Any,
    ) -> str:
        """Return the key of a call; see ``wanted_by``."""
        return self.wanted_by(args, kwargs, **how)[0]

    def wanted_by(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        *,
        headers: Mapping[str, Any] | None = None,
        may_have_more: bool = False,
    ) -> tuple[str, Limits]:
        """Return the key of a call, and the limits of the permits that it needs.

        A key has at most 512 characters: a longer text is cut and ends in a hash of the
        whole text. Several keys are one text, as ``scripts.keys.key_of`` makes it.

        There are no limits where each key has one holder at a time, and starts are not
        counted. If two templates make the same key, the lesser of their limits counts.

        Args:
            args: Its arguments by position.
            kwargs: Its arguments by name.
            headers: The headers of its message that the project has set; empty where
                there is no message. A key function gets them as ``headers``.
            may_have_more: Whether names that the task does not take are left out of
                the key, and are no error: a base class or a signal may add a keyword
                to each message, and remove it before the body.

        Raises:
            FingerprintError: The arguments do not fit the task, an argument that
                counts has no wire form, or the result cannot be a key.
        """
        values = self._values(args or (), kwargs or {}, may_have_more=may_have_more)
        if self._takes_several:
            mosts: dict[str, int] = {}
            for one in self._templates:
                key, most = self._short(one(**values)), self._most_of(one)
                mosts[key] = min(most, mosts.get(key, most))
            try:
                return wanted(mosts, rate=self._rate)
            except ConfigurationError as error:
                raise FingerprintError(
                    f"The keys of this call of {self.task} cannot be used: {error} "
                    "Nothing was sent or locked."
                ) from None
        if self.key is None:
            key = f"{self.task}:{_hash(_canonical(self._without_defaults(values)))}"
        else:
            if self.wants_headers:
                values[_HEADERS] = MappingProxyType(dict(headers or {}))
            first = [values.pop(n, default) for n, default in self._by_position.items()]
            key = self.key(*first, **values)
        key = self._short(key)
        return wanted(key, self._limit, self._rate) if self._has_limits else (key, ())

    def limited_keys(self) -> list[LimitedKey]:
        """Return the templates of the keys that may have several holders, or a rate.

        Keys that a callable makes have no template, and are none of these.
        """
        if not self._has_limits:
            return []
        found = [
            LimitedKey(one.text, one.pattern, () if one.names else self._limits_of(one))
            for one in self._templates
            if self._most_of(one) > 1 or self._rate
        ]
        if self.key is None:
            hashed = re.compile(re.escape(f"{self.task}:") + "[0-9a-f]+")
            found = [LimitedKey(self.task, hashed, ())]
        return found

    def _most_of(self, template: KeyTemplate) -> int:
        """Return how many calls may have the key of a template at once."""
        return self._mosts[template.text if self._takes_several else ""]

    def _limits_of(self, template: KeyTemplate) -> Limits:
        """Return the limits of a key that is the same for all calls."""
        key = self._short(template())
        return wanted(key, self._most_of(template), self._rate)[1]

    def _values(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, may_have_more: bool
    ) -> dict[str, Any]:
        """Return the arguments of the key, in their key form."""
        arguments = self._bound(args, kwargs, may_have_more=may_have_more)
        names = arguments if self._names is None else self._names
        # A default that was not given is the very object: a body may have changed it.
        return {
            name: self._reduced(name, arguments[name])
            for name in names
            if name in arguments and arguments[name] is not self._defaults.get(name, _P)
        }

    def _short(self, key: str) -> str:
        """Return a checked key, cut to the greatest length.

        A hash at its end also tells it from the name of a permit of another key.
        """
        if fault := fault_of(key):
            raise FingerprintError(
                f"The key {key!r:.200} of this call of {self.task} cannot be used: "
                f"{fault}. Nothing was sent or locked; make the key of printable text."
            )
        cut = key[: _LONGEST_KEY - 2 * _HASH_BYTES - 1]
        is_right = len(key) <= _LONGEST_KEY and not is_permit(key)
        return key if is_right else f"{cut}~{_hash(key)}"

    def _bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, may_have_more: bool
    ) -> dict[str, Any]:
        if may_have_more and not self._rest:
            kwargs = {n: v for n, v in kwargs.items() if n in self.signature.parameters}
        if len(args) <= len(self._positional):
            named = dict(zip(self._positional, args, strict=False))
            if named.keys().isdisjoint(kwargs):
                args, kwargs = (), {**named, **kwargs}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise FingerprintError(
                f"{self.task}{self.signature} cannot be called like this: {error}. "
                f"Nothing was sent or locked; {self._remedy(args, kwargs)}."
            ) from None
        bound.apply_defaults()
        arguments = bound.arguments
        if self._rest and self._names is not None:
            arguments = {**arguments[self._rest], **arguments}
        elif self._rest and self.key is not None:
            arguments = {**arguments.pop(self._rest), **arguments}
        if missing := [name for name in self._needed if name not in arguments]:
            raise FingerprintError(
                f"This call of {self.task} has no argument {missing[0]!r}, which its "
                "key is made of. Nothing was sent or locked; pass it."
            )
        return arguments

    def _remedy(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return what to do about arguments that do not fit."""
        if next(iter(self.signature.parameters), "") == "self":
            with suppress(TypeError):
                self.signature.bind(None, *args, **kwargs)
                return (
                    "the first parameter is self, and bind=True is missing: add it to "
                    "the decorator"
                )
        return "correct the call"

    def _without_defaults(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the wire forms of the arguments that differ from their defaults."""
        known = self._wire_defaults
        return {
            name: value
            for name, value in values.items()
            if name not in known or _canonical(value) != known[name]
        }

    def _reduced(self, name: str, value: Any) -> Any:
        try:
            return self._form(value)
        except _NOT_REDUCIBLE as error:
            raise FingerprintError(
                f"Argument {name!r} of {self.task} ({_type_name(value)}) cannot be "
                f"part of a key: {error}. Nothing was sent or locked. Leave it out "
                "with unique_on=[...], or let a function name the call: "
                f"key=lambda {name}: ...."
            ) from error

    def _check_names(self, what: str, *, are_several: bool) -> None:
        if not self._templates:
            for name in self._needed:
                self._check(what, name)
        for text, names in ((one.text, one.names) for one in self._templates):
            for name in names:
                self._check(f"The key {text!r}", name)
            # The bare name of an argument, as celery-once has it in its ``keys``.
            if are_several and text in self.signature.parameters:
                raise ConfigurationError(
                    f"The key {text!r} is the same for all calls of {self.task}, and "
                    f"has the name of an argument. Write '{{{text}}}', or, to hash "
                    "arguments, unique_on=[...]."
                )

    def _check(self, what: str, name: str) -> None:
        parameters = self.signature.parameters
        if name in self._hidden:
            wrapper = self._hidden[name]
            raise ConfigurationError(
                f"{what} names the argument {name!r} of {self.task}. The decorator "
                f"around its function hides it: Celery calls {wrapper}"
                f"{self.signature}. If that passes its arguments on as they are, add "
                "wrapper.__signature__ = inspect.signature(function). If not, write "
                "the arguments of the task into its own signature."
            )
        if name not in parameters:
            if self._rest:
                return
            raise ConfigurationError(
                f"{what} names the argument {name!r}, which {self.task}"
                f"{self.signature} does not have. {did_you_mean(name, parameters)}"
            )
        default = parameters[name].default
        # A lazy translation must not be evaluated while Django is starting.
        if default is _P.empty or isinstance(default, _KOMBU.textual_types):
            return
        try:
            wire_form = self._reduced(name, default)
        except FingerprintError as error:
            raise ConfigurationError(f"The default cannot be used: {error}") from error
        if self.key is None:
            self._wire_defaults[name] = _canonical(wire_form)


class LimitedKey(NamedTuple):
    """Keys of a task that have a limit or a rate.

    Attributes:
        label: Their template; of hashed keys the name of the task.
        pattern: What each of them matches.
        limits: Their limits, where the key is the same for all calls; else empty.
    """

    label: str
    pattern: re.Pattern[str]
    limits: Limits

    @property
    def literals(self) -> int:
        """The number of characters that all of these keys have in common."""
        return len(self.pattern.pattern.replace(".*", ""))


class KeyTemplate:
    """A key with replacement fields: ``"invoice:{order.id}:{day:%Y-%m}"``.

    The fields are those of ``str.format``, filled with values as a worker sees them.
    A step (``.id``, ``[id]``, ``[0]``) looks into a dict or a list and never at an
    attribute; a dict or a list itself is written as JSON. Only the text counts: ``1``
    and ``"1"`` share a lock, and so do all tasks that make the same text. A template
    that cannot be parsed, or is no text for a key, is refused.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        fault = fault_of(text)
        try:  # the arguments that it needs
            self.names = () if fault else tuple(dict.fromkeys(_names_in(text)))
        except ValueError as error:
            fault = str(error)
        if fault:
            raise ConfigurationError(
                f"The key {text!r} cannot be used: {fault}. Write something like "
                "'invoice:{invoice_id}', and {{ for a brace."
            )

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern that all texts of this template match, and few others."""
        parts = string.Formatter().parse(self.text)
        texts = (re.escape(text) + ".*" * bool(field) for text, field, *_ in parts)
        return re.compile("".join(texts))

    def __call__(self, /, **arguments: Any) -> str:
        """Return the text with these arguments filled in, as a worker sees them."""
        try:
            return _Formatter().vformat(self.text, (), arguments)
        except (LookupError, *_NOT_REDUCIBLE) as error:
            raise FingerprintError(
                f"The key {self.text!r} cannot be filled in: {error!r}. Nothing was "
                "sent or locked; correct the call or the key."
            ) from error


class _Formatter(string.Formatter):
    """A ``str.format`` that looks into wire values only, never at attributes."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:  # noqa: ARG002  (its base's)
        name, steps = _parsed_field(field_name)
        value = kwargs[name]
        for step in steps:
            if not isinstance(value, (dict, list)):
                raise TypeError(
                    f"{{{field_name}}} looks into a dict or a list of the message, and "
                    f"finds what is {_type_name(value)}"
                )
            place: Any = int(step) if isinstance(value, list) else step
            value = value[place]
        return value, name

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, (dict, list)) and not format_spec:
            return _canonical(_wire_form(value))
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        return format(value, format_spec)


def _names_in(text: str) -> Iterator[str]:
    for _, field, spec, conversion in string.Formatter().parse(text):
        if conversion not in (None, "r", "s", "a"):
            raise ValueError(f"there is no conversion {conversion!r}")
        if field is not None:
            yield _parsed_field(field)[0]
            yield from _names_in(spec or "")


class _Taken(NamedTuple):
    """The arguments that a key function takes; with ``names=None`` it takes any."""

    names: list[str] | None
    needed: list[str]
    by_position: dict[str, Any]
    headers: bool

    @classmethod
    def by(cls, key: Callable[..., str], signature: inspect.Signature) -> _Taken:
        """Return what a callable takes of the arguments of a task.

        A wrapper that takes any gets those of the function inside that the task has: it
        may inject the others.

        Raises:
            ConfigurationError: It takes `*args`, which would be empty.
        """
        try:
            takes = signature_of(key).parameters.values()
        except ValueError:  # a builtin without a signature
            return cls(None, [], {}, headers=False)
        hidden, task = hidden_parameters(key), signature.parameters
        named = [p for p in takes if p.kind not in _OF_CATCH_ALL]
        by_name = [p.name for p in named]
        kinds = {p.kind: p.name for p in takes}
        # A wrapper, also one that does not say what it wraps, takes any by name, too.
        is_wrapper = hidden or (not by_name and _P.VAR_KEYWORD in kinds)
        if _P.VAR_POSITIONAL in kinds and not is_wrapper:
            raise ConfigurationError(
                f"The key function takes *{kinds[_P.VAR_POSITIONAL]}, which would be "
                "empty for all calls: it gets the arguments of the task by name. Write "
                "the names of those that make two calls the same, such as key=lambda "
                "invoice_id: .... (A parameter with the name of the task's own *args "
                "gets their list.)"
            )
        names: list[str] | None = by_name
        if _P.VAR_KEYWORD in kinds:
            inside = [name for name in hidden if name in (*task, _HEADERS)]
            names = [*by_name, *inside] if hidden else None
        asked = {*(p.name for p in takes), *hidden}
        of_message = {_HEADERS} & asked - task.keys()
        if of_message:
            names = [name for name in names or () if name != _HEADERS]
        needed = [p.name for p in named if p.default is _P.empty]
        by_position = {p.name: p.default for p in takes if p.kind is _P.POSITIONAL_ONLY}
        needed = [name for name in needed if name not in of_message]
        return cls(names, needed, by_position, headers=bool(of_message))


def _parsed_field(field: str) -> tuple[str, list[str]]:
    match = _FIELD.fullmatch(field)
    if match is None:
        raise ValueError(f"{{{field}}} does not name an argument")
    return match[1], _STEP.findall(match[2])


def _wire_form(value: Any) -> Any:
    """Return the plain JSON value that kombu sends for a Python value."""
    if type(value) is str or (type(value) is int and value.bit_length() <= _SHORT):
        return value  # JSON has these; a much longer number cannot be written
    return json.loads(_encoded(value))


def _decoded_form(value: Any) -> Any:
    """Return the value that a worker receives for a Python value."""
    return _KOMBU.loads(_canonical(_wire_form(value)))


def _reduced(value: Any) -> Any:
    """Return a simpler value for one that JSON has no form for."""
    if isinstance(value, (set, frozenset)):
        # Not in the order of iteration: it differs from process to process.
        return sorted(value, key=lambda member: _canonical(_wire_form(member)))
    try:
        return _KOMBU_ENCODER.default(value)
    except TypeError:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, enum.Enum):
            return value.value
        if hasattr(type(value), "model_dump"):
            return value.model_dump(mode="json")
        raise TypeError(f"JSON has no form for {_type_name(value)}") from None


_encoded = json.JSONEncoder(default=_reduced).encode


def _as_a_worker_sees(value: Any) -> Any:
    try:  # not _decoded_form: an object that kombu cannot send may come pickled
        return _KOMBU.loads(_KOMBU.dumps(value))
    except _NOT_REDUCIBLE:
        if isinstance(value, int):  # with too many digits for any text
            raise
        return value


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()


def _type_name(value: Any) -> str:
    return type(value).__qualname__
