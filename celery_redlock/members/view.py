"""A view: which servers are the members of a deployment.

A name in ``redlock_nodes`` says where a server is, and not which server it is. It may
lead one client to another server than the next, and the server there may have been
replaced. So every server gets an *identity*, made at random, which ends with its
memory. A view gives the identity of the member at each place (a name is a place)::

    format 4, max_ttl 60 s, restart guard on, deployment 5b1f, epoch 4.9c founded,
    nodes a:6379/0=0.31f2, b:6379/0=2.77aa, c:6379/0=0.d01b

Clients and nodes compare this text as a whole. A ballot counts votes of one view only.

A view changes in two ways. Within an *epoch* it only grows: when a server takes the
place of another one, the number at this place is raised, and never used again. So all
who merge views of an epoch come to the same view. A new epoch is *founded* when too few
members are left to admit others, or *planned* by ``redlock reconfigure``.

Tried in all states of small deployments: ``tests/model/membership.py``.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.text import printable_line
from celery_redlock.members.configuration import (
    FORMAT,
    SETTINGS,
    Configuration,
    in_full,
)
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_redlock.wire.quorum import Ballot

JOINED = f"format {FORMAT}, in no deployment"  # of a node that has only an identity
CLOSED = f"format {FORMAT}, closed: moving to "  # a planned view follows
UNKNOWN = "unknown"  # the identity at a place whose server was never seen

_TEXT = re.compile(
    rf"{SETTINGS}, deployment (?P<deployment>\w+), epoch (?P<epoch>\d{{1,18}})\."
    r"(?P<nonce>\w+) (?P<kind>founded|planned), nodes (?P<members>.+)"
)
_MOST_TOLD = 4000  # bytes: a view names all nodes
_NUMBERED = re.compile(r"format (\d{1,18}), ")
_MEMBER = re.compile(r"(.*)=(\d{1,18})\.(\w+)")

_ONE_VERSION = (
    "Use one version for all clients. After an upgrade stop all workers and beats, "
    f"then run `{COMMAND} init`"
)
_FINISHED = (
    f"If `{COMMAND} reconfigure` is done, give this client the new settings. Else wait "
    "until it is done, or run it again with its arguments"
)
_UNFINISHED = (
    f"Wait until `{COMMAND} reconfigure` is done, or run it again with its arguments"
)
_CHECK_NAMES = (
    "Check that the names of the nodes lead all clients to the same servers. A node "
    "that no other deployment uses joins this one when its key `meta` is deleted"
)


class Member(NamedTuple):
    """The member at one place.

    Attributes:
        number: How often the server at this place was replaced in this epoch.
        identity: The identity of the server.
    """

    number: int
    identity: str


@dataclass(frozen=True, slots=True)
class View:
    """The members of a deployment, in one epoch.

    Attributes:
        configuration: The settings of the clients that use it.
        deployment: The name of the deployment, made at random.
        epoch: A number that each founding and each reconfiguration raises.
        nonce: Made at random: two who raise the epoch at once make two epochs.
        is_founded: Whether its first members founded it. Otherwise it was planned.
        members: The member at each place, in the order of the configuration.
    """

    configuration: Configuration
    deployment: str
    epoch: int
    nonce: str
    is_founded: bool
    members: tuple[Member, ...]

    def __str__(self) -> str:
        kind = "founded" if self.is_founded else "planned"
        members = (
            f"{label}={member.number}.{member.identity}"
            for label, member in zip(
                self.configuration.labels, self.members, strict=True
            )
        )
        return (
            f"{self.configuration.settings}, deployment {self.deployment}, "
            f"epoch {self.epoch}.{self.nonce} {kind}, nodes {', '.join(members)}"
        )

    @classmethod
    def parse(cls, text: str) -> View | None:
        """Return the view in a stored text; None if it is of another version."""
        found = _TEXT.fullmatch(text)
        if not found:
            return None
        labels, members = [], []
        for item in found["members"].split(", "):
            member = _MEMBER.fullmatch(item)
            if not member:
                return None
            labels.append(member[1])
            members.append(Member(int(member[2]), member[3]))
        return cls(
            Configuration(
                tuple(labels), float(found["max_ttl"]), found["guard"] == "on"
            ),
            found["deployment"],
            int(found["epoch"]),
            found["nonce"],
            found["kind"] == "founded",
            tuple(members),
        )

    @property
    def order(self) -> tuple[int, str]:
        """The order of epochs; equal for two views of one epoch."""
        return self.epoch, self.nonce

    @property
    def had_others(self) -> bool:
        """Whether other servers were members before, or the same with more memory."""
        return self.epoch > 1 or any(member.number for member in self.members)

    def is_same_epoch(self, other: View) -> bool:
        """Tell whether both are views of one epoch of one deployment."""
        return (self.deployment, self.order) == (other.deployment, other.order)

    def merged(self, other: View) -> View:
        """Return the least view that both views of one epoch grow into."""
        return replace(self, members=tuple(map(max, self.members, other.members)))

    def member(self, label: str) -> Member:
        """Return the member at a place.

        Raises:
            ValueError: There is no such place.
        """
        return self.members[self.configuration.labels.index(label)]

    def with_newcomer(self, label: str, identity: str) -> View:
        """Return the view in which this server takes the place."""
        place = self.configuration.labels.index(label)
        members = list(self.members)
        members[place] = Member(members[place].number + 1, identity)
        return replace(self, members=tuple(members))

    @classmethod
    def first_of_epoch(
        cls,
        configuration: Configuration,
        identities: dict[str, str],
        *,
        before: View | None,
        is_founded: bool = True,
    ) -> View:
        """Return the first view of a new epoch, above that of another view.

        Args:
            configuration: The settings.
            identities: The identity of the server at each place.
            before: A view of the epoch before; None begins a new deployment.
            is_founded: As in the class.
        """
        return cls(
            configuration,
            before.deployment if before else secrets.token_hex(8),
            before.epoch + 1 if before else 1,
            secrets.token_hex(4),
            is_founded,
            tuple(Member(0, identities[label]) for label in configuration.labels),
        )


def may_be_new(config: str) -> bool:
    """Tell whether a deployment may be brand-new: none of its servers had memory.

    Args:
        config: The text of a view; or of the settings, or "", where there is none.
    """
    view = View.parse(config)
    return view is None or not view.had_others


def is_older(text: str) -> bool:
    """Tell whether an earlier version has stored this text."""
    return _format_of(text) < FORMAT


def _format_of(text: str) -> int:
    """Return the number of the format of a text; ours if it has none."""
    found = _NUMBERED.match(text)
    return int(found[1]) if found else FORMAT


def refusal(theirs: str, ours: str) -> tuple[str, str]:
    """Return how the view of a node differs from ours, and the remedy.

    Args:
        theirs: The text that the node has stored; "" if it has none.
        ours: The text of this client: of its view, or of its configuration.

    Returns:
        A clause that reads on after "the nodes", and a sentence without its full stop.
    """
    difference, remedy = _refusal(theirs, ours)
    # A node can have stored anything.
    return printable_line(difference, _MOST_TOLD), printable_line(remedy, _MOST_TOLD)


def differences(theirs: Iterable[str], ours: str) -> str:
    """Return how these views differ from ours, and the remedy; ``""`` without any.

    It reads on with a full stop.
    """
    told = [refusal(view, ours) for view in theirs]
    facts = "; some nodes ".join(fact for fact, _ in told)
    return f"The nodes {facts}. {told[0][1]}" if told else ""


def other_views(ballot: Ballot) -> Sequence[str]:
    """Return the views of nodes that have refused ours."""
    refused = (v for v in ballot.votes if v and v.kind is VoteKind.REFUSED and v.value)
    told = {vote.value for vote in refused}
    opened = [view for view in map(View.parse, told) if view]
    return sorted(text for text in told if not _is_left_closed(text, opened))


def _is_left_closed(text: str, opened: Sequence[View]) -> bool:
    """Tell whether a node lags behind a finished reconfiguration.

    Then the move is done, or nearly so, and not to be waited for.
    """
    if not text.startswith(CLOSED):
        return False
    plan = View.parse(text.removeprefix(CLOSED))
    return plan is not None and any(map(plan.is_same_epoch, opened))


def _refusal(theirs: str, ours: str) -> tuple[str, str]:  # noqa: PLR0911
    if theirs in ("", JOINED):
        return (
            "have lost their memory",
            f"They vote again by themselves. Run `{COMMAND} doctor`",
        )
    if theirs.startswith(CLOSED):
        plan = View.parse(theirs.removeprefix(CLOSED))
        # The new nodes may vote already, where a client of the old ones does not look.
        may_be_done = plan and plan.configuration != _configuration_in(ours)
        return (
            f"are closed: moving to {plan.configuration if plan else theirs}",
            _FINISHED if may_be_done else _UNFINISHED,
        )
    if is_older(theirs):
        return (
            f"were used by an older celery-redlock ({theirs})",
            f"Stop all workers and beats, then run `{COMMAND} init`",
        )
    if _format_of(theirs) > FORMAT:
        return (
            f"were used by a newer celery-redlock ({theirs})",
            "Install the same version for this client",
        )
    there, here = View.parse(theirs), View.parse(ours)
    configuration = _configuration_in(ours)
    if not there or not configuration:
        difference = f"were used by another version of celery-redlock ({theirs})"
        return difference, _ONE_VERSION
    if here and there.deployment != here.deployment:
        difference = (
            f"are members of deployment {there.deployment}, and the other nodes of "
            f"deployment {here.deployment}"
        )
        return difference, _CHECK_NAMES
    if there.configuration != configuration:
        return _differing_settings(there.configuration, configuration, there.epoch)
    if here and there.order != here.order:
        difference = f"are at epoch {there.epoch}, and the other nodes at {here.epoch}"
        return difference, f"Run `{COMMAND} doctor`"
    difference = "were replaced: the same names lead other clients to other servers"
    return difference, _CHECK_NAMES


def _configuration_in(ours: str) -> Configuration | None:
    view = View.parse(ours)
    return view.configuration if view else Configuration.parse(ours)


def steps_by_hand(*, is_guarded: bool) -> str:
    """Return the steps to new settings of the nodes where `reconfigure` has none.

    Args:
        is_guarded: Whether the restart guard is on afterwards. Where it is off, nodes
            without memory vote at once, so all locks must have ended before.
    """
    wait = "" if is_guarded else ", wait for one max_ttl"
    return (
        f"stop all clients, delete the key `meta` on all nodes{wait}, and start the "
        "clients with the new settings"
    )


def _differing_settings(
    there: Configuration, here: Configuration, epoch: int
) -> tuple[str, str]:
    has, client_has, settings = [], [], []
    if there.max_ttl != here.max_ttl:
        has.append(f"max_ttl {in_full(there.max_ttl)} s")
        client_has.append(f"max_ttl {in_full(here.max_ttl)} s")
        settings.append(f"redlock_max_ttl = {in_full(there.max_ttl)}")
    if there.is_guarded != here.is_guarded:
        words = {True: "the restart guard on", False: "the restart guard off"}
        has.append(words[there.is_guarded])
        client_has.append(words[here.is_guarded])
        settings.append(f"redlock_restart_guard = {there.is_guarded}")
    if there.labels != here.labels:
        has.append(f"the nodes {', '.join(there.labels)}")
        client_has.append(f"the nodes {', '.join(here.labels)}")
        settings.append("redlock_nodes to the same nodes")
    difference = f"{' and '.join(has)}; this client has {' and '.join(client_has)}"
    move = f"move the nodes to yours with `{COMMAND} reconfigure`"
    if not (there.is_guarded and here.is_guarded):
        move = f"move the nodes by hand: {steps_by_hand(is_guarded=here.is_guarded)}"
    remedy = f"Set {' and '.join(settings)}, or {move}"
    if there.labels != here.labels and len(there.labels) == len(here.labels) == 1:
        remedy += (
            ". If it is the same server or cluster, at another address or with other "
            f'members, keep its name: {{"url": …, "name": "{there.labels[0]}"}}'
        )
    return f"are at epoch {epoch} with {difference}", remedy
