"""The settings of an app: defaults, spellings, and errors for wrong values."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_redlock.app.runtime import forget_runtimes, runtime_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.settings import Settings
from celery_redlock.wire.url import parse_node
from tests.unit.support import NODES, settings


def refusal(**values: Any) -> str:
    """Return the error text for an app with these settings."""
    with pytest.raises(ConfigurationError) as caught:
        settings(**values)
    return str(caught.value)


# -- settings that are right -------------------------------------------------------


def test_only_the_nodes_must_be_set() -> None:
    """All other settings have a default."""
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
    assert settings(nodes=nodes).nodes[0].url.reveal() == nodes[0]


# -- settings that are wrong -------------------------------------------------------


@pytest.mark.parametrize("conf", [{}, {"redlock_nodes": None}, {"redlock_nodes": []}])
def test_nodes_must_be_set(conf: dict[str, Any]) -> None:
    """Without nodes nothing can be locked, and the error shows how to set them."""
    with pytest.raises(ConfigurationError, match=r"redlock_nodes is not set.*redis://"):
        Settings.of(conf)


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ("redis://:s3cret@a", "is a text"),
        pytest.param(b"redis://:s3cret@a", "is a text", id="bytes"),
        ({"redis://:s3cret@a"}, "is of type set"),
        (["http://:s3cret@a"], "not a Redis URL"),
        (["redis://:s3cret@a", "redis://a:6379/0"], "a:6379/0 is listed 2 times"),
    ],
)
def test_nodes_that_cannot_be_used_are_refused(nodes: Any, fault: str) -> None:
    """The error names the setting and shows no password."""
    said = refusal(nodes=nodes)

    assert said.startswith("redlock_nodes")
    assert fault in said
    assert "s3cret" not in said


@pytest.mark.parametrize("name", ["ttl", "max_ttl", "node_timeout", "connect_timeout"])
@pytest.mark.parametrize("value", [0, math.nan, True, "30"])
def test_value_that_is_no_duration_is_refused(name: str, value: Any) -> None:
    """A duration is a finite number of seconds above 0."""
    said = refusal(**{name: value})

    assert said == (
        f"redlock_{name} is {value!r}; it must be a number of seconds above 0."
    )


@pytest.mark.parametrize(
    ("ttl", "fault"),
    [
        (90, "The ttl of 90 s is above max_ttl (60 s)"),
        (0.15, "The ttl of 0.15 s is not above three node time-outs (0.05 s each)"),
    ],
)
def test_ttl_that_does_not_fit_is_refused(ttl: float, fault: str) -> None:
    """The error of the durations, with the name of the setting before it."""
    assert refusal(ttl=ttl).startswith(f"redlock_ttl: {fault}")


@pytest.mark.parametrize("name", ["restart_guard", "eager"])
@pytest.mark.parametrize("value", [0, 1, "false", "yes"])
def test_flag_is_true_or_false(name: str, value: Any) -> None:
    """A text from the environment is no flag: "false" would be true."""
    assert refusal(**{name: value}) == (
        f"redlock_{name} is {value!r}; it must be True or False."
    )


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", 5, b"redlock"])
def test_prefix_is_a_word(value: Any) -> None:
    """A prefix is text without spaces."""
    assert refusal(prefix=value).startswith(f"redlock_prefix is {value!r}; it must be")


@pytest.mark.parametrize("value", [5, "few-nodes", [5], {"few-nodes": True}])
def test_ignored_findings_are_a_list_of_codes(value: Any) -> None:
    """All else is refused, also what is no collection at all."""
    assert refusal(doctor_ignore=value) == (
        f"redlock_doctor_ignore is {value!r}; it must be a list of codes of findings, "
        'such as ["few-nodes"].'
    )


def test_ignored_finding_that_does_not_exist_is_refused() -> None:
    """A misspelled code would leave the finding where it is."""
    assert refusal(doctor_ignore=["shared", "few-node"]) == (
        "redlock_doctor_ignore has 'few-node', a code that no finding of the doctor "
        "has. Did you mean 'few-nodes'?"
    )


def test_duration_that_equals_a_default_is_taken_as_it_is_given() -> None:
    """Only a setting that is not set follows the nodes, or max_ttl."""
    store = settings(nodes=["etcd://a"], node_timeout=0.05)

    assert store.node_timeout == 0.05
    assert settings(max_ttl=10, ttl=8).beat_ttl == 10
    assert refusal(max_ttl=10, ttl=8, beat_ttl=15.0).startswith(
        "redlock_beat_ttl: The ttl of 15 s is above max_ttl (10 s)"
    )


def test_policy_in_a_setting_is_checked() -> None:
    """The error for a wrong word names the setting and the right word."""
    said = refusal(on_backend_error="rtry")

    assert said.startswith("redlock_on_backend_error: ")
    assert said.endswith("Did you mean 'retry'?")


def test_unknown_setting_is_refused() -> None:
    """The error suggests the nearest setting."""
    assert refusal(tll=3) == (
        "There is no setting redlock_tll. Did you mean 'redlock_ttl'?"
    )
    assert refusal(node=NODES).endswith("Did you mean 'redlock_nodes'?")
    for far in ("zzz", "urls"):  # of which only the prefix is near to a setting
        said = refusal(**{far: 3})
        assert said.startswith(f"There is no setting redlock_{far}. There are 'redlo")
        assert "'redlock_nodes'" in said


@pytest.mark.parametrize("name", ["on_conflict", "key", "limit", "wait_timeout"])
def test_lock_option_is_no_setting(name: str) -> None:
    """The error says where it belongs, and not that a setting is near."""
    assert refusal(**{name: "retry"}) == (
        f"There is no setting redlock_{name}: {name} is a lock option. Write "
        f"@singleton_task({name}=...), or, for several tasks, a base class with "
        f'redlock = {{"{name}": ...}}.'
    )


def test_settings_of_other_packages_are_left_alone() -> None:
    """Only names that begin with ``redlock_`` are read."""
    conf = {"redlock_nodes": NODES, "task_always_eager": True, "my_redlock_x": 1}

    assert Settings.of(conf) == settings()


# -- settings in Celery's spellings ------------------------------------------------


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
    """Reading the settings makes the app read its configuration."""
    app = Celery("settings", set_as_current=False)
    app.conf.redlock_nodes = NODES

    assert Settings.of(app.conf) == settings()


def test_settings_in_django() -> None:
    """``namespace="CELERY"`` reads ``CELERY_REDLOCK_*``."""
    app = app_with("CELERY", CELERY_REDLOCK_NODES=NODES, CELERY_REDLOCK_TTL=20)

    assert Settings.of(app.conf) == settings(ttl=20)


@pytest.mark.parametrize("is_read", [False, True])
def test_setting_that_is_assigned_replaces_the_one_of_the_namespace(
    *, is_read: bool
) -> None:
    """Also with Celery before 5.7, which takes its own from the namespace."""
    app = app_with("CELERY", CELERY_REDLOCK_NODES=NODES, CELERY_REDLOCK_TTL=20)
    if is_read:
        assert app.conf.redlock_ttl == 20
    app.conf.redlock_ttl = 25

    assert Settings.of(app.conf) == settings(ttl=25)


def test_module_with_settings_may_have_any_other_name() -> None:
    """Celery shows all names of the module as attributes of ``app.conf``."""
    app = app_with(redlock_nodes=NODES, data="ours", changes="ours", get="ours")

    assert Settings.of(app.conf) == settings()


def test_reading_sets_no_defaults() -> None:
    """A value that the user sets later still counts."""
    app = app_with(redlock_nodes=NODES)
    Settings.of(app.conf)

    assert "redlock_ttl" not in app.conf
    app.conf.redlock_ttl = 20
    assert Settings.of(app.conf).ttl == 20


@pytest.mark.parametrize(
    ("namespace", "written", "fault"),
    [
        (
            "CELERY",
            "CELERY_REDLOCK_TLL",
            "no setting CELERY_REDLOCK_TLL. Did you mean 'CELERY_REDLOCK_TTL'",
        ),
        ("CELERY", "REDLOCK_TTL", "^REDLOCK_TTL is set.*Write CELERY_REDLOCK_TTL."),
        (
            "CELERY",
            "CELERY_redlock_ttl",
            "^CELERY_redlock_ttl is set.*Write CELERY_REDLOCK_TTL.",
        ),
        (None, "REDLOCK_TTL", "^REDLOCK_TTL is set.*Write redlock_ttl."),
    ],
)
def test_spelling_that_celery_does_not_read_is_refused(
    namespace: str | None, written: str, fault: str
) -> None:
    """The error shows the name as the user wrote it, and the right spelling."""
    nodes = "CELERY_REDLOCK_NODES" if namespace else "redlock_nodes"
    app = app_with(namespace, **{nodes: NODES, written: 20})

    with pytest.raises(ConfigurationError, match=fault):
        Settings.of(app.conf)


def test_upper_case_setting_of_another_package_is_left_alone() -> None:
    """In Django ``REDLOCK_X`` may belong to another package."""
    app = app_with("CELERY", CELERY_REDLOCK_NODES=NODES, REDLOCK_FILES=["x"])

    assert Settings.of(app.conf) == settings()


@pytest.mark.parametrize("namespace", [None, "SHOP"])
def test_nodes_of_a_namespace_that_the_app_does_not_read_are_named(
    namespace: str | None,
) -> None:
    """A missing ``namespace="CELERY"`` is the usual reason for missing nodes."""
    app = app_with(namespace, CELERY_REDLOCK_NODES=NODES)

    with pytest.raises(
        ConfigurationError, match=r'CELERY_REDLOCK_NODES is set.*namespace="CELERY"'
    ):
        Settings.of(app.conf)


def test_nodes_that_are_not_set_in_django_are_said_to_be_missing() -> None:
    """Django has a hundred settings, and none of them is a namespace."""
    of_django = {"ABSOLUTE_URL_OVERRIDES": {}, "DEBUG": False, "SHOP_REDLOCK": 1}
    app = app_with("CELERY", **of_django)

    with pytest.raises(ConfigurationError, match=r"^redlock_nodes is not set. Nothing"):
        Settings.of(app.conf)


# -- settings that are changed -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("ttl", 25), ("nodes", ["redis://another"]), ("on_backend_error", "run")],
)
def test_setting_that_is_changed_after_its_first_use_is_refused(
    name: str, value: object
) -> None:
    """The locks would go on with the former value, without a word."""
    app = app_with(redlock_ttl=20)
    app.conf.redlock_nodes = NODES
    runtime = runtime_of(app)
    app.conf[f"redlock_{name}"] = value

    with pytest.raises(ConfigurationError, match=f"^redlock_{name} was changed after"):
        runtime_of(app)

    forget_runtimes()
    assert runtime_of(app) is not runtime


def test_setting_that_is_set_again_to_its_value_is_no_change() -> None:
    """A module may be imported twice."""
    app = app_with()
    app.conf.redlock_nodes = NODES
    app.conf.redlock_ttl = 20
    runtime = runtime_of(app)
    app.conf.update(redlock_nodes=list(NODES), redlock_ttl=20.0)

    assert runtime_of(app) is runtime
