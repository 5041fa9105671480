"""Whole runs in real containers: two nodes, elastic groups, lost nodes, interrupted launchers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from launcher.targets.agent_archive import read_agent_version
from tests.launcher.docker_place import OTHER_AGENT, OTHER_AGENT_IMAGE, build_other_agent
from tests.launcher.docker_runs import MOUNTED, UNTIL_TOLD, containers, has, node
from tests.launcher.runner import ROOT, WAITING, Runner, wait_until

pytestmark = pytest.mark.docker

TORCH_ONLY = "fabric-train-tests:torch-only"
DOCKERFILE = r"""
FROM fabric-train:cpu
USER root
LABEL launcher.agent-version=
RUN rm -rf /workspace/* /launcher && python -m pip uninstall --yes --quiet \
    lightning pytorch-lightning lightning-utilities torchmetrics jsonargparse scikit-learn scipy
"""
ELASTIC = """
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
from torch import ones
shared = os.environ["RUN_DIR"]
open(f"{shared}/world-{dist.get_world_size()}-{os.environ['LAUNCHER_INCARNATION']}", "w").close()
while not os.path.exists(f"{shared}/go"):
    seen = ones(1)
    dist.all_reduce(seen)
    time.sleep(0.1)
print("done", dist.get_world_size(), flush=True)
"""


def build_torch_only() -> None:
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", TORCH_ONLY, "-"],
        input=DOCKERFILE.encode(),
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
        check=True,
        capture_output=True,
    )


@pytest.mark.slow  # so does README's first command in every CI
def test_digits_reaches_its_accuracy_on_two_containers(launcher: Runner) -> None:
    job = str(ROOT / "jobs/digits.yaml")
    done = launcher("run", job, "--on", "docker", "--nnodes", "2", "--nproc-per-node", "1")
    assert done.returncode == 0, done.stderr
    assert launcher.outcome["metrics"]["test_accuracy"] >= 0.97
    assert launcher.outcome["metrics"]["world_size"] == 2
    assert "local Docker, image fabric-train:cpu" in done.stderr.splitlines()[0]


AGENT = MOUNTED + "engine: agent\n"


def test_an_image_of_this_project_runs_its_own_agent(launcher: Runner) -> None:
    launcher.write("print('trained')\n", AGENT)
    done = launcher("run", "job.yaml", "--on", "docker")
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "holds" not in done.stderr
    (run,) = (path for path in (launcher.folder / "runs").iterdir() if not path.is_symlink())
    assert not (run / "agent.pyz").exists(), "make image: it holds another agent"
    assert "agent.pyz,target" not in (run / "artifact.sh").read_text()


def test_an_image_with_another_agent_is_named_and_the_launcher_s_is_used(launcher: Runner) -> None:
    build_other_agent()
    launcher.write("print('trained')\n", AGENT)
    argv = ("run", "job.yaml", "--on", "docker", "--image", OTHER_AGENT_IMAGE)
    done = launcher(*argv)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    named = (
        f"{OTHER_AGENT_IMAGE} holds agent {OTHER_AGENT}, the launcher has {read_agent_version()}"
    )
    assert f"{named}: the launcher's is used" in done.stderr
    refused = launcher(*argv, "--set", "agent.in_image=true")
    assert refused.returncode == 2
    assert f"agent.in_image: image {named}" in refused.stderr
    assert len(launcher.run_ids()) == 1


def test_a_mount_that_is_not_there_is_told_with_its_line_and_no_run_is_made(
    launcher: Runner,
) -> None:
    launcher.write("print('hello')\n", MOUNTED.replace("[./:/code:ro]", "[./:/code:ro, ./no:/x]"))
    done = launcher("run", "job.yaml", "--on", "docker", "--detach")
    assert done.returncode == 2, done.stderr
    assert ": mounts.1: " in done.stderr, done.stderr
    assert done.stderr.startswith("error: job.yaml:"), done.stderr
    assert f"mkdir -p {launcher.folder}/no, or correct the source" in done.stderr
    assert not (launcher.folder / "runs").exists()


def test_files_of_a_run_belong_to_the_caller(launcher: Runner) -> None:
    launcher.write("print('hello')\n", MOUNTED)
    assert launcher("run", "job.yaml", "--on", "docker").returncode == 0
    paths = [p for p in (launcher.folder / "runs").rglob("*") if not p.is_symlink()]
    assert {(p.stat().st_uid, p.stat().st_gid) for p in paths} == {(os.getuid(), os.getgid())}


def test_the_first_rank_that_failed_is_named_across_containers(launcher: Runner) -> None:
    launcher.write((ROOT / "tests/examples/failing.py").read_text(), MOUNTED)
    argv = ("--on", "docker", "--nnodes", "2", "--nproc-per-node", "2", "--", "3")
    done = launcher("run", "job.yaml", *argv)
    assert done.returncode == 1, done.stderr
    first = launcher.outcome["failure"]["first"]
    assert (first["rank"], first["node_index"]) == (3, 1)


@pytest.mark.slow  # the loss of node 0 shows it in every CI
def test_a_lost_container_of_an_elastic_run_is_replaced_while_the_others_go_on(
    launcher: Runner, engine: Any
) -> None:
    launcher.write(ELASTIC, MOUNTED + "max_restarts: 3\n")
    process = launcher.start("run", "job.yaml", "--on", "docker", "--nnodes", "1:3")
    wait_until(lambda: has(launcher, "world-3-0"), limit_s=120)
    (run_id,) = launcher.run_ids()
    survivor = node(engine, run_id, 0).id
    node(engine, run_id, 2).kill()
    wait_until(lambda: has(launcher, "world-3-1"), limit_s=120)
    assert node(engine, run_id, 0).id == survivor
    (launcher.folder / "runs/latest/go").touch()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    assert b"replacing it, the others go on" in stderr
    assert launcher.outcome["attempts"] == 1


@pytest.mark.slow  # local processes show it in every CI
def test_under_torchrun_losing_the_container_that_hosts_the_store_starts_all_again(
    launcher: Runner, engine: Any
) -> None:
    launcher.write(ELASTIC, MOUNTED + "max_restarts: 1\nengine: torchrun\n")
    process = launcher.start("run", "job.yaml", "--on", "docker", "--nnodes", "1:2")
    wait_until(lambda: has(launcher, "world-2-0"), limit_s=120)
    (run_id,) = launcher.run_ids()
    node(engine, run_id, 0).kill()
    wait_until(lambda: has(launcher, "world-2-1"), limit_s=120)
    (launcher.folder / "runs/latest/go").touch()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 2


def test_under_the_agent_losing_the_container_that_hosts_the_store_costs_no_restart(
    launcher: Runner, engine: Any
) -> None:
    launcher.write(ELASTIC, MOUNTED)
    process = launcher.start("run", "job.yaml", "--on", "docker", "--nnodes", "1:3")
    wait_until(lambda: has(launcher, "world-3-0"), limit_s=120)
    (run_id,) = launcher.run_ids()
    survivors = [node(engine, run_id, index).id for index in (1, 2)]
    node(engine, run_id, 0).kill()
    wait_until(lambda: has(launcher, "world-3-1"), limit_s=120)
    assert [node(engine, run_id, index).id for index in (1, 2)] == survivors
    (launcher.folder / "runs/latest/go").touch()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 1
    assert "worker-fault" not in launcher.outcome["restarts"]


@pytest.mark.slow  # an elastic group shows it in every CI
def test_digits_goes_on_from_its_checkpoint_when_a_node_of_a_fixed_group_is_killed(
    launcher: Runner, engine: Any
) -> None:
    job = str(ROOT / "jobs/digits.yaml")
    argv = ("--on", "docker", "--nnodes", "2", "--nproc-per-node", "1", "--", "--epochs=20")
    process = launcher.start("run", job, *argv)
    wait_until(lambda: has(launcher, "checkpoints/step-*"), limit_s=120)
    (run_id,) = launcher.run_ids()
    node(engine, run_id, 1).kill()
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 1
    assert launcher.outcome["metrics"]["resumed_from_step"] > 0


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_an_interrupted_launcher_leaves_no_container(
    launcher: Runner, engine: Any, signum: signal.Signals
) -> None:
    launcher.write(WAITING, MOUNTED)
    process = launcher.start("run", "job.yaml", "--on", "docker", "--nnodes", "2")
    wait_until(lambda: has(launcher, "up-1"), limit_s=90)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    (run_id,) = launcher.run_ids()
    assert containers(engine, run_id) == []
    assert engine.networks.list(names=[run_id]) == []


def test_a_second_ctrl_c_does_not_wait_for_the_grace(launcher: Runner, engine: Any) -> None:
    launcher.write(WAITING.replace("SIG_DFL", "SIG_IGN"), MOUNTED)
    argv = ("--on", "docker", "--set", "stop_grace_s=120")
    process = launcher.start("run", "job.yaml", *argv)
    wait_until(lambda: has(launcher, "up-0"), limit_s=90)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: has(launcher, "nodes/0/0/stop-request"))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    (run_id,) = launcher.run_ids()
    assert containers(engine, run_id) == []


def test_what_a_killed_launcher_left_is_found_and_stopped_by_the_next_call(
    launcher: Runner, engine: Any
) -> None:
    launcher.write(WAITING, MOUNTED)
    process = launcher.start("run", "job.yaml", "--on", "docker")
    wait_until(lambda: has(launcher, "up-0"), limit_s=90)
    process.kill()
    process.communicate()
    (run_id,) = launcher.run_ids()
    assert json.loads(launcher("ps", "--json").stdout)[0]["state"] == "orphaned"
    (launcher.folder / "train.py").write_text("print('quick')\n")
    done = launcher("run", "job.yaml", "--on", "docker")
    assert f"launcher stop {run_id}" in done.stderr
    assert len(containers(engine, run_id)) == 1, "a later call must not stop it unasked"
    assert launcher("stop", run_id).returncode == 0
    assert containers(engine, run_id) == []


def test_a_worker_that_was_killed_for_memory_earlier_is_not_why_a_run_fails(
    launcher: Runner,
) -> None:
    launcher.write(
        "import os\n"
        "mark = os.environ['RUN_DIR'] + '/been-here'\n"
        "if os.path.exists(mark):\n"
        "    raise ValueError('no such column')\n"
        "open(mark, 'w').close()\n"
        "held = bytearray(os.urandom(1 << 20)) * 4096\n",
        MOUNTED + "max_restarts: 1\nresources: {memory: 1Gi}\n",
    )
    done = launcher("run", "job.yaml", "--on", "docker")
    assert done.returncode == 1
    assert launcher.outcome["restarts"] == {"worker-fault": 1}
    assert launcher.outcome["reason"] == "restarts-exhausted", done.stderr
    assert "no such column" in launcher.outcome["failure"]["first"]["exception"]


@pytest.fixture
def ended_alone(launcher: Runner, engine: Any) -> str:
    """The id of a run that ended well after its launcher had been killed."""
    launcher.write(UNTIL_TOLD, MOUNTED)
    process = launcher.start("run", "job.yaml", "--on", "docker")
    wait_until(lambda: has(launcher, "up-0"), limit_s=90)
    process.kill()
    process.communicate()
    (launcher.folder / "runs/latest/go").touch()
    (run_id,) = launcher.run_ids()
    wait_until(lambda: node(engine, run_id, 0).status == "exited")
    return run_id


def test_a_run_that_ended_well_after_its_launcher_died_counts_as_completed(
    launcher: Runner, engine: Any, ended_alone: str
) -> None:
    (row,) = json.loads(launcher("ps", "--all", "--json").stdout)
    assert (row["state"], row["reason"]) == ("succeeded", "completed")
    assert containers(engine, ended_alone) == []


def test_it_does_so_too_where_somebody_has_removed_its_containers(
    launcher: Runner, engine: Any, ended_alone: str
) -> None:
    # As `docker container prune` does, and as another call that has found its end before.
    node(engine, ended_alone, 0).remove()
    (row,) = json.loads(launcher("ps", "--all", "--json").stdout)
    assert (row["state"], row["reason"]) == ("succeeded", "completed")


def test_it_was_not_stopped_by_a_later_stop(
    launcher: Runner, engine: Any, ended_alone: str
) -> None:
    stopped = launcher("stop", ended_alone)
    assert f"{ended_alone}: succeeded, completed" in stopped.stderr
    assert launcher.outcome["reason"] == "completed"
    assert containers(engine, ended_alone) == []


@pytest.mark.slow  # the target's own test shows it in every CI
def test_two_runs_at_once_have_networks_of_their_own(launcher: Runner) -> None:
    launcher.write("import os; print('world', os.environ['WORLD_SIZE'])\n", MOUNTED)
    argv = ("run", "job.yaml", "--on", "docker", "--nnodes", "2")
    processes = [launcher.start(*argv) for _ in range(2)]
    outputs = [process.communicate(timeout=150)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all("[1/1] world 2" in output for output in outputs)


@pytest.mark.parametrize("started_by", [pytest.param("torchrun", marks=pytest.mark.slow), "agent"])
def test_raw_ddp_runs_in_an_image_that_holds_nothing_but_torch(
    launcher: Runner, started_by: str
) -> None:
    build_torch_only()
    script = (ROOT / "tests/examples/raw_ddp.py").read_text()
    nothing_else = "not any(map(find_spec, ('launcher', 'lightning', 'sklearn')))"
    launcher.write(
        f"{script}\nfrom importlib.util import find_spec\nassert {nothing_else}\n",
        MOUNTED + f"engine: {started_by}\n" + ("start: fork\n" if started_by == "agent" else ""),
    )
    job = ("run", "job.yaml", "--on", "docker", "--image", TORCH_ONLY, "--nnodes", "2")
    done = launcher(*job)
    assert done.returncode == 0, done.stderr
    assert "done world_size=2" in done.stdout


@pytest.mark.parametrize("index", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_lost_container_of_a_plain_job_is_replaced_in_an_image_that_has_only_torch(
    launcher: Runner, engine: Any, index: int
) -> None:
    build_torch_only()
    launcher.write(ELASTIC, MOUNTED)
    job = ("run", "job.yaml", "--on", "docker", "--image", TORCH_ONLY, "--nnodes", "2")
    process = launcher.start(*job)
    wait_until(lambda: has(launcher, "world-2-0"), limit_s=120)
    (run_id,) = launcher.run_ids()
    survivor = node(engine, run_id, 1 - index).id
    node(engine, run_id, index).kill()
    wait_until(lambda: has(launcher, "world-2-1"), limit_s=120)
    assert node(engine, run_id, 1 - index).id == survivor
    (launcher.folder / "runs/latest/go").touch()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    assert b"replacing it, the others wait for it" in stderr
    assert launcher.outcome["attempts"] == 1
    assert "worker-fault" not in launcher.outcome["restarts"]


@pytest.mark.slow  # the same scripts run on local processes in every CI
@pytest.mark.parametrize("example", ["fabric.py", "trainer.py"])
def test_lightning_scripts_that_know_nothing_of_this_project_run(
    launcher: Runner, example: str
) -> None:
    launcher.write((ROOT / "tests/examples" / example).read_text(), MOUNTED)
    done = launcher("run", "job.yaml", "--on", "docker", "--nnodes", "2")
    assert done.returncode == 0, done.stderr
    assert "done world_size=2" in done.stdout
