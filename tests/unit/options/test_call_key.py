"""The key of a call: which calls are the same, how tasks name them, what is refused."""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import serialization
from kombu.utils import json as kombu_json
from pydantic import BaseModel

from celery_redlock.errors import ConfigurationError, FingerprintError
from celery_redlock.locks.limits import Limit
from celery_redlock.options.call_key import KeyRule, KeyTemplate
from celery_redlock.options.key_options import LimitOptions
from tests.nodes.support import run_python

ID = UUID("0123456789abcdef0123456789abcdef")
UNDECIDABLE: Any = object()
UNSET: Any = "unset"
DAY = date(2026, 1, 2)


def f(a: Any, b: Any = 2) -> None:
    """Stand in for the task of most tests."""


def f_any(a: Any, *rest: Any, b: Any = 2, **more: Any) -> None:
    """Stand in for a task that takes any arguments."""


def f_user(user: Any, amount: int = 1) -> None:
    """Stand in for a task of an earlier version."""


def rule_of(function: Callable[..., object] = f, **options: Any) -> KeyRule:
    """Return the rule by which calls of a function are named."""
    given = LimitOptions(**options)
    return KeyRule("proj.f", inspect.signature(function), given)


def key(*args: Any, **kwargs: Any) -> str:
    """Return the key of a call of ``f``."""
    return rule_of().key_of(args, kwargs)


def key_any(*args: Any, **kwargs: Any) -> str:
    """Return the key of a call of ``f_any``."""
    return rule_of(f_any).key_of(args, kwargs)


def sent(value: Any) -> Any:
    """Send a value through a broker's JSON."""
    registry: Any = serialization
    content_type, encoding, data = registry.dumps(value, serializer="json")
    return registry.loads(data, content_type, encoding)


@dataclass
class Order:
    """An object that a pickled message can carry."""

    number: int
    day: date


class Invoice(BaseModel):
    """An argument of a task with ``pydantic=True``."""

    number: int
    day: date


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.none() | st.timezones())
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=8,
)


# -- equal calls are equal ---------------------------------------------------------


@given(values, values)
def test_key_survives_the_broker(a: Any, b: Any) -> None:
    """The producer's Python objects and the worker's decoded ones make one key."""
    args, kwargs = sent([(a,), {"b": b}])

    assert key(*args, **kwargs) == key(a, b=b)


@given(st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=3))
def test_key_of_any_arguments_survives_the_broker(
    rest: list[Any], more: dict[str, Any]
) -> None:
    """Arguments in ``*args`` and ``**kwargs`` count, and survive as well."""
    more = {f"_{name}": value for name, value in more.items()}
    args, kwargs = sent([(1, *rest), more])

    assert key_any(*args, **kwargs) == key_any(1, *rest, **more)


@given(values, values)
def test_how_an_argument_is_passed_does_not_matter(a: Any, b: Any) -> None:
    """By position or by name, in any order; a default may be passed or left out."""
    assert key(a, b) == key(a, b=b) == key(a=a, b=b) == key(b=b, a=a)
    assert key(a) == key(a, 2) == key(a, b=2)


@given(st.dictionaries(st.text(), values, min_size=1))
def test_order_of_a_dict_does_not_matter(value: dict[str, Any]) -> None:
    """Two dicts with the same items are the same argument."""
    assert key(value) == key(OrderedDict(reversed(value.items())))


@given(st.sets(scalars.filter(lambda v: v == v)))  # noqa: PLR0124  (NaN is not)
def test_order_of_a_set_does_not_matter(value: set[Any]) -> None:
    """Two sets with the same members are the same argument."""
    assert key(value) == key(frozenset(reversed(list(value))))


def test_order_of_a_set_does_not_matter_between_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hashes of text differ from process to process; keys do not."""
    program = (
        "import inspect\n"
        "from celery_redlock.options.call_key import KeyRule\n"
        "from celery_redlock.options.key_options import LimitOptions\n"
        "rule = KeyRule('t', inspect.signature(lambda a: None), LimitOptions())\n"
        "print(rule.key_of([{'one', 'two', 'three', 'four', 'five'}], None))\n"
    )

    keys = set()
    for seed in ("1", "2", "3"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        keys.update(run_python(program))

    assert len(keys) == 1


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: int


class Colour(enum.Enum):
    """An enum."""

    RED = "red"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        ({True: 1, None: 2}, {"true": 1, "null": 2}),
        ({10: "x", 9: "y"}, {"9": "y", "10": "x"}),
        (math.nan, float("-nan")),
        ({2, 1}, [1, 2]),
        (Order(1, DAY), {"number": 1, "day": DAY}),
        (Invoice(number=1, day=DAY), {"number": 1, "day": "2026-01-02"}),
        ([Invoice(number=1, day=DAY)], [{"number": 1, "day": "2026-01-02"}]),
        (Colour.RED, "red"),
    ],
)
def test_same_on_the_wire_is_the_same_call(one: Any, other: Any) -> None:
    """Values that a broker carries as the same text make the same call."""
    assert key(one) == key(other)


def test_body_may_change_its_arguments() -> None:
    """A key is computed once, from the arguments as they are then."""
    numbers = [1]
    before = key(numbers)
    numbers.append(2)

    assert key([1]) == before != key(numbers)


# -- arguments that are equal to their defaults ------------------------------------


def later_versions() -> list[Any]:
    """Return ``f_plain`` as later versions have it: it takes more, with defaults."""

    def last(a: Any, b: Any = None) -> None: ...
    def keyword(a: Any, *, dry_run: bool = False, depth: int = 3) -> None: ...
    def first(b: Any = 1.5, a: Any = UNSET) -> None: ...
    def rest(a: Any, *rest: Any) -> None: ...
    def more(a: Any, **more: Any) -> None: ...
    def all_of_it(a: Any, b: Any = (), *c: Any, d: Any = DAY, **e: Any) -> None: ...

    return [last, keyword, first, rest, more, all_of_it]


def f_plain(a: Any) -> None:
    """Stand in for a task before it was changed."""


@pytest.mark.parametrize("later", later_versions(), ids=lambda each: each.__name__)
@given(value=values)
def test_argument_with_a_default_that_is_added_changes_no_key(
    later: Any, value: Any
) -> None:
    """Old and new workers, side by side, agree about each call of the old version."""
    assert rule_of(later).key_of((), {"a": value}) == rule_of(f_plain).key_of(
        (value,), {}
    )


@pytest.mark.parametrize("options", [{}, {"unique_on": ["a", "b"]}])
@given(default=values, other=values)
def test_argument_counts_unless_it_is_equal_to_its_default(
    options: dict[str, Any], default: Any, other: Any
) -> None:
    """Equal means that a broker cannot tell them apart: ``1`` is not ``True``."""

    def task(a: Any, b: Any = default) -> None: ...

    rule = rule_of(task, **options)
    without = rule.key_of((1,), {})

    assert rule.key_of((1, default), {}) == without
    assert rule.key_of(*sent([(1,), {"b": default}])) == without
    is_equal = same(plain(other), plain(default))
    assert (rule.key_of((1, other), {}) == without) == is_equal


def test_default_that_a_body_changes_stays_what_it_was() -> None:
    """A body may append to its default, in one process and not in the next."""

    def task(a: Any, seen: list[Any] = []) -> None:  # noqa: B006  (users do this)
        seen.append(a)

    rule = rule_of(task)
    before = rule.key_of((1,), {})
    task(1)

    assert rule.key_of((1,), {}) == before
    assert rule.key_of((1, []), {}) == before
    assert rule.key_of((1,), {"seen": [1]}) != before


def test_default_that_is_changed_makes_its_old_value_count() -> None:
    """Calls that leave the argument out keep their key."""

    def old(a: Any, mode: str = "fast") -> None: ...
    def new(a: Any, mode: str = "slow") -> None: ...

    assert rule_of(old).key_of((1,), {}) == rule_of(new).key_of((1,), {})
    assert rule_of(old).key_of((1, "fast"), {}) != rule_of(new).key_of((1, "fast"), {})


def test_unique_on_may_get_an_argument_with_a_default() -> None:
    """The calls that leave it out keep their key."""
    before, after = rule_of(unique_on=["a"]), rule_of(unique_on=["a", "b"])

    assert before.key_of((1,), {}) == after.key_of((1, 2), {})
    assert before.key_of((1,), {}) != after.key_of((1, 3), {})


def test_template_and_callable_get_the_defaults() -> None:
    """An explicit key is the text that it was."""
    assert rule_of(key="of:{a}:{b}").key_of((1,), {}) == "of:1:2"
    assert rule_of(key=lambda a, b: f"{a}-{b}").key_of((1,), {}) == "1-2"


# -- different calls are different -------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are the same, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[n], other[n]) for n in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def plain(value: Any) -> Any:
    """Return the JSON value that kombu sends, markers of types and all."""
    return kombu_json.loads(kombu_json.dumps(value), object_hook=None)  # type: ignore[no-untyped-call]


@given(values, values)
def test_calls_differ_exactly_when_the_wire_does(one: Any, other: Any) -> None:
    """Two calls share a key if and only if a broker cannot tell them apart."""
    assert (key(one) == key(other)) == same(plain(one), plain(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), ("1",)),
        ((1,), (1.0,)),
        ((1,), (True,)),
        ((0.0,), (-0.0,)),
        ((None,), ("None",)),
        ((b"a",), ("a",)),
        ((Decimal("1.0"),), (Decimal("1.00"),)),
        ((DAY,), (datetime(2026, 1, 2),)),  # noqa: DTZ001  (naive)
        ((DAY,), ("2026-01-02",)),
        (([1, 2],), ([2, 1],)),
        (([[1], 2],), ([1, [2]],)),
        (("1_b-2",), ("1", 2)),
        ((1, 2), (2, 1)),
        ((1, None), (1, 2)),
    ],
)
def test_different_on_the_wire_is_a_different_call(one: Any, other: Any) -> None:
    """Values that a worker can tell apart make different keys."""
    assert key(*one) != key(*other)


def test_arguments_do_not_run_into_each_other() -> None:
    """Named and catch-all arguments cannot imitate each other."""
    keys = {
        key_any(1),
        key_any(1, 2),
        key_any(1, [2]),
        key_any(1, b=[2]),
        key_any(1, rest=[2]),
        key_any(1, more={"x": 2}),
        key_any(1, x=2),
        key_any({"a": 1}),
    }

    assert len(keys) == 8


# -- a hash of the arguments, and unique_on ----------------------------------------


def test_default_key_shows_the_task_and_hides_the_arguments() -> None:
    """By default a key is the task's name and a 128-bit hash."""
    name, _, digest = key("secret").rpartition(":")

    assert name == "proj.f"
    assert len(bytes.fromhex(digest)) == 16


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        (1, "aae1474d39b02277d8986181b7ceab11"),
        ("1", "81bcc75f13b7cc92320c44c33bfffc9c"),
        (1.0, "46f374a5e24e77a5e06345906775d7e7"),
        (True, "550c0d1c5b857689c7719c256a2e985b"),
        (None, "121d7acb83fc0e1e34d55f009445b89f"),
        (float("nan"), "26dc46ee02213a2f6d52b57f9cb0434c"),
        ("é", "4928cdc11d8c085e8f6d0cf0dad942be"),
        ((1, 2), "e088ae5d4c8101c44f10ec6b28539313"),
        ({3, 1}, "1d1ad50c96bada06fc8859714d7b15be"),
        ({"b": 1, "a": [{}]}, "25bdeb5397b5a23a8966f86306dde54a"),
        (DAY, "4aa2c39f86dcd88e2d41e5262d17d980"),
        (Decimal("1.50"), "7c2ae3cccbe0b6c790c0db69397e2ac6"),
        (UUID(int=1), "7266ac6e7907b989845ca0949811e2ce"),
    ],
)
def test_default_key_never_changes(value: Any, digest: str) -> None:
    """Old and new workers of one deployment agree, so no release may change this."""
    rule = KeyRule("app.send", inspect.signature(f_user), LimitOptions())

    assert rule.key_of([value], {}) == f"app.send:{digest}"


def test_no_arguments_make_one_call() -> None:
    """A task without arguments has one key; Celery passes ``None`` for no arguments."""
    rule = rule_of(lambda: None)

    assert rule.key_of(None, None) == rule.key_of((), {})


def test_unique_on_leaves_the_other_arguments_out() -> None:
    """Only the named arguments count. An empty list is one lock for the whole task."""
    rule = rule_of(unique_on=["a"])

    assert rule.key_of([1, UNDECIDABLE], {}) == rule.key_of([], {"a": 1, "b": 3})
    assert rule.key_of([1], {}) != rule.key_of([2], {})
    whole_task = rule_of(unique_on=[])
    assert whole_task.key_of([1], {}) == whole_task.key_of([2], {})


def test_unique_on_finds_arguments_behind_a_catch_all() -> None:
    """``unique_on`` may name an argument in ``**kwargs``, or all of ``**kwargs``."""
    by_name, whole = rule_of(f_any, unique_on=["x"]), rule_of(f_any, unique_on=["more"])

    assert by_name.key_of([1], {"x": 1}) == by_name.key_of([2], {"x": 1, "y": 2})
    assert whole.key_of([1], {"x": 1}) != whole.key_of([1], {"x": 1, "y": 2})


# -- templates -----------------------------------------------------------------------


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("template", "value", "text"),
    [
        ("invoice:{a}", 42, "invoice:42"),
        ("invoice:{a:05d}", 42, "invoice:00042"),
        ("invoice:{a}:{b}", "x", "invoice:x:2"),
        ("{{a}}:{a}", 1, "{a}:1"),
        ("nightly", 1, "nightly"),
        ("{a}", ID, str(ID)),
        ("{a}", Decimal("1.10"), "1.10"),
        ("{a:%Y-%m}", MOMENT, "2026-01"),
        ("{a}", MOMENT, str(MOMENT)),
        ("{a}", time(1, 2), "01:02:00"),
        ("{a}", b"bytes", "bytes"),
        ("{a}", None, "None"),
        ("{a}", (1, "x"), '[1,"x"]'),
        ("{a}", {"y": 1, "x": 2}, '{"x":2,"y":1}'),
        ("{a}", {2, 1}, "[1,2]"),
        ("{a[id]}", {"id": 7}, "7"),
        ("{a.id}", {"id": 7}, "7"),
        ("{a.number}", Order(7, DAY), "7"),
        ("{a[day]:%d}", Order(7, DAY), "02"),
        ("{a.number}", Invoice(number=7, day=DAY), "7"),
        ("{a[0].x[1]}", [{"x": [1, 2]}], "2"),
        ("{a.x.y}", {"x": {"y": 1}}, "1"),
        ("{a[1]}", {1: "x"}, "x"),
        ("{a!r}", "x", "'x'"),
        ("{a:>{b}}", "x", " x"),
        ("Straße:{a}", "Ü", "Straße:Ü"),
    ],
)
def test_template_is_the_text_of_the_key(template: str, value: Any, text: str) -> None:
    """A template is filled as ``str.format`` fills it, with wire values."""
    assert rule_of(key=template).key_of([value], {}) == text


@given(values)
def test_template_survives_the_broker(value: Any) -> None:
    """The producer and the worker fill a template with the same text."""
    rule = rule_of(key="x{a}x{b!r}")
    args, kwargs = sent([(value,), {"b": [value]}])

    def text(args: Any, kwargs: Any) -> str | None:
        try:
            return rule.key_of(args, kwargs)
        except FingerprintError as error:
            return str(error)

    assert text(args, kwargs) == text((value,), {"b": [value]})


def test_templates_with_the_same_text_share_a_lock() -> None:
    """Neither the task nor the type of an argument counts, only the text."""
    signature = inspect.signature(f)
    one = KeyRule("proj.f", signature, LimitOptions(key="invoice:{a}"))
    other = KeyRule("proj.g", signature, LimitOptions(key="{b}:{a}"))

    assert one.key_of([1], {}) == other.key_of(["1"], {"b": "invoice"})


def test_template_finds_arguments_behind_a_catch_all() -> None:
    """Arguments that go to ``**kwargs`` and ``*args`` can be named."""
    rule = rule_of(f_any, key="{user}:{more[user]}:{rest[0]}")

    assert rule.key_of([1, "r"], {"user": 7}) == "7:7:r"


@pytest.mark.parametrize("step", ["__class__", "real", "[__class__]", "__init__.x"])
def test_template_never_looks_at_attributes(step: str) -> None:
    """A step looks into dicts and lists only."""
    separator = "" if step.startswith("[") else "."
    rule = rule_of(key=f"{{a{separator}{step}}}")

    refused: list[Any] = [1, {}, [], "text", b"bytes", ID, MOMENT, None]
    for value in refused:
        with pytest.raises(FingerprintError, match="cannot be filled in"):
            rule.key_of([value], {})


def test_template_that_looks_into_a_number_says_so() -> None:
    """The error has the field and the type, and not what Python says of an index."""
    rule = rule_of(key="order:{a.id}")

    with pytest.raises(FingerprintError, match=r"\{a.id\} looks into a dict .* is int"):
        rule.key_of([7], {})


def test_long_key_is_cut_and_stays_unique() -> None:
    """A text above 512 characters keeps its beginning and ends in a hash."""
    rule = rule_of(key="{a}")
    one, other = ("x" * 600 + end for end in "ab")

    assert rule.key_of(["x" * 512], {}) == "x" * 512
    assert len(rule.key_of([one], {})) == 512
    assert rule.key_of([one], {}).startswith("x" * 400)
    assert rule.key_of([one], {}) != rule.key_of([other], {})


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("acme/app#2", "acme/app#2"),
        ("acme@2", "acme@2"),
        ("acme##2", "acme##2~[0-9a-f]{32}"),
        ("acme@@2", "acme@@2~[0-9a-f]{32}"),
        ("acme##2b", "acme##2b"),
        ("##", "##"),
    ],
)
def test_text_that_is_the_name_of_a_permit_ends_in_a_hash(value: str, key: str) -> None:
    """Text of a customer takes no permit of another key, and is no error."""
    assert re.fullmatch(key, rule_of(key="{a}").key_of([value], {}))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("", "'' .* it is empty"),
        (" ", "' ' .* it is empty"),
        ("a\nb", r"'a\\nb' .* the character '\\n' is not printable"),
        ("\0", r"the character '\\x00' is not printable"),
    ],
)
def test_key_must_be_printable_text(value: str, fault: str) -> None:
    """The error for a key with control characters names the task."""
    with pytest.raises(FingerprintError, match=fault) as caught:
        rule_of(key="{a}").key_of([value], {})
    assert "proj.f" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("", "empty"),
        ("a\nb", r"the character '\\n' is not printable"),
        ("a\ud800", r"the character '\\ud800' has no UTF-8"),
        ("{a", "expected '}'"),
        ("a}", "Single '}'"),
        ("{}", "does not name an argument"),
        ("{0}", "does not name an argument"),
        ("{a[}", "expected '}'"),
        ("{a b}", "does not name an argument"),
        ("{a!x}", "no conversion 'x'"),
        ("{a:{}}", "does not name an argument"),
    ],
)
def test_template_is_checked_when_it_is_made(template: str, fault: str) -> None:
    """A wrong template is refused at once, and the error shows a right one."""
    with pytest.raises(ConfigurationError, match=fault) as caught:
        KeyTemplate(template)
    assert "invoice:{invoice_id}" in str(caught.value)


# -- callables -----------------------------------------------------------------------


def test_callable_gets_the_arguments_that_it_names() -> None:
    """A key function is called with the bound arguments, defaults included."""
    assert rule_of(key=lambda a: f"a:{a}").key_of([1], {}) == "a:1"
    assert rule_of(key=lambda a, b: f"{a}:{b}").key_of([], {"a": 1}) == "1:2"
    assert rule_of(key=lambda **all_: str(all_)).key_of([1], {}) == "{'a': 1, 'b': 2}"
    assert rule_of(key="{a}:{b}".format).key_of([1], {}) == "1:2"


def test_callable_gets_what_is_behind_a_catch_all() -> None:
    """A callable may name an argument in ``**kwargs``; a default makes it optional."""
    rule = rule_of(f_any, key=lambda user, region="eu": f"{user}:{region}")

    assert rule.key_of([1], {"user": 7}) == "7:eu"
    assert rule.key_of([1], {"user": 7, "region": "us"}) == "7:us"
    with pytest.raises(FingerprintError, match="no argument 'user'"):
        rule.key_of([1], {})


def test_callable_gets_each_position_that_it_asks_for() -> None:
    """An optional argument that a call leaves out moves no other into its place."""
    rule = rule_of(f_any, key=lambda user="x", region="eu", /: f"{user}:{region}")

    assert rule.key_of([1], {"region": "us"}) == "x:us"
    assert rule.key_of([1], {"user": 7}) == "7:eu"


@pytest.mark.parametrize(
    "function",
    [
        lambda *args: ":".join(map(str, args)),
        lambda *args, b=2: f"{args}:{b}",
        lambda a, *rest: f"{a}:{rest}",
        lambda a, *rest, **more: f"{a}:{rest}:{more}",
    ],
    ids=["all", "keyword", "rest", "mirror"],
)
@pytest.mark.parametrize("task", [f, f_any])
def test_callable_whose_positions_would_be_empty_is_refused(
    task: Callable[..., object], function: Callable[..., str]
) -> None:
    """A function gets arguments by name: ``*args`` would be empty for all calls.

    So all calls would have one key, and jobs with other arguments would be duplicates.
    """
    with pytest.raises(ConfigurationError, match=r"takes \*\w+, .* empty .* by name"):
        rule_of(task, key=function)


def test_callable_that_takes_anything_gets_all_by_name() -> None:
    """A wrapper passes on what it gets; the ``*rest`` of the task is a list."""
    seen: list[Any] = []

    def wrapper(*args: Any, **named: Any) -> str:
        seen.append((args, named))
        return "x"

    rule_of(f_any, key=wrapper).key_of([1, 2, 3], {"c": 4})
    assert seen == [((), {"a": 1, "rest": [2, 3], "b": 2, "c": 4})]
    assert rule_of(f_any, key=lambda rest: f"{rest}").key_of([1, 2], {}) == "[2]"


def test_callable_gets_what_a_worker_sees() -> None:
    """The values are those of JSON. An object that only pickle carries stays itself."""
    seen: list[Any] = []

    def remember(a: Any) -> str:
        seen.append(a)
        return "x"

    value, order = ((1, 2), {1: ID}), Order(7, DAY)
    for arguments in ([value], sent([value]), [order]):
        rule_of(key=remember).key_of(arguments, {})

    assert seen == [[[1, 2], {"1": ID}]] * 2 + [order]


@pytest.mark.parametrize("answer", [None, 7, b"x", ["x"]])
def test_callable_must_return_text(answer: Any) -> None:
    """Anything but ``str`` is refused, by its type."""
    with pytest.raises(FingerprintError, match=f"is {type(answer).__name__} and not"):
        rule_of(key=lambda: answer).key_of([1], {})


def test_error_of_a_key_function_is_passed_on() -> None:
    """An error of ours does not hide it."""
    with pytest.raises(ZeroDivisionError):
        rule_of(key=lambda a: str(1 / a)).key_of([0], {})


# -- mistakes in the declaration ---------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"key": "invoice:{userid}"},
        {"key": "{a:{userid}}"},
        {"key": lambda userid: f"{userid}"},
        {"unique_on": ["a", "userid"]},
        {"keys": {"t:{userid}": 1, "imports": 10}},
    ],
    ids=["template", "nested", "callable", "unique_on", "limited"],
)
def test_unknown_argument_is_refused_at_decoration(options: dict[str, Any]) -> None:
    """The error for an unknown argument suggests the nearest one."""

    def task(a: int, user_id: int = 2) -> None:
        """Take two arguments."""

    fault = r"'userid', which proj\.f\(a, user_id=2\) does not .* mean 'user_id'"
    with pytest.raises(ConfigurationError, match=fault):
        rule_of(task, **options)


def test_unknown_argument_may_be_behind_a_catch_all() -> None:
    """With ``**kwargs`` a call may pass any name, and must pass those of the key."""
    rule = rule_of(f_any, unique_on=["user"])

    assert rule.key_of([1], {"user": 7}) != rule.key_of([1], {"user": 8})
    with pytest.raises(FingerprintError, match="no argument 'user'"):
        rule.key_of([1], {})


def test_default_that_cannot_be_part_of_a_key_is_refused_at_decoration() -> None:
    """An unusable default is found before the first call."""

    def task(a: int, marker: Any = UNDECIDABLE) -> None:
        """Take a default that no broker can carry."""

    with pytest.raises(ConfigurationError, match=r"'marker'.*JSON has no form for obj"):
        rule_of(task)
    assert rule_of(task, unique_on=["a"]).key_of([1], {})
    assert rule_of(task, key="{a}").key_of([1], {})


class Lazy:
    """A lazy translation, as Django's: it must not be evaluated yet."""

    def __str__(self) -> str:
        raise AssertionError

    def __json__(self) -> str:
        raise AssertionError


def test_lazy_default_is_left_alone_at_decoration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lazy translation as a default is not evaluated before there is a call."""
    monkeypatch.setattr(kombu_json, "textual_types", (Lazy,))

    def task(subject: Any = Lazy()) -> None:  # noqa: B008  (how Django users do it)
        """Take a translated text."""

    assert rule_of(task).key_of(["x"], {})


# -- calls that have no key --------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 3}, "unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_call_that_cannot_be_bound_has_no_key(
    args: Any, kwargs: Any, fault: str
) -> None:
    """The error shows the task's signature."""
    with pytest.raises(FingerprintError, match=fault) as caught:
        key(*args, **kwargs)
    assert "proj.f(a, b=2) cannot be called" in str(caught.value)


def circle() -> list[Any]:
    """Return a list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (object(), r"\(object\).*JSON has no form for object"),
        ([{"x": object()}], r"\(list\).*JSON has no form for object"),
        ({(1, 2): 3}, r"\(dict\).*keys must be str"),
        (circle(), r"\(list\).*Circular"),
        (Order, r"\(type\).*JSON has no form for type"),
        (bytearray(b"x"), r".*JSON has no form for bytearray"),
        (1j, r".*JSON has no form for complex"),
    ],
)
def test_argument_that_cannot_be_reduced_is_named(value: Any, fault: str) -> None:
    """The error names the argument, its type and the remedy."""
    with pytest.raises(FingerprintError, match=f"Argument 'b' of proj.f {fault}") as e:
        key(1, value)
    assert "unique_on" in str(e.value)
    assert "key=" in str(e.value)


def test_object_in_a_template_is_refused_with_a_remedy_that_works() -> None:
    """A template looks at no attribute, and a function may: of a model, for example."""

    class Model:
        pk = 7

    with pytest.raises(FingerprintError, match=r"a function .* key=lambda b: \.\."):
        rule_of(key="order:{b.pk}").key_of([1, Model()], {})
    assert rule_of(key=lambda b: f"order:{b.pk}").key_of([1, Model()], {}) == "order:7"


def test_marker_that_no_worker_can_decode_is_named() -> None:
    """A dict that imitates a type of kombu's fails before it is sent."""
    value = {"__type__": "unknown", "__value__": 1}

    with pytest.raises(FingerprintError, match="Argument 'a'"):
        rule_of(key="{a}").key_of([value], {})


# -- limits ------------------------------------------------------------------------

MINUTE = 60.0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key": "k:{a}"},
        {"unique_on": ["a"]},
        {"keys": ["k:{a}", "k:{b}"]},
        {"limit": 1},
        {"key": "k", "limit": 1},
        {"keys": {"k:{a}": 1, "l": 1}},
    ],
)
def test_key_with_one_holder_has_no_limits(options: dict[str, Any]) -> None:
    """It is a lock, with the key that it has by its arguments."""
    rule = rule_of(**options)

    assert rule.wanted_by([1], {"b": 3}) == (rule.key_of([1], {"b": 3}), ())


@pytest.mark.parametrize(
    "options", [{}, {"key": "k:{a}"}, {"key": lambda a: f"k:{a}"}, {"unique_on": ["a"]}]
)
def test_limit_and_rate_are_about_the_key(options: dict[str, Any]) -> None:
    """The key is the same as without them, in each way of making it."""
    name = rule_of(**options).key_of([1], {})

    def limits(**more: Any) -> object:
        key, limits = rule_of(**options, **more).wanted_by([1], {})
        assert key == name
        return limits

    starts = Limit(name, 10, MINUTE)
    assert limits(limit=5) == (Limit(name, 5),)
    assert limits(limit=5, rate="10/m") == (Limit(name, 5), starts)
    assert limits(limit=1, rate="10/m") == (Limit(name, 1), starts)


def test_rate_alone_lets_as_many_run_at_once_as_start() -> None:
    """A call that starts holds its key while it runs, which is no further limit."""
    rule = rule_of(key="k", rate=(3, timedelta(minutes=1)))

    assert rule.wanted_by([1], {}) == ("k", (Limit("k", 3), Limit("k", 3, MINUTE)))


def test_each_of_several_keys_has_its_limit() -> None:
    """In the order of the text, which the order of the templates does not change."""
    rule = rule_of(keys={"tenant:{a}": 1, "imports": 10, "disk:{b}": 4})

    key, limits = rule.wanted_by([7], {"b": "x"})

    assert key == rule.key_of([7], {"b": "x"}) == "disk:x\nimports\ntenant:7"
    assert limits == (Limit("disk:x", 4), Limit("imports", 10), Limit("tenant:7", 1))


@pytest.mark.parametrize("numbers", [(2, 5), (5, 2)])
def test_templates_that_make_one_key_have_the_lesser_limit(
    numbers: tuple[int, int],
) -> None:
    """So none of the two is exceeded."""
    rule = rule_of(keys=dict(zip(["k:{a}", "k:{b}"], numbers, strict=True)))

    assert rule.wanted_by([1, 1], {}) == ("k:1", (Limit("k:1", 2),))
    assert rule.wanted_by([1, 3], {})[1] == (
        Limit("k:1", numbers[0]),
        Limit("k:3", numbers[1]),
    )


def test_templates_that_make_one_key_with_one_holder_have_no_limits() -> None:
    """The lesser limit is 1: a lock."""
    rule = rule_of(keys={"k:{a}": 1, "k:{b}": 5})

    assert rule.wanted_by([1, 1], {}) == ("k:1", ())


@pytest.mark.parametrize("keys", [["k", "l"], {"k": 1, "l": 1}])
def test_rate_is_that_of_each_of_several_keys(keys: Any) -> None:
    """It changes nothing about how many hold a key at once."""
    rule = rule_of(keys=keys, rate="10/m")

    assert rule.wanted_by([1], {})[1] == (
        *(Limit("k", 1), Limit("l", 1)),
        *(Limit("k", 10, MINUTE), Limit("l", 10, MINUTE)),
    )


def test_rate_leaves_one_holder_to_keys_that_are_equal() -> None:
    """Two keys of a list have one holder each, also where they are one."""
    rule = rule_of(keys=["k:{a}", "k:{b}"], rate="10/m")

    assert rule.wanted_by([1, 1], {})[1] == (Limit("k:1", 1), Limit("k:1", 10, MINUTE))


def test_long_key_has_its_limit_by_its_short_form() -> None:
    """The keys on the nodes are short, too."""
    rule = rule_of(keys={"k:{a}": 1, "k:{b}": 5})
    long = "x" * 600

    key, limits = rule.wanted_by([long, 1], {})

    assert key.split("\n") == [limit.key for limit in limits]
    assert [len(limit.key) for limit in limits] == [3, 512]


@pytest.mark.parametrize("limit", [1, 2])
def test_keys_of_a_call_that_are_too_long_are_refused(limit: int) -> None:
    """The error comes from the call, and says what to do."""
    rule = rule_of(keys={f"{place}:{{a}}": limit for place in range(20)})

    rule.wanted_by(["x" * 400, 1], {})
    with pytest.raises(
        FingerprintError, match=r"at most 8,192 bytes.*Nothing was sent"
    ):
        rule.wanted_by(["x" * 500, 1], {})
