"""docs/slurm.md says what the code does: its keys, reasons, exit codes and commands."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from launcher.commands.cli import _parser
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


def read_commands() -> list[str]:
    """Lines of the first block and of the tables that call the launcher."""
    block = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    lines = [line.partition("#")[0] for line in block.splitlines()]
    lines = [line for line in lines if line.startswith("launcher ")]
    lines += re.findall(r"`(launcher [^`]+)`", PAGE)
    # In a sentence a command may be named without what it needs.
    whole = (line.partition(" > ")[0].strip() for line in lines)
    return [line for line in whole if len(line.split()) > 2 and "..." not in line]


@pytest.mark.parametrize("command", read_commands())
def test_each_command_is_one_that_the_launcher_takes(command: str) -> None:
    words = shlex.split(re.sub(r"\[[^\]]*\]", "", command))[1:]
    arguments, unknown = _parser("launcher").parse_known_args(words)
    assert (unknown, arguments.command) == ([], words[0])
