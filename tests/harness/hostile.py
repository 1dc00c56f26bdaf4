"""Values of locks that no version of this package writes."""

from __future__ import annotations

from hypothesis import strategies as st

TOKEN = f"{'f' * 32}.{'0' * 16}"
NUMBERS = ["9" * 5000, "inf", "-inf", "nan", "1e20", "1e400", "-1", "0", "", "٣", "x"]
LINES = [
    "limit 0 0 k",
    "limit 1 0",
    f"limit {'9' * 400} inf k",
    "limit 5 1e400 k",
    "key ",
    "key a\ud7ff\x1b[2J",
    "kept",
    "cancelled ",
    "cancelled \x1b]0;x\x07[y]",
]
numbers = st.sampled_from(NUMBERS)
texts = st.text(max_size=10) | st.sampled_from(["\x1b[2J", "a" * 3000, "\u202e"])
lines = st.lists(st.sampled_from(LINES) | texts, max_size=4)
values = st.binary(max_size=80) | st.builds(
    lambda *parts: "\n".join([*parts[:-1], *parts[-1]]).encode(errors="replace"),
    st.sampled_from([TOKEN, TOKEN[:-1], "", "x"]) | texts,
    numbers,
    texts,
    texts,
    texts,
    numbers,
    numbers,
    numbers,
    lines,
)
VALUES = [
    f"{TOKEN}\n{number}\ntask\nid\nhost\n{number}\n{number}\n{number}".encode()
    for number in NUMBERS
]
VALUES += [f"{TOKEN}\n1\nt\ni\nh\n1\n1\n{line}".encode() for line in LINES]
VALUES += [b"", b"\xff\xfe", b"1", b"\n" * 9]
