"""``why``: what happened first to a run, or in logs of torchrun, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launcher.api.why import read_named_run, read_path
from launcher.commands.parsing.arguments import run_root
from launcher.commands.runs import find
from launcher.runs.folder import RunFolder
from launcher.verdict.evidence import Evidence
from launcher.verdict.torchrun_logs import read_stdin
from launcher.verdict.verdict import decide_verdict, render_verdict

STDIN = "-"


def why(arguments: argparse.Namespace) -> None:
    """Tells why a run failed or stands still."""
    verdict = decide_verdict(_read_evidence(arguments))
    if arguments.json:
        print(json.dumps(verdict.to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_verdict(verdict, evidence=arguments.evidence))


def _read_evidence(arguments: argparse.Namespace) -> Evidence:
    if arguments.run == STDIN:
        return read_stdin(sys.stdin.buffer)
    path, in_root = Path(arguments.run), run_root(arguments) / arguments.run
    if RunFolder(in_root).is_there() or not (path.exists() or in_root.exists()):
        return read_named_run(find(arguments))
    return read_path(path if path.exists() else in_root)
