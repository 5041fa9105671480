"""``render``: what would be run. Its own module, as it does without the slow imports of ``run``."""

from __future__ import annotations

import argparse
import shlex
import sys

from launcher.commands.job_named import planned


def render(arguments: argparse.Namespace) -> None:
    """Prints what would be run."""
    planned_run = planned(arguments, preview=True)
    choice, plan = planned_run.choice, planned_run.plan
    made_by = shlex.join(["launcher", *sys.argv[1:]])
    text = choice.target.preview(plan, made_by, embed=arguments.embed)
    for note in choice.target.notes:
        print(f"note: {note}", file=sys.stderr)
    sys.stdout.write(plan.to_json() if arguments.json else text)
