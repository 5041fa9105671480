"""A run's report as one HTML file, which opens without a network and runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from launcher.contract.worker_end import WorkerEnd
from launcher.runs.particulars import Particulars
from launcher.runs.report import Postmortem, render_headline, render_node

MOST_MOMENTS, OPEN_ROWS = 2_000, 60
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem;
  color: #222; background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
  padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #ddd }
td.name { white-space: nowrap } td.number { white-space: nowrap; text-align: right;
  font-variant-numeric: tabular-nums }
pre { background: #f5f5f5; padding: .6rem; white-space: pre-wrap }
svg { width: 100%; max-width: 42rem; height: auto }
.bar { background: #4878a8; height: .8rem; min-width: 1px; print-color-adjust: exact }
.verdict { border-left: 4px solid #b33 }
.missing { border-left: 4px solid #b80; padding-left: .6rem }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 0 1.5rem } .sides > * { min-width: 0 }
@media print { body { margin: 0; max-width: none; font-size: 12px } h2 { break-after: avoid }
  tr, pre, svg { break-inside: avoid } svg { max-width: 14cm } }
"""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One run of a page. ``verdict`` is text, empty for none; ``lives`` a picture of its nodes.

    A picture is an SVG, or why there is none.
    """

    told: Postmortem
    more: Particulars
    verdict: str = ""
    lives: str = ""


def render_page(sides: Sequence[Side], pictures: Sequence[str]) -> str:
    """The page of a run, or of two side by side; ``pictures`` show all of them.

    Whatever logs, names and errors hold is shown as text.
    """
    parts = [
        _beside([_head(side) for side in sides]),
        _section("What differs", [_differences(*sides)]) if len(sides) == 2 else "",
        _section("The training", [*map(_picture, pictures)]),
    ]
    sections: Sequence[tuple[str, Callable[[Side], str]]] = (
        ("Where the seconds went", _seconds),
        ("Failures", _failures),
        ("The life of each node", lambda side: _picture(side.lives)),
        ("Nodes", _nodes),
        ("Timeline", _timeline),
        ("The run", _facts),
        ("Settings of the job", lambda side: _table((), side.more.settings.items())),
        ("Changes to the code since its commit", _diff),
    )
    parts += [_section(title, [*map(render, sides)]) for title, render in sections]
    return _document(" and ".join(side.told.run_id for side in sides), "".join(parts))


def render_index(rows: Sequence[Sequence[str]], links: Sequence[str], of: str) -> str:
    """The page of ``launcher ps``: its columns, each run with a link where that is not empty."""
    cells = [[_text(cell) for cell in row] for row in rows[1:]]
    for row, link in zip(cells, links, strict=True):
        row[0] = f'<a href="{escape(link)}">{row[0]}</a>' if link else row[0]
    table = _raw_table([*map(_text, rows[0])], cells)
    return _document(f"Runs of {of}", f"<h1>Runs of {_text(of)}</h1>{table}")


def render_comparison(
    job: str, rows: Sequence[Sequence[str]], causes: Sequence[str], picture: str
) -> str:
    """The page of ``launcher compare``; ``picture`` as in ``Side``."""
    why = "".join(f"<p>{_text(cause)}</p>" for cause in causes)
    return _document(
        job, f"<h1>{_text(job)}</h1>{_table(rows[0], rows[1:])}{why}{_picture(picture)}"
    )


def _document(name: str, body: str) -> str:
    title = f"<title>{_text(name)}</title>"
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # Nothing but what stands in the page, should a browser be talked into more.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}{view}{title}'
        f"<style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _text(text: str) -> str:
    """Text for a page: control characters are told by their codes."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return escape(shown)


def _picture(picture: str) -> str:
    return picture if picture.startswith("<svg") else f"<p>{escape(picture)}</p>" * bool(picture)


def _beside(parts: Sequence[str]) -> str:
    return f'<div class="sides">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def _section(title: str, parts: Sequence[str]) -> str:
    """The parts of one section beside each other; nothing where all are empty."""
    inside = parts[0] if len(parts) == 1 else _beside(parts)
    return f"<h2>{escape(title)}</h2>{inside}" if any(parts) else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[*map(_text, row)] for row in rows]
    return _raw_table([*map(_text, head)], cells) if cells else ""


def _raw_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{names}</tr>' if names else ''}{body}</table>"


def _folded(title: str, inside: str, *, is_open: bool) -> str:
    shown = " open" if is_open else ""
    return f"<details{shown}><summary>{escape(title)}</summary>{inside}</details>"


def _head(side: Side) -> str:
    told = side.told
    missing = "".join(
        f'<p class="missing">Missing: {_text(what)}</p>' for what in side.more.missing
    )
    verdict = f'<pre class="verdict">{_text(side.verdict)}</pre>' if side.verdict else ""
    return f"<h1>{_text(told.run_id)}</h1><p>{_text(render_headline(told))}</p>{missing}{verdict}"


def _differences(one: Side, other: Side) -> str:
    tables = [
        {**dict(_of_run(side)), **side.more.installed, **side.more.settings}
        for side in (one, other)
    ]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = ([name, *(table.get(name, "") for table in tables)] for name in names)
    differing = [row for row in rows if row[1] != row[2]]
    return _table(("", one.told.run_id, other.told.run_id), differing) or "<p>Nothing.</p>"


def _seconds(side: Side) -> str:
    told, goodput = side.told, side.told.goodput
    seconds = goodput.seconds if goodput else told.phases_s
    total = sum(seconds.values())
    if not total:
        return "<p>No ledger tells it.</p>"
    whose = f"Goodput {goodput.share:.1%} of {goodput.wall_s:.1f} s." if goodput else "All nodes."
    rows = "".join(
        f'<tr><td class="name">{escape(name)}</td><td class="number">{spent_s:.1f} s</td>'
        f'<td style="width:50%"><div class="bar" style="width:{100 * spent_s / total:.1f}%">'
        "</div></td></tr>"
        for name, spent_s in seconds.items()
        if spent_s > 0
    )
    causes = ", ".join(f"{cause} {count}" for cause, count in told.restarts.items())
    restarts = f"<p>Restarts by cause: {_text(causes)}.</p>" if causes else ""
    return f"<p>{whose}</p><table>{rows}</table>{restarts}"


def _failures(side: Side) -> str:
    return "".join(_failure(end, stack) for end, stack in side.more.failures)


def _failure(end: WorkerEnd, stack: str) -> str:
    tail = "\n".join(end.log_tail)
    shown = [
        f"<p><b>{_text(end.headline)}</b></p>",
        _folded("Its stack", f"<pre>{_text(stack)}</pre>", is_open=True) if stack else "",
        _folded(f"Its last lines ({end.log})", f"<pre>{_text(tail)}</pre>", is_open=True)
        if tail and tail.strip() not in stack
        else "",
    ]
    return "".join(shown)


def _nodes(side: Side) -> str:
    rows = [[render_node(node, side.told).strip()] for node in side.told.nodes]
    is_open = len(rows) <= OPEN_ROWS
    return _folded(f"{len(rows)} lives of nodes", _table((), rows), is_open=is_open) if rows else ""


def _timeline(side: Side) -> str:
    timeline = side.told.timeline
    shown = timeline[-MOST_MOMENTS:]
    left_out = len(timeline) - len(shown)
    note = f"<p>{left_out} earlier events are left out; --json has them.</p>" if left_out else ""
    rows = [(f"{m.after_s:.2f}", f"{m.node_index}.{m.incarnation}", m.text) for m in shown]
    table = note + _table(("seconds", "node", "event"), rows)
    title = f"{len(timeline)} events"
    return _folded(title, table, is_open=len(rows) <= OPEN_ROWS) if rows else "<p>No events.</p>"


def _of_run(side: Side) -> Iterable[tuple[str, str]]:
    told, code = side.told, side.told.code
    rows = [
        ("job", told.job),
        ("target", told.target),
        ("engine", told.engine),
        ("starts of all nodes", str(told.attempts)),
        ("folder of the code", code.root if code else ""),
        ("commit", (code.commit or "none") + " with changes" * code.is_dirty if code else ""),
        ("hash of all code", code.hash if code else ""),
    ]
    return ((name, value) for name, value in rows if value)


def _facts(side: Side) -> str:
    folder = [("folder", side.told.folder)] if side.told.folder else []
    return _table((), [*_of_run(side), *side.more.installed.items(), *folder])


def _diff(side: Side) -> str:
    text = side.more.diff
    return _folded("git diff", f"<pre>{_text(text)}</pre>", is_open=False) if text else ""
