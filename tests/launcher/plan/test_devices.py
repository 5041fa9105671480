"""Every way of writing devices: a row of docs/devices.md each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.job.spec import JobSpec
from launcher.plan.devices import plan_devices
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.targets.machine import read_used_gpus

MakeJob = Callable[..., JobSpec]
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
def test_each_row_of_the_table_is_what_is_planned(written: str, on_four: str, on_none: str) -> None:
    assert (planned(written, FOUR), planned(written, facts_of(()))) == (on_four, on_none)


def test_the_table_has_every_way_that_people_write() -> None:
    assert {"2", '"2"', "[1, 3]", '"1,3"', '"1,"', "-1", "auto", "free:2"} <= {r[0] for r in ROWS}


@pytest.mark.parametrize(
    ("devices", "facts", "what", "fix"),
    [
        ([1, 7], FOUR, "1,7, but target place has 0, 1, 2, 3 and no 7", "--devices 2"),
        ("free:4", FOUR, "of target place's GPUs 1, 2, 3 are unused", "--devices 4"),
        ([0], facts_of(()), "target place has no GPU", "--devices 1"),
        ([0, 1], facts_of(None), "gives out GPUs by number", "--devices 2"),
        (5, FOUR, "this machine has 4", "to 4"),
    ],
)
def test_wrong_devices_name_what_is_there(
    make_job: MakeJob, devices: Any, facts: TargetFacts, what: str, fix: str
) -> None:
    with pytest.raises(InputError) as refused:
        plan_devices(make_job(devices=devices), facts)
    assert what in str(refused.value)
    assert fix in str(refused.value).partition("fix: ")[2]


@pytest.mark.parametrize(
    "devices", ["0", "[]", "[1, 1]", "all of them", "1.5", "free:0", "true", "-2"]
)
def test_what_nobody_can_mean_is_refused(devices: str) -> None:
    with pytest.raises(InputError, match=r"devices: found .*; accepted: "):
        parse_job(f"name: a\ncommand: [t.py]\ndevices: {devices}\n", "job.yaml")


def test_processes_and_devices_may_both_be_said(make_job: MakeJob) -> None:
    (node,) = plan_devices(make_job(devices=[1, 3], nproc_per_node=4), FOUR)
    assert (node.nproc_per_node, node.device_ids) == (4, ("1", "3"))


def test_nodes_of_one_machine_share_the_chosen_ones_out(make_job: MakeJob) -> None:
    job = make_job(devices=[3, 1], nnodes=2, nproc_per_node=1, resources={"gpus": 1})
    assert [node.device_ids for node in plan_devices(job, FOUR)] == [("3",), ("1",)]


def test_a_scheduler_gets_the_number(make_job: MakeJob) -> None:
    (node,) = plan_devices(make_job(devices="free:2"), facts_of(None))
    assert (node.nproc_per_node, node.device_ids) == (2, ())


def test_a_gpu_with_a_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
