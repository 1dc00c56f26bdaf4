"""The bugs of the lock that were found here, before any version was published."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from evidence.ways import Guard, InModel, Planted, Scenario, Way, WithoutRule


class Effect(enum.Enum):
    """The worst that a bug did. The page has a table for each."""

    HOLDERS = "Two holders"
    FENCE = "A fence goes back, or is given twice"
    LOST = "A lock is lost without a reason"
    JOB_LOST = "A job is lost"
    JOB_TWICE = "A job runs twice"
    LEFT = "A lock is left behind"
    LATE = "Calls wait for too long, or for ever"
    STATEMENT = "A wrong statement"


class Finder(enum.Enum):
    """The tools that found a bug at first."""

    SPECIFICATION = "specification"
    TRACES = "histories against the specification"
    MODEL = "model in Python"
    SIMULATOR = "simulator"
    TORTURE = "torture"
    TESTS = "tests of the suite"
    REVIEW = "reading of the code"
    UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One bug.

    Attributes:
        name: Its name on the page, and on the command line if it comes back.
        effect: The worst that it did.
        text: What it did, in one or two sentences.
        found_by: What found it at first.
        fixed_in: The commit with the fix. "draft" if it was never part of a commit, and
            "" if it cannot be fixed.
        way: How it comes back, and which tool finds it then; or its regression test.
        note: Why no tool had found it, and other notes; "" if there are none.
    """

    name: str
    effect: Effect
    text: str
    found_by: Finder
    fixed_in: str
    way: Way | Guard
    note: str = ""


_SCENARIO = "tests/simulation/test_scenarios.py"
_MEMBERS = "tests/model/test_membership_model.py"
_CANVAS = "tests/worker/test_canvas.py"
_ONCE = "tests/contrib/test_exactly_once.py"
_NO_CELERY = "The simulator, the models and the specification have no Celery."
_NO_FORKS = "The simulator has no forks."

BUGS = (
    # -- two holders -----------------------------------------------------------------
    Bug(
        name="several-users-in-one-block",
        effect=Effect.HOLDERS,
        text="A request that a pool ran in the thread that had entered a block was "
        "taken for its user: a dependency of FastAPI, `asyncio.to_thread`, "
        "tasks of trio, and the consumer of a generator shared the lock and its fence.",
        found_by=Finder.TESTS,
        fixed_in="e800b8b",
        way=Guard(
            "tests/projects/test_fastapi.py::test_one_request_at_a_time_is_inside"
        ),
        note="Found by a site of FastAPI. No tool has threads that serve many users.",
    ),
    Bug(
        name="old-settings",
        effect=Effect.HOLDERS,
        text="After a `reconfigure`, a client with the settings that were left took "
        "nodes that restarted back into the old view, and had a majority there.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::"
            "test_old_settings_do_not_take_a_node_back_after_a_reconfiguration"
        ),
        note="Found at seed 100182.",
    ),
    Bug(
        name="abort-of-a-finished-move",
        effect=Effect.HOLDERS,
        text="`reconfigure --abort` of a move that was finished let the members vote "
        "that had been left, while the next move was under way.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::"
            "test_finished_reconfiguration_is_not_aborted_during_the_next_one"
        ),
        note="Found at seed 21049815. Two checks prevent it now, so that no single "
        "line brings it back.",
    ),
    Bug(
        name="abort-of-forgotten-votes",
        effect=Effect.HOLDERS,
        text="`reconfigure --abort` let the old nodes vote at once, although the new "
        "nodes had voted, and had lost their memory of it.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            "tests/nodes/test_reconfiguration.py::"
            "test_abort_outlasts_locks_of_members_that_have_forgotten"
        ),
    ),
    Bug(
        name="names-instead-of-identities",
        effect=Effect.HOLDERS,
        text="A name that led two clients to different servers gave each of them a "
        "majority.",
        found_by=Finder.MODEL,
        fixed_in="cedf804",
        way=Scenario("identity by name"),
    ),
    Bug(
        name="late-restart",
        effect=Effect.HOLDERS,
        text="A node that had lost its memory was confirmed by a single member, which "
        "did not share a node with every majority.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=Scenario("one member confirms"),
    ),
    Bug(
        name="newcomers-admit-each-other",
        effect=Effect.HOLDERS,
        text="Servers that did not vote yet confirmed each other.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=InModel(f"{_MEMBERS}::test_newcomers_must_not_admit_each_other"),
        note="Changed the design (e626f93).",
    ),
    Bug(
        name="members-of-two-views",
        effect=Effect.HOLDERS,
        text="Members with different views confirmed a server, of which only one of "
        "them knew.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=InModel(
            f"{_MEMBERS}::test_members_of_two_views_confirm_what_they_do_not_share"
        ),
        note="Changed the design (e626f93).",
    ),
    Bug(
        name="renewal-by-a-newcomer",
        effect=Effect.HOLDERS,
        text="A node that did not vote counted in a renewal. The lease rested on a "
        "node that had forgotten its vote for another client.",
        found_by=Finder.MODEL,
        fixed_in="cedf804",
        way=Scenario("renewal without a vote"),
        note="Changed the design (e626f93). The specification has the rule as well.",
    ),
    Bug(
        name="abort-without-a-mark",
        effect=Effect.HOLDERS,
        text="An abort that did not mark a majority of the new members left two "
        "deployments.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=InModel(f"{_MEMBERS}::test_abort_marks_a_majority_of_the_new_members"),
        note="Changed the design (e626f93).",
    ),
    Bug(
        name="founding-without-all",
        effect=Effect.HOLDERS,
        text="A deployment was founded again without a server that held locks.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=InModel(f"{_MEMBERS}::test_founding_needs_all_places"),
        note="Changed the design (e626f93).",
    ),
    Bug(
        name="second-run-lifts-a-quarantine",
        effect=Effect.HOLDERS,
        text="`reconfigure`, when it was run again, let a node vote that had lost its "
        "memory a moment before.",
        found_by=Finder.UNKNOWN,
        fixed_in="cc3e39f",
        way=Scenario("open lifts a quarantine"),
    ),
    Bug(
        name="client-without-the-guard",
        effect=Effect.HOLDERS,
        text="A client with `redlock_restart_guard = False` got votes of nodes that "
        "were in quarantine for all other clients.",
        found_by=Finder.UNKNOWN,
        fixed_in="cc3e39f",
        way=Scenario("members are not checked"),
        note="No history had clients with different settings then.",
    ),
    Bug(
        name="quarantine-key",
        effect=Effect.HOLDERS,
        text="The end of a quarantine was a key of its own. A node whose key was "
        "deleted voted at once.",
        found_by=Finder.UNKNOWN,
        fixed_in="cc3e39f",
        way=Guard(
            "tests/contract/test_membership_scripts.py::test_part_of_a_memory_is_none"
        ),
        note="No fault of the simulator deleted a part of what a node knows. Now one "
        "does (*forget meta*).",
    ),
    Bug(
        name="init-with-a-pattern",
        effect=Effect.HOLDERS,
        text="`init` with a prefix such as `shop[1]` saw no live locks, and let nodes "
        "vote that had forgotten others.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/nodes/test_init.py::"
            "test_init_sees_locks_under_a_prefix_with_wildcards"
        ),
        note="The simulator has one prefix.",
    ),
    Bug(
        name="asyncio-inherits",
        effect=Effect.HOLDERS,
        text="An asyncio task that was started in a `lock` block counted as its "
        "holder. Two coroutines of one thread were in one lock.",
        found_by=Finder.UNKNOWN,
        fixed_in="6c5c346",
        way=Guard(
            "tests/unit/locking/test_reentrance.py::"
            "test_tasks_in_a_block_of_their_thread_exclude_each_other"
        ),
        note="The simulator has no asyncio, and its clients do not enter a lock twice.",
    ),
    Bug(
        name="fork-inherits",
        effect=Effect.HOLDERS,
        text="A forked child trusted the lease of its parent after the parent had "
        "released it.",
        found_by=Finder.UNKNOWN,
        fixed_in="5a5d739",
        way=Guard(
            "tests/unit/locking/test_reentrance.py::"
            "test_forked_child_does_not_trust_the_lease"
        ),
        note=_NO_FORKS,
    ),
    Bug(
        name="fork-without-a-hook",
        effect=Effect.HOLDERS,
        text="uWSGI forks without running the hooks of Python. Its processes used the "
        "connections of an application that had asked the nodes before the fork, and "
        "read each other's replies.",
        found_by=Finder.TESTS,
        fixed_in="dce60ed",
        way=Guard(
            "tests/nodes/test_fork.py::test_child_notices_a_fork_that_runs_no_hook"
        ),
        note=_NO_FORKS,
    ),
    Bug(
        name="replies-of-another-connection",
        effect=Effect.HOLDERS,
        text="A signal handler that used a node while its replies were read could "
        "have a reply counted for another request.",
        found_by=Finder.UNKNOWN,
        fixed_in="8965d21",
        way=Planted("replies to the wrong request"),
        note="The simulator has no signal handlers that take locks.",
    ),
    Bug(
        name="writable-replica",
        effect=Effect.HOLDERS,
        text="A node that became a replica, and takes writes, voted again after the "
        "quarantine, although its master overwrites its locks.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/nodes/test_misfits.py::"
            "test_writable_replica_loses_its_vote_with_its_memory"
        ),
        note="Nodes of the simulator have no replicas.",
    ),
    Bug(
        name="time-before-a-clock-was-set-back",
        effect=Effect.HOLDERS,
        text="A session on ZooKeeper kept the time of the leader for ten seconds. "
        "If the leader's clock was set back meanwhile, it took a lock that was held.",
        found_by=Finder.REVIEW,
        fixed_in="3c8e0d3",
        way=Guard(
            "tests/stores/test_zookeeper.py::"
            "test_lock_is_not_taken_by_a_time_before_the_clock_was_set_back"
        ),
        note="Young when it was found. No tool sets the clock of a ZooKeeper.",
    ),
    Bug(
        name="clock-of-a-client",
        effect=Effect.HOLDERS,
        text="In etcd and ZooKeeper a lock ended by the wall clock of the client that "
        "asked for it. A client whose clock was ahead by a ttl took every lock.",
        found_by=Finder.REVIEW,
        fixed_in="b8d6a01",
        way=Guard(
            "tests/stores/test_clocks.py::test_wrong_clock_of_a_client_ends_no_lock"
        ),
        note="The page about stores named it as a limit. No tool ran clients with "
        "different clocks on a store.",
    ),
    Bug(
        name="drift-on-the-way",
        effect=Effect.HOLDERS,
        text="In etcd and ZooKeeper a lock could end up to 30 ms before its ttl: if a "
        "reply had taken three seconds, and the server's clock ran fast meanwhile.",
        found_by=Finder.TESTS,
        fixed_in="7b37ae6",
        way=Guard(
            "tests/unit/lock/test_server_clock.py::test_server_may_run_ahead_while_a_reply_is_on_its_way"
        ),
        note="Hypothesis found it, in a later run than its first.",
    ),
    Bug(
        name="body-without-its-lock",
        effect=Effect.HOLDERS,
        text="The body of a task with `exactly_once_in` began, although the lock was "
        "lost while the database began the transaction.",
        found_by=Finder.TORTURE,
        fixed_in="5a9b6c1",
        way=Guard(f"{_ONCE}::test_body_does_not_begin_after_the_lock_was_lost"),
    ),
    Bug(
        name="loss-without-a-thread",
        effect=Effect.HOLDERS,
        text="A body that had lost its lock was stopped by a thread of its own. Where "
        "no further thread could start, it ran on.",
        found_by=Finder.REVIEW,
        fixed_in="8f81c77",
        way=Guard(
            "tests/unit/tasks/test_execution.py::"
            "test_body_is_stopped_though_no_thread_can_start"
        ),
        note="The fence refuses what it writes. Tests had no limit of threads there.",
    ),
    Bug(
        name="base-of-a-released-attempt",
        effect=Effect.HOLDERS,
        text="An elector that was interrupted in `campaign` released the base "
        "of that attempt, and tried again with the same one. A node that "
        "was away got the release after the next grant, and deleted its "
        "lock: two candidates led.",
        found_by=Finder.REVIEW,
        fixed_in="c171142",
        way=Guard(
            "tests/unit/election/test_elector.py::"
            "test_late_release_of_an_interrupted_attempt_ends_no_term"
        ),
        note="The simulator has no electors.",
    ),
    Bug(
        name="value-that-begins-as-the-one-shown",
        effect=Effect.HOLDERS,
        text='An operator was shown the value of another program, such as "1" '
        "or nothing, and released it. A holder that had come since, and "
        "whose token began so, lost its lock.",
        found_by=Finder.REVIEW,
        fixed_in="e4cb4a5",
        way=Guard(
            "tests/contract/test_lock_scripts.py::"
            "test_force_release_leaves_a_holder_alone_that_has_come_since"
        ),
        note="No tool has values of other programs.",
    ),
    Bug(
        name="tasks-in-a-block-of-asgiref",
        effect=Effect.HOLDERS,
        text="`sync_to_async(block.__enter__)` gave the context of its thread "
        "to its caller: tasks that the caller started were in its block.",
        found_by=Finder.REVIEW,
        fixed_in="6acf337",
        way=Guard(
            "tests/unit/locking/test_inside.py::"
            "test_task_is_not_in_the_block_that_a_thread_of_asgiref_has_entered"
        ),
        note="No tool has threads that serve many users.",
    ),
    # -- fences ----------------------------------------------------------------------
    Bug(
        name="raise-on-any-node",
        effect=Effect.FENCE,
        text="The second round raised the counter of any node, also where another "
        "client had the lock.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=Planted("raise without the lock", is_long=True),
    ),
    Bug(
        name="raise-without-the-key",
        effect=Effect.FENCE,
        text="A raise counted on a node that another client had taken meanwhile.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=WithoutRule("fence", "RAISE_NEEDS_KEY"),
    ),
    Bug(
        name="raise-without-the-number",
        effect=Effect.FENCE,
        text="A raise counted on a node whose own number was not part of the greatest "
        "one.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=WithoutRule("fence", "RAISE_NEEDS_NUMBER"),
    ),
    Bug(
        name="counters-read-early",
        effect=Effect.FENCE,
        text="A node that restarted read the counters of the others at the start of "
        "its quarantine. An attempt from before was granted afterwards.",
        found_by=Finder.MODEL,
        fixed_in="draft",
        way=Scenario("recovery before the quarantine"),
        note="The specification has the rule as well.",
    ),
    Bug(
        name="ballot-read-twice",
        effect=Effect.FENCE,
        text="A late vote that came between two looks at a ballot counted in the "
        "raise, although its number was not part of the greatest one.",
        found_by=Finder.UNKNOWN,
        fixed_in="73c289b",
        way=Guard(
            "tests/unit/lock/test_fence.py::"
            "test_vote_that_comes_during_the_count_is_left_out_of_it"
        ),
        note="In the simulator, no other thread runs between the two looks.",
    ),
    Bug(
        name="fence-key",
        effect=Effect.FENCE,
        text="The counters were a key of their own. A node whose key was deleted "
        "voted on, with counters that began anew.",
        found_by=Finder.UNKNOWN,
        fixed_in="cc3e39f",
        way=Guard(
            "tests/contract/test_membership_scripts.py::test_part_of_a_memory_is_none"
        ),
        note="No fault of the simulator deleted a part of what a node knows.",
    ),
    Bug(
        name="clock-of-the-operator",
        effect=Effect.FENCE,
        text="After an abort, the old nodes started above the clock of the operator. "
        "A clock that was a day behind made them give a fence for the second time.",
        found_by=Finder.SIMULATOR,
        fixed_in="b22ec42",
        way=Guard(
            "tests/contract/test_reconfiguration_scripts.py::test_counters_are_raised_above_the_time_of_the_node"
        ),
        note="Found at seed 711088.",
    ),
    Bug(
        name="counter-made-anew",
        effect=Effect.FENCE,
        text="In ZooKeeper, a counter was known by its version alone. After a reset, "
        "one that was made anew with the same version was taken for the old one.",
        found_by=Finder.REVIEW,
        fixed_in="9ad6415",
        way=Guard(
            "tests/stores/test_zookeeper.py::"
            "test_counter_that_was_made_anew_with_its_version_is_not_the_old_one"
        ),
        note="The simulator has no stores. The first repair left out a counter that "
        "was not read again.",
    ),
    Bug(
        name="last-node-forgets",
        effect=Effect.FENCE,
        text="A server that had been replaced confirmed the last node that knew of "
        "the replacement, with its own old counters.",
        found_by=Finder.SIMULATOR,
        fixed_in="",
        way=Guard(
            f"{_SCENARIO}::test_fences_rest_on_a_node_that_knows_of_a_replacement"
        ),
        note="Found at seed 21022427. It is a limit, not fixed: "
        "[Why it is safe](why-it-is-safe.md"
        "#the-restart-guard-a-node-that-forgot-does-not-vote) says so.",
    ),
    # -- locks that are lost ---------------------------------------------------------
    Bug(
        name="eventlet-ends-the-next-wait",
        effect=Effect.LOST,
        text="Under eventlet, two sockets that were ready together ended the next wait "
        "of the same greenlet. A worker lost its connection to ZooKeeper again and "
        "again; with Redis nodes, a wait of the body could end early.",
        found_by=Finder.TESTS,
        fixed_in="40a57bc",
        way=Guard(
            "tests/nodes/test_green.py::"
            "test_sockets_that_are_ready_together_end_one_wait"
        ),
        note="Few tests of workers ran on ZooKeeper.",
    ),
    Bug(
        name="busy-process",
        effect=Effect.LOST,
        text="With 200 threads in a loop, a renewal was judged before its replies "
        "were read. Leases on healthy nodes were lost.",
        found_by=Finder.UNKNOWN,
        fixed_in="65d939f",
        way=Guard(
            "tests/unit/lock/test_watchdog.py::"
            "test_replies_are_read_before_a_renewal_is_judged"
        ),
        note="The simulator has few threads in a process.",
    ),
    Bug(
        name="starved-renewal",
        effect=Effect.LOST,
        text="A thread that had just sent got the next turn as well, so the thread "
        "that renews locks did not get one.",
        found_by=Finder.UNKNOWN,
        fixed_in="156ecec",
        way=Guard(
            "tests/nodes/test_many_threads.py::test_threads_without_pause_cost_no_lease"
        ),
        note="The simulator passes a lock between threads in order.",
    ),
    Bug(
        name="late-loss",
        effect=Effect.LOST,
        text="The loss of a lock was reported late: the restore of a key waited for "
        "the requests of other threads.",
        found_by=Finder.SIMULATOR,
        fixed_in="611189b",
        way=Guard(
            "tests/unit/lock/test_watchdog.py::"
            "test_loss_is_announced_in_time_while_the_transport_is_busy"
        ),
    ),
    Bug(
        name="long-sleep",
        effect=Effect.LOST,
        text="A watchdog whose process was stopped just before it slept woke up late. "
        "Leases that were taken meanwhile were not renewed.",
        found_by=Finder.SIMULATOR,
        fixed_in="ad79e53",
        way=Planted("watchdog sleeps too long"),
        note="Found at seed 8310251.",
    ),
    Bug(
        name="lock-deleted-by-a-publisher",
        effect=Effect.LOST,
        text="The table of locks was in a publication of logical replication. A sweep "
        "on the old server deleted a valid lock on the new one.",
        found_by=Finder.REVIEW,
        fixed_in="3e247fe",
        way=Guard(
            "tests/stores/test_failover.py::"
            "test_server_that_gets_our_table_from_another_one_has_no_vote"
        ),
        note="No tool has two servers of which one writes into the other.",
    ),
    Bug(
        name="handler-of-the-log",
        effect=Effect.LOST,
        text="A handler of the log that raised ended the thread of the "
        "watchdog: no lease was renewed, and the body of a lost one was "
        "not stopped.",
        found_by=Finder.REVIEW,
        fixed_in="f3d66a4",
        way=Guard(
            "tests/unit/lock/test_watchdog_thread.py::"
            "test_log_handler_that_raises_ends_no_renewal"
        ),
        note="No tool has handlers of the log.",
    ),
    # -- jobs that are lost ----------------------------------------------------------
    Bug(
        name="revoked-member-of-a-chord",
        effect=Effect.JOB_LOST,
        text="A member of a chord that was revoked, and whose message came to a worker "
        "that did not know of it, was dropped and not counted. The chord waited for "
        "ever.",
        found_by=Finder.TORTURE,
        fixed_in="caa61e8",
        way=Guard(f"{_CANVAS}::test_member_that_was_revoked_elsewhere_ends_a_chord"),
    ),
    Bug(
        name="killed-while-it-sends-a-chord",
        effect=Effect.JOB_LOST,
        text="Celery 5.7 lets one process alone send the body of a chord for some "
        "seconds. If it was killed, the copy of its call came back meanwhile and was "
        "dropped, or did not come back, and the chord waited for ever.",
        found_by=Finder.TORTURE,
        fixed_in="f9a1aea",
        way=Guard(
            f"{_CANVAS}::test_member_that_is_killed_while_it_sends_the_body_of_"
            "a_chord_loses_no_chord[KilledInChords]"
        ),
    ),
    Bug(
        name="terminated-while-it-sends-a-chord",
        effect=Effect.JOB_LOST,
        text="A process that was to send the body of a chord was ended by "
        "revoke(terminate=True). The worker counted its call once more, while that "
        "process alone had the right to send the body, and acknowledged the message. "
        "The chord waited for ever.",
        found_by=Finder.TORTURE,
        fixed_in="b647423",
        way=Guard(
            f"{_CANVAS}::test_member_that_is_terminated_while_it_sends_the_body_of_"
            "a_chord_loses_no_chord"
        ),
    ),
    Bug(
        name="soft-limit-replaces-a-retry",
        effect=Effect.JOB_LOST,
        text="A soft time limit came while billiard sent the end of a call that was "
        "republished. The call had FAILURE as its result then, and its next copy was "
        "dropped, as one of a call that had ended.",
        found_by=Finder.TORTURE,
        fixed_in="2fe6dcd",
        way=Guard(
            "tests/unit/tasks/test_interrupt.py::"
            "test_child_that_has_failed_gets_no_soft_limit_until_its_next_task"
        ),
    ),
    Bug(
        name="retry-replaces-a-hard-limit",
        effect=Effect.JOB_LOST,
        text="Celery stores the end by a hard time limit before it kills the process. "
        "One that was about to republish its call stored RETRY after that, and died "
        "before it published: RETRY for ever.",
        found_by=Finder.TORTURE,
        fixed_in="fc8ba5f",
        way=Guard(
            "tests/unit/tasks/test_request.py::test_hard_limit_is_the_result_of_a_call_"
            "that_was_about_to_be_republished"
        ),
    ),
    Bug(
        name="rollback-hides-the-error",
        effect=Effect.JOB_LOST,
        text="Where the database had gone, the error of the rollback took the place "
        "of what the body had raised. Seven of 10,000 jobs did not come again.",
        found_by=Finder.TORTURE,
        fixed_in="5a9b6c1",
        way=Guard(f"{_ONCE}::test_error_of_the_body_is_told_where_the_rollback_fails"),
    ),
    Bug(
        name="no-retry-of-begin-and-commit",
        effect=Effect.JOB_LOST,
        text="A database that was away at the begin or the commit ended the call as "
        "failed, against `autoretry_for`.",
        found_by=Finder.UNKNOWN,
        fixed_in="9b5881e",
        way=Guard(f"{_ONCE}::test_error_outside_of_the_body_is_retried_as_one_inside"),
        note=_NO_CELERY,
    ),
    Bug(
        name="ended-call-is-listed-again",
        effect=Effect.JOB_LOST,
        text="With `buffer_one`, a call that had given way was listed again by a late "
        "word of its publisher. Later calls ended for it.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/contract/test_record_scripts.py::"
            "test_old_call_that_has_given_way_is_not_noted_any_more"
        ),
        note="The simulator has no successors of calls.",
    ),
    Bug(
        name="claim-outlives-its-job",
        effect=Effect.JOB_LOST,
        text="A claim outlived its job for an hour, and calls were not sent, if a "
        "worker of another version ran the job.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/worker/test_claims.py::test_worker_of_another_version_releases_the_claim"
        ),
        note=_NO_CELERY,
    ),
    Bug(
        name="permit-named-like-a-key",
        effect=Effect.JOB_LOST,
        text="The second permit of a key with a limit, such as `repo:acme/app`, was "
        "the lock of the key `repo:acme/app#2`. A call with that key was skipped as a "
        "duplicate of another thing.",
        found_by=Finder.UNKNOWN,
        fixed_in="4fbd868",
        way=Guard(
            "tests/unit/lock/test_permits.py::test_no_permit_has_the_name_of_another_key"
        ),
        note="Keys of tests had no such form.",
    ),
    Bug(
        name="own-lock-met-again",
        effect=Effect.JOB_LOST,
        text="A process whose connections broke while it released a lock asked "
        "for the lock again before it sent the release once more. It met "
        "its own lock, and skipped its next call as a duplicate.",
        found_by=Finder.REVIEW,
        fixed_in="ae5cdf3",
        way=Guard(
            "tests/unit/lock/test_pending_releases.py::"
            "test_release_that_did_not_arrive_comes_before_requests_that_wait"
        ),
        note="The network of the simulator resends releases first.",
    ),
    Bug(
        name="replacement-that-meets-its-parent",
        effect=Effect.JOB_LOST,
        text="A call that replaced itself with a chain or a group was about to end, "
        "when a member with its key met its lock. The member was skipped as a "
        "duplicate, and with it all that the call had replaced itself with.",
        found_by=Finder.REVIEW,
        fixed_in="8d727907",
        way=Guard(
            "tests/worker/test_canvas.py::"
            "test_call_that_replaces_itself_runs_what_it_has_sent_with_its_key"
        ),
        note="The torture has no call that replaces itself.",
    ),
    # -- jobs that run twice ---------------------------------------------------------
    Bug(
        name="older-call-runs-after-the-newest",
        effect=Effect.JOB_TWICE,
        text="With `buffer_one`, the newest call ran and ended while an older one "
        "waited for the reply of the nodes, which still named it. The older one took "
        "it for a call that had ended before it ran, and ran as well.",
        found_by=Finder.TESTS,
        fixed_in="3ab3171",
        way=Guard(
            "tests/unit/policies/test_buffer_one.py::"
            "test_call_that_ran_while_the_nodes_replied_has_superseded_the_older_one"
        ),
        note="The simulator has no successors of calls.",
    ),
    Bug(
        name="copy-of-an-ended-call",
        effect=Effect.JOB_TWICE,
        text="A process that was killed after it republished a call left two "
        "messages. The second one ran the body again, and left RETRY as the result.",
        found_by=Finder.TORTURE,
        fixed_in="cabf091",
        way=Guard(
            "tests/unit/tasks/test_admission.py::"
            "test_copy_of_a_call_that_has_ended_is_dropped"
        ),
    ),
    Bug(
        name="copies-with-two-permits",
        effect=Effect.JOB_TWICE,
        text="The broker delivered a message again while its call ran with a permit. "
        "The copy got another permit, and ran beside it.",
        found_by=Finder.TORTURE,
        fixed_in="cedf804",
        way=Guard(
            "tests/unit/lock/test_permits.py::test_copies_of_a_call_have_one_permit"
        ),
        note="One seed made nine pairs of copies.",
    ),
    Bug(
        name="job-named-like-a-key",
        effect=Effect.JOB_TWICE,
        text="`unique_while` sent a job a second time while it ran, if its task id "
        "began with `key `.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/contract/test_record_scripts.py::"
            "test_claim_takes_no_name_of_a_job_for_a_key"
        ),
        note="Task ids of tests are random.",
    ),
    Bug(
        name="slot-that-the-latest-call-ran-twice",
        effect=Effect.JOB_TWICE,
        text="A beat sent a slot twice, as it died between sending and recording it. "
        "Under `buffer_one` and `cancel_running` both messages ran, one after the "
        "other.",
        found_by=Finder.REVIEW,
        fixed_in="ce89a03",
        way=Guard(
            "tests/unit/tasks/test_admission.py::"
            "test_second_message_is_skipped_where_the_first_has_begun"
        ),
        note="The second message of a first one that ended in its favour has to run: "
        "that had been repaired before, in a way that let both run.",
    ),
    # -- locks that are left ---------------------------------------------------------
    Bug(
        name="message-given-to-another-process",
        effect=Effect.LEFT,
        text="Several children were killed at once. billiard gave the message of one "
        "to another process, and told its request nothing. The lock stayed until its "
        "ttl ended, and the call waited for itself.",
        found_by=Finder.TESTS,
        fixed_in="b141e06",
        way=Guard(
            "tests/unit/tasks/test_admission.py::test_message_that_a_pool_gives_to_"
            "another_process_takes_the_lock_over"
        ),
        note="A test of killed children was red once in some hundred runs.",
    ),
    Bug(
        name="sweep-hides-a-commit",
        effect=Effect.LEFT,
        text="A store granted a lock, and then could not delete keys that had ended. "
        "The client was told of that error, and not of its lock.",
        found_by=Finder.REVIEW,
        fixed_in="9af2185",
        way=Guard(
            "tests/stores/test_sweeps.py::test_error_of_a_sweep_hides_no_commit_of_postgresql"
        ),
        note="No tool makes the deletion of a database fail.",
    ),
    Bug(
        name="late-refusal-of-a-release",
        effect=Effect.LEFT,
        text="A store that stalls refuses a release when its own timeout is over. The "
        "thread that sends it again slept for up to four seconds before it read that, "
        "and could end before.",
        found_by=Finder.TESTS,
        fixed_in="8b8451b",
        way=Guard(
            "tests/unit/lock/test_watchdog.py::test_step_looks_soon_for_a_late_reply"
        ),
        note="The simulator has no stores, which answer late in this way.",
    ),
    Bug(
        name="release-of-many-in-etcd",
        effect=Effect.LEFT,
        text="In etcd, a release of 100 keys for which calls wait needed more "
        "comparisons than a transaction takes. It released none of them.",
        found_by=Finder.REVIEW,
        fixed_in="c223c3a",
        way=Guard(
            "tests/stores/test_features.py::"
            "test_release_of_as_many_keys_as_may_be_that_are_waited_for"
        ),
    ),
    Bug(
        name="interrupted-end",
        effect=Effect.LEFT,
        text="An exception between the end of a block and the first message to the "
        "nodes left the lock until its ttl ended.",
        found_by=Finder.SIMULATOR,
        fixed_in="e69fe86",
        way=Guard(
            "tests/unit/locking/test_block.py::test_end_that_is_interrupted_anywhere_releases"
        ),
    ),
    Bug(
        name="refused-release",
        effect=Effect.LEFT,
        text="A node that refused a release with an error that passes (`-BUSY`, "
        "`-READONLY`) kept the lock for the rest of its ttl.",
        found_by=Finder.UNKNOWN,
        fixed_in="85b2b9c",
        way=Guard(
            "tests/unit/lock/test_pending_releases.py::"
            "test_release_that_a_node_refuses_is_sent_again"
        ),
        note="Nodes of the simulator do not reply with such errors.",
    ),
    # -- too long --------------------------------------------------------------------
    Bug(
        name="forgotten-token",
        effect=Effect.LATE,
        text="etcd forgets the token of a user five minutes after its last use, and "
        "when a member restarts. The next call took that for an outage, and waited.",
        found_by=Finder.REVIEW,
        fixed_in="265a58c",
        way=Guard(
            "tests/stores/test_refusals.py::"
            "test_etcd_that_forgets_our_token_costs_no_acquire"
        ),
    ),
    Bug(
        name="kept-lock-passes-nothing-on",
        effect=Effect.LATE,
        text="With `hold_at_least`, a waiter that timed out did not pass on when the "
        "lock would be free.",
        found_by=Finder.SIMULATOR,
        fixed_in="611189b",
        way=Guard(
            f"{_SCENARIO}::test_waiter_that_times_out_passes_on_when_a_kept_lock_expires"
        ),
    ),
    Bug(
        name="replaced-server-stays-out",
        effect=Effect.LATE,
        text="A server that was replaced before a reconfiguration, and voted in the "
        "view of then, was refused for good.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::"
            "test_server_that_was_replaced_before_a_reconfiguration_joins_the_new_view"
        ),
        note="Found at seeds 1420 and 3249.",
    ),
    Bug(
        name="two-settings-take-a-node",
        effect=Effect.LATE,
        text="Clients with the old and with the new settings took a node that had "
        "lost its memory from each other.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::test_node_that_forgot_a_view_joins_the_one_for_which_it_did"
        ),
        note="Found at seeds 119 and 2593.",
    ),
    Bug(
        name="member-without-a-vote",
        effect=Effect.LATE,
        text="A planned node that had no vote was not closed, so it was not opened, "
        "and stayed in the old view.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::"
            "test_member_without_a_vote_at_a_reconfiguration_joins_the_new_view"
        ),
        note="Found at seed 200252.",
    ),
    Bug(
        name="too-few-nodes-open",
        effect=Effect.LATE,
        text="A reconfiguration whose future nodes did not vote opened too few of "
        "them.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::"
            "test_reconfiguration_is_refused_if_too_few_future_nodes_would_open"
        ),
        note="Found at seed 3249.",
    ),
    Bug(
        name="abort-cannot-be-run-again",
        effect=Effect.LATE,
        text="An abort that was interrupted could not be run again after a node had "
        "opened. Nodes that it had marked never open.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(
            f"{_SCENARIO}::"
            "test_abort_that_was_interrupted_can_be_run_again_after_a_node_has_opened"
        ),
        note="Found at seed 200136.",
    ),
    Bug(
        name="last-node-stays-closed",
        effect=Effect.LATE,
        text="A `reconfigure` that was interrupted when a majority had opened could "
        "not be run again.",
        found_by=Finder.SIMULATOR,
        fixed_in="cedf804",
        way=Guard(f"{_SCENARIO}::test_last_node_is_opened_by_a_second_run"),
        note="Found at seed 15593.",
    ),
    Bug(
        name="last-connection-fails",
        effect=Effect.LATE,
        text="A call whose last missing vote was that of a node that could not be "
        "connected to waited for the rest of the node time-out.",
        found_by=Finder.TESTS,
        fixed_in="3010ff2",
        way=Guard(
            "tests/nodes/test_outages.py::"
            "test_call_ends_when_the_last_connection_has_failed"
        ),
        note="A test with a time-out of an hour hung once. The simulator accepts a "
        "call that takes as long as the node time-out.",
    ),
    Bug(
        name="hung-nodes-in-turn",
        effect=Effect.LATE,
        text="Callers waited for hung nodes one after the other: half of 200 callers "
        "for more than 8 s.",
        found_by=Finder.UNKNOWN,
        fixed_in="b79baa8",
        way=Guard(
            "tests/unit/lock/test_broadcast.py::"
            "test_callers_wait_for_hung_nodes_at_the_same_time"
        ),
    ),
    Bug(
        name="lost-cancel-request",
        effect=Effect.LATE,
        text="`cancel_running` missed the running call: its request was overwritten "
        "by the message that settles the fence.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/contract/test_lock_scripts.py::"
            "test_cancel_request_outlasts_a_later_fence"
        ),
        note="The simulator has no cancel requests.",
    ),
    Bug(
        name="countdown-below-a-second",
        effect=Effect.LATE,
        text="On quorum queues of RabbitMQ, a call that was republished with a "
        "countdown below a second kept its worker process for ever.",
        found_by=Finder.UNKNOWN,
        fixed_in="cedf804",
        way=Guard(
            "tests/unit/options/test_broker.py::"
            "test_countdown_is_in_whole_seconds_on_quorum_queues"
        ),
        note=_NO_CELERY,
    ),
    Bug(
        name="ends-in-this-millisecond",
        effect=Effect.LATE,
        text="A lock that ended in the same millisecond was taken for one that never "
        "ends, and its waiter looked again much later.",
        found_by=Finder.UNKNOWN,
        fixed_in="5d792af",
        way=Guard(
            "tests/unit/lock/test_wait_queue.py::"
            "test_lock_that_expires_in_this_millisecond_is_looked_at_soon"
        ),
    ),
    Bug(
        name="place-outlives-its-job",
        effect=Effect.LATE,
        text="An `in_order` call that ended by its time limit, or was revoked while it "
        "ran, kept its place in the line. Its key stood still for an hour.",
        found_by=Finder.REVIEW,
        fixed_in="3792cfc",
        way=Guard(
            "tests/unit/tasks/test_request.py::"
            "test_place_in_the_line_ends_with_the_call"
        ),
        note=_NO_CELERY,
    ),
    Bug(
        name="child-closes-what-its-parent-opened",
        effect=Effect.LATE,
        text="A forked child closed a connection to a store that its parent had just "
        "made. With ZooKeeper it waited 10 s for that, and Celery killed it after 4 s; "
        "with PostgreSQL the parent lost its connection.",
        found_by=Finder.TORTURE,
        fixed_in="c7cc072",
        way=Guard(
            "tests/stores/test_forks.py::"
            "test_child_closes_no_connection_that_its_parent_has_just_made"
        ),
    ),
    Bug(
        name="fork-beside-a-stored-result",
        effect=Effect.LATE,
        text="A worker process that was forked in place of a killed one hung at its "
        "first result: a thread of the worker had just made the client of the result "
        "backend, and the fork copied the lock that kombu has for that.",
        found_by=Finder.TESTS,
        fixed_in="6d58a28",
        way=Guard(
            "tests/unit/tasks/test_request.py::test_process_that_is_forked_while_the_"
            "end_is_stored_can_store_results"
        ),
        note="Seen once in some hundred runs of the tests on a busy machine.",
    ),
    Bug(
        name="waiters-come-and-go",
        effect=Effect.LATE,
        text="The thread that wakes waiters went through them while others came and "
        "went.",
        found_by=Finder.UNKNOWN,
        fixed_in="d715dff",
        way=Guard(
            "tests/unit/lock/test_wakeup_listener.py::"
            "test_waiters_come_and_go_while_all_are_asked_to_look"
        ),
        note="Threads of the simulator change only where they wait.",
    ),
    Bug(
        name="membership-cannot-be-repaired",
        effect=Effect.LATE,
        text="A client that was cut off founded a deployment beside the one that was "
        "moved. Its node was refused from then on.",
        found_by=Finder.SIMULATOR,
        fixed_in="",
        way=Guard(
            f"{_SCENARIO}::"
            "test_node_of_a_deployment_without_other_nodes_has_its_membership_deleted"
        ),
        note="Found at seed 2619. An operator [lets the node join "
        "again](../how-to/operating-nodes.md#let-a-refused-node-join).",
    ),
    Bug(
        name="broker-that-hangs",
        effect=Effect.LATE,
        text="Publishing after a commit, and a call that is published again, waited "
        "for a Redis broker that hangs as long as it did.",
        found_by=Finder.REVIEW,
        fixed_in="19082b0",
        way=Guard(
            "tests/contrib/test_confirmed.py::"
            "test_redis_that_hangs_delays_a_commit_for_a_bounded_time"
        ),
        note="The torture stops a RabbitMQ, and kills a Redis.",
    ),
    Bug(
        name="releases-that-join-the-queue-again",
        effect=Effect.LATE,
        text="Of several releases that were sent again, the first ended the connection "
        "while the next one was being made. The second joined the requests that wait, "
        "and the loop that sends these put it back each time: for up to ten seconds no "
        "lock of the process was granted or renewed. Found at seed 4033830, as 3,000 "
        "operations at one instant.",
        found_by=Finder.SIMULATOR,
        fixed_in="e04d1a29",
        way=Guard(
            "tests/unit/lock/test_pending_releases.py::"
            "test_releases_whose_connection_ends_while_the_next_one_is_made_wait_for_it"
        ),
    ),
    Bug(
        name="outbox-behind-a-thousand-messages",
        effect=Effect.LATE,
        text="A thousand messages of the outbox that cannot be published kept all "
        "later ones of processes that were killed from the broker, for ever.",
        found_by=Finder.REVIEW,
        fixed_in="88ad61ad",
        way=Guard(
            "tests/contrib/test_outbox.py::"
            "test_many_messages_that_cannot_be_published_stop_no_other"
        ),
        note="The torture has no message that cannot be published.",
    ),
    # -- wrong statements ------------------------------------------------------------
    Bug(
        name="password-in-a-name",
        effect=Effect.STATEMENT,
        text="A password of a store with an `@` or a `/` that was not quoted was taken "
        "for the host in part, and so for the name of the node, which logs show.",
        found_by=Finder.REVIEW,
        fixed_in="186e686",
        way=Guard(
            "tests/stores/test_notations.py::"
            "test_password_that_is_not_quoted_is_refused"
        ),
    ),
    Bug(
        name="outage-taken-for-duplicates",
        effect=Effect.STATEMENT,
        text="During an outage, a worker warned after five seconds that duplicates "
        "keep it busy, and how to keep them out of the queue.",
        found_by=Finder.TESTS,
        fixed_in="cfe637c",
        way=Guard(
            "tests/unit/tasks/test_refusal_log.py::"
            "test_calls_of_an_outage_are_not_noted"
        ),
    ),
    Bug(
        name="pooler-in-transaction-mode",
        effect=Effect.LATE,
        text="A pooler of PostgreSQL in transaction mode was used in silence, where it "
        "kept prepared statements apart. A release then woke no waiter.",
        found_by=Finder.REVIEW,
        fixed_in="5bfb100",
        way=Guard(
            "tests/stores/test_poolers.py::"
            "test_transactions_on_several_connections_are_refused"
        ),
    ),
    Bug(
        name="jump-of-one-clock",
        effect=Effect.STATEMENT,
        text="The documentation said that a lock survives the jump of one clock. A "
        "lock that only a bare majority granted does not.",
        found_by=Finder.SPECIFICATION,
        fixed_in="cedf804",
        way=WithoutRule("lock", "SPARE_VOTE"),
        note="A property of every lock on majorities. The fence holds.",
    ),
    Bug(
        name="full-etcd-that-had-written",
        effect=Effect.STATEMENT,
        text="An etcd that has no room for a transaction may have written it before it "
        "says so. The error of an acquire said that nothing is held.",
        found_by=Finder.REVIEW,
        fixed_in="baef340",
        way=Guard(
            "tests/stores/test_etcd.py::"
            "test_commit_for_which_there_was_no_room_may_be_done"
        ),
        note="No test had several clients at the quota at once.",
    ),
    Bug(
        name="loss-that-looks-like-a-cancellation",
        effect=Effect.STATEMENT,
        text="The consumer of an async generator that held a lock was cancelled when "
        "the lock was lost. It never saw `LockLost`, and a task group ended without an "
        "error.",
        found_by=Finder.TESTS,
        fixed_in="9bf552f",
        way=Guard(
            "tests/nodes/test_event_loop.py::"
            "test_loss_reaches_the_consumer_of_a_generator_as_lock_lost"
        ),
        note="The simulator has no coroutines.",
    ),
    Bug(
        name="model-without-late-messages",
        effect=Effect.STATEMENT,
        text="The specification had no late messages of a lease that is held, no vote "
        "that is given again, and no restart with data.",
        found_by=Finder.TRACES,
        fixed_in="3dc8ec0",
        way=Guard("tests/spec/test_traces.py::test_histories_are_accepted"),
        note="Spin refused histories of the code that are right.",
    ),
    Bug(
        name="overwritten-result",
        effect=Effect.STATEMENT,
        text="A process that was frozen after it had republished a call stored RETRY "
        "over the result of the copy.",
        found_by=Finder.TORTURE,
        fixed_in="f90ca8b",
        way=Guard(
            "tests/worker/test_redelivery.py::"
            "test_duplicate_that_was_republished_has_its_own_result_in_the_end"
        ),
    ),
    Bug(
        name="running-job-said-to-wait",
        effect=Effect.STATEMENT,
        text="A publisher was told that a call waits in the queue while it ran, if "
        "one node had not yet released its claim.",
        found_by=Finder.UNKNOWN,
        fixed_in="6ea1524",
        way=Guard(
            "tests/unit/lock/test_claims.py::test_call_runs_as_soon_as_one_node_says_so"
        ),
        note="The simulator has no claims.",
    ),
    Bug(
        name="silent-node-that-answers",
        effect=Effect.STATEMENT,
        text="An error called a node silent that was not waited for.",
        found_by=Finder.UNKNOWN,
        fixed_in="1fc404b",
        way=Guard(
            "tests/unit/lock/test_script_request.py::"
            "test_verdict_is_certain_when_no_vote_can_change_it"
        ),
    ),
    Bug(
        name="soft-limit-in-the-commit",
        effect=Effect.STATEMENT,
        text="A soft time limit that was over in the commit or the release became the "
        "result of a call whose body had returned in time and whose effects were "
        "committed. Who sends such a call again does its work twice.",
        found_by=Finder.REVIEW,
        fixed_in="a375255f",
        way=Guard(
            "tests/worker/test_exactly_once.py::"
            "test_soft_limit_that_is_over_in_the_commit_has_no_effect"
        ),
        note="The torture's bodies with a soft limit have no commit.",
    ),
    Bug(
        name="chord-that-is-given-none",
        effect=Effect.STATEMENT,
        text="A member of a chord whose task ignores its result recorded None. A copy "
        "of it after a kill gave None to the body of the chord.",
        found_by=Finder.REVIEW,
        fixed_in="f60be9d1",
        way=Guard(
            "tests/contrib/test_exactly_once.py::"
            "test_chord_is_given_the_recorded_result_of_a_member_that_stores_none"
        ),
    ),
    Bug(
        name="watchdog-that-sleeps-for-ever",
        effect=Effect.LOST,
        text="In Python 3.10 a sleep of no time in the watchdog could last for ever. "
        "It renewed no lease of the process any more, and announced no loss, until a "
        "holder woke it.",
        found_by=Finder.TESTS,
        fixed_in="942be26",
        way=Guard(
            "tests/unit/lock/test_schedule.py::"
            "test_sleep_until_now_returns_after_each_wake_up"
        ),
        note="CI runs the long tests in Python 3.11 alone.",
    ),
)
