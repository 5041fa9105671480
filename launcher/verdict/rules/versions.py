"""Versions and code that differ between nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import SURE, Meaning, Meanings, Weight
from launcher.verdict.scan import LogLine

MEANINGS: Meanings = {
    (FailureCause.VERSION_MISMATCH, SURE): (
        r"(?:NCCL|nccl).*version.*(?:mismatch|differ)|[Mm]ismatch.*NCCL version",
        r"(?:torch|CUDA|Python|driver) versions? (?:differ|mismatch)|nodes have different",
        r"cuDNN version incompatib|PyTorch and torchvision were compiled with different CUDA",
        r"[Vv]ersion mismatch.*(?:between|across) (?:ranks|nodes)|the nodes differ in",
        r"A module that was compiled using NumPy 1\.x cannot be run in",
        r"^RuntimeError: (?:Couldn't load custom C\+\+ ops|operator \S+::\w+ does not exist)",
        r"version `(?:GLIBC|GLIBCXX|CXXABI)_\S+' not found",
        r"NCCL WARN .*(?:magic|unexpected .*(?:size|version))|received \d+ bytes instead of",
    ),
    (FailureCause.CODE_MISMATCH, SURE): (
        r"(?:code|configuration|config) (?:hash|version)?s? ?(?:differs?|mismatch).*(?:rank|node)",
        r"(?:rank|node)s? .*(?:run|have) (?:different|other) (?:code|config)",
    ),
}

_TOLD = {
    "NCCL": re.compile(r"NCCL version (\d[\d.]*)"),
    "torch": re.compile(
        r"\b(?:torch|PyTorch)(?:\.__version__|_version)?(?: version)?[ :=]+v?(\d+\.\d+[\w.+]*)"
    ),
    "CUDA driver": re.compile(r"Driver [Vv]ersion[ :=]+(\d+\.[\d.]+)"),
    "Python": re.compile(r"\bPython[ :=]+(3\.\d+)"),
}


def find_differences(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A version that is not the same on all nodes, or ranks, that tell it. Pure."""
    for what, pattern in _TOLD.items():
        told: dict[str, LogLine] = {}
        for line in lines:
            if (line.node, line.rank) != (None, None) and (found := pattern.search(line.text)):
                told.setdefault(found[1].rstrip("."), line)
        if len(told) > 1:
            versions = " and ".join(sorted(told))
            line = replace(list(told.values())[-1], text=f"the nodes differ in {what}: {versions}")
            yield Meaning(cause=FailureCause.VERSION_MISMATCH, weight=Weight.LIKELY, line=line)
