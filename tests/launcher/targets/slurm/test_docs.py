"""docs/slurm.md says what the code does: its keys, reasons, and exit codes."""

from __future__ import annotations

import re

import pytest
import yaml

from launcher.contract.reasons import EXIT_CODE_OF_REASON, Reason
from launcher.job.slurm import SlurmSpec
from launcher.job.spec import JobSpec
from tests.launcher.runner import ROOT

PAGE = (ROOT / "docs/slurm.md").read_text()
FAULTS = "What becomes of each fault"


def read_section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_each_key_that_is_named_is_a_key() -> None:
    named = set(re.findall(r"`slurm\.(\w+)", PAGE))
    assert len(named) > 5
    assert named <= set(SlurmSpec.model_fields)


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL))
def test_each_piece_of_a_job_file_is_a_job_file(text: str) -> None:
    given = yaml.safe_load(text)
    JobSpec.model_validate({"name": "a", "command": ["train.py"], **given})


def test_each_reason_that_is_named_has_its_exit_code() -> None:
    reasons = {reason.value: int(EXIT_CODE_OF_REASON[reason]) for reason in Reason}
    named = re.findall(r"`([a-z]+(?:-[a-z]+)+|interrupted|preempted|killed)`", read_section(FAULTS))
    assert set(named) & set(reasons) >= {"stop-requested", "disk-full", "preempted"}
    for reason, code in re.findall(r"`([a-z-]+)`, (\d+)", read_section(FAULTS)):
        assert reasons[reason] == int(code), reason
