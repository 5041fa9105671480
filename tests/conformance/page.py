"""``docs/conformance.md``, made from the table."""

from collections.abc import Iterator
from itertools import groupby

from tests.conformance.scenarios import BACKENDS, ROWS

HEAD = """\
# What torch's elastic agent does on each rendezvous

The table shows torch's own elastic agent (`elastic_launch`, torch 2.13) on the rendezvous of this
project, `roster`, and on two of torch's, `c10d` and `etcd-v2`. Each scenario runs with real
processes, one for each node; each cell is a test (`tests/conformance/`), which `make soak` runs.
Only what they do, tell or take differently is shown.

All detection limits are the defaults: 10 s on the roster, 15 s on torch's backends. The last call
is 1 s instead of 30 s, and the exit barrier is shorter than 300 s where the scenario is about it.
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set, as the launcher does. The node that comes first
serves the store of `c10d` and the coordinator of `roster`, where nothing else is said.

How to read a cell: "completes" means that all agents return their workers' values; "exit code N" is
the first failure's, with a minus for a signal; a name is the exception that the agent ends with;
"still runs" means that a node had not ended when it was looked at last, 15 s after the last event.
"""


def render_page() -> str:
    """The whole of ``docs/conformance.md``."""
    return "\n".join((HEAD, *_lines())).rstrip() + "\n"


def _lines() -> Iterator[str]:
    for title, rows in groupby(ROWS, key=lambda row: row.section):
        yield f"## {title}\n"
        yield "| scenario | " + " | ".join(BACKENDS) + " |"
        yield "|---" * (1 + len(BACKENDS)) + "|"
        for row in rows:
            name = row.play.__name__.replace("_", " ").capitalize()
            scenario = f"**{name}.** {' '.join((row.play.__doc__ or '').split())}"
            yield f"| {' | '.join((scenario, *map(row.cell, BACKENDS)))} |"
        yield ""
