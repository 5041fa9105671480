"""Digits trains on Slurm exactly as it does here; its output arrives whole."""

from __future__ import annotations

import json
import re

import pytest

from tests.slurm.typist import PREFIX, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

COUNTING = """
import sys
for number in range(400):
    print(f"line {number}", flush=number % 7 == 0)
    print(f"error {number}", file=sys.stderr, flush=True)
print("without an end", end="")
"""


@pytest.mark.slow  # lines are tested by themselves
def test_live_output_is_line_by_line_what_the_workers_wrote(typist: Typist) -> None:
    typist.write(COUNTING, f"{PREFIX}nnodes: 2\n")
    done = typist("run", "job.yaml", "--on", "slurm")
    assert done.returncode == 0, done.stderr
    for index in range(2):
        (folder,) = typist.run.glob(f"nodes/{index}/0/attempt-0/rank-*")
        rank = folder.name.removeprefix("rank-")
        for name in ("stdout", "stderr"):
            wrote = (folder / name).read_text().splitlines()
            assert len(wrote) >= 400
            prefix = f"[{index}/{rank}] "
            shown = [
                line.removeprefix(prefix)
                for line in (done.stdout + done.stderr).splitlines()
                if line.startswith(prefix)
                and re.match("error" if name == "stderr" else "line|without", line[len(prefix) :])
            ]
            assert shown == wrote
    assert json.loads((typist.run / "outcome.json").read_text())["state"] == "succeeded"
