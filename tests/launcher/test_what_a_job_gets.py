"""The table "What a job gets" of the documentation: each row is planned, and loses a node."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import pytest

from launcher.contract import protocol
from launcher.job.file import parse_job, parse_override
from launcher.plan.launch_plan import LaunchPlan, parse_plan, plan_run
from launcher.plan.rendezvous import backend_of
from launcher.plan.target_facts import TargetFacts
from launcher.plan.torchrun import describe_loss
from launcher.targets import process_table
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render import render_manifest
from launcher.targets.local.target import find_agents
from tests.launcher.runner import PREFIX, ROOT, Runner
from tests.waiting import wait_until

HEAD = "| job | engine | rendezvous | restarts | a lost node |\n"
KUBERNETES = "kubernetes.kind"
NO_CLAIM = "kubernetes.checkpoint=ephemeral"


class Row(NamedTuple):
    """A row of the table; ``job`` are the keys as ``--set`` takes them."""

    job: tuple[str, ...]
    engine: str
    backend: str
    restarts: str
    loss: str

    @property
    def name(self) -> str:
        return " ".join(self.job)


def table_of(file: str) -> str:
    text = (ROOT / file).read_text()
    assert text.count(HEAD) == 1
    return re.split(r"\n(?!\|)", HEAD + text.partition(HEAD)[2], maxsplit=1)[0]


def read_rows() -> tuple[Row, ...]:
    rows = []
    for line in table_of("docs/fault-tolerance.md").splitlines()[2:]:
        job, *others = (cell.strip() for cell in line.strip("|").split("|"))
        keys = (key.replace(": ", "=").replace('"', "") for key in re.findall("`(.*?)`", job))
        rows.append(Row(tuple(keys), *others))
    return tuple(rows)


ROWS = read_rows()
HERE = tuple(row for row in ROWS if KUBERNETES not in row.name)


def named(rows: tuple[Row, ...]) -> list[Any]:
    return [pytest.param(row, id=row.name) for row in rows]


def plan_of(row: Row, facts: TargetFacts) -> LaunchPlan:
    settings = (*row.job, NO_CLAIM) if KUBERNETES in row.name else row.job
    text = PREFIX + "command: [train.py]\n"
    job = parse_job(text, "job.yaml", [parse_override(setting) for setting in settings])
    if KUBERNETES in row.name:
        return plan_kubernetes(job, run_id="tiny-0", run_root="/runs", cwd="/")
    return plan_run(job, facts, run_id="tiny-0")


@pytest.mark.parametrize("where", ["local", "docker"])
@pytest.mark.parametrize("row", named(ROWS))
def test_a_job_is_planned_as_its_row_says(
    row: Row, where: str, local_facts: TargetFacts, docker_facts: TargetFacts
) -> None:
    plan = plan_of(row, local_facts if where == "local" else docker_facts)
    assert ("torchrun" if plan.agent is None else "agent") == row.engine
    assert {backend_of(node.rendezvous) for node in plan.nodes} == {row.backend}
    assert plan.max_restarts == int(row.restarts)
    if row.engine == "torchrun":
        assert describe_loss(plan) == row.loss


POLICIES = {
    "starts all pods again; no restart is used up": {"maxRestarts": 6},
    "starts all again in their pods, which uses up a restart": {
        "backoffLimit": 7,
        "restartPolicy": "OnFailure",
    },
}
REPLACED = {"job": {"backoffLimit": 6}, "trainjob": {"backoffLimit": 6}}


@pytest.mark.parametrize("row", named(tuple(row for row in ROWS if row not in HERE)))
def test_a_controller_is_told_to_do_with_a_lost_pod_what_the_row_says(
    row: Row, local_facts: TargetFacts
) -> None:
    kind = dict(key.split("=") for key in row.job)[KUBERNETES]
    text = render_manifest(plan_of(row, local_facts)).yaml()
    replaced = REPLACED.get(kind, {"restartPolicy": "ExitCode"})
    for key, value in POLICIES.get(row.loss, replaced).items():
        assert re.search(rf"\b{key}: {value}\b", text), f"{key}: {value}"


# -- a node of each is lost ---------------------------------------------------------------------

SCRIPT = """
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
start = f"{os.environ['LAUNCHER_NODE_INDEX']}-{time.time_ns()}"
pathlib.Path(f"started-{start}-of-{dist.get_world_size()}").touch()
go = torch.zeros(1)
while not go:
    time.sleep(0.1)
    # All of them see it at the same step.
    go += pathlib.Path("go").exists()
    dist.all_reduce(go)
dist.destroy_process_group()
"""


class Told(NamedTuple):
    """What is to be seen of a run that lost ``node``."""

    launcher: Runner
    node: int
    code: int
    stderr: str

    @property
    def counts(self) -> tuple[int, int]:
        """Attempts of the whole run, and failures of workers that were counted."""
        outcome = self.launcher.outcome
        return outcome["attempts"], outcome["restarts"].get("worker-fault", 0)


def is_started_again(told: Told) -> bool:
    return told.code == 0 and told.counts == (2, 0) and "(at most 16 times)" in told.stderr


def is_replaced(told: Told, others: str) -> bool:
    says = f"; replacing it, the others {others}\n"
    return told.code == 0 and told.counts == (1, 0) and says in told.stderr


def starts_all_again(told: Told) -> bool:
    return told.code == 0 and told.counts == (2, 0) and "(at most 3 times)" in told.stderr


def ends(told: Told) -> bool:
    return told.code == 137 and told.launcher.outcome["reason"] == "node-lost"


LOSSES: dict[str, Callable[[Told], bool]] = {
    "is started again; no restart is used up": is_started_again,
    "is replaced, the others wait for it; no restart is used up": lambda told: is_replaced(
        told, "wait for it"
    ),
    "is replaced, the others go on; no restart is used up": lambda told: is_replaced(told, "go on"),
    "starts all again, which uses up a restart": starts_all_again,
    "ends the run, as max_restarts is 0": ends,
    "starts all again if it is node 0, else it is replaced; each uses up a restart": lambda told: (
        is_replaced(told, "go on") if told.node else starts_all_again(told)
    ),
}


def lose_a_node(launcher: Runner, row: Row, index: int) -> Told:
    """Runs the row's job, and kills one node while all of them are in a collective."""
    launcher.write(SCRIPT, PREFIX + "agent: {detection_limit_s: 2}\n")
    settings = (word for key in row.job for word in ("--set", key))
    process = launcher.start("run", "job.yaml", "--on", "local", *settings)
    nodes = 1 if "nnodes=1" in row.job else 2

    def started() -> int:
        return len(list(launcher.folder.glob(f"started-*-of-{nodes}")))

    wait_until(lambda: started() == nodes)
    (run_id,) = launcher.run_ids()
    is_of_node = {protocol.NODE_INDEX: str(index), protocol.RUN_ID: run_id}
    (agent,) = find_agents(process_table.find(**is_of_node))
    # torchrun's workers would outlive it, and so the loss.
    for process_of_node in (psutil.Process(agent), *psutil.Process(agent).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process_of_node.kill()
    wait_until(lambda: started() == 2 * nodes or process.poll() is not None)
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=90)
    return Told(launcher, index, process.returncode, stderr.decode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "index"),
    [
        pytest.param(row, index, id=f"{row.name} node {index}")
        for row in HERE
        for index in range(1 if "nnodes=1" in row.job else 2)
    ],
)
def test_a_lost_node_does_what_the_row_says(launcher: Runner, row: Row, index: int) -> None:
    told = lose_a_node(launcher, row, index)
    assert LOSSES[row.loss](told), told.stderr
    is_told = f"launcher: engine: torchrun: a lost node {row.loss}\n"
    assert told.stderr.count(is_told) == (row.engine == "torchrun"), told.stderr


def test_the_environment_s_switch_says_it_too(launcher: Runner) -> None:
    launcher.write("print('trained')\n")
    launcher.env["LAUNCHER_ENGINE"] = "torchrun"
    done = launcher("render", "job.yaml", "--on", "local", "--nnodes", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert parse_plan(done.stdout).agent is None
