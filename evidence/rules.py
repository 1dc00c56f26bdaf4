"""The rules of the protocol, and which tools notice that the line of a rule is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from evidence.ways import Guard, InModel, Planted, Scenario, Way, WithoutRule

# Column of the table -> the attribute of a rule.
TOOLS = {
    "specification": "specification",
    "model in Python": "model",
    "simulator": "simulator",
    "contract suite": "contract",
    "unit tests": "unit",
    "torture": "torture",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the protocol.

    Attributes:
        name: Its name on the command line.
        text: The rule, in one sentence.
        specification: The model of the specification without the rule.
        model: The test of the model in Python without the rule.
        simulator: The planted bug that takes the rule away.
        contract: The test of the contract suite that fails without the rule.
        unit: The test of one module that fails without the rule.
        torture: The planted bug of the torture that takes the rule away.
        why_not: Column -> why the tool finds nothing, or has no part in the rule.
    """

    name: str
    text: str
    specification: Way | None = None
    model: Way | None = None
    simulator: Way | None = None
    contract: Guard | None = None
    unit: Guard | InModel | None = None
    torture: Way | None = None
    why_not: dict[str, str] = field(default_factory=dict)

    def ways(self) -> dict[str, Way | Guard]:
        """Return how the rule is taken away, or which test states it, by column."""
        found = {tool: getattr(self, name) for tool, name in TOOLS.items()}
        return {tool: way for tool, way in found.items() if way is not None}


_LOCKS = "tests/contract/test_lock_scripts.py"
_SETS = "tests/contract/test_several_keys.py"
_VIEWS = "tests/contract/test_membership_scripts.py"
_MOVES = "tests/contract/test_reconfiguration_scripts.py"
_UNIT = "tests/unit/lock"
_MEMBERS = "tests/model/test_membership_model.py"
_TORTURE = "tests/torture/test_torture.py"


RULES = (
    Rule(
        name="majority",
        text="A client has the lock when a majority of the nodes has granted it.",
        specification=WithoutRule("lock", "MAJORITY"),
        simulator=Planted("half is a quorum"),
        unit=Guard(f"{_UNIT}/test_quorum.py::test_quorum_is_more_than_half"),
        torture=InModel(f"{_TORTURE}::test_torture_finds_a_planted_bug", is_long=True),
    ),
    Rule(
        name="free-check",
        text="A node grants the lock only while it has no key of it.",
        specification=WithoutRule("lock", "FREE_CHECK"),
        simulator=Planted("grant of a taken lock"),
        contract=Guard(f"{_LOCKS}::test_acquire_by_another_token_returns_the_holder"),
    ),
    Rule(
        name="drift",
        text="The validity of a lease is shorter than the ttl on the nodes, by the "
        "drift.",
        specification=WithoutRule("lock", "DRIFT"),
        simulator=Planted("no drift"),
        unit=Guard(f"{_UNIT}/test_redlock.py::test_validity_is_the_ttl_less_the_drift"),
    ),
    Rule(
        name="first-send",
        text="The validity counts from before the first send, not from the last "
        "answer.",
        specification=WithoutRule("lock", "COUNT_FROM_FIRST_SEND"),
        simulator=Planted("validity from the reply"),
        unit=Guard(
            f"{_UNIT}/test_redlock.py::test_acquire_never_returns_a_lease_that_has_ended"
        ),
    ),
    Rule(
        name="renewal-in-time",
        text="A renewal counts only while the lease is still valid.",
        specification=WithoutRule("lock", "RENEWAL_IN_TIME"),
        simulator=Planted("extension re-creates", is_long=True),
        unit=Guard(
            f"{_UNIT}/test_extension.py::test_extension_confirmed_too_late_does_not_count"
        ),
    ),
    Rule(
        name="token",
        text="A release acts only on a key with the token of its own attempt.",
        specification=WithoutRule("lock", "TOKEN"),
        simulator=Planted("release by DEL"),
        contract=Guard(f"{_LOCKS}::test_release_leaves_a_successor_alone"),
    ),
    Rule(
        name="restore-only-free",
        text="A restore never overwrites the key of another client.",
        specification=WithoutRule("lock", "RESTORE_ONLY_FREE"),
        contract=Guard(f"{_LOCKS}::test_restore_leaves_a_successor_alone"),
        why_not={
            "simulator": "not found in 3,700 histories of four styles, with the "
            "planted bug *restore over another holder*: it needs an attempt that "
            "lasts from before the restore until another key has ended"
        },
    ),
    Rule(
        name="vote-to-renew",
        text="A node that does not vote and is without the key counts in no renewal.",
        specification=WithoutRule("lock", "VOTE_TO_RENEW"),
        model=InModel(
            f"{_MEMBERS}::test_restore_by_a_newcomer_lets_a_second_holder_in"
        ),
        simulator=Scenario("renewal without a vote"),
        contract=Guard(f"{_VIEWS}::test_node_that_does_not_vote_takes_part_in_nothing"),
    ),
    Rule(
        name="quarantine",
        text="A node that lost its memory does not vote at first.",
        specification=WithoutRule("lock", "QUARANTINE"),
        simulator=Planted("no restart guard", is_long=True),
        contract=Guard(f"{_VIEWS}::test_restart_ends_the_vote"),
    ),
    Rule(
        name="name-of-the-data",
        text="A node that gets an old memory back in the same process does not vote.",
        model=InModel(
            f"{_MEMBERS}::test_memory_that_comes_back_lets_a_second_holder_in"
        ),
        simulator=Scenario("memory back trusted"),
        contract=Guard(f"{_VIEWS}::test_master_that_was_a_replica_has_no_vote"),
        why_not={
            "specification": "To the model, such a node is one that forgot: its rule "
            "is the quarantine.",
        },
    ),
    Rule(
        name="evicted-keys",
        text="A node that has evicted a key has lost its memory.",
        simulator=Scenario("eviction overlooked"),
        contract=Guard(
            f"{_VIEWS}::test_node_that_has_evicted_a_key_has_lost_its_memory"
        ),
        why_not={
            "specification": "To the model, such a node is one that forgot: its rule "
            "is the quarantine.",
            "model": "To the model, such a node is one that forgot all: to forget one "
            "lock is the same to its next client.",
        },
    ),
    Rule(
        name="instants-ahead",
        text="No instant that a clock ahead has stored makes a wait longer.",
        simulator=Scenario("instant ahead believed"),
        contract=Guard(
            f"{_VIEWS}::test_waits_that_a_clock_stored_that_was_ahead_begin_anew"
        ),
        why_not={
            "specification": "A wait of its nodes may last for ever.",
            "model": "It has no clocks.",
        },
    ),
    Rule(
        name="clock-set-back",
        text="A lock ends one max_ttl after a request for it, if clocks were set back.",
        simulator=Scenario("lock outlasts a clock set back"),
        contract=Guard(
            f"{_LOCKS}::test_lock_that_a_clock_stored_that_was_ahead_ends_after_max_ttl"
        ),
        why_not={
            "specification": "Its locks may last for ever.",
            "model": "It has no clocks.",
        },
    ),
    Rule(
        name="mark-of-a-vote",
        text="A process counts its wait from its start only if it has never voted.",
        model=InModel(
            f"{_MEMBERS}::test_start_of_a_process_that_has_voted_proves_nothing"
        ),
        simulator=Scenario("start trusted after a vote"),
        contract=Guard(f"{_VIEWS}::test_process_that_has_voted_proves_nothing"),
        why_not={
            "specification": "The wait of its nodes begins with the loss, and no "
            "process of it has never voted.",
        },
    ),
    Rule(
        name="never-a-replica",
        text="A process that was a replica counts its wait from the notice.",
        simulator=Scenario("start of a replica trusted"),
        contract=Guard(f"{_VIEWS}::test_process_that_was_a_replica_proves_nothing"),
        why_not={
            "specification": "It has no replication.",
            "model in Python": "It has no replication.",
        },
    ),
    Rule(
        name="long-quarantine",
        text="It does not vote for longer than any lock lives.",
        specification=WithoutRule("lock", "LONG_QUARANTINE"),
        simulator=Planted("short quarantine"),
        unit=Guard(
            f"{_UNIT}/test_restart_guard.py::test_restarted_node_does_not_vote_for_a_quarantine"
        ),
    ),
    Rule(
        name="spare-vote",
        text="A lock survives the jump of one clock only if one node more than a "
        "majority granted it.",
        specification=WithoutRule("lock", "SPARE_VOTE"),
        unit=InModel(
            "tests/spec/test_jump.py::test_jump_of_one_clock_needs_a_vote_to_spare"
        ),
        why_not={
            "simulator": "no line to remove: its clocks jump only where the promise "
            "excludes it"
        },
    ),
    Rule(
        name="ttl",
        text="Every key on a node ends by itself.",
        specification=WithoutRule("lock", "TTL"),
        simulator=Planted("locks without an end"),
        contract=Guard(f"{_LOCKS}::test_lock_lives_to_the_end_of_its_ttl"),
    ),
    Rule(
        name="release-of-a-failed-attempt",
        text="An attempt that fails releases what it got.",
        specification=WithoutRule("lock", "RELEASE_OF_A_FAILED_ATTEMPT"),
        simulator=Planted("failed attempt stays"),
        unit=Guard(
            f"{_UNIT}/test_refusals.py::test_lock_held_by_a_majority_releases_what_was_granted"
        ),
    ),
    Rule(
        name="raise-needs-key",
        text="A raise acts only while the node's key is still the attempt's.",
        specification=WithoutRule("fence", "RAISE_NEEDS_KEY"),
        simulator=Planted("raise without the lock", is_long=True),
        contract=Guard(f"{_LOCKS}::test_raise_fence_without_the_lock_changes_nothing"),
    ),
    Rule(
        name="raise-needs-number",
        text="A raise counts only on a node whose number was part of the greatest one.",
        specification=WithoutRule("fence", "RAISE_NEEDS_NUMBER"),
        unit=Guard(
            f"{_UNIT}/test_fence.py::test_raise_counts_only_on_nodes_whose_number_was_counted"
        ),
        why_not={
            "simulator": "only together with the rule above: *raise without the lock* "
            "takes both away"
        },
    ),
    Rule(
        name="settlement",
        text="A fence is final when a majority has it, or was raised to it.",
        specification=WithoutRule("fence", "SETTLEMENT"),
        simulator=Planted("fence without a second round"),
        unit=Guard(
            f"{_UNIT}/test_fence.py::test_raise_that_is_not_confirmed_in_time_is_no_grant"
        ),
    ),
    Rule(
        name="counting-up",
        text="Each grant adds one to the counter of the node.",
        specification=WithoutRule("fence", "COUNTING_UP"),
        simulator=Planted("grant with the same number"),
        contract=Guard(f"{_LOCKS}::test_acquire_counts_on"),
    ),
    Rule(
        name="counters-after-a-loss",
        text="A node that lost its counters does not vote at first.",
        specification=WithoutRule("fence", "QUARANTINE"),
        simulator=Planted("no restart guard", is_long=True),
        why_not={"contract suite": "the lines are those of *quarantine*"},
    ),
    Rule(
        name="counters-taken-over",
        text="A node that lost its counters takes over those of r others.",
        specification=WithoutRule("fence", "COUNTERS_TAKEN_OVER"),
        simulator=Planted("counters are not taken over", is_long=True),
        contract=Guard(f"{_VIEWS}::test_sync_lets_a_node_vote_above_these_fences"),
    ),
    Rule(
        name="counters-at-the-end",
        text="It reads them at the end of its quarantine.",
        specification=WithoutRule("fence", "COUNTERS_AT_THE_END"),
        simulator=Scenario("recovery before the quarantine"),
    ),
    Rule(
        name="all-or-none",
        text="A node grants all keys of an attempt or none.",
        specification=WithoutRule("keys", "ALL_OR_NONE"),
        simulator=Planted("part of the keys is enough"),
        contract=Guard(f"{_SETS}::test_acquire_takes_none_if_one_is_held"),
    ),
    Rule(
        name="restore-of-every-key",
        text="A restore writes all keys of the lease.",
        specification=WithoutRule("keys", "RESTORE_OF_EVERY_KEY"),
        simulator=Planted("restore that forgets a key"),
        contract=Guard(f"{_SETS}::test_restore_writes_every_lock"),
    ),
    Rule(
        name="release-of-every-key",
        text="A release deletes all keys of the attempt in one step.",
        specification=WithoutRule("keys", "RELEASE_OF_EVERY_KEY"),
        simulator=Planted("release of one key of two"),
        contract=Guard(f"{_SETS}::test_release_ends_every_lock"),
    ),
    Rule(
        name="names",
        text="A permit is a lock on one of n names; nodes do not count holders.",
        specification=WithoutRule("keys", "NAMES"),
        simulator=Scenario("counter on each node"),
        why_not={
            "torture": "`python -m tests.torture --kinds limited --plant 'own "
            "permits'` plants it; not run here"
        },
    ),
    Rule(
        name="same-members",
        text="A node votes only for clients of its own epoch: with its view of the "
        "members.",
        specification=WithoutRule("reconfiguration", "EPOCHS"),
        model=InModel(f"{_MEMBERS}::test_votes_of_two_views_let_a_second_holder_in"),
        simulator=Scenario("members are not checked"),
        contract=Guard(f"{_VIEWS}::test_no_script_skips_the_configuration"),
    ),
    Rule(
        name="identity",
        text="A member is known by its identity, not by its name.",
        model=InModel(
            f"{_MEMBERS}::test_names_instead_of_identities_let_a_second_holder_in"
        ),
        simulator=Scenario("identity by name"),
        why_not={"specification": "in its models a name leads to one server"},
    ),
    Rule(
        name="confirmed-by-r",
        text="A server votes when r others confirm it.",
        model=InModel(f"{_MEMBERS}::test_one_confirmation_is_not_enough"),
        simulator=Scenario("one member confirms"),
        unit=Guard(
            f"{_UNIT}/test_restart_guard.py::test_newcomer_needs_more_than_a_minority_of_others"
        ),
        why_not={"specification": "its models do not count confirmations"},
    ),
    Rule(
        name="known-for-a-quarantine",
        text="They have known it for one quarantine, by their own clocks.",
        model=InModel(
            f"{_MEMBERS}::test_note_without_age_lets_a_newcomer_vote_too_early"
        ),
        simulator=Scenario("newcomer waits alone"),
        why_not={"specification": "its models do not count confirmations"},
    ),
    Rule(
        name="planned-identity",
        text="A node opens only if it is closed for the plan, and is the planned "
        "server.",
        specification=WithoutRule("reconfiguration", "PLANNED_IDENTITY"),
        model=InModel(
            f"{_MEMBERS}::test_open_without_identity_lifts_the_wait_of_an_empty_node"
        ),
        simulator=Scenario("open lifts a quarantine"),
        contract=Guard(
            f"{_MOVES}::test_open_of_a_server_that_is_not_planned_is_refused"
        ),
    ),
    Rule(
        name="wait-when-closed",
        text="New nodes open when the old ones have been closed for a whole "
        "quarantine.",
        specification=WithoutRule("reconfiguration", "WAIT_WHEN_CLOSED"),
        contract=Guard(f"{_MOVES}::test_open_of_a_node_that_still_waits_is_refused"),
    ),
    Rule(
        name="closed-renews-nothing",
        text="A closed node renews no lease.",
        specification=WithoutRule("reconfiguration", "CLOSED_RENEWS_NOTHING"),
        why_not={"contract suite": "the lines are those of *same-members*"},
    ),
    Rule(
        name="close-compares",
        text="A node is closed only if its view is the one that the plan was made "
        "from.",
        specification=WithoutRule("reconfiguration", "CLOSE_COMPARES"),
        contract=Guard(f"{_MOVES}::test_close_acts_only_on_the_view_that_is_left"),
    ),
    Rule(
        name="majority-closed",
        text="New nodes open when a majority of the old ones is closed.",
        specification=WithoutRule("reconfiguration", "MAJORITY_CLOSED"),
        unit=Guard(
            "tests/nodes/test_reconfiguration.py::"
            "test_closed_nodes_that_fall_silent_are_waited_for"
        ),
    ),
    Rule(
        name="fences-taken-over",
        text="New nodes open with the counters of the old ones.",
        specification=WithoutRule("reconfiguration", "FENCES_TAKEN_OVER"),
        contract=Guard(
            f"{_MOVES}::test_open_lets_a_closed_node_vote_above_these_fences"
        ),
    ),
    Rule(
        name="first-members",
        text="`init` lets only the first servers of a deployment vote at once.",
        specification=WithoutRule("reconfiguration", "FIRST_MEMBERS"),
        contract=Guard(
            f"{_VIEWS}::test_initialize_admits_no_server_that_has_replaced_a_member"
        ),
    ),
    Rule(
        name="marks",
        text="Old nodes vote again when a majority of the new ones is marked.",
        specification=WithoutRule("reconfiguration", "MARKS"),
        model=InModel(f"{_MEMBERS}::test_abort_marks_a_majority_of_the_new_members"),
        contract=Guard(f"{_MOVES}::test_abort_marks_a_planned_member"),
    ),
    Rule(
        name="marks-stay",
        text="A node that votes again keeps the mark.",
        specification=WithoutRule("reconfiguration", "MARKS_STAY"),
        contract=Guard(
            f"{_MOVES}::test_reopen_lets_a_closed_member_vote_in_its_old_view"
        ),
    ),
)
