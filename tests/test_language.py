"""Plain English: a short list of turns that make a reader stop does not occur.

A reader who learned English at work follows every sentence at first reading. The table
says for each turn what to write instead. It is no list of forbidden words for its own
sake: where one of them is the plainest word, `PLAINEST` names the place and the reason.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *("benchmarks", "celery_redlock", "demo", "deploy", "docs", "example_project"),
    *("evidence", "spec", "tests"),
)
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md")
KINDS = {".conf", ".html", ".js", ".lua", ".md", ".py", ".service", ".yaml"}

# A turn, as a regular expression -> what to write instead.
INSTEAD = {
    r"who(?:m|so)?ever": "the caller, another client, a process, an operator",
    r"whatever": "the thing that it is, or all",
    r"somebody|someone": "another client, another process, a user",
    r"nobody|no one": "no other client, no process",
    r"anybody|anyone": "any client, any process",
    r"everybody|everyone": "all clients, all processes",
    r"people": "users, operators, readers",
    r"lest": "so that ... does not",
    r"in vain": "without success",
    r"puts? back|putting back": "republish",
    r"g[ia]ven? back|gives? back|giving back": "release (a lock), withdraw (an entry)",
    r"lets? go of|letting go of": "release",
    r"makes? way": "ends as superseded",
    r"c[ao]mes? by": "gets",
    r"what is said of": "the log of, the text of",
    r"for whose sake": "because of which call",
    r"that is told|who is told": "that receives, that is notified",
    r"stands? (?:for|before) (?:it|them|those|others|another)": "precedes, replaces",
    r"str(?:ikes|uck) (?:by|it|the|with)": "interrupts, interrupted",
    r"as it were": "(nothing)",
    r"empty hands": "restarted empty",
    r"mend(?:s|ed|ing)? (?:the|its|your) way": "check the network and the firewall",
    r"in no rate": "is not counted",
    r"(?:locked|held) by you": "you (do not) hold the lock",
    r"gets? none": "gets no locks, gets no vote",
    r"job that is (?:there|here)": "the existing job",
    r"[;,.] nor": "neither ... nor, or a sentence of its own",
    r"(?:not|was) written by celery-redlock": "is of another program",
    r"(?:[ms]et|has|had) an error and goes on|goes on all the same": "continues",
    r"rests? on clocks": "depends on clocks",
    r"clocks order": "the order depends on clocks",
    r"forgot nothing": "has not forgotten a lock",
    r"(?:connected to|listened to) anew": "has a new connection",
}
TURNS = {
    re.compile(rf"\b(?:{turn})\b", re.IGNORECASE): say for turn, say in INSTEAD.items()
}

# file -> the turn that is the plainest there, with the reason.
PLAINEST: dict[str, tuple[str, ...]] = {
    # A user of the operating system:
    "celery_redlock/devnodes/stores/postgresql.py": ("nobody|no one",),
    "tests/test_docs.py": tuple(INSTEAD),  # a table like this one
    "tests/test_language.py": tuple(INSTEAD),
}
RIDDLES = {"How", "Somebody", "That", "What", "Who", "Whom", "Whose"}


def texts() -> list[Path]:
    """Return the files that readers read: code, pages and templates."""
    found = [ROOT / page for page in PAGES if (ROOT / page).exists()]
    for folder in FOLDERS:
        found += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in KINDS and "migrations" not in path.parts
        ]
    return found


def name_of(path: Path) -> str:
    """Return a file's name below the root of the project."""
    return path.relative_to(ROOT).as_posix()


def test_texts_avoid_turns_that_stop_a_reader() -> None:
    """No sentence of a file has a turn of the table."""
    any_turn = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b")
    stops = []
    for path in texts():
        text = path.read_text("utf-8")
        if not any_turn.search(text.lower()):  # most; it takes half of the time so
            continue
        allowed = PLAINEST.get(name_of(path), ())
        stops += [
            f"{name_of(path)}:{number}: {found[0]!r}; say: {say}"
            for number, line in enumerate(text.splitlines(), 1)
            for turn, say in TURNS.items()
            if not any(turn.pattern == rf"\b(?:{one})\b" for one in allowed)
            and (found := turn.search(line))
        ]

    assert not stops, "\n".join(stops)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """No docstring begins as a riddle: "What ...", "Who ..."."""
    kinds = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Module)
    # Few files have such a text at all, and need not be parsed.
    begins = re.compile(rf'"""\s*[`*,]*(?:{"|".join(RIDDLES)})\b')
    riddles = [
        f"{name_of(path)}: {text.splitlines()[0]}"
        for path in texts()
        if path.suffix == ".py" and begins.search(path.read_text("utf-8"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
        if text.split()[0].strip("`*,") in RIDDLES
    ]

    assert not riddles, "\n".join(riddles)
