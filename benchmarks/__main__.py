"""``python -m benchmarks [NAME ...]``: measures, prints the table, and may write it as JSON.

Exit codes: 0 also where a goal is missed, since figures are for people to judge; 1 where a
benchmark could not run; 2 for a wrong argument; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.catalog import BENCHMARKS, UNTIL_SURE
from benchmarks.machine import read_machine
from benchmarks.measure import BenchmarkError, Report, Row
from benchmarks.table import render_row, render_table

REPETITIONS = 5


def main(arguments: Sequence[str]) -> int:
    """Measures what was asked for and returns the exit code."""
    options = parse_arguments(arguments)
    names = options.names or list(BENCHMARKS)
    machine = read_machine()
    rows: list[Row] = []
    failed = False
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            for row in measure(name, options):
                rows.append(row)
                # Some take an hour: who interrupts one has seen what it found so far.
                print(render_row(row), file=sys.stderr, flush=True)
        except BenchmarkError as error:
            print(f"error: {name} cannot run: {error}", file=sys.stderr)
            failed = True
    report = Report(
        command=describe_command(options.names, options.repetitions, options.limit),
        machine=machine,
        repetitions=options.repetitions,
        rows=tuple(rows),
    )
    if options.json:
        options.json.write_text(json.dumps(report.to_jsonable(), indent=2) + "\n")
    print(render_table(report), end="")
    return int(failed)


def measure(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """The rows of one benchmark, one after the other."""
    if name in UNTIL_SURE and options.limit is not None:
        return UNTIL_SURE[name](options.repetitions, options.limit)
    return BENCHMARKS[name](options.repetitions)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; ends the process with code 2 where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, metavar="N", help="samples of each side"
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"samples of each side at most, for {', '.join(UNTIL_SURE)}, which go on until the "
        "interval of a ratio is narrow",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    if options.repetitions < 1:
        parser.error("--repetitions needs a whole number >= 1")
    return options


def describe_command(names: Sequence[str], repetitions: int, limit: int | None) -> str:
    """The command that measures the same again; without --json, whose file is nobody else's."""
    words = [*names, "--repetitions", str(repetitions)]
    words += [] if limit is None else ["--limit", str(limit)]
    return shlex.join(["python", "-m", "benchmarks", *words])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
