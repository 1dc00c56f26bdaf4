"""What an app and a task may ask for, and how they are told what is wrong."""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_redlock.core.address import parse_node
from celery_redlock.errors import ConfigurationError
from celery_redlock.options import LockOptions
from celery_redlock.policies import (
    Abort,
    Conflict,
    Loss,
    Outage,
    Raise,
    Retry,
    Run,
    Skip,
    Wait,
)
from celery_redlock.settings import Settings

NODES = ["redis://a", "redis://b:6380/1", "unix:///run/redis.sock"]
CONFLICT = Conflict(key="k", task="t")
LOSS = Loss(key="k", task="t")
OUTAGE = Outage(key="k", task="t")


def settings(**values: Any) -> Settings:
    """Return the settings of an app that sets these, and the nodes."""
    named = {f"redlock_{name}": value for name, value in values.items()}
    return Settings.of({"redlock_nodes": NODES, **named})


def refusal(**values: Any) -> str:
    """Return what an app is told that sets these."""
    with pytest.raises(ConfigurationError) as caught:
        settings(**values)
    return str(caught.value)


def delay(decision: object) -> float:
    """Return the seconds for which a call is put back."""
    assert isinstance(decision, Retry)
    assert isinstance(decision.countdown, float)
    return decision.countdown


def option_refusal(**options: Any) -> str:
    """Return what a task is told that has these options."""
    with pytest.raises(ConfigurationError) as caught:
        LockOptions.of(options)
    return str(caught.value)


# -- Settings that are right -----------------------------------------------------


def test_only_the_nodes_must_be_set() -> None:
    """Everything else has a default."""
    assert settings() == Settings(
        nodes=tuple(parse_node(node) for node in NODES),
        ttl=30.0,
        max_ttl=60.0,
        node_timeout=0.05,
        connect_timeout=1.0,
        prefix="redlock",
        restart_guard=True,
        on_backend_error="retry",
        eager=False,
    )


def test_nodes_may_be_named() -> None:
    """A node is a URL, or a URL and a name."""
    nodes = ("redis://a", {"url": "redis://b", "name": "berlin"})

    assert [n.name for n in settings(nodes=nodes).nodes] == ["a:6379/0", "berlin"]


def test_none_is_not_set() -> None:
    """A setting that is None has its default."""
    assert settings(ttl=None, eager=None) == settings()


def test_durations_are_seconds_or_timedelta() -> None:
    """Durations become float seconds."""
    values = settings(ttl=timedelta(seconds=20), max_ttl=40, node_timeout=0.1)

    assert (values.ttl, values.max_ttl, values.node_timeout) == (20.0, 40.0, 0.1)
    assert isinstance(values.max_ttl, float)
    assert values.timing.ttl == 20.0


def test_settings_hide_passwords() -> None:
    """A repr of the settings, as logs and debuggers show it, has no passwords."""
    nodes = ["redis://user:s3cret@a", "redis://b?password=s3cret"]

    assert "s3cret" not in repr(settings(nodes=nodes))
    assert settings(nodes=nodes).nodes[0].url == nodes[0]


# -- Settings that are wrong -----------------------------------------------------


@pytest.mark.parametrize("conf", [{}, {"redlock_nodes": None}, {"redlock_nodes": []}])
def test_no_nodes(conf: dict[str, Any]) -> None:
    """Without nodes nothing can be locked, and the error shows how to set them."""
    with pytest.raises(ConfigurationError, match=r"redlock_nodes is not set.*redis://"):
        Settings.of(conf)


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ("redis://:s3cret@a", "is of type str"),
        ({"redis://:s3cret@a"}, "is of type set"),
        (["http://:s3cret@a"], "not a Redis URL"),
        (["redis://:s3cret@"], "names no host"),
        (["redis://:s3cret@a/x"], "'x' where the number of the database belongs"),
        ([{"uri": "redis://:s3cret@a"}], "has the entries uri"),
        ([5], "not a Redis URL"),
        (["redis://:s3cret@a", "redis://a:6379/0"], "a:6379/0 is listed 2 times"),
        (
            [{"url": "redis://a", "name": "x"}, {"url": "redis://b", "name": "x"}],
            "x is",
        ),
    ],
)
def test_nodes_that_cannot_be_used(nodes: Any, fault: str) -> None:
    """A mistake in a node is told by the setting's name, and without passwords."""
    said = refusal(nodes=nodes)

    assert said.startswith("redlock_nodes")
    assert fault in said
    assert "s3cret" not in said


@pytest.mark.parametrize("name", ["ttl", "max_ttl", "node_timeout", "connect_timeout"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "30", [30]])
def test_duration_that_is_none(name: str, value: Any) -> None:
    """A duration is a finite number of seconds above 0, and nothing like it."""
    said = refusal(**{name: value})

    assert said == (
        f"redlock_{name} is {value!r}; it must be a number of seconds above 0."
    )


def test_no_time_at_all_is_no_duration() -> None:
    """A timedelta is checked like a number."""
    assert "redlock_ttl is 0.0; it must be" in refusal(ttl=timedelta(0))
    assert "redlock_ttl is -1.0; it must be" in refusal(ttl=timedelta(seconds=-1))


def test_ttl_above_max_ttl() -> None:
    """The error has both numbers and both ways out."""
    said = refusal(ttl=90)

    assert said.startswith("redlock_ttl: The ttl of 90 s is above max_ttl (60 s)")
    assert "Lower the ttl" in said
    assert "raise max_ttl" in said


@pytest.mark.parametrize(("ttl", "fits"), [(0.15, False), (0.16, True)])
def test_ttl_must_be_above_three_node_timeouts(ttl: float, *, fits: bool) -> None:
    """A lock that may end before it is granted is refused."""
    if fits:
        assert settings(ttl=ttl).ttl == ttl
    else:
        assert "redlock_ttl" in (said := refusal(ttl=ttl))
        assert "three node time-outs (0.05 s each)" in said


@pytest.mark.parametrize("name", ["restart_guard", "eager"])
@pytest.mark.parametrize("value", [0, 1, "false", "yes"])
def test_flag_is_true_or_false(name: str, value: Any) -> None:
    """A text from the environment is no flag: "false" would be true."""
    assert refusal(**{name: value}) == (
        f"redlock_{name} is {value!r}; it must be True or False."
    )


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", 5, b"redlock"])
def test_prefix_is_a_word(value: Any) -> None:
    """A prefix is text that can stand in front of a key."""
    assert refusal(prefix=value).startswith(f"redlock_prefix is {value!r}; it must be")


def test_policy_in_a_setting_is_checked() -> None:
    """A wrong word is told by the setting's name, with the right one."""
    said = refusal(on_backend_error="rtry")

    assert said.startswith("redlock_on_backend_error: ")
    assert said.endswith("Did you mean 'retry'?")


def test_unknown_setting_is_refused() -> None:
    """A name that does not exist is no silent no-op."""
    assert refusal(tll=3) == (
        "There is no setting redlock_tll. Did you mean 'redlock_ttl'?"
    )
    assert refusal(zzz=3).startswith("There is no setting redlock_zzz. ")


def test_other_peoples_settings_are_left_alone() -> None:
    """Only what begins with our prefix is ours."""
    conf = {"redlock_nodes": NODES, "task_always_eager": True, "my_redlock_x": 1}

    assert Settings.of(conf) == settings()


# -- Settings in Celery's spellings ----------------------------------------------


def app_with(namespace: str | None = None, **values: Any) -> Celery:
    """Return an app that is configured from an object with these attributes."""
    app = Celery("settings", set_as_current=False)
    app.config_from_object(type("Config", (), values), namespace=namespace)
    return app


def test_settings_of_an_app() -> None:
    """Settings are read from ``app.conf`` whether set there or in a module."""
    app = app_with(redlock_nodes=NODES, redlock_ttl=20)
    app.conf.redlock_max_ttl = 40

    assert Settings.of(app.conf) == settings(ttl=20, max_ttl=40)


def test_settings_of_an_app_that_has_not_read_its_configuration() -> None:
    """Reading the settings is what makes an app read its configuration."""
    app = Celery("settings", set_as_current=False)
    app.conf.redlock_nodes = NODES

    assert Settings.of(app.conf) == settings()


def test_settings_in_django() -> None:
    """``namespace="CELERY"`` reads ``CELERY_REDLOCK_*``."""
    app = app_with("CELERY", CELERY_REDLOCK_NODES=NODES, CELERY_REDLOCK_TTL=20)

    assert Settings.of(app.conf) == settings(ttl=20)


def test_reading_sets_no_defaults() -> None:
    """What the user sets later, or elsewhere, still counts."""
    app = app_with(redlock_nodes=NODES)
    Settings.of(app.conf)

    assert "redlock_ttl" not in app.conf
    app.conf.redlock_ttl = 20
    assert Settings.of(app.conf).ttl == 20


def test_unknown_setting_in_django_is_refused() -> None:
    """A wrong name is shown as the user wrote it."""
    app = app_with("CELERY", CELERY_REDLOCK_NODES=NODES, CELERY_REDLOCK_TLL=20)

    with pytest.raises(ConfigurationError, match="no setting CELERY_REDLOCK_TLL"):
        Settings.of(app.conf)


@pytest.mark.parametrize(
    ("namespace", "written", "right"),
    [
        ("CELERY", "REDLOCK_TTL", "CELERY_REDLOCK_TTL"),
        ("CELERY", "CELERY_redlock_ttl", "CELERY_REDLOCK_TTL"),
        (None, "REDLOCK_TTL", "redlock_ttl"),
    ],
)
def test_spelling_that_celery_does_not_read(
    namespace: str | None, written: str, right: str
) -> None:
    """A setting that would be ignored for its spelling gets the right one."""
    nodes = "CELERY_REDLOCK_NODES" if namespace else "redlock_nodes"
    app = app_with(namespace, **{nodes: NODES, written: 20})

    with pytest.raises(ConfigurationError, match=f"^{written} is set.*Write {right}."):
        Settings.of(app.conf)


def test_somebody_elses_upper_case_setting_is_left_alone() -> None:
    """In Django ``REDLOCK_X`` may be another package's."""
    app = app_with("CELERY", CELERY_REDLOCK_NODES=NODES, REDLOCK_FILES=["x"])

    assert Settings.of(app.conf) == settings()


# -- Lock options ----------------------------------------------------------------


def test_options_have_defaults() -> None:
    """A task that asks for nothing skips duplicates and is stopped on loss."""
    resolved = LockOptions().resolve(settings(ttl=20))

    assert resolved.on_conflict(CONFLICT) == Skip()
    assert resolved.on_lock_lost(LOSS) == Abort()
    assert isinstance(resolved.on_backend_error(OUTAGE), Retry)
    assert (resolved.ttl, resolved.renew, resolved.hold_at_least) == (20.0, True, 0.0)


def test_options_go_before_settings() -> None:
    """What a task says counts more than what its app says."""
    options = LockOptions(ttl=timedelta(seconds=10), on_backend_error="run")
    resolved = options.resolve(settings(ttl=20, on_backend_error="raise"))

    assert resolved.ttl == 10.0
    assert resolved.on_backend_error(OUTAGE) == Run()
    assert LockOptions().resolve(settings(on_backend_error="raise")).on_backend_error(
        OUTAGE
    ) == (Raise())


def test_wait_gets_its_timeout() -> None:
    """``wait_timeout`` is for whoever says "wait" without a number; 10 s."""
    said, unsaid = (
        LockOptions(on_conflict="wait", wait_timeout=5),
        LockOptions(on_conflict=lambda _: Wait()),
    )

    assert said.resolve(settings()).on_conflict(CONFLICT) == Wait(5.0)
    assert unsaid.resolve(settings()).on_conflict(CONFLICT) == Wait(10.0)
    own = LockOptions(on_conflict=lambda _: Wait(60), wait_timeout=5)
    assert own.resolve(settings()).on_conflict(CONFLICT) == Wait(60.0)


def test_retry_gets_its_countdown() -> None:
    """``retry_countdown`` is for whoever says "retry" without a number."""
    options = LockOptions(
        on_conflict="retry", on_lock_lost="retry", retry_countdown=timedelta(minutes=1)
    )
    resolved = options.resolve(settings())

    assert resolved.on_conflict(CONFLICT) == Retry(60.0)
    assert resolved.on_lock_lost(LOSS) == Retry(60.0)
    own = LockOptions(on_conflict=Retry(5)).resolve(settings())
    assert own.on_conflict(CONFLICT) == Retry(5.0)


def test_retry_countdown_is_half_the_ttl_at_random() -> None:
    """By default duplicates come back after a quarter to three quarters of the ttl."""
    resolved = LockOptions(on_conflict="retry", ttl=20).resolve(settings())

    delays = {delay(resolved.on_conflict(CONFLICT)) for _ in range(100)}

    assert len(delays) > 90
    assert all(5 <= seconds <= 15 for seconds in delays)


def test_retry_countdown_leaves_an_outage_alone() -> None:
    """Outages have a schedule of their own."""
    options = LockOptions(on_conflict="retry", retry_countdown=1000)

    decision = options.resolve(settings()).on_backend_error(OUTAGE)

    assert delay(decision) <= 15


@pytest.mark.parametrize("wrong", ["on_conflit", "tll", "unique"])
def test_unknown_option_is_refused(wrong: str) -> None:
    """An option that does not exist is refused with the nearest one."""
    said = option_refusal(**{wrong: 1})

    assert said.startswith(f"There is no lock option '{wrong}'. Did you mean '")


@pytest.mark.parametrize("name", ["ttl", "wait_timeout", "retry_countdown"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "30"])
def test_duration_option_that_is_none(name: str, value: Any) -> None:
    """A duration is a finite number of seconds above 0."""
    said = option_refusal(**{name: value, "on_conflict": lambda _: "skip"})

    assert said == f"{name} is {value!r}; it must be a number of seconds above 0."


@pytest.mark.parametrize("value", [-1, math.nan, True, "30"])
def test_hold_at_least_may_be_zero_and_nothing_less(value: Any) -> None:
    """Not holding is the default; everything else is a duration."""
    assert LockOptions(hold_at_least=0).hold_at_least == 0.0
    assert LockOptions.of({"hold_at_least": timedelta(0)}).hold_at_least == 0.0
    assert option_refusal(hold_at_least=value).startswith("hold_at_least is")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"renew": 1}, "renew is 1; it must be True or False."),
        ({"key": 5}, "key is 5; it must be a template"),
        ({"key": "{a"}, "The key '{a' cannot be used"),
        ({"unique_on": "user_id"}, 'list of argument names such as ["user_id"]'),
        ({"unique_on": [1]}, "list of argument names"),
        ({"unique_on": iter(["a"])}, "list of argument names"),
        ({"key": "x", "unique_on": []}, "key and unique_on both say"),
        ({"on_conflict": "skp"}, "Did you mean 'skip'?"),
        ({"on_lock_lost": "skip"}, "on_lock_lost='skip' does not exist"),
        ({"on_backend_error": "wait"}, "on_backend_error='wait' does not exist"),
        ({"on_conflict": None}, "on_conflict=None is no policy"),
    ],
)
def test_option_that_is_wrong(options: dict[str, Any], fault: str) -> None:
    """Each mistake is told at decoration, by the option's name."""
    assert fault in option_refusal(**options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"wait_timeout": 5}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": "retry"}, "on_conflict='wait'"),
        ({"wait_timeout": 5, "on_conflict": Skip()}, "on_conflict='wait'"),
        ({"retry_countdown": 5}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": "wait"}, "on_conflict='retry'"),
        ({"retry_countdown": 5, "on_conflict": {"execute": "skip"}}, "='retry'"),
    ],
)
def test_option_without_effect_is_refused(options: dict[str, Any], remedy: str) -> None:
    """An option that nothing would read is a misunderstanding."""
    said = option_refusal(**options)

    assert "has no effect with on_conflict=" in said
    assert remedy in said


@pytest.mark.parametrize(
    "options",
    [
        {"wait_timeout": 5, "on_conflict": "wait"},
        {"wait_timeout": 5, "on_conflict": Wait()},
        {"wait_timeout": 5, "on_conflict": {"execute": "wait"}},
        {"wait_timeout": 5, "on_conflict": lambda _: "wait"},
        {"retry_countdown": 5, "on_conflict": "retry"},
        {"retry_countdown": 5, "on_conflict": lambda _: "retry"},
        {"retry_countdown": 5, "on_lock_lost": "retry"},
        {"retry_countdown": 5, "on_lock_lost": lambda _: "retry"},
    ],
)
def test_option_with_a_possible_effect_is_accepted(options: dict[str, Any]) -> None:
    """What a policy may use may be given."""
    LockOptions.of(options).resolve(settings())


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"ttl": 61}, "proj.f: The ttl of 61 s is above max_ttl (60 s)"),
        ({"ttl": 0.1}, "proj.f: The ttl of 0.1 s must be more than three"),
        ({"hold_at_least": 61}, "proj.f: hold_at_least is 61 s, above redlock_max_ttl"),
    ],
)
def test_option_that_does_not_go_with_the_settings(
    options: dict[str, Any], fault: str
) -> None:
    """What only the settings can tell is told by the name of the task."""
    with pytest.raises(ConfigurationError) as caught:
        LockOptions.of(options).resolve(settings(), "proj.f")

    assert str(caught.value).startswith(fault)


def test_options_make_the_key_rule() -> None:
    """The options say how calls are reduced to keys, checked against the task."""
    signature = inspect.signature(lambda a, b=2: (a, b))

    template = LockOptions(key="{a}").key_rule("t", signature)
    subset = LockOptions(unique_on=["b"]).key_rule("t", signature)

    assert template.key_of([7], {}) == "7"
    assert subset.key_of([7], {}) == subset.key_of([8], {})
    with pytest.raises(ConfigurationError, match="'c'"):
        LockOptions(key="{c}").key_rule("t", signature)


def test_decorator_arguments_are_parted() -> None:
    """Lock options go one way and everything that Celery takes the other."""
    given = {"key": "x", "name": "n", "bind": True, "retry_backoff": 2, "queue": "q"}

    ours, rest = LockOptions.split(given)

    assert ours == {"key": "x"}
    assert rest == {"name": "n", "bind": True, "retry_backoff": 2, "queue": "q"}


def test_misspelt_decorator_argument_is_ours() -> None:
    """Celery would take a typing error as an attribute and never say a word."""
    ours, rest = LockOptions.split({"on_conflit": "skip", "keys": 1}, foreign=["keys"])
    assert LockOptions.split({"ttl": 5}, foreign=["ttl"]) == ({"ttl": 5}, {})

    assert (ours, rest) == ({"on_conflit": "skip"}, {"keys": 1})
    assert "Did you mean 'on_conflict'?" in option_refusal(**ours)
