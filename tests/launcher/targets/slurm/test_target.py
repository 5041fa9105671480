"""What the target asks of Slurm's commands, which are stand-ins here."""

from pathlib import Path

import pytest

from launcher.runs.folder import RunFolder
from launcher.targets.slurm.job_starts import read_jobs
from launcher.targets.slurm.target import SlurmTarget
from tests.launcher.targets.slurm.test_script import plan

STAND_IN = """\
#!/bin/bash
echo "${{0##*/}} $*" >>'{calls}'
[ "${{0##*/}}" != squeue ] || [ ! -e '{queue}' ] || cat '{queue}'
[ "${{0##*/}}" != sbatch ] || echo 9
[ "${{0##*/}}" != scancel ] || rm -f '{queue}'
"""


class Controller:
    """Stands in for Slurm: notes the calls, and knows the elements of job 7 that wait."""

    def __init__(self, folder: Path) -> None:
        self._calls, self.queue = folder / "calls", folder / "queue"
        (folder / "bin").mkdir()
        for name in ("squeue", "sbatch", "scancel"):
            program = folder / "bin" / name
            program.write_text(STAND_IN.format(calls=self._calls, queue=self.queue))
            program.chmod(0o755)

    def holds(self, *elements: int) -> None:
        lines = (f"8|7|{element}|PENDING|Priority|(null)\n" for element in elements)
        self.queue.write_text("".join(lines))

    def calls(self, name: str) -> list[str]:
        return [line for line in self._calls.read_text().splitlines() if line.startswith(name)]


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Controller(tmp_path)


def test_a_resize_ends_the_highest_elements_and_adds_those_that_are_missing(controller, tmp_path):
    made = plan(str(tmp_path / "runs"), str(tmp_path), nnodes="1:4")
    run = RunFolder(Path(made.run_dir))
    (run.path / "slurm").mkdir(parents=True)
    (run.path / "slurm/7.job").write_text("\n")
    target = SlurmTarget(tmp_path / "runs")
    controller.holds(0, 1, 2)
    target.scale(run, made, 2)
    assert controller.calls("scancel") == ["scancel 7_2"]
    controller.holds(0, 1)
    target.scale(run, made, 4)
    script = run.path / "artifact.sh"
    assert controller.calls("sbatch") == [f"sbatch --parsable --array=2,3 {script}"]
    assert read_jobs(run) == (7, 9)
