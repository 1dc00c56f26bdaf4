"""Views as text, how they grow, and how one that differs is explained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.members.configuration import Configuration
from celery_redlock.members.view import CLOSED, JOINED, Member, View, refusal

OURS = Configuration(("a:1/0", "b:1/0"), 60.0, is_guarded=True)
VIEW = View(
    OURS,
    deployment="5b1f",
    epoch=4,
    nonce="9c",
    is_founded=True,
    members=(Member(0, "31f2"), Member(2, "77aa")),
)

words = st.text("0123456789abcdef", min_size=1, max_size=8)
labels = st.sampled_from(
    ["a:6379/0", "b", "/run/c=1.sock/2", "[::1]:1/0", "d=0.x", "é"]
)
durations = st.floats(0.001, 1e9) | st.integers(1, 10**7).map(float)
configurations = st.builds(
    Configuration,
    st.lists(labels, min_size=1, unique=True).map(tuple),
    durations,
    is_guarded=st.booleans(),
)
members = st.builds(Member, st.integers(0, 20), words)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Return any view."""
    configuration = draw(configurations)
    size = len(configuration.labels)
    return View(
        configuration,
        draw(words),
        draw(st.integers(0, 10**6)),
        draw(words),
        draw(st.booleans()),
        tuple(draw(st.lists(members, min_size=size, max_size=size))),
    )


@st.composite
def grown(draw: st.DrawFn) -> tuple[View, View, View]:
    """Return three views of one epoch."""
    view = draw(views())
    size = len(view.members)
    some = st.lists(members, min_size=size, max_size=size).map(tuple)
    return view, replace(view, members=draw(some)), replace(view, members=draw(some))


# -- text --------------------------------------------------------------------------


def test_view_is_one_line_of_text() -> None:
    """Every node stores it, and scripts compare it as a whole."""
    text = (
        "format 4, max_ttl 60 s, restart guard on, deployment 5b1f, epoch 4.9c "
        "founded, nodes a:1/0=0.31f2, b:1/0=2.77aa"
    )

    assert str(VIEW) == text
    assert View.parse(text) == VIEW
    assert Configuration.parse(text) is None


@given(views())
def test_view_is_read_as_it_was_written(view: View) -> None:
    """Otherwise a client would never use a view with its own settings."""
    assert View.parse(str(view)) == view


@given(configurations)
def test_configuration_is_read_as_it_was_written(configuration: Configuration) -> None:
    """Any duration is written in full: 100 / 3 seconds are not 33.3333."""
    assert Configuration.parse(str(configuration)) == configuration


def test_configuration_is_one_line_of_text() -> None:
    """A client sends it as long as it has no view."""
    text = "format 4, max_ttl 60 s, restart guard on, nodes a:1/0, b:1/0"

    assert str(OURS) == text
    assert View.parse(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        JOINED,
        f"{CLOSED}{VIEW}",
        str(OURS),
        str(VIEW).replace("format 4", "format 2"),
        str(VIEW).replace("format 4", "format 44"),
        str(VIEW).replace("max_ttl 60", "max_ttl x"),
        str(VIEW).replace("guard on", "guard perhaps"),
        str(VIEW).replace("founded", "found"),
        str(VIEW).replace("=0.", "=-1."),
        str(VIEW).replace("=0.31f2", ""),
        f"{VIEW}\n",
        f"{VIEW}, ",
        "protocol 1, max_ttl 60 s, nodes a",
    ],
)
def test_other_text_is_no_view(text: str) -> None:
    """No text that a node may have stored raises an error."""
    assert View.parse(text) is None


# -- growth ------------------------------------------------------------------------


@given(grown())
def test_views_of_an_epoch_merge_in_any_order(three: tuple[View, View, View]) -> None:
    """All clients that saw the same views come to the same one."""
    a, b, c = three

    assert a.merged(b) == b.merged(a)
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(a) == a
    assert a.merged(b).merged(b) == a.merged(b)


@given(views(), st.data())
def test_newcomer_comes_after_the_member_before(
    view: View, data: st.DataObject
) -> None:
    """At its place alone, with any identity."""
    label = data.draw(st.sampled_from(view.configuration.labels))

    after = view.with_newcomer(label, "0")

    assert after.member(label) == (view.member(label).number + 1, "0")
    assert view.merged(after) == after
    changed = [a != b for a, b in zip(view.members, after.members, strict=True)]
    assert sum(changed) == 1


def test_next_epoch_is_of_the_same_deployment() -> None:
    """It comes after, and has a nonce of its own: two may be made at once."""
    identities = {"a:1/0": "1", "b:1/0": "2"}

    one, two = (
        View.first_of_epoch(OURS, identities, before=VIEW, is_founded=founded)
        for founded in (True, False)
    )

    assert one.deployment == two.deployment == VIEW.deployment
    assert one.epoch == two.epoch == 5
    assert one.order > VIEW.order
    assert not one.is_same_epoch(two)
    assert (one.is_founded, two.is_founded) == (True, False)
    assert one.members == (Member(0, "1"), Member(0, "2"))


def test_first_epoch_is_of_a_new_deployment() -> None:
    """Its name is random."""
    identities = {"a:1/0": "1", "b:1/0": "2"}

    one, two = (View.first_of_epoch(OURS, identities, before=None) for _ in range(2))

    assert one.epoch == 1
    assert one.deployment != two.deployment


# -- what an error says ------------------------------------------------------------


def changed(**changes: object) -> View:
    """Return the view with other settings."""
    return replace(VIEW, configuration=replace(OURS, **changes))  # type: ignore[arg-type]


LOST = "They vote again by themselves. Run `celery -A proj redlock doctor`"
OTHERS = (
    "Check that the names of the nodes lead all clients to the same servers. A node "
    "that no other deployment uses joins this one when its key `meta` is deleted"
)
OLDER = "Stop all workers and beats, then run `celery -A proj redlock init`"
UNFINISHED = (
    "Wait until `celery -A proj redlock reconfigure` is done, or run it again with its "
    "arguments"
)


@pytest.mark.parametrize(
    ("theirs", "difference", "remedy"),
    [
        (
            changed(max_ttl=30.0),
            "are at epoch 4 with max_ttl 30 s; this client has max_ttl 60 s",
            (
                "Set redlock_max_ttl = 30, or move the nodes to yours with "
                "`celery -A proj redlock reconfigure`"
            ),
        ),
        (
            changed(is_guarded=False),
            (
                "are at epoch 4 with the restart guard off; this client has the "
                "restart guard on"
            ),
            (
                "Set redlock_restart_guard = False, or move the nodes by hand: stop "
                "all clients, delete the key `meta` on all nodes, and start the "
                "clients with the new settings"
            ),
        ),
        (
            replace(changed(labels=("a:1/0",), max_ttl=1.5), members=VIEW.members[:1]),
            (
                "are at epoch 4 with max_ttl 1.5 s and the nodes a:1/0; this client "
                "has max_ttl 60 s and the nodes a:1/0, b:1/0"
            ),
            (
                "Set redlock_max_ttl = 1.5 and redlock_nodes to the same nodes, or "
                "move the nodes to yours with `celery -A proj redlock reconfigure`"
            ),
        ),
        (
            f"{CLOSED}{VIEW}",
            (
                "are closed: moving to format 4, max_ttl 60 s, restart guard on, nodes "
                "a:1/0, b:1/0"
            ),
            UNFINISHED,
        ),
        (
            f"{CLOSED}somewhere",
            f"are closed: moving to {CLOSED}somewhere",
            UNFINISHED,
        ),
        (
            "format 2, x",
            "were used by an older celery-redlock (format 2, x)",
            OLDER,
        ),
        (
            "format 3, x",  # its permits had names that could be keys
            "were used by an older celery-redlock (format 3, x)",
            OLDER,
        ),
        (
            "format 9, x",
            "were used by a newer celery-redlock (format 9, x)",
            "Install the same version for this client",
        ),
        (
            "format 4, x",
            "were used by another version of celery-redlock (format 4, x)",
            (
                "Use one version for all clients. After an upgrade stop all workers "
                "and beats, then run `celery -A proj redlock init`"
            ),
        ),
        ("", "have lost their memory", LOST),
        (JOINED, "have lost their memory", LOST),
        (
            replace(VIEW, deployment="d2"),
            "are members of deployment d2, and the other nodes of deployment 5b1f",
            OTHERS,
        ),
        (
            replace(VIEW, deployment="d2", configuration=replace(OURS, max_ttl=30.0)),
            "are members of deployment d2, and the other nodes of deployment 5b1f",
            OTHERS,
        ),
        (
            replace(VIEW, epoch=5),
            "are at epoch 5, and the other nodes at 4",
            "Run `celery -A proj redlock doctor`",
        ),
        (
            VIEW.with_newcomer("a:1/0", "another"),
            "were replaced: the same names lead other clients to other servers",
            OTHERS,
        ),
    ],
)
def test_refusal_says_the_difference_and_the_remedy(
    theirs: object, difference: str, remedy: str
) -> None:
    """No reader compares two long lines."""
    assert refusal(str(theirs), str(VIEW)) == (difference, remedy)


def test_refusal_of_a_client_without_the_guard_has_locks_end_first() -> None:
    """Nodes without memory vote at once for it, and `reconfigure` refuses it."""
    _, remedy = refusal(str(VIEW), str(replace(OURS, is_guarded=False)))

    assert remedy == (
        "Set redlock_restart_guard = True, or move the nodes by hand: stop all "
        "clients, delete the key `meta` on all nodes, wait for one max_ttl, and start "
        "the clients with the new settings"
    )


def test_refusal_of_a_client_without_view_compares_the_settings() -> None:
    """It is new, and the nodes are set up for others."""
    difference, _ = refusal(str(changed(max_ttl=30.0)), str(OURS))

    assert (
        difference == "are at epoch 4 with max_ttl 30 s; this client has max_ttl 60 s"
    )


def test_refusal_never_shows_two_equal_durations() -> None:
    """They may differ in the seventh digit only."""
    difference, _ = refusal(str(changed(max_ttl=60.0000001)), str(VIEW))

    assert "max_ttl 60.0000001 s; this client has max_ttl 60 s" in difference
