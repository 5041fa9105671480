"""``python -m benchmarks [NAME ...]``: measures, prints the rows, and may record them.

With --record, the rows of each benchmark replace those in docs/benchmark-results.md as soon as it
ends: a call that is cut off keeps what it has. Exit codes: 0 also where a goal is missed, since
figures are for people to judge; 1 where a benchmark could not run; 2 for a wrong argument, or for a
machine too busy to record; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import record
from benchmarks.catalog import BENCHMARKS
from benchmarks.commands import describe_command, keep_bytecode
from benchmarks.machine import MAX_LOAD, read_load, read_machine, wait_until_quiet
from benchmarks.measure import JSON, BenchmarkError, Report, Reports, Row
from benchmarks.table import render_row, render_table
from benchmarks.trials import run_benchmark


def main(arguments: Sequence[str]) -> int:
    """Measures what was asked for and returns the exit code."""
    options = parse_arguments(arguments)
    keep_bytecode(os.environ)
    left = options.names or list(BENCHMARKS)
    reports: list[Report] = []
    failed = False
    try:
        while left:
            # What was measured before has made the load itself.
            load = wait_until_quiet() if options.record and reports else read_load()
            if options.record and load > MAX_LOAD:
                print(refuse_to_record(left, options, load), file=sys.stderr)
                return 2
            print(f"measuring {left[0]}, load {load:.1f} ...", file=sys.stderr, flush=True)
            try:
                reports.append(measure(left[0], options, load))
                finish(reports, options)
            except BenchmarkError as error:
                print(f"error: {left[0]} cannot run: {error}", file=sys.stderr)
                failed = True
            left = left[1:]
    except KeyboardInterrupt:
        print(f"interrupted; what is left: {describe(left, options)}", file=sys.stderr)
        return 130
    return int(failed)


def refuse_to_record(left: Sequence[str], options: argparse.Namespace, load: float) -> str:
    """Why nothing more is measured, and what to type."""
    without = argparse.Namespace(**{**vars(options), "record": False})
    return "\n".join(
        [
            record.explain_load("--record", load),
            "  fix: end the other work, wait until uptime says 1 or less, and type "
            + describe(left, options),
            f"       or measure without recording: {describe(left, without)}",
        ]
    )


def measure(name: str, options: argparse.Namespace, load: float) -> Report:
    """The report of one benchmark, each row of which is told as soon as it is known."""
    rows: list[Row] = []
    for row in run_benchmark(name, BENCHMARKS[name], options.pairs, options.limit_s):
        rows.append(row)
        # Some take an hour: who interrupts one has seen what it found so far.
        print(render_row(row), file=sys.stderr, flush=True)
    return Report(
        benchmark=name,
        command=describe([name], options),
        machine=read_machine(),
        load=load,
        taken=time.strftime("%Y-%m-%d"),
        rows=tuple(rows),
    )


def finish(reports: Sequence[Report], options: argparse.Namespace) -> None:
    """Prints the last report, and writes it to where it was asked for."""
    print(render_table(reports[-1]), flush=True)
    if options.json:
        options.json.write_bytes(JSON.dump_json(Reports(reports=tuple(reports)), indent=2))
    if options.record:
        record.record(reports[-1])


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; ends the process with code 2 where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--record",
        action="store_true",
        help="put the rows into docs/benchmark-results.md; not where the load is above "
        f"{MAX_LOAD:g} at the start",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there")
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help="samples of each side at least; more are taken until the interval of each ratio is "
        "narrower than its distance to the goal",
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        metavar="S",
        help="seconds in which each comparison may take more than those samples",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    if options.pairs is not None and options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: one pair is the least; type --pairs 1")
    if options.limit_s is not None and not options.limit_s >= 0:
        parser.error(f"--limit-s {options.limit_s:g}: 0 is the least; type --limit-s 0")
    return options


def describe(names: Sequence[str], options: argparse.Namespace) -> str:
    """The command that measures the same again; without --json, whose file is nobody else's."""
    words = list(names)
    words += [] if options.pairs is None else ["--pairs", str(options.pairs)]
    words += [] if options.limit_s is None else ["--limit-s", f"{options.limit_s:g}"]
    words += ["--record"] if options.record else []
    return describe_command(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
