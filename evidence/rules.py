"""The rules of the protocol, and which tools notice that the line of a rule is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from evidence.ways import Edit, InModel, Planted, Scenario, Undone, Way, WithoutRule

__all__ = ["RULES", "TOOLS", "Rule"]

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
        contract: The scripts without the rule, for the contract suite.
        unit: The client without the rule, for tests of one module.
        torture: The planted bug of the torture that takes the rule away.
        why_not: Column -> why the tool finds nothing, or has no part in the rule.
    """

    name: str
    text: str
    specification: Way | None = None
    model: Way | None = None
    simulator: Way | None = None
    contract: Way | None = None
    unit: Way | None = None
    torture: Way | None = None
    why_not: dict[str, str] = field(default_factory=dict)

    def ways(self) -> dict[str, Way]:
        """Return the ways in which the rule is taken away, by column."""
        found = {tool: getattr(self, name) for tool, name in TOOLS.items()}
        return {tool: way for tool, way in found.items() if way is not None}


_CORE = "celery_redlock/core"
_SCRIPTS = f"{_CORE}/scripts"
_SHARED = f"{_SCRIPTS}/shared"
_OPERATIONS = f"{_SCRIPTS}/operations.py"
_LOCKS = "tests/contract/test_lock_scripts.py"
_SETS = "tests/contract/test_several_keys.py"
_VIEWS = "tests/contract/test_membership_scripts.py"
_MOVES = "tests/contract/test_reconfiguration_scripts.py"
_UNIT = "tests/unit/core"
_FENCES = "tests/model/test_fence_model.py"
_MEMBERS = "tests/model/test_membership_model.py"
_TORTURE = "tests/torture/test_torture.py"


def _contract(test: str, *edits: Edit) -> Undone:
    return Undone(edits, (test,))


def _unit(test: str, file: str, now: str, then: str) -> Undone:
    return Undone((Edit(f"{_CORE}/{file}", now, then),), (f"{_UNIT}/{test}",))


def _lua(file: str, now: str, then: str) -> Edit:
    return Edit(f"{_SCRIPTS}/{file}", now, then)


def _python(now: str, then: str) -> Edit:
    return Edit(_OPERATIONS, now, then)


_TAKEN = (
    "    ours, taken = _held(store, locks, token)\n"
    "    if taken:\n        return taken\n    ttls"
)
_RESTORED = (
    "    ours, taken = _held(store, locks, token)\n"
    "    if taken:\n        return taken\n    value"
)

RULES = (
    Rule(
        name="majority",
        text="A client has the lock when a majority of the nodes has granted it.",
        specification=WithoutRule("lock", "MAJORITY"),
        simulator=Planted("half is a quorum"),
        unit=_unit(
            "test_quorum.py", "quorum.py", "return nodes // 2 + 1", "return nodes // 2"
        ),
        torture=InModel(f"{_TORTURE}::test_torture_finds_a_planted_bug", is_long=True),
    ),
    Rule(
        name="free-check",
        text="A node grants the lock only while it has no key of it.",
        specification=WithoutRule("lock", "FREE_CHECK"),
        simulator=Planted("grant of a taken lock"),
        contract=_contract(
            f"{_LOCKS}::test_acquire_by_another_token_returns_the_holder",
            _lua("acquire.lua", "if taken then return taken end\n", ""),
            _python(_TAKEN, "    ours, taken = _held(store, locks, token)\n    ttls"),
        ),
    ),
    Rule(
        name="drift",
        text="The validity of a lease is shorter than the ttl on the nodes, by the "
        "drift.",
        specification=WithoutRule("lock", "DRIFT"),
        simulator=Planted("no drift"),
        unit=_unit(
            "test_redlock.py",
            "lease.py",
            "return started_at + ttl - drift_of(ttl)",
            "return started_at + ttl",
        ),
    ),
    Rule(
        name="first-send",
        text="The validity counts from before the first send, not from the last "
        "answer.",
        specification=WithoutRule("lock", "COUNT_FROM_FIRST_SEND"),
        simulator=Planted("validity from the reply"),
        unit=_unit(
            "test_redlock.py",
            "redlock.py",
            "until = end_of_validity(started_at, ttl)",
            "until = end_of_validity(self.clock.monotonic(), ttl)",
        ),
    ),
    Rule(
        name="renewal-in-time",
        text="A renewal counts only while the lease is still valid.",
        specification=WithoutRule("lock", "RENEWAL_IN_TIME"),
        simulator=Planted("extension re-creates", is_long=True),
        unit=_unit(
            "test_extension.py",
            "extension.py",
            "self.result = lease.is_valid()",
            "self.result = True",
        ),
    ),
    Rule(
        name="token",
        text="A release acts only on a key with the token of its own attempt.",
        specification=WithoutRule("lock", "TOKEN"),
        simulator=Planted("release by DEL"),
        contract=_contract(
            f"{_LOCKS}::test_release_leaves_a_successor_alone",
            _lua(
                "release.lua",
                "if owned(redis.call('GET', KEYS[i]), token) then",
                "if redis.call('GET', KEYS[i]) then",
            ),
            _python(
                "value.startswith(token):\n            store.pexpire(lock, int(keep",
                "True:\n            store.pexpire(lock, int(keep",
            ),
        ),
    ),
    Rule(
        name="restore-only-free",
        text="A restore never overwrites the key of another client.",
        specification=WithoutRule("lock", "RESTORE_ONLY_FREE"),
        contract=_contract(
            f"{_LOCKS}::test_restore_leaves_a_successor_alone",
            _lua("restore.lua", "if taken then return taken end\n", ""),
            _python(
                _RESTORED, "    ours, taken = _held(store, locks, token)\n    value"
            ),
        ),
        why_not={
            "simulator": "not found in 3,700 histories of four styles, with the "
            "planted bug *restore over another holder*: it needs an attempt that "
            "lasts from before the restore until another key has ended"
        },
    ),
    Rule(
        name="vote-to-renew",
        text="A node that does not vote counts in no renewal.",
        specification=WithoutRule("lock", "VOTE_TO_RENEW"),
        model=InModel(
            f"{_MEMBERS}::test_restore_by_a_newcomer_lets_a_second_holder_in"
        ),
        simulator=Scenario("renewal without a vote"),
        contract=_contract(
            f"{_VIEWS}::test_node_that_does_not_vote_takes_part_in_nothing",
            _lua("extend.lua", "if refused then return refused end\n", ""),
            _lua("restore.lua", "if refused then return refused end\n", ""),
        ),
    ),
    Rule(
        name="quarantine",
        text="A node that lost its memory does not vote at first.",
        specification=WithoutRule("lock", "QUARANTINE"),
        model=InModel(
            f"{_FENCES}::test_node_that_votes_at_once_lets_a_second_holder_in"
        ),
        simulator=Planted("no restart guard", is_long=True),
        contract=_contract(
            f"{_VIEWS}::test_restart_ends_the_vote",
            _lua(
                "shared/state.lua",
                "return not string.find(server, 'run_id:'",
                "return nil and string.find(server, 'run_id:'",
            ),
        ),
    ),
    Rule(
        name="long-quarantine",
        text="It does not vote for longer than any lock lives.",
        specification=WithoutRule("lock", "LONG_QUARANTINE"),
        simulator=Planted("short quarantine"),
        unit=Undone(
            (
                Edit(
                    f"{_CORE}/restart_guard.py",
                    "round(timing.quarantine * _MS) if enabled",
                    "round(timing.quarantine * _MS) // 100 if enabled",
                ),
            ),
            (f"{_UNIT}/test_restart_guard.py",),
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
        contract=_contract(
            f"{_LOCKS}::test_lock_lives_to_the_end_of_its_ttl",
            _lua(
                "shared/grant.lua",
                "redis.call('SET', KEYS[i], value, 'PX', ttl_ms)",
                "redis.call('SET', KEYS[i], value)",
            ),
            _python(
                "store.set(lock, value + kept, px=int(its_ttl))",
                "store.set(lock, value + kept, px=100_000_000)",
            ),
        ),
    ),
    Rule(
        name="release-of-a-failed-attempt",
        text="An attempt that fails releases what it got.",
        specification=WithoutRule("lock", "RELEASE_OF_A_FAILED_ATTEMPT"),
        simulator=Planted("failed attempt stays"),
        unit=_unit(
            "test_refusals.py",
            "redlock.py",
            "if ballot.granted or ballot.answered < len(self.labels):",
            "if False:",
        ),
    ),
    Rule(
        name="raise-needs-key",
        text="A raise acts only while the node's key is still the attempt's.",
        specification=WithoutRule("fence", "RAISE_NEEDS_KEY"),
        model=InModel(f"{_FENCES}::test_raise_without_the_key_repeats_a_fence"),
        simulator=Planted("raise without the lock", is_long=True),
        contract=_contract(
            f"{_LOCKS}::test_raise_fence_without_the_lock_changes_nothing",
            _lua(
                "raise_fence.lua",
                "if ours < locks then return {FREE} end",
                "if ours < locks then mine = '' end",
            ),
            _python(
                "    if len(ours) < len(locks):\n        return [FREE]\n    is_raised",
                "    is_raised",
            ),
        ),
    ),
    Rule(
        name="raise-needs-number",
        text="A raise counts only on a node whose number was part of the greatest one.",
        specification=WithoutRule("fence", "RAISE_NEEDS_NUMBER"),
        model=InModel(f"{_FENCES}::test_raise_without_the_number_repeats_a_fence"),
        unit=_unit(
            "test_fence.py",
            "fence.py",
            "(set(ballot.indexes(VoteKind.GRANTED)) & counted)",
            "set(ballot.indexes(VoteKind.GRANTED))",
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
        unit=_unit(
            "test_fence.py",
            "fence.py",
            "return fence if len(raised(request.ballot)) >= won.quorum else None",
            "return fence",
        ),
    ),
    Rule(
        name="counting-up",
        text="Each grant adds one to the counter of the node.",
        specification=WithoutRule("fence", "COUNTING_UP"),
        simulator=Planted("grant with the same number"),
        contract=_contract(
            f"{_LOCKS}::test_acquire_counts_on",
            _lua("shared/grant.lua", "number = number + 1\n", ""),
            _python(
                'for field in (b"floor", *stripes)) + 1',
                'for field in (b"floor", *stripes))',
            ),
        ),
    ),
    Rule(
        name="counters-after-a-loss",
        text="A node that lost its counters does not vote at first.",
        specification=WithoutRule("fence", "QUARANTINE"),
        model=InModel(f"{_FENCES}::test_lost_counters_repeat_a_fence"),
        simulator=Planted("no restart guard", is_long=True),
        why_not={"contract suite": "the lines are those of *quarantine*"},
    ),
    Rule(
        name="counters-taken-over",
        text="A node that lost its counters takes over those of r others.",
        specification=WithoutRule("fence", "COUNTERS_TAKEN_OVER"),
        model=InModel(f"{_FENCES}::test_lost_counters_repeat_a_fence"),
        simulator=Planted("counters are not taken over", is_long=True),
        contract=_contract(
            f"{_VIEWS}::test_sync_lets_a_node_vote_above_these_fences",
            _lua("sync.lua", "raise_counters(meta, 5)\n", ""),
            _python(
                "    _raise_counters(store, meta, pairs)\n    if set_floor",
                "    if set_floor",
            ),
        ),
    ),
    Rule(
        name="counters-at-the-end",
        text="It reads them at the end of its quarantine.",
        specification=WithoutRule("fence", "COUNTERS_AT_THE_END"),
        model=InModel(f"{_FENCES}::test_early_recovery_repeats_a_fence"),
        simulator=Scenario("recovery before the quarantine"),
    ),
    Rule(
        name="all-or-none",
        text="A node grants all keys of an attempt or none.",
        specification=WithoutRule("keys", "ALL_OR_NONE"),
        simulator=Planted("part of the keys is enough"),
        contract=_contract(
            f"{_SETS}::test_acquire_takes_none_if_one_is_held",
            _lua(
                "acquire.lua",
                "if taken then return taken end",
                "if taken and #KEYS == 2 then return taken end",
            ),
            _python(_TAKEN, _TAKEN.replace("if taken:", "if taken and not locks[1:]:")),
        ),
    ),
    Rule(
        name="restore-of-every-key",
        text="A restore writes all keys of the lease.",
        specification=WithoutRule("keys", "RESTORE_OF_EVERY_KEY"),
        model=InModel(
            f"{_FENCES}::test_restore_that_forgets_a_key_lets_a_second_holder_in"
        ),
        simulator=Planted("restore that forgets a key"),
        contract=_contract(
            f"{_SETS}::test_restore_writes_every_lock",
            _lua(
                "restore.lua",
                "for i = 1, locks do\n  raise_counter",
                "for i = 1, 1 do\n  raise_counter",
            ),
            _python(
                "    for lock, stripe in zip(locks, stripes, strict=True):\n"
                "        _raise_counter(store, meta, stripe, _number(number))",
                "    for lock, stripe in [*zip(locks, stripes, strict=True)][:1]:\n"
                "        _raise_counter(store, meta, stripe, _number(number))",
            ),
        ),
    ),
    Rule(
        name="release-of-every-key",
        text="A release deletes all keys of the attempt in one step.",
        specification=WithoutRule("keys", "RELEASE_OF_EVERY_KEY"),
        model=InModel(
            f"{_FENCES}::test_release_of_one_key_of_two_leaves_the_other_locked"
        ),
        simulator=Planted("release of one key of two"),
        contract=_contract(
            f"{_SETS}::test_release_ends_every_lock",
            _lua("release.lua", "for i = 1, locks do", "for i = 1, 1 do"),
            _python(
                "    released = 0\n    for lock, wait_queue in _with_queues(keys):",
                "    released = 0\n    for lock, wait_queue in [*_with_queues(keys)]"
                "[:1]:",
            ),
        ),
    ),
    Rule(
        name="names",
        text="A permit is a lock on one of n names; nodes do not count holders.",
        specification=WithoutRule("keys", "NAMES"),
        simulator=Planted("counter on each node"),
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
        contract=_contract(
            f"{_VIEWS}::test_client_with_another_view_gets_the_view_of_the_node",
            _lua(
                "shared/state.lua",
                "if config ~= view then return {MISCONFIGURED, config} end\n",
                "",
            ),
            _python(
                '    if state[b"config"] != view:\n'
                '        return [MISCONFIGURED, state[b"config"]]\n',
                "",
            ),
        ),
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
        unit=Undone(
            (
                Edit(
                    f"{_CORE}/restart_guard.py",
                    "return len(self._nodes.labels) - self._nodes.quorum + 1",
                    "return 1",
                ),
            ),
            (f"{_UNIT}/test_restart_guard.py",),
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
        contract=_contract(
            f"{_MOVES}::test_open_of_a_server_that_is_not_planned_is_refused",
            _lua(
                "open.lua",
                "is_aborted(state[6], closed) or not own_member(new, identity) then",
                "is_aborted(state[6], closed) then",
            ),
            _python(
                "is_planned = _own_member(new, state) is not None",
                "is_planned = True",
            ),
        ),
    ),
    Rule(
        name="wait-when-closed",
        text="New nodes open when the old ones have been closed for a whole "
        "quarantine.",
        specification=WithoutRule("reconfiguration", "WAIT_WHEN_CLOSED"),
        contract=_contract(
            f"{_MOVES}::test_open_of_a_node_that_still_waits_is_refused",
            _lua("open.lua", "if left > 0 then return {QUARANTINED, left} end\n", ""),
            _python(
                "    if left := _quarantine_left(store, state):\n"
                "        return [QUARANTINED, left]\n"
                "    _raise_counters(store, meta, pairs)\n    _store_view",
                "    _raise_counters(store, meta, pairs)\n    _store_view",
            ),
        ),
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
        contract=_contract(
            f"{_MOVES}::test_close_acts_only_on_the_view_that_is_left",
            _lua("close.lua", "  if config == old then", "  if config then"),
            _python("    if config == old:\n", "    if config:\n"),
        ),
    ),
    Rule(
        name="majority-closed",
        text="New nodes open when a majority of the old ones is closed.",
        specification=WithoutRule("reconfiguration", "MAJORITY_CLOSED"),
        unit=Undone(
            (
                Edit(
                    "celery_redlock/operations/reconfigure.py",
                    "if len(closed | self._gone) >= old.quorum:",
                    "if closed | self._gone:",
                ),
            ),
            (
                (
                    "tests/nodes/test_reconfiguration.py::"
                    "test_closed_nodes_that_fall_silent_are_waited_for"
                ),
            ),
        ),
    ),
    Rule(
        name="fences-taken-over",
        text="New nodes open with the counters of the old ones.",
        specification=WithoutRule("reconfiguration", "FENCES_TAKEN_OVER"),
        contract=_contract(
            f"{_MOVES}::test_open_lets_a_closed_node_vote_above_these_fences",
            _lua("open.lua", "raise_counters(meta, 3)\n", ""),
            _python(
                "    _raise_counters(store, meta, pairs)\n    _store_view",
                "    _store_view",
            ),
        ),
    ),
    Rule(
        name="first-members",
        text="`init` lets only the first servers of a deployment vote at once.",
        specification=WithoutRule("reconfiguration", "FIRST_MEMBERS"),
        contract=_contract(
            f"{_VIEWS}::test_initialize_admits_no_server_that_has_replaced_a_member",
            _lua(
                "initialize.lua", "not member or member[1] ~= 0 then", "not member then"
            ),
            _python("not member or member.number:", "not member:"),
        ),
    ),
    Rule(
        name="marks",
        text="Old nodes vote again when a majority of the new ones is marked.",
        specification=WithoutRule("reconfiguration", "MARKS"),
        model=InModel(f"{_MEMBERS}::test_abort_marks_a_majority_of_the_new_members"),
        contract=_contract(
            f"{_MOVES}::test_abort_marks_a_planned_member",
            _lua(
                "abort.lua",
                "mark_aborted(meta, state[6], closed)\nreturn {GRANTED, 0}",
                "return {GRANTED, 0}",
            ),
            _python(
                "    _mark_aborted(store, meta, state, closed)\n    return",
                "    return",
            ),
        ),
    ),
    Rule(
        name="marks-stay",
        text="A node that votes again keeps the mark.",
        specification=WithoutRule("reconfiguration", "MARKS_STAY"),
        contract=_contract(
            f"{_MOVES}::test_reopen_lets_a_closed_member_vote_in_its_old_view",
            _lua(
                "reopen.lua",
                "mark_aborted(meta, state[7], closed)\n",
                "",
            ),
            _python(
                "    _mark_aborted(store, meta, state, closed)\n"
                "    _raise_counters(store, meta, pairs)",
                "    _raise_counters(store, meta, pairs)",
            ),
        ),
    ),
)
