"""Stand-ins for Slurm's commands, and a run's folder as batch scripts fill it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import NodeOutcome
from launcher.runs.folder import RunFolder
from launcher.targets.slurm import client, inside
from launcher.targets.slurm.client import QueuedJob
from launcher.targets.slurm.follow import decide_end, is_all_over
from launcher.targets.slurm.job_starts import read_starts
from launcher.targets.slurm.settings import SlurmSettings
from tests.launcher.targets.slurm.test_plan import plan

STAND_IN = """\
#!/bin/sh
echo "${{0##*/}} $*" >>'{calls}'
{lines}
"""


class Commands:
    """Slurm's commands: each notes its call, and does what the test says in lines of a shell."""

    def __init__(self, folder: Path) -> None:
        self.bin, self._calls = folder / "bin", folder / "calls"
        self._lines: dict[str, str] = {}
        self.bin.mkdir()
        for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"):
            self.does(name, "")

    def does(self, name: str, lines: str) -> None:
        self._lines[name] = f"{lines}\n"
        new = self.bin / f"{name}.new"
        new.write_text(STAND_IN.format(calls=self._calls, lines=lines))
        new.chmod(0o755)
        new.rename(self.bin / name)

    def does_also(self, name: str, lines: str) -> None:
        self.does(name, self._lines[name] + lines)

    def prints(self, name: str, *lines: str, code: int = 0) -> None:
        text = "".join(f"{line}\n" for line in lines)
        self.does(name, f"cat >&{2 if code else 1} <<'END'\n{text}END\nexit {code}")

    def calls(self, name: str = "") -> list[str]:
        """The calls since the last question."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return [line for line in lines if line.startswith(name)]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    client.read_cluster.cache_clear()
    inside.why_stale.cache_clear()
    return made


class Folder:
    """A run's folder, filled as batch scripts fill it."""

    def __init__(
        self,
        path: Path,
        nnodes: object = 2,
        files: Mapping[str, str] = MappingProxyType({}),
        *,
        inside: int = 0,
        **keys: Any,
    ) -> None:
        made = plan(str(path), nnodes=nnodes, **keys)
        self.plan = replace(made, own=replace(SlurmSettings.of(made), inside=inside))
        self.run = RunFolder(Path(self.plan.run_dir))
        self.files = self.run.path / "slurm"
        self.files.mkdir(parents=True)
        (self.run.path / "plan.json").write_text(self.plan.to_json())
        self.write(**files)

    def write(self, **files: str) -> None:
        """``j7_0_started="n1"`` writes ``7.0.started``; ``e7_2_0_ended`` is of element 2."""
        for name, text in files.items():
            job, *rest, kind = name[1:].split("_")
            key = f"{job}.{rest[0]}" if name[0] == "j" else f"{job}_{rest[0]}.{rest[1]}"
            (self.files / f"{key}.{kind}").write_text(f"{text}\n")

    def node_ended(self, index: int, reason: Cause, detail: str = "") -> None:
        folder = self.run.node_dir(index, 0)
        folder.mkdir(parents=True, exist_ok=True)
        told = NodeOutcome(
            node_index=index,
            incarnation=0,
            cause=reason,
            detail=detail,
            started_at=1.0,
            finished_at=2.0,
        )
        (folder / "outcome.json").write_text(told.to_json())

    def decide(self, *jobs: QueuedJob) -> Cause | None:
        end = decide_end(self.run, self.plan, read_starts(self.run), jobs or None)
        return end and end.cause

    def is_over(self) -> bool:
        return is_all_over(self.run, self.plan, read_starts(self.run))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
