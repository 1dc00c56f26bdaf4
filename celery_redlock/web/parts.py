"""The parts of a page of locks, for the page of this package and the Django admin.

Each function returns HTML without a style of its own. A `PageStyle` says where its
links lead and how it writes instants.

Without a majority of the nodes that can tell, no part says that nothing is locked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from celery_redlock.basics.timing import duration
from celery_redlock.operations.inspect import NodeState
from celery_redlock.operations.words import (
    UNREADABLE,
    age_of,
    held_sentences,
    instant,
    keys_beside,
    permit_text,
    selection,
    state_words,
    unknown_releases,
)
from celery_redlock.scripts.keys import keys_of
from celery_redlock.web.html import Html, join, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_redlock.operations.release import Question
    from celery_redlock.operations.scan import Scan, SeenHolder
    from celery_redlock.records.forced_releases import Releases

MOST_SEARCHED = 200
"""The characters of a search for keys."""

_MOST = 100  # rows on a page
_DIGITS = 9  # of the number of a page
_MOST_RELEASES = 20
_MOST_LIMITS = 20
_NOTHING = "–"
_CANNOT_TELL = "It cannot be told whether a lock is held"


@dataclass(frozen=True, slots=True)
class PageStyle:
    """The page on which the parts are shown.

    Attributes:
        link: Returns the address of the page that asks before the lock of a key is
            released; None if the reader may not release locks.
        at: Returns the text of an instant, which is given in seconds since 1970.
    """

    link: Callable[[str], str] | None = None
    at: Callable[[float], str] = instant


def search_refusal(pattern: str) -> str:
    """Return why no node is asked for keys that match this pattern, or ``""``."""
    if len(pattern) <= MOST_SEARCHED:
        return ""
    return (
        f"The search has {len(pattern):,} characters, and may have {MOST_SEARCHED} at "
        "most. Search for the first ones, with a * at the end."
    )


# -- locks -------------------------------------------------------------------------


def lock_list(
    seen: Scan, style: PageStyle, query: Mapping[str, str], path: str = ""
) -> Html:
    """Return the list of locks, one page of it, and sentences on how many are held.

    The query is what a reader has asked for: ``q`` is a pattern of keys, ``all`` adds
    keys without a majority, and ``page`` is the number of a page. The path is the
    address of the list, without it.
    """
    rows = _rows_of(seen, everything="all" in query)
    number, last = query.get("page", ""), max(1, math.ceil(len(rows) / _MOST))
    # Locks may have ended meanwhile, and a reader may type anything.
    page = int(number) if number.isdecimal() and len(number) < _DIGITS else 1
    page = min(max(page, 1), last)
    first = (page - 1) * _MOST
    some = rows[first : first + _MOST]

    def link(text: str, rel: str, other: int) -> Html:
        if not 1 <= other <= last:
            return tag("span", text, aria_disabled="true")
        address = f"{path}?{urlencode({**query, 'page': other})}"
        return tag("a", text, href=address, rel=rel)

    pages = tag(
        "nav",
        tag("span", f"Rows {first + 1:,} to {first + len(some):,} of {len(rows):,}"),
        link("Previous", "prev", page - 1),
        link("Next", "next", page + 1),
        aria_label="Pages",
        class_="pager",
    )
    others = None
    if seen.others and "all" not in query:
        kept = {name: query[name] for name in ("q",) if query.get(name)}
        text = f"{len(seen.others):,} more on fewer nodes than a majority"
        address = f"{path}?{urlencode({'all': 1, **kept})}"
        others = tag("p", tag("a", text, href=address))
    return join(
        pages if last > 1 else None,
        _lock_table(seen, some, style),
        pages if last > 1 else None,
        tag("p", " ".join(held_sentences(seen)), class_="summary"),
        others,
    )


def _rows_of(seen: Scan, *, everything: bool) -> list[list[SeenHolder]]:
    """Return the rows of a list of locks, the oldest first: the locks of each holder.

    A call has a lock for each of its keys, a permit for each limit, and one for its
    start. Its permits for a start come last.
    """
    found = seen.found if everything else [*seen.held, *seen.possible, *seen.starts]
    rows: defaultdict[tuple[object, ...], list[SeenHolder]] = defaultdict(list)
    for lock in found:
        of_one_holder = lock.holder.token, lock.is_held
        rows[of_one_holder if lock.holder.is_ours else (lock.key,)].append(lock)
    for row in rows.values():
        row.sort(key=lambda lock: (lock.holder.is_kept, lock.key))
    return sorted(rows.values(), key=lambda row: row[0].holder.started or math.inf)


def _lock_table(
    seen: Scan, some: Sequence[Sequence[SeenHolder]], style: PageStyle
) -> Html:
    heads = [("Key", ""), ("Task", ""), ("Holder", ""), ("Age", "")]
    heads += [("Ends in", "number"), ("Fence", "number"), ("Nodes", "number")]
    heads += [("Release", "")] if style.link else []
    rows = [_holder_row(row, len(seen.nodes), style) for row in some]
    if not rows:
        fact = "No lock is held" if seen.nodes.most_can_tell else _CANNOT_TELL
        text = f"{fact}{selection(seen)}."
        rows = [tag("tr", tag("td", text, colspan=len(heads), class_="none"))]
    return _table("Locks, the oldest first", heads, rows)


def limit_list(seen: Scan) -> Html | None:
    """Return how many permits of each limit are in use, the fullest limit first."""
    limits = seen.limits
    if limits and not seen.nodes.most_can_tell:
        return tag("p", "It cannot be told how many permits are in use.")
    items = [
        tag(
            "li",
            tag("meter", value=one.in_use, max=one.limit.most, aria_hidden="true"),
            f" {one}",
            data_id=one.limit.head,
        )
        for one in limits[:_MOST_LIMITS]
    ]
    if len(limits) > _MOST_LIMITS:
        items.append(tag("li", f"and {len(limits) - _MOST_LIMITS} more"))
    return tag("ul", *items, class_="limits") if items else None


def _holder_row(locks: Sequence[SeenHolder], nodes: int, style: PageStyle) -> Html:
    """Return the row of one holder: all its keys and permits, with a link for each."""
    lock = locks[0]
    holder, age, left = lock.holder, age_of(lock.holder), lock.ttl_left
    fewest = min(one.votes for one in locks)
    votes = f"{fewest} of {nodes}" if nodes > 1 else str(fewest)
    doubt = {None: "may be held", False: "not held"}.get(lock.is_held)
    keys = [join(one.key, *_permit_lines(one, locks)) for one in locks]
    cells = [
        tag("th", _each_on_a_line(keys), scope="row", class_="key"),
        _cell("Task", holder.task, holder.task_id)
        if holder.is_ours
        else _cell("Task", UNREADABLE, ""),
        _cell("Holder", holder.host, f"pid\xa0{holder.pid}" if holder.pid else ""),
        _cell("Age", "", "")
        if age is None
        else _cell("Age", duration(age), f"since {style.at(holder.started)}"),
        _number("Ends in", "never" if math.isinf(left) else duration(left)),
        _number("Fence", str(holder.fence or _NOTHING)),
        _number("Nodes", votes, doubt or ""),
    ]
    if style.link:
        # All keys that were taken together are released together, but no start.
        alone = [one for one in locks[1:] if one.permit and one.holder.is_kept]
        links = [_release_link(one, style.link) for one in (lock, *alone)]
        cells.append(tag("td", _each_on_a_line(links), class_="whole"))
    name = f"{lock.key} {holder.fence} {holder.task_id}"
    return tag("tr", *cells, data_id=name, data_key=lock.key)


def _release_link(lock: SeenHolder, link: Callable[[str], str]) -> Html:
    what = "Release the start …" if lock.holder.is_kept else "Release …"
    return tag("a", what, href=link(lock.key), aria_label=f"Release {lock.key}")


def _each_on_a_line(parts: Sequence[str]) -> Html:
    first, *others = parts
    return join(first, *(join(tag("br"), part) for part in others))


def _permit_lines(lock: SeenHolder, row: Sequence[SeenHolder]) -> list[Html]:
    """Return the permit of a lock, and the keys of its holder beside the row."""
    lines = []
    if permit := lock.permit:
        is_start = permit[0].period
        kept = "a start, kept until the period has passed"
        lines.append(kept if is_start else permit_text(permit))
    shown = {one.key for one in row}
    if others := [
        one for one in keys_beside(lock.holder, lock.key) if one not in shown
    ]:
        lines.append(f"together with {' and '.join(others)}")
    return [join(tag("br"), tag("small", line)) for line in lines]


# -- nodes -------------------------------------------------------------------------


def node_table(seen: Scan) -> Html:
    """Return the table of the nodes: whether each one votes, and how many locks."""
    name = "Matching locks" if selection(seen) else "Locks"
    heads = [("Node", ""), ("State", ""), (name, "number")]
    rows = []
    for node in seen.nodes:
        words, mood = state_words(node)
        state = tag("span", words, class_=f"state {mood}")
        locks = f"{seen.counts[node.label]:,}"
        cells = (
            tag("th", node.label, scope="row", class_="key"),
            tag("td", state, data_label="State"),
            _number(name, _NOTHING if node.state is NodeState.SILENT else locks),
        )
        rows.append(tag("tr", *cells, data_id=node.label))
    return _table("Lock nodes and their votes", heads, rows, kind=None)


# -- releases ----------------------------------------------------------------------


def release_list(releases: Releases, nodes: int, style: PageStyle) -> Html | None:
    """Return the latest releases by operators, and whether there may be others.

    None if there are none. ``nodes`` is the number of nodes.
    """
    heads = [("Released", ""), ("Key", ""), ("By", ""), ("Reason", "")]
    heads += [("Holder", ""), ("Nodes", "number")]
    rows = [
        tag(
            "tr",
            _cell("Released", style.at(one.at), ""),
            tag("th", _each_on_a_line(keys_of(one.key)), scope="row", class_="key"),
            _cell("By", one.who, f"{one.host}, {one.tool}"),
            _cell("Reason", one.reason, ""),
            _cell("Holder", one.holder, "was killed" if one.killed else ""),
            _number("Nodes", str(one.nodes)),
            data_id=f"{one.key} {one.at}",
        )
        for one in releases.found[:_MOST_RELEASES]
    ]
    caption = "Releases by operators, the latest first"
    table = _table(caption, heads, rows) if rows else None
    unknown = unknown_releases(releases, nodes)
    return join(table, tag("p", unknown) if unknown else None) or None


def question(asked: Question, style: PageStyle) -> Html:
    """Return the lock, its holders, and the risk of a release."""
    *facts, end = asked.facts
    name = tag("strong", asked.key)
    effect = join("This takes the lock ", name, " from its holder.")
    if asked.is_kept:
        effect = join("This releases ", name, ", a permit for a start.")
    return join(
        tag("p", effect),
        tag("ul", *(tag("li", line) for line in asked.holder_lines(style.at))),
        *(tag("p", fact) for fact in facts),
        tag("p", " ".join(asked.risk), class_="errornote"),
        tag("p", f"{end} The release is recorded on the nodes."),
    )


# -- tables ------------------------------------------------------------------------


def _table(
    caption: str,
    heads: Sequence[tuple[str, str]],
    rows: Iterable[Html],
    *,
    kind: str | None = "stacked",
) -> Html:
    """Return a table. One that is stacked is a list of cells on a narrow screen."""
    names = [tag("th", name, scope="col", class_=own or None) for name, own in heads]
    return tag(
        "table",
        tag("caption", caption, class_="visually-hidden"),
        tag("thead", tag("tr", *names)),
        tag("tbody", *rows),
        class_=kind,
    )


def _cell(label: str, text: str, below: str, kind: str | None = None) -> Html:
    small = join(tag("br"), tag("small", below)) if below else None
    return tag("td", text or _NOTHING, small, class_=kind, data_label=label)


def _number(label: str, text: str, below: str = "") -> Html:
    return _cell(label, text, below, "number")
