"""A run's report as one HTML file, which opens without a network and runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from launcher.contract.worker_end import WorkerEnd
from launcher.runs.report import Postmortem, render_headline, render_node

MOST_MOMENTS = 2_000
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #222; background: #fff }
h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
  padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #ddd; overflow-wrap: anywhere }
th, td.name, td.number { white-space: nowrap }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere } svg { max-width: 100%; height: auto }
.bar { background: #4878a8; height: .8rem; min-width: 1px } .verdict { border-left: 4px solid #b33;
  padding-left: .8rem }
@media print { body { margin: 0; max-width: none } tr, pre { break-inside: avoid } }
"""


def render_page(told: Postmortem, verdict: str, picture: str) -> str:
    """The page. ``verdict`` is text, empty for none; ``picture`` is an SVG, or why there is none.

    Whatever logs, names and errors hold is shown as text.
    """
    drawn = picture if picture.startswith("<svg") else f"<p>{escape(picture)}</p>"
    parts = [
        f"<h1>{escape(told.run_id)}: {escape(told.state)}</h1>",
        f"<p>{_text(render_headline(told))}</p>",
        f'<pre class="verdict">{_text(verdict)}</pre>' if verdict else "",
        _section("Over time", drawn),
        _section("Where the seconds went", _seconds(told)),
        # A cause is among the first.
        _section("Failures", "".join(map(_failure, told.failure.ranks[:64])))
        if told.failure and told.failure.ranks
        else "",
        _section("Nodes", _table((), ([render_node(node, told).strip()] for node in told.nodes))),
        _section("Timeline", _timeline(told)),
        _section("The run", _facts(told)),
    ]
    return _document(told.run_id, "".join(parts))


def render_comparison(
    job: str, rows: Sequence[Sequence[str]], causes: Sequence[str], picture: str
) -> str:
    """The page of ``launcher compare``; ``picture`` as in ``render_page``."""
    drawn = picture if picture.startswith("<svg") else f"<p>{escape(picture)}</p>"
    why = "".join(f"<p>{_text(cause)}</p>" for cause in causes)
    return _document(job, f"<h1>{_text(job)}</h1>{_table(rows[0], rows[1:])}{why}{drawn}")


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
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return escape(shown)


def _section(title: str, inside: str) -> str:
    return f"<h2>{escape(title)}</h2>{inside}" if inside else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{names}</tr>' if names else ''}{body}</table>"


def _seconds(told: Postmortem) -> str:
    goodput = told.goodput
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
    restarts = f"<p>Restarts by cause: {escape(causes)}.</p>" if causes else ""
    return f"<p>{whose}</p><table>{rows}</table>{restarts}"


def _failure(end: WorkerEnd) -> str:
    tail = "\n".join(end.log_tail)
    return f"<p>{_text(end.headline)}</p>" + (f"<pre>{_text(tail)}</pre>" if tail else "")


def _timeline(told: Postmortem) -> str:
    shown = told.timeline[-MOST_MOMENTS:]
    left_out = len(told.timeline) - len(shown)
    note = f"<p>{left_out} earlier events are left out; --json has them.</p>" if left_out else ""
    rows = ([f"{m.after_s:.2f}", f"{m.node_index}.{m.incarnation}", m.text] for m in shown)
    return note + (_table(("seconds", "node", "event"), rows) if shown else "<p>No events.</p>")


def _facts(told: Postmortem) -> str:
    code = told.code
    rows = [
        ("job", told.job),
        ("target", told.target),
        ("engine", told.engine),
        ("starts of all nodes", str(told.attempts)),
        ("code", f"{code.root}, commit {code.commit or 'none'}, hash {code.hash}" if code else ""),
        ("folder", told.folder),
    ]
    return _table((), ((name, value) for name, value in rows if value))
