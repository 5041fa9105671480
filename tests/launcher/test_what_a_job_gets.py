"""The table "What a job gets" of the documentation: each row is planned, and loses a node."""

import re
from typing import Any, NamedTuple

import pytest

from launcher.job.file import parse_job, parse_override
from launcher.plan.launch_plan import LaunchPlan, parse_plan, plan_run
from launcher.plan.rendezvous import backend_of
from launcher.plan.target_facts import TargetFacts
from launcher.plan.torchrun import describe_loss
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render.manifest import render_manifest
from tests.launcher.runner import PREFIX, ROOT

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
def test_a_job_is_planned_as_its_row_says(row, where, local_facts, docker_facts):
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
def test_a_controller_is_told_to_do_with_a_lost_pod_what_the_row_says(row, local_facts):
    kind = dict(key.split("=") for key in row.job)[KUBERNETES]
    text = render_manifest(plan_of(row, local_facts)).yaml()
    replaced = REPLACED.get(kind, {"restartPolicy": "ExitCode"})
    for key, value in POLICIES.get(row.loss, replaced).items():
        assert re.search(rf"\b{key}: {value}\b", text), f"{key}: {value}"


def test_the_environment_s_switch_says_it_too(launcher):
    launcher.write("print('trained')\n")
    launcher.env["LAUNCHER_ENGINE"] = "torchrun"
    done = launcher.well("render", "job.yaml", "--on", "local", "--nnodes", "2", "--json")
    assert parse_plan(done.stdout).agent is None
