"""docs/runbook.md: each cause has its section, and nothing else has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.commands.cli import run_command
from launcher.contract.reasons import Reason
from launcher.verdict.cause import FailureCause

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "".join((DOCS / name).read_text() for name in ("runbook.md", "runbook-nodes.md"))


def test_each_cause_has_its_section_under_the_anchor_that_verdicts_link_to() -> None:
    anchors = re.findall(r"^### (\S+)$", TEXT, re.MULTILINE)
    assert anchors == [str(cause) for cause in FailureCause]
    assert [cause.section for cause in FailureCause] == [f"launcher docs {a}" for a in anchors]


def test_the_command_prints_a_section_or_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    for cause in FailureCause:
        assert run_command(cause.section.split()[1:]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"### {cause}\n\n")
        assert printed.count("\n- ") == 3
    assert run_command(["docs", "tutorials/slurm"]) == 0
    assert capsys.readouterr().out == (DOCS / "tutorials/slurm.md").read_text()
    assert run_command(["docs", "gpu-bussy"]) == 2
    assert "did you mean gpu-busy?" in capsys.readouterr().err


def test_each_section_says_how_to_be_sure_how_to_fix_it_and_how_to_avoid_it() -> None:
    for section in TEXT.split("\n### ")[1:]:
        told = re.findall(r"^- (Be sure|Fix|Never again): \S", section, re.MULTILINE)
        assert told == ["Be sure", "Fix", "Never again"], section[:40]


def test_each_cause_stands_for_a_reason_and_has_a_fix() -> None:
    assert all(cause.reason in Reason and cause.fix for cause in FailureCause)
