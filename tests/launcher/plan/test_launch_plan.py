import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.job.spec import JobSpec
from launcher.plan import launch_plan
from launcher.plan.devices import plan_devices
from launcher.plan.launch_plan import parse_plan, plan_moved, plan_run
from launcher.plan.target_facts import describe_ignored, parse_shell
from launcher.targets.docker_options import ContainerSettings
from launcher.targets.held.target import HeldSettings
from launcher.targets.processes import ProcessSettings
from tests.launcher.plan.test_devices import facts_of


def test_what_the_shell_sets_wins_over_the_launcher_and_the_job_over_both():
    job = {"name": "j", "command": ["t.py"], "env": {"PYTHONUNBUFFERED": "0"}}
    shell = {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "", "RANK": "3", "HF_HOME": "/x"}
    facts = replace(facts_of(()), shell=parse_shell(shell))
    env = dict(plan_run(JobSpec.model_validate(job), facts, run_id="j-1").nodes[0].env)
    assert (env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("4", "0")
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert not {"RANK", "HF_HOME"} & env.keys()


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"PATH": "/bin", "OMP_NUM_THREADS": "2"}, None),
        ({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, None),
        ({"RANK": "0"}, "RANK of this shell does not count"),
        (
            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0", "MASTER_PORT": "1"},
            "MASTER_PORT, TORCH_DISABLE_SHARE_RDZV_TCP_STORE of this shell do not count",
        ),
    ],
)
def test_what_the_shell_sets_and_no_worker_gets_is_told(environ, told):
    found = describe_ignored(environ)
    assert (found or "").partition(":")[0] == (told or "")


@given(nodes=st.integers(1, 9), each=st.integers(1, 9), devices=st.integers(0, 40))
def test_nodes_on_one_machine_never_share_a_gpu(nodes, each, devices):
    job = JobSpec.model_validate(
        {"name": "j", "command": ["t.py"], "nnodes": nodes, "nproc_per_node": each}
    )
    facts = replace(facts_of(tuple(map(str, range(devices)))), accelerator="cuda")
    try:
        planned = plan_devices(job, facts)
    except InputError:
        assert nodes * each > devices
        return
    used = [device for node in planned for device in node.device_ids]
    assert len(used) == len(set(used)) == nodes * each


@pytest.mark.parametrize(
    ("fields", "hidden"),
    [
        ({"nproc_per_node": "cpu"}, True),
        ({"resources": {"gpus": 0}}, True),
        ({"nproc_per_node": 2}, False),
    ],
)
def test_workers_that_are_to_see_no_gpu_see_none(make_plan, fields, hidden):
    plan = make_plan(facts_of(()), **fields)
    assert (dict(plan.nodes[0].env).get("CUDA_VISIBLE_DEVICES") == "") == hidden


def test_the_same_input_gives_the_same_plan_and_leaves_the_job_alone(make_job, docker_facts):
    job = make_job(nnodes="1:3", env={"A": "1"}, mounts=["./data:/data:ro"])
    before = job.model_dump_json()
    plans = [plan_run(job, docker_facts, run_id="digits-0a1b2c") for _ in range(2)]
    assert plans[0] == plans[1]
    assert job.model_dump_json() == before


@pytest.mark.parametrize("engine", ["agent", "torchrun"])
def test_nodes_at_new_addresses_are_met_there(make_plan, engine):
    before = {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.3"}
    plan = plan_moved(make_plan(nnodes=3, engine=engine), before)
    moved = plan_moved(plan_moved(plan, {0: "10.0.0.9"}), {1: "10.0.0.8"})
    assert not re.search(r"10\.0\.0\.[12]\b", moved.to_json())
    after = ["10.0.0.9", "10.0.0.8", "10.0.0.3"]
    assert [node.local_addr for node in moved.nodes] == after
    assert dict(moved.nodes[2].env)[protocol.RDZV_ENDPOINT].startswith("10.0.0.9:")
    if moved.agent:
        assert [one.host for one in moved.agent.stores] == after[: len(moved.agent.stores)]
    assert plan_moved(plan, before) == plan


def test_a_run_in_a_hold_is_told_to_be_there(make_plan):
    plan = make_plan()
    assert plan.place == plan.target
    assert replace(plan, own=HeldSettings(hold="my-dev-3f9a01")).place == "the hold my-dev"


def test_checkpoints_stay_with_the_run_unless_the_job_says_where(make_plan, local_facts):
    own = make_plan()
    assert own.checkpoint_dir == f"{own.run_dir}/checkpoints"
    named = make_plan(checkpoint_dir="ckpt")
    assert named.checkpoint_dir == f"{local_facts.cwd}/ckpt"
    assert dict(named.nodes[0].env)[protocol.CHECKPOINT_DIR] == named.checkpoint_dir


@pytest.mark.parametrize(
    ("workdir", "expected"),
    [(None, "/work space"), ("/code/src", "/work space/here/src"), ("sub", "/work space/sub")],
)
def test_local_processes_work_where_the_mounted_folder_comes_from(make_plan, workdir, expected):
    plan = make_plan(mounts=["./here:/code"], workdir=workdir)
    assert plan.nodes[0].workdir == expected


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 1}'])
def test_anything_else_is_not_a_plan(text):
    with pytest.raises(ValueError, match=r"."):
        parse_plan(text)


# -- what plans are made of -----------------------------------------------------------------------

PLAN = Path(launch_plan.__file__).parent
TARGETS = {path.name for path in PLAN.with_name("targets").iterdir() if path.is_dir()}


def test_a_plan_for_another_target_is_told_from_ones_own(make_plan, docker_facts):
    plan = make_plan(docker_facts)
    assert ContainerSettings.of(plan).user == "1000:1000"
    with pytest.raises(AssertionError, match="planned for docker"):
        ProcessSettings.of(plan)


@pytest.mark.parametrize(
    "kind",
    [
        "os.PathLike",
        "launcher.plan.launch_plan.LaunchPlan",
        "launcher.no_such_room.Settings",
        "launcher.targets.docker_options.NoSuchSettings",
        "no_such_package.Settings",
        "",
    ],
)
def test_a_plan_names_settings_of_a_target_and_no_other_class(make_plan, kind):
    text = make_plan().to_json().replace("launcher.targets.processes.ProcessSettings", kind)
    with pytest.raises(ValueError, match="names no settings"):
        parse_plan(text)


def test_a_path_of_a_container_is_told_as_what_it_is_outside(make_plan, docker_facts):
    plan = make_plan(docker_facts)
    inside = f"{protocol.CONTAINER_CHECKPOINT_DIR}/step-4"
    assert plan.outside(inside) == f"{plan.checkpoint_dir}/step-4"
    assert plan.outside("/elsewhere/step-4") == "/elsewhere/step-4"
    assert plan.outside("relative") == "relative"
    told = plan.tell_outside(f"the disk at {protocol.CONTAINER_CHECKPOINT_DIR} is full: 0/9 MB")
    assert told == f"the disk at {plan.checkpoint_dir} is full: 0/9 MB"
