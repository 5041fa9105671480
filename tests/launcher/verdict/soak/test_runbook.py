"""docs/runbook.md: each cause has its section, and nothing else has one."""

from launcher.commands.cli import run_command
from launcher.contract.causes import Cause
from tests.launcher.verdict.test_runbook import DOCS


def test_the_command_prints_a_section_or_a_page(capsys):
    for cause in filter(lambda one: one.fix, Cause):
        assert run_command(cause.section.split()[1:]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"### {cause}\n\n")
        assert printed.count("\n- ") == 3
    assert run_command(["docs", "tutorials/slurm"]) == 0
    assert capsys.readouterr().out == (DOCS / "tutorials/slurm.md").read_text()
    assert run_command(["docs", "gpu-bussy"]) == 2
    assert "did you mean gpu-busy?" in capsys.readouterr().err
