"""What lines of logs mean: each family's rules, on texts as programs write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.all import RULES, judge_line
from launcher.verdict.rules.rule import Weight
from launcher.verdict.scan import find_telling


def read_lines() -> Iterator[tuple[str, str]]:
    """Each cause, and a line that means it."""
    cause = ""
    for line in Path(__file__).with_name("lines.txt").read_text().splitlines():
        if line.startswith("  "):
            yield cause, line[2:]
        elif line.endswith(":"):
            cause = line[:-1]


@pytest.mark.parametrize(("cause", "text"), read_lines())
def test_a_line_means_its_cause(cause: str, text: str) -> None:
    (line,) = find_telling([text.encode()], LogLine(file="log", number=0, text=""))
    found = judge_line(line)
    assert found is not None
    assert found.cause == cause


def test_each_cause_that_a_line_can_mean_has_one() -> None:
    assert {rule.cause for rule in RULES} - {cause for cause, _ in read_lines()} == set()


@pytest.mark.parametrize(
    "text",
    [
        "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
        "W1125 01:02:03.123000 42 torch] The server socket has failed to listen on [::]:29500",
        "[W socket.cpp:464] The client socket has failed to connect to [n1]:29500 (errno: 22)",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "epoch 1: 0 errors, 12 warnings, timeout 30 s, loss 0.31",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
        "2026-01-01: W tensorflow/dso_loader.cc:64] libnvinfer.so.7: cannot open shared object",
        "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "n1:9:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    ],
)
def test_what_is_no_failure_never_weighs_as_one(text: str) -> None:
    found = judge_line(LogLine(file="log", number=1, text=text))
    assert found is None or found.weight < Weight.LIKELY
