"""A cluster whose answers come soon, a run that nobody follows, and commands of this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.cli import run_command
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.follow import loop
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes import follow
from launcher.targets.kubernetes.api import kubeconfig
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.pods import collector, logs, progress, watch
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import INDEX, ClusterRun, plan_in, put_pod
from tests.launcher.fake_cluster import FakeCluster


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kubeconfig, logs, watch, follow):
        monkeypatch.setattr(module, "RETRY_S", 0.05)
    monkeypatch.setattr(follow, "READ_END_S", 0.2)
    monkeypatch.setattr(loop, "POLL_ALONE_S", 0.05)
    monkeypatch.setattr(progress, "MISSING_S", 0.5)
    monkeypatch.setattr(progress, "RARE_LOOK_S", 0.5)
    monkeypatch.setattr(collector, "LOG_LIMIT_S", 5.0)


@pytest.fixture
def cluster(server: FakeCluster) -> Cluster:
    return Cluster()


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """A command in the folder of the runs, within this process: its code, and all that it said."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, is_plugin: bool = False) -> tuple[int, str]:
        code = run_command(words, is_plugin=is_plugin)
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    return run


def labelled(index: int = 0) -> dict[str, str]:
    """Labels of a node's pod in the run ``digits-0a1b2c``."""
    return {protocol.LABEL_RUN_ID: "digits-0a1b2c", INDEX: str(index)}


def stamp(n: int) -> str:
    """Half a second after the ``n``-th of a minute, as the server writes it."""
    return f"2026-01-01T00:00:{n:02d}.5Z"


def submit_run(folder: Path, **fields: Any) -> RunFolder:
    """A run that nobody follows; fields as of ``plan_in``."""
    plan = plan_in(folder, **fields)
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    KubernetesTarget(folder / "runs").submit(plan)
    return run


@pytest.fixture
def run(server: FakeCluster, tmp_path: Path) -> RunFolder:
    """A run of two nodes, submitted by a launcher that has died."""
    return submit_run(tmp_path)


@pytest.fixture
def submitted(server: FakeCluster, tmp_path: Path) -> FakeCluster:
    """A server on which somebody else, on another machine, has submitted a run of two nodes."""
    theirs = tmp_path / "another-machine"
    plan = plan_in(theirs, kubernetes={"checkpoint": "pvc/storage"})
    KubernetesTarget(theirs / "runs").submit(plan)
    for index in range(2):
        put_pod(server, f"digits-{index}-a", index)
        server.log(f"digits-{index}-a", ("2026-01-01T00:00:05Z", f"[{index}/{index}] epoch 1"))
    server.requests.clear()
    return server


@pytest.fixture
def start(server: FakeCluster, tmp_path: Path) -> Iterator[Callable[..., ClusterRun]]:
    made: list[ClusterRun] = []

    def begin(**fields: Any) -> ClusterRun:
        made.append(ClusterRun(server, tmp_path, plan_in(tmp_path, **fields)))
        return made[-1]

    yield begin
    server.away = False
    for run in made:
        run.follower.stop_reason = Cause.INTERRUPTED
