"""What a job file's section ``slurm`` becomes."""

import sys
from typing import Any

import pytest

from launcher.contract.errors import InputError
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.targets.slurm.plan import parse_time_s, plan_facts
from launcher.targets.slurm.settings import SlurmSettings


def plan(root: str = "/shared/runs", cwd: str = "/shared", /, **keys: Any) -> LaunchPlan:
    """A plan of a job with these keys."""
    slurm = keys.get("slurm", {})
    if not slurm.get("container"):
        keys["slurm"] = {"python": sys.executable, **slurm}
    job = JobSpec.model_validate({"name": "digits", "command": ["train.py"], **keys})
    facts = plan_facts(job, run_root=root, cwd=cwd, torch_version="2.13.0", sends_code=False)
    return plan_run(job, facts, run_id="digits-0a1b2c")


def settings(**keys: Any) -> SlurmSettings:
    return SlurmSettings.of(plan(**keys))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90 * 60),
        ("1:30", 90),
        ("8:00:00", 8 * 3600),
        ("2-0", 2 * 86400),
        ("1-6:30", 30.5 * 3600),
        ("1-00:00:10", 86410),
        ("UNLIMITED", None),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(text, seconds):
    assert parse_time_s(text) == seconds


def test_the_keys_become_options_of_sbatch_in_one_order():
    own = settings(
        resources={"cpus": 4.5, "memory": "8Gi", "gpus": 2},
        slurm={
            "partition": "gpu",
            "time": "8:00:00",
            "exclusive": True,
            "extra": ["--mail-type=END"],
        },
    )
    assert own.options == (
        "--partition=gpu",
        "--time=8:00:00",
        "--gpus-per-node=2",
        "--cpus-per-task=5",
        "--mem=8192M",
        "--exclusive",
        "--mail-type=END",
    )
    assert own.gpus == 2


@pytest.mark.parametrize(
    ("keys", "workers"),
    [
        ({}, 1),
        ({"slurm": {"cpus_per_task": 4}}, 4),
        ({"slurm": {"gpus_per_node": "a100:8"}}, 8),
        ({"slurm": {"gres": "shard:1,gpu:4"}}, 4),
        ({"slurm": {"gres": "gpu"}}, 1),
        ({"resources": {"gpus": 2}, "nproc_per_node": "gpu"}, 2),
        ({"slurm": {"gpus_per_node": "8"}, "nproc_per_node": 2}, 2),
    ],
)
def test_workers_follow_from_what_slurm_is_asked_for(keys, workers):
    assert {node.nproc_per_node for node in plan(nnodes=2, **keys).nodes} == {workers}


@pytest.mark.parametrize(
    ("nnodes", "given", "kind"),
    [(2, None, "allocation"), ("1:2", None, "array"), ("1:2", "allocation", "allocation")],
)
def test_an_elastic_job_is_an_array_whose_elements_wait_for_nodes_unless_it_says_otherwise(
    nnodes, given, kind
):
    found = plan(nnodes=nnodes, slurm={"kind": given} if given else {})
    assert SlurmSettings.of(found).kind == kind
    assert found.agent.awaits_nodes is (kind == "array")
    assert ("slurm.kind: array" in SlurmSettings.of(found).keeps_nodes) == (kind != "array")


def test_nodes_meet_in_the_runs_folder_and_any_of_them_may_serve_the_store():
    found = plan(nnodes=4)
    assert found.agent.meet_dir == "/shared/runs/digits-0a1b2c/meet"
    assert found.agent.identity == "slurm"
    assert found.agent.stores == ()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"engine": "torchrun"}, "remove engine: torchrun"),
        ({"rdzv": {"backend": "static"}}, "addresses are not known before the nodes start"),
        ({"slurm": {"time": "1:00"}}, "the last 60 s are for the checkpoint"),
        ({"slurm": {"gres": "gpu:2", "gpus_per_node": "2"}}, "leave one of them out"),
        ({"slurm": {"gpus_per_node": "2"}, "resources": {"gpus": 4}}, "resources.gpus is 4"),
        ({"slurm": {"container": "apptainer"}}, "no image is named"),
        ({"nproc_per_node": "gpu"}, "no GPU is asked for"),
        ({"slurm": {"extra": ["--time=1"]}}, "slurm.time: VALUE"),
        ({"slurm": {"extra": ["-N4"]}}, "nnodes: VALUE"),
        ({"slurm": {"extra": ["--output x"]}}, "remove --output"),
    ],
)
def test_what_slurm_cannot_do_is_refused_with_the_fix(keys, words):
    with pytest.raises(InputError) as caught:
        plan(**keys)
    assert words in str(caught.value)
