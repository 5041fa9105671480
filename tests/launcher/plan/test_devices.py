"""Every way of writing devices: a row of docs/devices.md each."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import InputError, KeyInputError
from launcher.job.file import parse_job
from launcher.plan.devices import describe_crowd, plan_devices
from launcher.plan.launch_plan import plan_run
from launcher.plan.nnodes import NodesThere, decide_nnodes
from launcher.plan.target_facts import MachineFacts, NodeFacts, TargetFacts
from launcher.targets.machine import read_used_gpus

PAGE = Path(__file__).parents[3] / "docs" / "devices.md"
ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)[1:]
"""What is written, and the workers with their GPUs on four GPUs, 0 of them used, and on none."""


def facts_of(ids: tuple[str, ...] | None, used: tuple[str, ...] = ()) -> TargetFacts:
    return TargetFacts(
        target="place",
        accelerator="cuda" if ids or ids is None else "cpu",
        machine=MachineFacts(cpu_count=8, device_ids=ids, used_ids=used),
        run_root="/runs",
        cwd="/",
    )


FOUR = facts_of(("0", "1", "2", "3"), used=("0",))


def planned(devices: str, facts: TargetFacts) -> str:
    job = parse_job(f"name: a\ncommand: [t.py]\ndevices: {devices}\n", "job.yaml")
    try:
        (node,) = plan_devices(job, facts)
    except InputError:
        return "refused"
    gpus = f" on {', '.join(node.device_ids)}" if node.device_ids else ""
    return f"{node.nproc_per_node}{gpus}"


@pytest.mark.parametrize(("written", "on_four", "on_none"), ROWS)
def test_each_row_of_the_table_is_what_is_planned(written, on_four, on_none):
    assert (planned(written, FOUR), planned(written, facts_of(()))) == (on_four, on_none)


def test_the_table_has_every_way_that_people_write():
    assert {"2", '"2"', "[1, 3]", '"1,3"', '"1,"', "-1", "auto", "free:2"} <= {r[0] for r in ROWS}


@dataclass(frozen=True, kw_only=True)
class Named(MachineFacts):
    @property
    def name(self) -> str:
        return "gpu1"


NONE, SCHEDULED = facts_of(()), facts_of(None)
OWN = replace(NONE, accelerator="cuda", nodes=(NodeFacts(machine=Named(cpu_count=2)),) * 2)
SMALL = replace(NONE, machine=MachineFacts(cpu_count=8, most_processes=100))
USED = facts_of(("0", "1"), used=("0", "1"))
REFUSED: tuple[tuple[TargetFacts, dict[str, Any]], ...] = (
    (FOUR, {"devices": [1, 7]}),
    (FOUR, {"devices": "free:4"}),
    (USED, {"devices": "free:1"}),
    (NONE, {"devices": [0]}),
    (SCHEDULED, {"devices": [0, 1]}),
    (FOUR, {"devices": 5}),
    (FOUR, {"resources": {"gpus": 5}}),
    (FOUR, {"nnodes": 2, "nproc_per_node": 3}),
    (replace(NONE, accelerator="cuda"), {}),
    (OWN, {"resources": {"gpus": 2}, "nproc_per_node": 1}),
    (OWN, {"devices": [0]}),
    (NONE, {"nproc_per_node": "gpu"}),
    (NONE, {"resources": {"gpus": 8}}),
    (SCHEDULED, {"nproc_per_node": "gpu"}),
    (SMALL, {"nnodes": 51, "nproc_per_node": 1}),
    (SMALL, {"nnodes": "1:100000", "nproc_per_node": 1}),
    (SMALL, {"nproc_per_node": 100}),
)


def test_what_is_not_there_is_refused_with_what_is(make_job, expect_golden):
    told = ""
    for facts, fields in REFUSED:
        with pytest.raises(InputError) as refused:
            plan_run(make_job(**fields), facts, run_id="r")
        told += f"### {fields}\n{refused.value}\n"
    expect_golden("bad_devices.txt", told)


def test_a_machine_with_many_more_workers_than_cores_is_told_before_the_start():
    assert describe_crowd(32, SMALL.machine) == describe_crowd(33, NONE.machine) == ""
    told = "33 workers share 8 CPU cores: they train slowly, and each holds torch and the model"
    assert describe_crowd(33, SMALL.machine) == told


def test_as_many_processes_as_a_machine_can_start_are_planned(make_job):
    job = make_job(nnodes=50, nproc_per_node=1)
    assert len(plan_run(job, SMALL, run_id="r").nodes) == 50


@pytest.mark.parametrize(
    ("facts", "fields", "expected"),
    [
        (FOUR, {}, [(4, 4)]),
        (FOUR, {"nnodes": 2}, [(2, 2), (2, 2)]),
        (FOUR, {"nnodes": 3}, [(1, 1)] * 3),
        (FOUR, {"nproc_per_node": 3}, [(3, 3)]),
        (FOUR, {"nproc_per_node": "gpu", "resources": {"gpus": 2}}, [(2, 2)]),
        (FOUR, {"nproc_per_node": 1, "resources": {"gpus": 2}, "nnodes": 2}, [(1, 2), (1, 2)]),
        (FOUR, {"nproc_per_node": "cpu", "resources": {"gpus": 4}}, [(8, 4)]),
        (NONE, {}, [(8, 0)]),
        (NONE, {"nnodes": 2}, [(4, 0), (4, 0)]),
        (NONE, {"nnodes": 64}, [(1, 0)] * 64),
        (NONE, {"nnodes": 2, "nproc_per_node": "cpu"}, [(8, 0), (8, 0)]),
        (NONE, {"nproc_per_node": 5}, [(5, 0)]),
        (NONE, {"resources": {"gpus": 0}}, [(8, 0)]),
        (SCHEDULED, {"resources": {"gpus": 2}}, [(2, 0)]),
        (replace(FOUR, accelerator="cpu"), {}, [(8, 0)]),
        (replace(OWN, accelerator="cpu"), {"nnodes": 2}, [(2, 0), (2, 0)]),
        (replace(NONE, nodes=(NodeFacts(),) * 2), {"nnodes": 2}, [(8, 0), (8, 0)]),
    ],
)
def test_each_node_runs_its_share_of_workers(make_job, facts, fields, expected):
    found = plan_devices(make_job(**fields), facts)
    assert [(node.nproc_per_node, len(node.device_ids)) for node in found] == expected
    if facts is FOUR:
        used = [gpu for node in found for gpu in node.device_ids]
        assert used == ["0", "1", "2", "3"][: len(used)], "no GPU twice"


@pytest.mark.parametrize(
    ("wanted", "started", "nodes"),
    [
        (None, False, "2"), (2, True, "2"), ("1:4", False, "1:2"), ("1:4", True, "1:2"),
        (1, False, "1"), (1, True, None), (3, False, None), ("3:4", False, None),
    ],
)  # fmt: skip
def test_a_job_takes_the_nodes_that_are_there(make_job, wanted, started, nodes):
    there = NodesThere(count=2, says="two are here", fix="ask for two", are_started=started)
    job = make_job() if wanted is None else make_job(nnodes=wanted)
    if nodes is not None:
        assert str(decide_nnodes(job, there).nnodes) == nodes
        return
    with pytest.raises(InputError) as refused:
        decide_nnodes(job, there)
    assert str(refused.value) == (
        f"nnodes: the job has nnodes {job.nnodes}, and two are here\n  fix: ask for two"
    )


def test_processes_and_devices_may_both_be_said(make_job):
    (node,) = plan_devices(make_job(devices=[1, 3], nproc_per_node=4), FOUR)
    assert (node.nproc_per_node, node.device_ids) == (4, ("1", "3"))


@pytest.mark.parametrize(
    ("keys", "named", "fix"),
    [
        ({"devices": 2}, ("devices",), "leave it out to train on the CPU"),
        ({"resources": {"gpus": 2}}, ("resources", "gpus"), "--set resources.gpus=0 to train"),
    ],
)
def test_where_no_gpu_is_the_key_is_named_that_was_given(make_job, keys, named, fix):
    job = make_job(nproc_per_node=3, **keys)
    with pytest.raises(KeyInputError, match="2 on each node, but target place") as caught:
        plan_devices(job, facts_of(()))
    assert caught.value.key == named
    assert caught.value.hint.startswith(fix)


def test_nodes_of_one_machine_share_the_chosen_ones_out(make_job):
    job = make_job(devices=[3, 1], nnodes=2, nproc_per_node=1, resources={"gpus": 1})
    assert [node.device_ids for node in plan_devices(job, FOUR)] == [("3",), ("1",)]


def test_a_scheduler_gets_the_number(make_job):
    (node,) = plan_devices(make_job(devices="free:2"), facts_of(None))
    assert (node.nproc_per_node, node.device_ids) == (2, ())


def test_a_gpu_with_a_process_is_used(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in *apps*) echo GPU-b; echo GPU-b;;"
        " *) echo 'GPU-a, 0'; echo 'GPU-b, 1';; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert read_used_gpus() == ("1", "GPU-b")
    machine = replace(FOUR.machine, device_ids=("GPU-a", "GPU-b"), used_ids=read_used_gpus())
    job = parse_job("name: a\ncommand: [t.py]\ndevices: free:1\n", "job.yaml")
    (node,) = plan_devices(job, replace(FOUR, machine=machine))
    assert node.device_ids == ("GPU-a",)
