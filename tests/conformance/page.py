"""``docs/conformance.md``, made from the table."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.table import BACKENDS, SECTIONS

HEAD = """\
# What torch's elastic agent does on each rendezvous

The table shows torch's own elastic agent (`elastic_launch`, torch 2.13) on the rendezvous of this
project, `roster`, and on two of torch's, `c10d` and `etcd-v2`. Each scenario runs with real
processes, one for each node; each cell is a test (`tests/conformance/`). `make soak` runs them,
and the roster's column again while 20 other processes use the CPU.

All detection limits are the defaults: 10 s on the roster, 15 s on torch's backends. The last call
is 1 s instead of 30 s, and the exit barrier is shorter than 300 s where the scenario is about it.
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set, as the launcher does. The node that comes first
serves the store of `roster` and `c10d`, where nothing else is said.

How to read a cell: "completes" means that all agents return their workers' values; "exit code N" is
the first failure's, with a minus for a signal; a name is the exception that the agent ends with;
"still runs" means that a node had not ended when it was looked at last, 15 s after the last event.
"""


def render_page() -> str:
    """The whole of ``docs/conformance.md``."""
    return "\n".join((HEAD, *_lines())).rstrip() + "\n"


def _lines() -> Iterator[str]:
    for title, rows in SECTIONS:
        yield f"## {title}\n"
        yield "| scenario | " + " | ".join(BACKENDS) + " |"
        yield "|---" * (1 + len(BACKENDS)) + "|"
        for row in rows:
            name = row.name.replace("_", " ")
            scenario = f"**{name[0].upper()}{name[1:]}.** {row.says}"
            cells = (row.cell("roster"), row.cell("c10d"), row.cell("etcd-v2"))
            yield f"| {' | '.join((scenario, *cells))} |"
        yield ""
