"""An end is recorded only on proof from the very thing that ran: a test for each target's proof.

docs/fault-tolerance.md has them in one table. Slurm's are in slurm/test_follow.py.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.causes import NodeState
from launcher.contract.errors import TargetError
from launcher.contract.process_stat import name_machine, start_of, write_record
from launcher.follow.loop import fold
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder
from launcher.targets.docker.engine import ContainerEnding, OwnContainer
from launcher.targets.docker.target import DockerTarget
from launcher.targets.docker_options import ContainerSettings
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program.session import read_clock
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.local.target import LocalTarget
from launcher.targets.processes import ProcessSettings

MakeJob = Callable[..., JobSpec]
ROOT = Path(__file__).parents[3]


def made(plan: LaunchPlan) -> RunFolder:
    """The folder of a run whose launcher has died."""
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 0.0)
    return run


# -- local ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "state"),
    [
        # Its variables do not name the run, as for a user who may not read them.
        (start_of(os.getpid()), NodeState.RUNNING),
        ("another boot:1", NodeState.MISSING),
        (None, NodeState.MISSING),
    ],
    ids=["this process", "a process of another boot", "no process"],
)
def test_a_local_node_lives_as_long_as_its_very_process(
    tmp_path, docker_facts, make_job, start, state
):
    own = ProcessSettings(python=sys.executable)
    facts = replace(
        docker_facts, target="local", image=None, run_root=str(tmp_path), ports=(20000,), own=own
    )
    plan = plan_run(make_job(), facts, run_id="digits-1")
    run, target = made(plan), LocalTarget(tmp_path)
    run.node_dir(0, 0).mkdir(parents=True)
    write_record(run.node_dir(0, 0), {"pid": os.getpid(), "start": start})
    assert [node.state for node in target.observe(plan).nodes] == [state]
    end = fold(run, target, 1.0)
    assert (end is None) == (state is NodeState.RUNNING)


# -- docker --------------------------------------------------------------------------------------


class Engine:
    """Stands in for a Docker engine with at most one container, which ended well."""

    def __init__(self, id: str, run_id: str = "") -> None:
        self.id, self.run_id = id, run_id

    def list_containers(self, run_id: str | None = None) -> list[OwnContainer]:
        if not self.run_id:
            return []
        own = OwnContainer(
            id="c1",
            run_id=self.run_id,
            run_dir="",
            node_index=0,
            incarnation=0,
            state=NodeState.EXITED,
        )
        return [own]

    def list_networks(self, run_id: str | None = None) -> dict[str, str]:
        return {}

    def read_ending(self, container: OwnContainer) -> ContainerEnding:
        return ContainerEnding(exit_code=0, out_of_memory=False, error="")


@pytest.fixture
def in_docker(tmp_path: Path, docker_facts: TargetFacts, make_job: MakeJob) -> LaunchPlan:
    own = ContainerSettings(engine_id="A", engine_at="unix:///run/a.sock")
    facts = replace(docker_facts, run_root=str(tmp_path), own=own)
    return plan_run(make_job(engine="torchrun"), facts, run_id="digits-1")


def docker(folder: Path, engine: Any) -> DockerTarget:
    target = DockerTarget(folder)
    target._engine = engine
    return target


def test_another_docker_engine_tells_nothing_of_a_run(tmp_path, in_docker):
    run, target = made(in_docker), docker(tmp_path, Engine("B"))
    with pytest.raises(TargetError, match="digits-1 is on another Docker engine") as caught:
        fold(run, target, 1.0)
    assert "export DOCKER_HOST=unix:///run/a.sock" in caught.value.hint
    with pytest.raises(TargetError, match="another Docker engine"):
        target.stop("digits-1", 0)
    assert run.read_outcome() is None


def test_a_container_that_was_pruned_after_its_end_has_ended_as_it_was_seen(tmp_path, in_docker):
    engine = Engine("A", "digits-1")
    target = docker(tmp_path, engine)
    assert target.observe(in_docker).nodes[0].exit_code == 0
    engine.run_id = ""
    (node,) = target.observe(in_docker).nodes
    assert (node.state, node.exit_code) == (NodeState.EXITED, 0)


# -- hosts ---------------------------------------------------------------------------------------

CLIENT = '#!/bin/sh\nfor word; do :; done\nexec sh -c "$word"\n'


@pytest.mark.parametrize(("machine", "answers"), [(name_machine(), True), ("gpu1 b0", False)])
def test_a_machine_that_has_got_a_hosts_name_answers_for_nothing(
    tmp_path, monkeypatch, machine, answers
):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(CLIENT)
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ssh = Ssh(Inventory(hosts=()))
    ssh.machines = {"gpu1": machine}
    with ssh.open(Host(name="gpu1", state_dir=str(tmp_path / "gpu1"))) as session:
        if answers:
            assert session.call(read_clock)
            return
        with pytest.raises(TargetError, match="gpu1: it is another machine") as caught:
            session.call(read_clock)
        assert "~/.ssh/config" in caught.value.hint


# -- the table -----------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_target():
    from launcher.api.choose_target import ROOMS

    text = (ROOT / "docs/fault-tolerance.md").read_text()
    table = text[text.index("## What proves that a run has ended") :]
    for name in ROOMS:
        assert f"\n| `{name}` " in table
