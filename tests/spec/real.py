"""Record what real servers and real processes do, for the specification.

::

    client processes ──► recording proxies ──► redis-servers
          │ leases             │ scripts, and what the node replied
          └────────► one list of events, in the order of the machine's monotonic clock

Each node has a proxy, which lets one request through at a time. So the order in which a
node executes scripts is known without MONITOR. The clients write down by themselves
since when and until when they count on a lease. Meanwhile processes are killed and
frozen, and nodes are frozen and lose their memory.

``python -m tests.spec.real --seconds 3600`` records for an hour, and has Spin check it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from celery_redlock.basics.resp import new_reader
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts import ALL_SCRIPTS, GRANTED
from spec.trace import Trace, refusal_of
from tests.simulation.recorder import Recorder

_HOST = "127.0.0.1"
_NODES, _CLIENTS = 3, 4
_MAX_TTL = 1.0  # seconds; also the ttl
_NODE_TIMEOUT = 0.2
_WINDOW = 3  # seconds for which clients want the same keys
_READ = 1 << 16
_BY_SHA = {script.sha.encode(): script.name for script in ALL_SCRIPTS}
_BY_SOURCE = {script.source.encode(): script.name for script in ALL_SCRIPTS}
# Microseconds between a script and the instant that the proxy writes down.
_SLACK = "SLACK=20000"

CLIENT = """
import json, os, random, sys, time
from celery_redlock.locks import redlock as module
from celery_redlock.locks.lease import Lease
from celery_redlock.errors import RedlockError
from celery_redlock.locking import lock

path, seed, max_ttl, timeout, window, *urls = sys.argv[1:]
written = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(what, lease, until=None):
    line = {"at": time.monotonic(), "what": what, "token": lease.token,
            "keys": list(lease.keys), "until": until, "ttl": lease.ttl,
            "pid": os.getpid()}
    os.write(written, (json.dumps(line) + "\\n").encode())


class Recorded(Lease):
    __slots__ = ("is_made",)

    def __init__(self, **parts):
        self.is_made = False
        super().__init__(**parts)
        self.is_made = True
        write("granted", self, self.until)

    @property
    def until(self):
        return UNTIL.__get__(self)

    @until.setter
    def until(self, instant):
        before = UNTIL.__get__(self) if self.is_made else instant
        UNTIL.__set__(self, instant)
        if self.is_made and instant > before:
            write("extended", self, instant)

    @property
    def state(self):
        return STATE.__get__(self)

    @state.setter
    def state(self, state):
        STATE.__set__(self, state)
        if self.is_made:
            write("ended", self)


UNTIL, STATE = vars(Lease)["until"], vars(Lease)["state"]
module.Lease = Recorded
# BUG
rng = random.Random(seed)
redlock = module.Redlock(urls, ttl=float(max_ttl), max_ttl=float(max_ttl),
                         node_timeout=float(timeout))
while True:
    key = f"{rng.choice('ab')}{int(time.monotonic() // float(window))}"
    try:
        with lock(redlock, key, wait=rng.choice((0.0, 0.5))):
            time.sleep(rng.choice((0.001, 0.02, 0.1, 1.5)))
    except RedlockError:
        time.sleep(rng.uniform(0.0, 0.05))
"""


@dataclass(slots=True)
class Recording:
    """The histories of real servers.

    Attributes:
        traces: The histories, one for each lock.
        faults: How often each fault happened.
    """

    traces: list[Trace]
    faults: Counter[str]

    def refusals(self) -> list[str]:
        """Return why Spin refuses some of the histories."""
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda trace: refusal_of(trace, [_SLACK]), self.traces)
            return [why for why in found if why]


@dataclass(slots=True)
class _Proxy:
    """Lets one request at a time through to a node, and writes each script down."""

    node: Any
    name: str
    events: list[tuple[float, str, dict[str, Any]]]
    url: str = ""
    _one: threading.Lock = field(default_factory=threading.Lock)
    _listener: Any = None

    def start(self) -> None:
        self._listener = socket.create_server((_HOST, 0), backlog=100)
        self.url = f"redis://{_HOST}:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(
                    target=self._carry, args=(client,), daemon=True
                ).start()

    def _carry(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            server = socket.create_connection((_HOST, self.node.port), timeout=5)
            with server:
                server.settimeout(30)
                self._converse(client, server)

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        requests, replies = new_reader(), new_reader()
        while data := client.recv(_READ):
            requests.feed(data)
            while (command := requests.gets()) is not False:
                raw = _packed(command)
                if command[0].upper() == b"SUBSCRIBE":
                    server.sendall(raw)
                    self._pipe(client, server)
                    return
                with self._one:
                    server.sendall(raw)
                    said = b""
                    while (reply := replies.gets()) is False:
                        chunk = server.recv(_READ)
                        if not chunk:
                            return
                        said += chunk
                        replies.feed(chunk)
                    self._note(command, reply)
                client.sendall(said)

    def _pipe(self, client: socket.socket, server: socket.socket) -> None:
        server.settimeout(None)

        def back() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(_READ):
                    client.sendall(data)
                client.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=back, daemon=True).start()
        while data := client.recv(_READ):
            server.sendall(data)
        server.shutdown(socket.SHUT_RDWR)

    def _note(self, command: list[bytes], reply: Any) -> None:
        verb = command[0].upper()
        known = _BY_SHA if verb == b"EVALSHA" else _BY_SOURCE if verb == b"EVAL" else {}
        name = known.get(command[1], "") if len(command) > 1 else ""
        if not name or isinstance(reply, Exception):
            return
        first = 3 + int(command[2])
        status = reply[0] if isinstance(reply, list) else reply
        script = {
            "node": self.name,
            "name": name,
            "keys": command[3:first],
            "args": command[first:],
            "status": status,
        }
        self.events.append((time.monotonic(), "script", script))


def _packed(command: list[bytes]) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"*%d\r\n" % len(command) + b"".join(parts)


def record(seconds: float, seed: int = 0, bug: str = "") -> Recording:
    """Let processes want a few locks for so long, while things fail.

    Args:
        seconds: How long.
        seed: Decides which faults happen.
        bug: Python that plants a bug into the clients' ``module``, locks.redlock.
    """
    rng = random.Random(seed)  # noqa: S311  (a seed is the point)
    events: list[tuple[float, str, dict[str, Any]]] = []
    faults: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="redlock-real-") as name,
        DevNodes(_NODES, max_ttl=_MAX_TTL, initialize=False) as nodes,
        contextlib.ExitStack() as stack,
    ):
        proxies = [_Proxy(node, f"n{i}", events) for i, node in enumerate(nodes.nodes)]
        for proxy in proxies:
            proxy.start()
            stack.callback(proxy.close)
        urls = [proxy.url for proxy in proxies]
        timing: dict[str, Any] = {"ttl": _MAX_TTL, "max_ttl": _MAX_TTL}
        with closing(Redlock(urls, **timing)) as redlock:
            redlock.initialize()
        events.clear()
        begun = time.monotonic()
        files = [Path(name) / f"client-{number}" for number in range(_CLIENTS)]
        clients = [_start(file, rng, urls, bug) for file in files]
        stack.callback(lambda: [*map(_end, clients)])
        while time.monotonic() < begun + seconds:
            time.sleep(rng.uniform(0.3, 2.0))
            number = rng.randrange(_CLIENTS)
            fault = rng.choice(("kill", "freeze", "hang", "lose", "nothing"))
            faults[fault] += 1
            if fault == "kill":
                _end(clients[number])
                events.append((time.monotonic(), "dead", {"pid": clients[number].pid}))
                clients[number] = _start(files[number], rng, urls, bug)
            elif fault == "freeze":
                clients[number].send_signal(signal.SIGSTOP)
                time.sleep(rng.choice((0.2, 1.5 * _MAX_TTL)))
                clients[number].send_signal(signal.SIGCONT)
            elif fault == "hang":
                node = rng.choice(nodes.nodes)
                node.pause()
                time.sleep(rng.choice((0.1, 0.5)))
                node.resume()
            elif fault == "lose":
                place = rng.randrange(_NODES)
                # No request is under way, so its place among the events is known.
                with proxies[place]._one:  # noqa: SLF001  (of this module)
                    nodes.nodes[place].restart(keep_memory=False)
                    lost = {"node": proxies[place].name}
                    events.append((time.monotonic(), "lost", lost))
                time.sleep(2 * _MAX_TTL + 2)  # one node at a time, as in the model
        for client in clients:
            _end(client)
        for file in files:
            for line in file.read_text().splitlines() if file.exists() else ():
                one = json.loads(line)
                events.append((one["at"], one["what"], one))
    return Recording(_traces(begun, events), faults)


def _start(
    file: Path, rng: random.Random, urls: list[str], bug: str
) -> subprocess.Popen[bytes]:
    numbers = [rng.randrange(1 << 30), _MAX_TTL, _NODE_TIMEOUT, _WINDOW]
    words = [str(file), *map(str, numbers), *urls]
    return subprocess.Popen(  # noqa: S603  (our own program)
        [sys.executable, "-c", CLIENT.replace("# BUG", bug), *words],
        start_new_session=True,
    )


def _end(client: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(client.pid, signal.SIGKILL)
    return client.wait()


# -- events as steps -------------------------------------------------------------------


def _traces(  # noqa: C901  (one branch a kind of event)
    begun: float, events: list[tuple[float, str, dict[str, Any]]]
) -> list[Trace]:
    """Put the events in order, and have the recorder of the simulator write them."""
    world = SimpleNamespace(now=0.0)
    names = [f"n{number}" for number in range(_NODES)]
    keys = {
        name.decode().rpartition(":")[2]
        for _, what, one in events
        if what == "script"
        for name in one["keys"]
        if b":lock:" in name
    }
    plan: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name=name) for name in names],
        max_ttl=_MAX_TTL,
        later_settings=(),
        members=(),
        wants=[(key, ()) for key in keys],
    )
    recorder = Recorder(plan)
    places = {name: _Place(name, world) for name in names}
    for place in places.values():
        recorder.synced(place)  # type: ignore[arg-type]
    processes: dict[int, Any] = {}
    grants: dict[str, Any] = {}

    def process_of(pid: int) -> Any:
        return processes.setdefault(
            pid, SimpleNamespace(dead=False, world=world, instant_of=lambda at: at)
        )

    owners = {one["token"]: one["pid"] for _, what, one in events if "token" in one}
    for at, what, one in sorted(events, key=lambda event: event[0]):
        world.now = at - begun
        if what == "script":
            _script(recorder, places[one["node"]], one, owners, process_of)
        elif what == "lost":
            places[one["node"]].keeps = False
            recorder.memory_lost(places[one["node"]])  # type: ignore[arg-type]
            places[one["node"]].keeps = True
        elif what == "dead":
            process_of(one["pid"]).dead = True
        elif what == "granted":
            lease = SimpleNamespace(
                token=one["token"], keys=one["keys"], ttl=one["ttl"]
            )
            grant: Any = SimpleNamespace(
                lease=lease,
                process=process_of(one["pid"]),
                valid_until=one["until"] - begun,
                watched_at=world.now,
            )
            grants[one["token"]] = grant
            recorder.granted(grant)
        elif what == "extended":
            grant = grants[one["token"]]
            grant.valid_until = one["until"] - begun
            recorder.extended(grant, grant.valid_until)
        elif one["token"] in grants:
            recorder.ended(grants[one["token"]])
    if recorder.left_out:
        raise RuntimeError(recorder.left_out)
    return list(recorder.traces().values())


def _script(
    recorder: Recorder, place: _Place, one: dict[str, Any], owners: Any, process_of: Any
) -> None:
    if one["name"] == "sync" and one["status"] == GRANTED:
        recorder.synced(place)  # type: ignore[arg-type]
        return
    token = one["args"][1 if one["name"] in ("extend", "restore") else 0].decode()
    locks = [n.decode().rpartition(":")[2] for n in one["keys"] if b":lock:" in n]
    process = process_of(owners.get(token, 0))
    recorder.executed(
        place,  # type: ignore[arg-type]
        *(process, one["name"], locks, one["args"], one["status"]),
    )


@dataclass(slots=True)
class _Place:
    """A node, as the recorder asks for it."""

    name: str
    world: Any
    keeps: bool = True
    votes: bool = True  # without its keys it renews no lock: it need not be asked

    def has(self, _token: str) -> bool:
        """Tell whether it may have a lock of this token."""
        return self.keeps


def main() -> int:
    """Record for the given time, and have Spin check it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    recording = record(given.seconds, given.seed)
    refusals = recording.refusals()
    steps = sum(len(trace.steps) for trace in recording.traces)
    sys.stdout.write(
        f"{len(recording.traces)} histories with {steps} steps, faults "
        f"{dict(recording.faults)}: {len(refusals)} refused\n"
    )
    for why in refusals:
        sys.stdout.write(f"  {why}\n")
    return bool(refusals)


if __name__ == "__main__":
    sys.exit(main())
