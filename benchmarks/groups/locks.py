"""Acquire and release without contention, compared with all other libraries."""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import locks
from benchmarks.runner import PATIENT, interleave, median_cost, ratio
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

US, REFERENCE = "celery-redlock", "redis-py Lock"


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the cost of each contender, and the ratios to two of them."""
    rounds, count = (2, 40) if quick else (21, 200)
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        contenders, missing = locks(nodes, redlock, count)
        pids = [node.pid for node in nodes.nodes]
        costs = interleave(contenders, rounds=rounds, pids=pids)
        sent = _traffic(nodes, redlock, 400 if not quick else 40)
        redlock.close()
    rows = []
    for contender in contenders:
        cost, rounds_of = median_cost(costs[contender.name]), costs[contender.name]
        rows.append(
            {
                "name": contender.name,
                "nodes": contender.nodes,
                "wall_us": cost.wall,
                "cpu_us": cost.cpu,
                "servers_us": cost.servers,
                "wall_ratio": ratio(rounds_of, costs[REFERENCE]),
                "cpu_ratio": ratio(rounds_of, costs[REFERENCE], "cpu"),
                "wall_of_ours": ratio(rounds_of, costs[US]),
            }
        )
    raw = costs["raw sockets, same scripts"]
    return {
        "rows": rows,
        "missing": missing,
        "to_raw": ratio(costs[US], raw),
        **sent,
    }


def _traffic(nodes: DevNodes, redlock: Redlock, cycles: int) -> dict[str, float]:
    """Count bytes and packets of one grant and its release, on one node."""
    node, first = nodes.nodes[0], redlock.transport.nodes[0]  # type: ignore[attr-defined]
    sock = first._conversation.connection.sock  # noqa: SLF001
    before, segments = _bytes(node), _segments(sock)
    for number in range(cycles):
        redlock.release(redlock.acquire(f"traffic:{number:08}"))
    after, later = _bytes(node), _segments(sock)
    return {
        "bytes": (after - before) / cycles,
        "packets": (later - segments) / cycles,
    }


def _bytes(node: Any) -> int:
    stats = node.command("INFO", "stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


def _segments(sock: Any) -> int:
    """Return how many TCP segments went either way (Linux: struct tcp_info)."""
    import socket  # noqa: PLC0415
    import struct  # noqa: PLC0415

    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return 0
    info = sock.getsockopt(socket.IPPROTO_TCP, option, 256)
    return sum(struct.unpack_from("II", info, 136))
