"""The table for the terminal and the section of the docs, as whole texts."""

import math
from typing import Any

import pytest

from benchmarks.measure import Goal, Measurement, Report, Row
from benchmarks.table import format_measurement, render_markdown, render_row, render_table

Samples = tuple[float, ...]
LEVEL = Goal(of="ratio", most=1.05)


def row(what: str, ours: Samples, theirs: Samples = (), goal: Goal = LEVEL, **more: Any) -> Row:
    side = Measurement(samples_s=theirs) if theirs else None
    ours = Measurement(samples_s=ours)
    return Row(benchmark="start", what=what, ours=ours, theirs=side, goal=goal, **more)


HALF, QUARTER = Goal(of="ratio", most=0.5), Goal(of="seconds", most=0.25)
REPORT = Report(
    benchmark="start",
    command="make bench ARGS=start",
    machine="2 cores, torch 2.13.0",
    load=0.25,
    taken="2026-01-02",
    rows=(
        row("to a step", (4.1, 4.0, 4.4), (4.0, 4.2, 3.9), interval=(0.95, 1.04)),
        row("near", (4.1,), (4.0,), interval=(0.0, math.inf)),
        row("alone", (0.3, 0.3, 0.31), goal=HALF, note="peer not installed"),
        row("slow", (0.3, 0.3, 0.3), goal=QUARTER, median_interval=(0.29, 0.31)),
    ),
)
TABLE = """\
what              ours                   theirs                 ratio                   goal                        ok    pairs
start: to a step  4.10 s (4.00 to 4.40)  4.00 s (3.90 to 4.20)  1.025 (0.950 to 1.040)  ratio <= 1.05               yes   3
start: near       4.10 s (4.10 to 4.10)  4.00 s (4.00 to 4.00)  1.025 (0.000 to ?)      ratio <= 1.05               open  1
start: alone      300 ms (300 to 310)    -                      -                       ratio <= 0.5                -     3
start: slow       300 ms (300 to 300)    -                      -                       <= 0.25 s (0.290 to 0.310)  NO    3

Medians (fastest to slowest) of interleaved samples; ratio and goal (95 % interval). 2 cores, torch 2.13.0, load 0.2 at the start, 2026-01-02.
start: peer not installed
"""  # noqa: E501
MARKDOWN = """\
## start

```text
make bench ARGS=start
```

| what | ours | theirs | ratio | goal | ok | pairs |
| --- | --- | --- | --- | --- | --- | --- |
| start: to a step | 4.10 s (4.00 to 4.40) | 4.00 s (3.90 to 4.20) | 1.025 (0.950 to 1.040) | ratio <= 1.05 | yes | 3 |
| start: near | 4.10 s (4.10 to 4.10) | 4.00 s (4.00 to 4.00) | 1.025 (0.000 to ?) | ratio <= 1.05 | open | 1 |
| start: alone | 300 ms (300 to 310) | - | - | ratio <= 0.5 | - | 3 |
| start: slow | 300 ms (300 to 300) | - | - | <= 0.25 s (0.290 to 0.310) | NO | 3 |

2 cores, torch 2.13.0, load 0.2 at the start, 2026-01-02.

start: peer not installed."""  # noqa: E501


def test_the_table_is_aligned_and_tells_how_it_was_measured():
    assert render_table(REPORT) == TABLE


def test_the_section_of_the_docs_holds_the_command_and_the_notes():
    assert render_markdown(REPORT) == MARKDOWN


@pytest.mark.parametrize(
    ("samples_s", "text"),
    [
        ((0.0,), "0.00 us (0.00 to 0.00)"),
        ((0.0000123,), "12.3 us (12.3 to 12.3)"),
        ((0.2, 0.25, 1.2345), "250 ms (200 to 1234)"),
        ((0.9996, 0.9999), "1.00 s (1.00 to 1.00)"),
        ((0.0009999,), "1.00 ms (1.00 to 1.00)"),
        ((12.34,), "12.3 s (12.3 to 12.3)"),
        ((1234.5,), "1230 s (1234 to 1234)"),
    ],
)
def test_three_digits_are_told_in_the_unit_that_suits_the_median(samples_s, text):
    assert format_measurement(Measurement(samples_s=samples_s)) == text


def test_an_end_that_two_samples_leave_at_millions_is_not_told():
    both = (1.0, 2.0)
    assert "  1.000 (0.001 to ?)  " in render_row(row("w", both, both, interval=(0.001, 4897598.6)))
