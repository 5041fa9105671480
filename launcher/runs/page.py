"""A run's report as one HTML file, which opens without a network and runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from launcher.contract.ending import WorkerEnd, show_text
from launcher.runs.heals import tell_heals
from launcher.runs.particulars import Particulars
from launcher.runs.report import render_postmortem
from launcher.runs.summary import render_headline

MOST_MOMENTS, OPEN_LINES = 2_000, 100
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem;
  color: #222; background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
  padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #ddd }
pre { background: #f5f5f5; padding: .6rem; white-space: pre-wrap }
svg { width: 100%; max-width: 42rem; height: auto } meter { width: 100% }
td:has(meter) { width: 50% }
.verdict { border-left: 4px solid #b33 }
.missing { border-left: 4px solid #b80; padding-left: .6rem }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 0 1.5rem } .sides > * { min-width: 0 }
@media print { body { margin: 0; max-width: none; font-size: 12px } h2 { break-after: avoid }
  tr, pre, svg { break-inside: avoid } svg { max-width: 14cm } }
"""


def render_page(sides: Sequence[Particulars], pictures: Sequence[str]) -> str:
    """The page of a run, or of two runs side by side.

    Each picture shows all runs of the page: an SVG, or why there is none. Whatever logs, names and
    errors hold is shown as text.
    """
    parts = [
        _beside([_head(side) for side in sides]),
        _section("What differs", [_differences(*sides)]) if len(sides) == 2 else "",
        _section("The training", [*map(_picture, pictures)]),
    ]
    sections: Sequence[tuple[str, Callable[[Particulars], str]]] = (
        ("Where the seconds went", _seconds),
        ("Failures", lambda side: "".join(_failure(*failure) for failure in side.failures)),
        ("The life of each node", lambda side: _picture(side.lives)),
        ("Report", _report),
        ("The run", lambda side: _table((), side.facts.items())),
        ("Settings of the job", lambda side: _table((), side.settings.items())),
        ("Changes to the code since its commit", lambda side: _folded("git diff", side.diff)),
    )
    parts += [_section(title, [*map(render, sides)]) for title, render in sections]
    return _document(" and ".join(side.report.run_id for side in sides), "".join(parts))


def render_index(rows: Sequence[Sequence[str]], links: Sequence[str], of: str) -> str:
    """The page of ``launcher ps``: its columns, and a link for each run that has one."""
    table = _table(rows[0], rows[1:])
    for (run_id, *_), link in zip(rows[1:], links, strict=True):
        if link:
            linked = f'<td><a href="{escape(link)}">{_text(run_id)}</a></td>'
            table = table.replace(f"<td>{_text(run_id)}</td>", linked, 1)
    return _document(f"Runs of {of}", f"<h1>Runs of {_text(of)}</h1>{table}")


def _document(name: str, body: str) -> str:
    title = f"<title>{_text(name)}</title>"
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # The browser may load nothing from outside the page.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}{view}{title}'
        f"<style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(show_text(text))


def _picture(picture: str) -> str:
    return picture if picture.startswith("<svg") else f"<p>{escape(picture)}</p>" * bool(picture)


def _beside(parts: Sequence[str]) -> str:
    return f'<div class="sides">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def _section(title: str, parts: Sequence[str]) -> str:
    """The parts of one section beside each other; empty if all parts are."""
    inside = parts[0] if len(parts) == 1 else _beside(parts)
    return f"<h2>{escape(title)}</h2>{inside}" if any(parts) else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    names = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in ([names] if names else []) + lines)
    return f"<table>{body}</table>" if lines else ""


def _folded(title: str, text: str, *, is_open: bool = False) -> str:
    """A text that unfolds; empty without text."""
    head = f"<details{' open' * is_open}><summary>{_text(title)}</summary>"
    return f"{head}<pre>{_text(text)}</pre></details>" if text else ""


def _head(side: Particulars) -> str:
    report = side.report
    missing = "".join(f'<p class="missing">Missing: {_text(what)}</p>' for what in side.missing)
    verdict = f'<pre class="verdict">{_text(side.verdict)}</pre>' if side.verdict else ""
    return (
        f"<h1>{_text(report.run_id)}</h1><p>{_text(render_headline(report))}</p>{missing}{verdict}"
    )


def _differences(first: Particulars, other: Particulars) -> str:
    tables = [{**side.facts, **side.settings} for side in (first, other)]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = ([name, *(table.get(name, "") for table in tables)] for name in names)
    differing = [row for row in rows if row[1] != row[2]]
    return _table(("", first.report.run_id, other.report.run_id), differing) or "<p>Nothing.</p>"


def _seconds(side: Particulars) -> str:
    report, goodput = side.report, side.report.goodput
    seconds = goodput.seconds if goodput else report.phases_s
    total = sum(seconds.values())
    if not total:
        return "<p>Not known: the run has no ledger.</p>"
    whose = f"Goodput {goodput.share:.1%} of {goodput.wall_s:.1f} s." if goodput else "All nodes."
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{spent_s:.1f} s</td>"
        f'<td><meter value="{spent_s:.1f}" max="{total:.1f}"></meter></td></tr>'
        for name, spent_s in seconds.items()
        if spent_s > 0
    )
    causes = ", ".join(f"{cause} {count}" for cause, count in report.restarts.items())
    restarts = f"<p>Restarts by cause: {_text(causes)}.</p>" if causes else ""
    heals = "".join(
        f"<p>{name.capitalize()} {_text(how)}.</p>"
        for name, how in tell_heals(report.heals).items()
    )
    return f"<p>{whose}</p><table>{rows}</table>{restarts}{heals}"


def _failure(end: WorkerEnd, stack: str) -> str:
    tail = "\n".join(end.log_tail)
    return (
        f"<p><b>{_text(end.headline)}</b></p>"
        + _folded("Its stack", stack, is_open=True)
        + _folded(f"Its last lines ({end.log})", tail * (tail.strip() not in stack), is_open=True)
    )


def _report(side: Particulars) -> str:
    text = render_postmortem(side.report, most_moments=MOST_MOMENTS)
    return _folded("nodes, events and code", text, is_open=text.count("\n") < OPEN_LINES)
