import subprocess
from dataclasses import replace

import pytest

from launcher.plan.launch_plan import LaunchPlan, plan_replacement, plan_run
from launcher.targets.docker.render import render_docker
from launcher.targets.docker_options import (
    DOCKER_RUN,
    Container,
    ContainerSettings,
    plan_containers,
)

PLAIN = {"engine": "torchrun"}
AWKWARD = "a 'b' \"c\" $HOME `id` \\ \n* é, x=y"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("docker-1x1.sh", {**PLAIN, "nproc_per_node": 1}),
        ("docker-static-2x1.sh", {**PLAIN, "nnodes": 2, "nproc_per_node": 1}),
        (
            "docker-elastic-1-3.sh",
            {
                "nnodes": "1:3",
                "nproc_per_node": 1,
                "max_restarts": 3,
                **PLAIN,
                "env": {"GREETING": "it's $5"},
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
    ],
)
def test_the_whole_script(make_plan, docker_facts, expect_golden, name, fields):
    expect_golden(name, render_docker(make_plan(docker_facts, **fields)).shell())


def test_the_whole_script_with_gpus_and_rdma(make_plan, cuda_facts, expect_golden):
    plan = make_plan(
        cuda_facts,
        nnodes=2,
        nproc_per_node=2,
        engine="torchrun",
        resources={"rdma": True},
        docker={"runtime": "nvidia"},
    )
    expect_golden("docker-static-2x2-gpus.sh", render_docker(plan).shell())


def docker_run_argv(container: Container) -> tuple[str, ...]:
    options = (word for option in container.options for word in option.words)
    return (*DOCKER_RUN, *options, container.image, *container.arguments)


def only_container(plan: LaunchPlan) -> Container:
    (container,) = render_docker(plan).containers
    return container


def test_what_is_printed_is_what_is_submitted_word_for_word(make_plan, docker_facts):
    container = only_container(make_plan(docker_facts, command=["t.py", AWKWARD], **PLAIN))
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {container.shell()}"], capture_output=True, check=True
    ).stdout.decode()
    assert tuple(words.split("\0")[:-1]) == docker_run_argv(container)
    argv = list(docker_run_argv(container))
    command = container.create_kwargs({})["command"]
    assert argv[argv.index("fabric-train:cpu") + 1 :] == command
    assert command[-2:] == ["t.py", AWKWARD]


def test_gpus_are_given_by_id_and_disjoint_between_nodes(make_plan, cuda_facts):
    artifact = render_docker(make_plan(cuda_facts, nnodes=2, nproc_per_node=2))
    requests = [c.host_config_kwargs()["device_requests"] for c in artifact.containers]
    gpu = [["gpu"]]
    assert requests == [
        [{"device_ids": ["0", "1"], "capabilities": gpu}],
        [{"device_ids": ["2", "3"], "capabilities": gpu}],
    ]


def test_without_gpus_and_rdma_a_container_gets_no_device_and_no_capability(
    make_plan, docker_facts
):
    host = only_container(make_plan(docker_facts)).host_config_kwargs()
    assert not {"device_requests", "devices", "cap_add", "runtime"} & set(host)


def test_a_secret_is_printed_by_name_and_submitted_by_value(make_plan, docker_facts):
    plan = make_plan(docker_facts, secrets=["TOKEN"])
    container = only_container(plan)
    assert "TOKEN=s3cret" in container.create_kwargs({"TOKEN": "s3cret"})["environment"]
    assert container.shell().count("TOKEN") == 1
    assert "\n  --env TOKEN \\\n" in container.shell()


def test_labels_of_the_user_do_not_displace_those_that_runs_are_found_by(make_plan, docker_facts):
    plan = make_plan(docker_facts)
    labels = (("team", "a"), ("launcher.run-id", "other"))
    plan = replace(plan, own=replace(ContainerSettings.of(plan), labels=labels))
    labels = only_container(plan).create_kwargs({})["labels"]
    assert labels["team"] == "a"
    assert labels["launcher.run-id"] == plan.run_id


@pytest.mark.parametrize(
    ("security", "words"),
    [
        (["name=seccomp,profile=default"], ("--user", "7:8")),
        # As `docker info --format '{{json .SecurityOptions}}'` shows them.
        (["name=seccomp,profile=default", "name=rootless", "name=cgroupns"], ("--user", "0:0")),
        (["name=seccomp,profile=default", "name=userns"], ("--user", "7:8", "--userns", "host")),
    ],
)
def test_files_of_a_container_belong_to_the_caller_whatever_users_the_engine_maps(
    make_job, docker_facts, security, words
):
    job = make_job()
    facts = replace(docker_facts, own=plan_containers(job, "7:8", security))
    container = only_container(plan_run(job, facts, run_id="digits-0a1b2c"))
    argv = docker_run_argv(container)
    begin = argv.index("--user")
    assert argv[begin : begin + len(words)] == words
    assert ("--userns" in argv) == ("--userns" in words)
    assert container.create_kwargs({})["user"] == words[1]
    assert container.host_config_kwargs().get("userns_mode") == (words[3:] or (None,))[0]


def test_of_two_values_for_one_variable_the_last_counts(make_plan, docker_facts):
    plan = make_plan(docker_facts, env={"HOME": "/data"})
    environment = only_container(plan).create_kwargs({})["environment"]
    assert [entry for entry in environment if entry.startswith("HOME=")] == ["HOME=/data"]


@pytest.mark.parametrize(
    ("cpus", "printed"),
    [(2, "2"), (10.0, "10"), (0.1, "0.1"), (1.25, "1.25"), (1e-9, "0.000000001")],
)
def test_cpus_are_printed_as_docker_reads_them(make_plan, docker_facts, cpus, printed):
    plan = make_plan(docker_facts)
    container = only_container(replace(plan, resources=replace(plan.resources, cpus=cpus)))
    argv = docker_run_argv(container)
    assert argv[argv.index("--cpus") + 1] == printed


def test_a_replacement_keeps_its_name_and_gets_the_next_incarnation(make_plan, docker_facts):
    plan = make_plan(docker_facts, nnodes="1:2")
    old = render_docker(plan, only=(1,)).containers[0]
    new = render_docker(plan_replacement(plan, 1), only=(1,)).containers[0]
    assert new.name == old.name
    assert new.create_kwargs({})["labels"]["launcher.incarnation"] == "1"
    assert new.console.endswith("/nodes/1/1/console.log")
