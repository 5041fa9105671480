import json
from dataclasses import replace

import pytest

from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.targets.docker.render import render_docker
from launcher.targets.docker_options import Container, plan_containers
from tests.programs import run_program

PLAIN = {"engine": "torchrun"}
AWKWARD = "a 'b' \"c\" $HOME `id` \\ \n* é, x=y"


@pytest.mark.parametrize(
    ("name", "facts", "fields"),
    [
        ("docker-1x1", "docker_facts", {**PLAIN, "nproc_per_node": 1}),
        ("docker-static-2x1", "docker_facts", {**PLAIN, "nnodes": 2, "nproc_per_node": 1}),
        (
            "docker-elastic-1-3",
            "docker_facts",
            {
                "nnodes": "1:3",
                "nproc_per_node": 1,
                "max_restarts": 3,
                **PLAIN,
                "env": {"GREETING": "it's $5", "HOME": "/data"},
                "secrets": ["WANDB_API_KEY", "HF_TOKEN"],
                "checkpoint_dir": "check points",
                "mounts": ["./data:/data:ro", "/scratch:/scratch"],
                "workdir": "/data",
                "resources": {"cpus": 1.5, "memory": "4Gi", "shm": "256Mi"},
                "stop_grace_s": 120,
                "docker": {
                    "labels": {"team": "vision"},
                    "extra_hosts": {"data.internal": "10.0.0.7", "host": "host-gateway"},
                },
            },
        ),
        (
            "docker-static-2x2-gpus",
            "cuda_facts",
            {
                **PLAIN,
                "nnodes": 2,
                "nproc_per_node": 2,
                "resources": {"rdma": True},
                "docker": {"runtime": "nvidia"},
            },
        ),
    ],
)
def test_the_whole_script_and_what_the_engine_is_asked_for(
    make_plan, request, expect_golden, name, facts, fields
):
    artifact = render_docker(make_plan(request.getfixturevalue(facts), **fields))
    expect_golden(f"{name}.sh", artifact.shell())
    last = artifact.containers[-1]
    created = last.create_kwargs({"WANDB_API_KEY": "s3cret", "HF_TOKEN": "t0ken"})
    asked = (artifact.network_kwargs(), created, last.host_config_kwargs())
    lines = [f"{key}: {json.dumps(value)}\n" for part in asked for key, value in part.items()]
    expect_golden(f"{name}.txt", "".join(lines))


def test_a_script_for_a_machine_without_this_project_holds_the_agent(make_plan, docker_facts):
    artifact = render_docker(make_plan(docker_facts))
    assert ["base64 -d" in artifact.shell(**how) for how in ({}, {"embed": True})] == [False, True]


def only_container(plan: LaunchPlan) -> Container:
    (container,) = render_docker(plan).containers
    return container


def test_a_command_is_printed_as_it_is_submitted_word_for_word(make_plan, docker_facts):
    container = only_container(make_plan(docker_facts, command=["t.py", AWKWARD], **PLAIN))
    script = f"printf '%s\\0' {container.shell()}"
    words = run_program(["sh", "-c", script], check=True).stdout.split("\0")[:-1]
    command = container.create_kwargs({})["command"]
    assert words[words.index("fabric-train:cpu") + 1 :] == command
    assert command[-2:] == ["t.py", AWKWARD]


@pytest.mark.parametrize(
    ("security", "asked", "printed"),
    [
        (["name=seccomp,profile=default"], ("7:8", None), "--user 7:8"),
        # As `docker info --format '{{json .SecurityOptions}}'` shows them.
        (["name=seccomp,profile=default", "name=rootless"], ("0:0", None), "--user 0:0"),
        (["name=userns", "name=cgroupns"], ("7:8", "host"), "--user 7:8 --userns host"),
    ],
)
def test_files_of_a_container_belong_to_the_caller_whatever_users_the_engine_maps(
    make_job, docker_facts, security, asked, printed
):
    job = make_job()
    facts = replace(docker_facts, own=plan_containers(job, "7:8", security))
    container = only_container(plan_run(job, facts, run_id="digits-0a1b2c"))
    host = container.host_config_kwargs()
    assert (container.create_kwargs({})["user"], host.get("userns_mode")) == asked
    options = [option.text for option in container.options if "--user" in option.text]
    assert " ".join(options) == printed


@pytest.mark.parametrize(
    ("cpus", "printed"),
    [(2, "2"), (10.0, "10"), (0.1, "0.1"), (1.25, "1.25"), (1e-9, "0.000000001")],
)
def test_cpus_are_printed_as_docker_reads_them(make_plan, docker_facts, cpus, printed):
    plan = make_plan(docker_facts)
    container = only_container(replace(plan, resources=replace(plan.resources, cpus=cpus)))
    assert f"  --cpus {printed} \\\n" in container.shell()
