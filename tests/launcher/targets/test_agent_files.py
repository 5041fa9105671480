"""What is rendered for the node agent is all that it needs, in the script as in the run folder."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.agent_settings import StoreEndpoint, parse_task
from launcher.plan.launch_plan import LaunchPlan, parse_plan
from launcher.plan.target_facts import TargetFacts
from launcher.targets.agent_archive import read_agent_sources, render_agent_archive
from launcher.targets.agent_files import AgentFiles, render_agent_files, write_agent_files
from launcher.targets.docker.render import render_docker
from launcher.targets.local.render import render_local

MakePlan = Callable[..., LaunchPlan]
ARCHIVE = re.compile(r"(base64 -d >[^\n]+ <<'END'\n)(.*?)\n(END\n)", re.DOTALL)


def files_of(plan: LaunchPlan) -> AgentFiles:
    files = render_agent_files(plan, plan.nodes)
    assert files is not None
    return files


def without_archive(script: str) -> str:
    """The script with the archive's lines left out: they change with every line of the agent."""
    return ARCHIVE.sub(r"\1...\n\3", script)


def test_the_whole_local_script(
    make_plan: MakePlan, expect_golden: Callable[[str, str], None]
) -> None:
    plan = make_plan(nnodes=2, nproc_per_node=1, max_restarts=3)
    expect_golden("local-agent-2x1.sh", without_archive(render_local(plan).shell()))


def test_the_whole_docker_script(
    make_plan: MakePlan, docker_facts: TargetFacts, expect_golden: Callable[[str, str], None]
) -> None:
    plan = make_plan(docker_facts, nnodes="1:3", nproc_per_node=1, start="fork")
    expect_golden("docker-agent-1-3.sh", without_archive(render_docker(plan).shell()))


def test_the_script_holds_the_whole_archive(make_plan: MakePlan) -> None:
    script = render_local(make_plan(nnodes="1:2")).shell()
    found = ARCHIVE.search(script)
    assert found is not None
    assert base64.b64decode(found[2]) == render_agent_archive(read_agent_sources())


def test_plain_torchrun_needs_no_files(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:2", engine="torchrun")
    assert render_agent_files(plan, plan.nodes) is None


def test_the_agent_reads_each_nodes_task_as_it_was_planned(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:3", env={"GREETING": "it's\n$5"}, start="fork")
    tasks = [parse_task(file.text) for file in files_of(plan).tasks]
    assert [task.node for task in tasks] == list(plan.nodes)
    assert {task.settings for task in tasks} == {plan.agent}


def test_a_plan_with_an_agent_is_read_back_equal(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:3", start="fork", agent={"preload": ["json"]})
    assert parse_plan(plan.to_json()) == plan


def test_running_agents_keep_their_archive_when_a_node_is_replaced(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = replace(make_plan(max_restarts=1), run_dir=str(tmp_path))
    files = files_of(plan)
    Path(files.tasks[0].path).parent.mkdir(parents=True)
    write_agent_files(files)
    write_agent_files(replace(files, archive=b"of another version"))
    assert (tmp_path / "agent.pyz").read_bytes() == files.archive


@pytest.mark.parametrize(
    ("fields", "uses"),
    [
        ({}, False),
        ({"nnodes": 2}, False),
        ({"nnodes": "1:2"}, True),
        ({"max_restarts": 1}, True),
        ({"start": "fork"}, True),
        ({"rdzv": {"backend": "roster"}}, True),
        ({"engine": "agent"}, True),
        ({"nnodes": "1:2", "engine": "torchrun"}, False),
    ],
)
def test_the_agent_runs_what_may_restart_or_asks_for_it(
    make_plan: MakePlan, fields: dict[str, Any], uses: bool
) -> None:
    assert (make_plan(**fields).agent is not None) == uses


def stores(plan: LaunchPlan) -> tuple[StoreEndpoint, ...]:
    assert plan.agent is not None
    return plan.agent.stores


def test_three_containers_may_serve_the_store_each_at_the_same_port(
    make_plan: MakePlan, docker_facts: TargetFacts
) -> None:
    found = stores(make_plan(docker_facts, nnodes="2:4"))
    assert [(s.node_index, s.host, s.port) for s in found] == [
        (index, f"digits-0a1b2c-{index}", 29400) for index in range(3)
    ]


def test_processes_of_one_machine_serve_it_each_at_a_port_of_their_own(
    make_plan: MakePlan, local_facts: TargetFacts
) -> None:
    facts = replace(local_facts, ports=(21000, 22000, 23000))
    found = stores(make_plan(facts, nnodes="1:2"))
    assert [(s.node_index, s.port) for s in found] == [(0, 21000), (1, 22000)]


@pytest.mark.parametrize("fields", [{}, {"rdzv": {"backend": "c10d"}}])
def test_a_lone_node_and_a_stock_backend_have_no_other_store(
    make_plan: MakePlan, fields: dict[str, Any]
) -> None:
    nnodes = "1:2" if fields else 1
    assert stores(make_plan(nnodes=nnodes, max_restarts=1, **fields)) == ()
