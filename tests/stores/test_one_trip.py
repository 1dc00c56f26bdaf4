"""Scripts on PostgreSQL that run on what the connection assumes: one round trip."""

from __future__ import annotations

import secrets
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import FREE, GRANTED, TAKEN
from celery_redlock.stores import postgresql, postgresql_memory
from celery_redlock.stores.postgresql import PostgreSQL as Store
from tests.harness.waiting import until
from tests.stores.commands import VIEW, extend, release, script, vote

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from celery_redlock.stores.connection import Command

    Operator = psycopg.Connection[tuple[Any, ...]]

HEAD = b"one-trip:"  # of all our keys
STRIPE = b"3"
HOUR = 3600.0
STARTED = 1_800_000_000_000_000  # µs


class GeneralStore(Store):
    """A store that assumes nothing."""

    def _run_assumed(
        self, commands: Sequence[Command]
    ) -> Generator[int, None, list[Any]]:
        yield from ()
        return [None] * len(commands)


class Site:
    """A node for one test, two clients of it, and an operator."""

    def __init__(self, clients: tuple[Store, Store], operator: Operator) -> None:
        self.prefix = HEAD + secrets.token_hex(6).encode()
        self.meta = self.prefix + b":meta"
        self.ours, self.other = clients
        self.operator = operator
        vote(self.ours, self.meta)
        # Ours is the last. Where a busy machine has delayed its reply, the fence of a
        # later grant may be above the time that it assumes: then it reads first.
        for store in (self.other, self.ours):
            self.cycle(store, b"first")

    def key(self, name: bytes) -> bytes:
        """Return the name of a lock."""
        return self.prefix + b":" + name

    def acquire(
        self, name: bytes, token: bytes, stripe: bytes = STRIPE, hint: int = -1
    ) -> Command:
        """Return the command that takes a lock, numbered by the server's time."""
        tolerance = b"%d" % 10**17  # µs
        args = [token, b"me", b"60000", b"%d" % hint, tolerance, VIEW, stripe]
        return script("acquire", [self.key(name), self.meta], *args)

    def extend(self, name: bytes, token: bytes) -> Command:
        """Return the command that renews a lock."""
        return extend(self.key(name), self.meta, token)

    def release(self, name: bytes, token: bytes) -> Command:
        """Return the command that releases a lock."""
        return release(self.key(name), token)

    def cycle(self, store: Store, name: bytes) -> int:
        """Take a lock and release it; return its fence."""
        token = secrets.token_bytes(4)
        ((granted, fence),) = store.run([self.acquire(name, token)])
        assert granted == GRANTED
        assert store.run([self.release(name, token)]) == [1]
        return int(fence)

    def now_us(self) -> int:
        """Return the time of the server."""
        clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        found: Any = self.operator.execute(clock).fetchone()
        return int(found[0])

    def change(self, assignments: str, name: bytes, field: bytes = b"") -> None:
        """Change a row, past the clients."""
        done = self.operator.execute(
            f"UPDATE redlock_keys SET {assignments} WHERE name = %s AND field = %s",  # noqa: S608
            (name, field),
        )
        assert done.rowcount == 1

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of this node, and whether they have ended."""
        found = self.operator.execute(
            "SELECT substr(name, %s), field, kind, value, score IS NULL, "
            "expires_at < extract(epoch FROM clock_timestamp()) * 1000 "
            "FROM redlock_keys WHERE substr(name, 1, %s) = %s ORDER BY name, field",
            (len(self.prefix) + 1, len(self.prefix), self.prefix),
        )
        return found.fetchall()


@contextmanager
def two_clients(url: str, kind: type[Store] = Store) -> Iterator[tuple[Store, Store]]:
    """Give the connections of two clients."""
    with closing(kind(url, 30.0)) as ours, closing(kind(url, 30.0)) as other:
        for store in (ours, other):
            # Longer than a busy machine stops a test.
            store._cursor.execute("SET lock_timeout = '60s'")  # noqa: SLF001
        yield ours, other


@pytest.fixture(scope="module")
def operator(postgresql_store: str) -> Iterator[Operator]:
    """Give a connection to the database. It deletes our keys, which end at any time."""
    ours = "DELETE FROM redlock_keys WHERE substr(name, 1, %s) = %s"
    with psycopg.connect(postgresql_store, autocommit=True) as connection:
        yield connection
        connection.execute(ours, (len(HEAD), HEAD))


@pytest.fixture(scope="module")
def assuming(postgresql_store: str) -> Iterator[tuple[Store, Store]]:
    """Give two clients that assume what they know."""
    with two_clients(postgresql_store) as clients:
        yield clients


@pytest.fixture(scope="module")
def general(postgresql_store: str) -> Iterator[tuple[Store, Store]]:
    """Give two clients that read before they write."""
    with two_clients(postgresql_store, GeneralStore) as clients:
        yield clients


@pytest.fixture
def site(
    assuming: tuple[Store, Store], operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> Site:
    """Give two clients that have used the node before."""
    # A busy machine may stop a test between the assumption and the comparison.
    monkeypatch.setattr(postgresql_memory, "_MOST_LATE_US", 3_600_000_000)
    return Site(assuming, operator)


@contextmanager
def counted(store: Store) -> Iterator[list[list[str]]]:
    """Count the round trips of a store: the names of the statements of each."""
    found: list[list[str]] = []
    statements = store._statements  # noqa: SLF001
    real = statements.carry_out

    def seen(steps: Sequence[Any]) -> Any:
        found.append([step.statement for step in steps])
        return real(steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statements, "carry_out", seen)
        yield found


def test_lock_that_nobody_has_used_is_taken_in_one_round_trip(site: Site) -> None:
    """The client assumes that there is no such lock."""
    with counted(site.ours) as trips:
        ((granted, fence),) = site.ours.run([site.acquire(b"a", b"t")])

    assert granted == GRANTED
    assert trips == [["lock", "grant", "read holder"]]
    assert (b":a", b"", "string", b"t\n%d\nme" % fence, True, False) in site.rows()


def test_lock_of_another_client_is_refused_in_one_round_trip(site: Site) -> None:
    """The server returns the rows in place of what was assumed."""
    ((_, fence),) = site.other.run([site.acquire(b"a", b"other")])
    with counted(site.ours) as trips:
        ((reply, value, ttl_ms),) = site.ours.run([site.acquire(b"a", b"t")])

    assert (reply, value) == (TAKEN, b"other\n%d\nme" % fence)
    assert 0 < ttl_ms <= 60_000
    assert len(trips) == 1


@pytest.mark.parametrize("is_one", [False, True])
def test_locks_of_a_process_are_renewed_in_one_round_trip(
    site: Site, *, is_one: bool
) -> None:
    """All of them, by one command or by several, and each only in its end."""
    names = [b"%d" % n for n in range(20)]
    site.ours.run([site.acquire(name, b"t") for name in names])
    for name in names:
        site.change("expires_at = expires_at - 30000", site.key(name))
    commands = [site.extend(name, b"t") for name in names]
    if is_one:
        keys = [*map(site.key, names), site.meta, site.meta + b":releases"]
        commands = [script("extend", keys, VIEW, *[b"t", b"60000"] * 20)]
    with counted(site.ours) as trips:
        replies = site.ours.run(commands)

    assert replies == [[GRANTED, 0]] * len(commands)
    assert trips == [["lock many", "renew"]]
    ends = site.operator.execute(
        "SELECT min(expires_at) FROM redlock_keys WHERE name = ANY(%s)",
        ([site.key(name) for name in names],),
    ).fetchone()
    assert ends is not None
    assert ends[0] * 1000 > site.now_us() + 30_000_000


def test_commands_for_one_lock_keep_their_order(site: Site) -> None:
    """A renewal that follows the release is not carried out before it."""
    site.ours.run([site.acquire(b"a", b"t")])
    commands = [site.release(b"a", b"t"), site.extend(b"a", b"t")]

    assert site.ours.run(commands) == [1, [FREE]]


def test_command_that_the_server_refuses_leaves_the_others_alone(site: Site) -> None:
    """It may be that of another thread: of a key that is too long for an index."""
    long = secrets.token_hex(4000).encode()  # in random text, which is not compressed
    names = [b"a", long, b"b"]
    replies = site.ours.run([site.acquire(name, b"t") for name in names])

    assert [reply[0] for reply in (replies[0], replies[2])] == [GRANTED] * 2
    assert isinstance(replies[1], ErrorReply)
    assert "use a shorter key" in str(replies[1])


def test_script_of_a_renewal_runs_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next renewals of the lock only move its end, by the same statement."""
    site.ours.run([site.acquire(b"a", b"t")])
    site.ours.run([site.extend(b"a", b"t")])
    site.change("expires_at = expires_at - 30000", site.key(b"a"))
    monkeypatch.setattr(postgresql, "run", None)
    with counted(site.ours) as trips:
        replies = site.ours.run([site.extend(b"a", b"t")])

    assert replies == [[GRANTED, 0]]
    assert trips == [["lock", "renew"]]
    ends = "SELECT expires_at FROM redlock_keys WHERE name = %s"
    (end,) = site.operator.execute(ends, (site.key(b"a"),)).fetchone() or (0,)
    assert end * 1000 > site.now_us() + 30_000_000


def test_renewal_in_other_words_runs_its_script(site: Site) -> None:
    """Such as one with another token, or with another ttl."""
    site.ours.run([site.acquire(b"a", b"t")])
    site.ours.run([site.extend(b"a", b"t")])
    longer = [*site.extend(b"a", b"t")[:-1], b"3600000"]

    ((reply, *_),) = site.ours.run([site.extend(b"a", b"other")])
    assert reply == TAKEN
    assert site.ours.run([longer]) == [[GRANTED, 0]]
    ends = "SELECT expires_at FROM redlock_keys WHERE name = %s"
    (end,) = site.operator.execute(ends, (site.key(b"a"),)).fetchone() or (0,)
    assert end * 1000 > site.now_us() + 1_800_000_000


def test_connection_remembers_a_limited_number_of_wait_queues(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may meet waiters at any number of keys, each once."""
    monkeypatch.setattr(postgresql_memory, "_MOST_LOCKS", 3)
    for name in (b"%d" % number for number in range(8)):
        lock = site.key(name)
        site.ours.run([site.acquire(name, b"t")])
        words = b"gone/1", b"1", b"60000"
        site.other.run([script("join_wait_queue", [lock, lock + b":queue"], *words)])
        assert site.ours.run([site.release(name, b"t")]) == [1]

    assert len(site.ours._memory._seen) <= 4  # noqa: SLF001  (no reply depends on it)


def test_several_locks_of_other_stripes_take_one_round_trip(site: Site) -> None:
    """Each gets a number above its counter, also if another client has raised it."""
    site.other.run([site.acquire(b"a", b"o"), site.acquire(b"b", b"o", b"4")])
    site.other.run([site.release(b"a", b"o"), site.release(b"b", b"o")])
    with counted(site.ours) as trips:
        replies = site.ours.run(
            [site.acquire(b"c", b"t"), site.acquire(b"d", b"t", b"4")]
        )

    assert [granted for granted, _ in replies] == [GRANTED, GRANTED]
    assert len(trips) == 1


# What another client or an operator changes: assignments, the lock or the node, field.
CHANGES = {
    "the node has another view": ("value = 'x'", "meta", b".config"),
    "the node is no longer in a vote": ("field = '.gone'", "meta", b".votes"),
    "the server is another one": ("value = 'x'", "meta", b".replid"),
    "the counter is higher": ("value = '9000000000000000'", "meta", b".3"),
    "the floor is higher": ("value = '9000000000000000'", "meta", b".floor"),
    "the lock has ended": ("expires_at = 1", "a", b""),
    "the lock has another value": ("value = 'o'", "a", b""),
    "the lock is of another type": ("kind = 'hash'", "a", b""),
    "the lock is gone": ("name = name || 'gone'", "a", b""),
    "the holder is asked to end": ("value = value || '\\012cancelled x'", "a", b""),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("verb", ["acquire", "extend", "extend again", "release"])
@pytest.mark.parametrize("who", ["ours", "other"])
def test_what_is_otherwise_is_noticed(
    site: Site, general: tuple[Store, Store], change: str, verb: str, who: str
) -> None:
    """The replies and the rows are those of a client that assumes nothing."""
    assignments, name, field = CHANGES[change]
    outcomes = []
    for one in (site, Site(general, site.operator)):
        one.ours.run([one.acquire(b"a", b"t", hint=STARTED)])
        if verb == "extend again":
            for _ in range(2):
                one.ours.run([one.extend(b"a", b"t")])
        one.change(assignments, one.meta if name == "meta" else one.key(b"a"), field)
        hint = {"hint": STARTED} if verb == "acquire" else {}
        asked = getattr(one, verb.split(maxsplit=1)[0])(b"a", b"t", **hint)
        replies = [getattr(one, who).run([asked]) for _ in range(2)]
        outcomes.append((_masked(replies), _masked_rows(one)))

    assert outcomes[0] == outcomes[1]


def test_ended_lock_changes_its_holder_by_a_new_row(site: Site) -> None:
    """A transaction that reads the old row FOR KEY SHARE keeps the new holder out."""
    site.other.run([site.acquire(b"a", b"o")])
    site.change("expires_at = 1", site.key(b"a"))
    row = "SELECT ctid, xmin::text FROM redlock_keys WHERE name = %s"
    with site.operator.transaction():
        site.operator.execute(f"{row} FOR KEY SHARE", (site.key(b"a"),))
        asked = threading.Thread(
            target=site.ours.run, args=([site.acquire(b"a", b"t")],), daemon=True
        )
        asked.start()
        until(lambda: _waits(site.ours))
    asked.join(60)

    assert site.ours.run([site.release(b"a", b"t")]) == [1]


def test_renewal_of_a_lock_that_is_deleted_meanwhile_grants_nothing(site: Site) -> None:
    """An operator deletes rows, without the locks that clients take."""
    site.ours.run([site.acquire(b"a", b"t")])
    replies: list[Any] = []
    with site.operator.transaction():
        site.operator.execute(
            "DELETE FROM redlock_keys WHERE name = %s", (site.key(b"a"),)
        )
        renewal = threading.Thread(
            target=lambda: replies.extend(site.ours.run([site.extend(b"a", b"t")])),
            daemon=True,
        )
        renewal.start()
        until(lambda: _waits(site.ours))
    renewal.join(60)

    assert replies == [[FREE]]


class _LeapingClock:
    """Our monotonic clock, off by some seconds from now on."""

    def __init__(self, leap: float) -> None:
        self._leap = leap

    def monotonic(self) -> float:
        """Return seconds."""
        return SYSTEM_CLOCK.monotonic() + self._leap


@pytest.mark.parametrize("leap", [-HOUR, -30.0, 30.0, HOUR])
def test_fence_is_the_time_of_the_server_whatever_our_clock_does(
    postgresql_store: str,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    leap: float,
) -> None:
    """A clock that leaps, or that stood still while the machine slept, is noticed."""
    with two_clients(postgresql_store) as clients:
        site = Site(clients, operator)
        monkeypatch.setattr(postgresql_memory, "SYSTEM_CLOCK", _LeapingClock(leap))
        before = site.now_us()
        # With a counter that no client has raised to the time of the server.
        ((_, fence),) = site.ours.run([site.acquire(b"a", b"t", b"4")])

        assert before - 1_000_000 <= fence <= site.now_us()


def test_locks_that_share_a_counter_are_numbered_in_turn(site: Site) -> None:
    """The first must be above the counter, and not only the last."""
    site.change(f"value = '{STARTED}'", site.meta, b".3")
    taken = [site.acquire(name, b"t", hint=STARTED) for name in (b"a", b"b")]

    assert site.ours.run(taken) == [[GRANTED, STARTED + 1], [GRANTED, STARTED + 2]]


def test_node_is_not_asked_again_after_a_change(site: Site) -> None:
    """The client assumes from then on what it has found."""
    site.change("value = 'x'", site.meta, b".floor")
    site.cycle(site.ours, b"a")
    with counted(site.ours) as trips:
        site.cycle(site.ours, b"a")

    assert len(trips) == 2


def test_rows_are_found_by_the_index_while_the_table_is_small(site: Site) -> None:
    """A plan is kept, and must not be a scan of a table that has grown since."""
    cursor = site.ours._connection.cursor()  # noqa: SLF001
    prepared = cursor.execute(
        "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements "
        "WHERE statement LIKE '%redlock\\_keys%' AND statement NOT LIKE '%SKIP LOCKED%'"
    ).fetchall()
    cursor.execute("ANALYZE redlock_keys")
    assert len(prepared) >= 8
    for name, count in prepared:
        values = f"({', '.join(['NULL'] * count)})" if count else ""
        plan = [line for (line,) in cursor.execute(f"EXPLAIN EXECUTE {name}{values}")]
        conditions = [line for line in plan if "Index Cond" in line]
        assert not [line for line in plan if "Seq Scan" in line]
        assert all("(name = " in line for line in conditions), plan


# -- random sequences ------------------------------------------------------------------

names = st.sampled_from([b"a", b"a", b"b"])
tokens = st.sampled_from([b"t1", b"t1", b"t2"])
stripes = st.sampled_from([b"3", b"4"])
clients = st.sampled_from(["ours", "ours", "other"])
numbers = st.sampled_from([b"1", b"8", b"%d" % STARTED, b"%d" % (STARTED + 5)])
hints = st.integers(STARTED, STARTED + 3)
scripts = st.one_of(
    st.tuples(st.just("acquire"), names, tokens, stripes, hints),
    st.tuples(st.just("acquire"), names, tokens, stripes, hints),
    st.tuples(st.just("extend"), names, tokens),
    st.tuples(st.just("release"), names, tokens),
    st.tuples(st.just("raise_fence"), names, tokens, stripes, numbers),
    st.tuples(st.just("restore"), names, tokens, stripes, numbers),
    st.tuples(st.just("wait"), names, tokens),
    st.tuples(st.just("claim"), names, tokens),
    st.tuples(st.just("keep_claim"), names, tokens),
    st.tuples(st.just("release_claim"), names, tokens),
)
steps = st.one_of(
    st.tuples(clients, st.lists(scripts, min_size=1, max_size=1)),
    st.tuples(clients, st.lists(scripts, min_size=1, max_size=3)),
    st.tuples(
        st.just("operator"),
        st.one_of(
            st.tuples(st.just("expires_at = 1"), names),
            st.tuples(st.just("value = value || '\\012cancelled x'"), names),
            st.tuples(st.just(""), names),
            st.tuples(st.just("value = '1800000000000004'"), st.just(b".3")),
            st.tuples(st.just("value = '7'"), st.just(b".3")),
            st.tuples(st.just(f"value = '{VIEW.decode()}'"), st.just(b".config")),
            st.tuples(st.just("value = 'format 4, other'"), st.just(b".config")),
        ),
    ),
)


def _command(site: Site, verb: str, name: bytes, token: bytes, *rest: Any) -> Command:
    lock, meta = site.key(name), site.meta
    claim, other = lock + b":claim", [lock, lock + b":cooldown", meta]
    queue = lock + b":queue"
    job, info = [VIEW, token], b"task\n" + token
    if verb == "acquire":
        return site.acquire(name, token, *rest)
    if verb in ("extend", "release"):
        command: Command = getattr(site, verb)(name, token)
        return command
    stripe, number = rest or (b"", b"")
    return {
        "raise_fence": script("raise_fence", [lock, meta], token, b"", number, stripe),
        "restore": script(
            "restore", [lock, meta], VIEW, token, b"", b"60000", number, stripe
        ),
        "wait": script("join_wait_queue", [lock, queue], b"c/" + token, b"1", b"60000"),
        "claim": script(
            "claim", [claim, *other], *job, info, b"60000", b"1", b"1", b""
        ),
        "keep_claim": script("keep_claim", [claim, meta], *job, b"60000"),
        "release_claim": script("release_claim", [claim], token, b""),
    }[verb]


def _act(site: Site, who: str, what: Any) -> list[Any]:
    if who != "operator":
        made = [_command(site, *one) for one in what]
        return [_masked(reply) for reply in getattr(site, who).run(made)]
    assignments, place = what
    is_field = place.startswith(b".")
    update = f"UPDATE redlock_keys SET {assignments}"  # noqa: S608
    verb = update if assignments else "DELETE FROM redlock_keys"
    site.operator.execute(
        f"{verb} WHERE name = %s AND field = %s",
        (site.meta, place) if is_field else (site.key(place), b""),
    )
    return []


def _masked(reply: Any) -> Any:
    """Return a reply without the ttl that is left."""
    if isinstance(reply, list):
        return [_masked(item) for item in reply]
    if isinstance(reply, int) and 1000 < reply <= 60_001:
        return "ttl"
    return str(reply) if isinstance(reply, Exception) else reply


def _masked_rows(site: Site) -> list[Any]:
    return [row for row in site.rows() if not row[0].startswith(b":first")]


@given(st.lists(steps, max_size=12))
def test_assumptions_change_no_outcome(
    assuming: tuple[Store, Store],
    general: tuple[Store, Store],
    operator: Operator,
    sequence: list[tuple[str, Any]],
) -> None:
    """Two clients that assume reply and write as two that read first."""
    sites = [Site(clients, operator) for clients in (assuming, general)]
    for site in sites:
        site.change("value = '7'", site.meta, b".3")
    for who, what in sequence:
        replies = [_act(site, who, what) for site in sites]
        assert replies[0] == replies[1]
        rows = [_masked_rows(site) for site in sites]
        assert rows[0] == rows[1]


@given(st.lists(st.tuples(clients, names, stripes), max_size=10))
def test_fences_of_two_clients_rise(
    assuming: tuple[Store, Store],
    operator: Operator,
    sequence: list[tuple[str, bytes, bytes]],
) -> None:
    """Each is above all that were granted before with its stripe."""
    site = Site(assuming, operator)
    last = dict.fromkeys([b"3", b"4"], 0)
    for who, name, stripe in sequence:
        store = getattr(site, who)
        ((granted, fence),) = store.run([site.acquire(name, b"t", stripe)])
        store.run([site.release(name, b"t")])
        assert granted == GRANTED
        assert fence > last[stripe]
        last[stripe] = fence


def _waits(store: Store) -> bool:
    """Tell whether the server lets this client wait for a lock."""
    process = store._process  # noqa: SLF001
    info = store._connection.info  # noqa: SLF001
    with psycopg.connect(info.dsn) as connection:
        found = connection.execute(
            "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
            (process,),
        ).fetchone()
    return found is not None
