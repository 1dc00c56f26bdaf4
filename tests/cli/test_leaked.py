"""``redlock leaked``: keys that never expire."""

from __future__ import annotations

from tests.cli.project import Project


def test_leaked_does_not_list_expiring_or_lasting_keys(project: Project) -> None:
    """Locks have a ttl; the fences and the configuration of a node must stay."""
    project.hold("invoice:42")

    run = project.redlock("leaked")

    assert (run.code, run.out) == (
        0,
        "Every key on 3 nodes that should expire has a ttl.\n",
    )


def test_leaked_names_the_tool_for_each_kind_of_key(project: Project) -> None:
    """`release` compares a value, and a list has none."""
    project.nodes[2].command("RPUSH", "redlock:lock:list", "1")

    run = project.redlock("leaked")

    assert "Release it with\n`celery -A proj redlock release KEY`" in run.out
    assert "also a lock\nthat is no text (redis-cli TYPE)" in run.out


def test_leaked_finds_locks_without_a_ttl_on_any_node(project: Project) -> None:
    """Each key without a ttl is listed with its node."""
    project.hold("invoice:42")
    project.nodes[1].command("PERSIST", "redlock:lock:invoice:42")
    project.nodes[2].command("RPUSH", "redlock:lock:list", "1")
    project.nodes[2].command("SET", "not-ours", "1")

    run = project.redlock("leaked", "--json")

    assert run.code == 1
    assert run.document["leaked"] == {
        project.label(1): ["redlock:lock:invoice:42"],
        project.label(2): ["redlock:lock:list"],
    }
