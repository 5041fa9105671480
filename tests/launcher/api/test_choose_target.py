"""Where a job runs. Targets are stood in for by their facts or their refusal: which of them can
run is what the choice is made from; how they find out is tested with the real ones."""

from dataclasses import replace

import pytest

from launcher.api.choose_target import (
    choose_engine,
    choose_target,
    name_here,
    open_target,
    target_of,
)
from launcher.contract.errors import InputError, SilentTargetError, TargetError
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.targets.docker.target import DockerTarget
from launcher.targets.held.target import HeldSettings, HeldTarget
from launcher.targets.local.target import LocalTarget
from launcher.targets.slurm.room import SlurmRoom

NO_ENGINE = TargetError("no Docker engine answers at /run/docker.sock", "start it")
NO_TORCH = TargetError("/usr/bin/python3 has no torch", "pip install torch")


@pytest.fixture
def choose(make_job, tmp_path, local_facts, on_local, monkeypatch):
    """Chooses between two targets that find these facts, or fail."""
    monkeypatch.chdir(tmp_path)

    def chosen(docker, forced=None, local=local_facts, **job):
        on_local(facts=lambda *_: find(local))
        monkeypatch.setattr(DockerTarget, "facts", lambda *_: find(docker))
        return choose_target(make_job(**job), tmp_path, forced and open_target(forced, tmp_path))

    return chosen


def find(facts: TargetFacts | TargetError) -> TargetFacts:
    if isinstance(facts, TargetError):
        raise facts
    return facts


SILENT = SilentTargetError("the Docker engine is there, but does not answer", "docker info")
"""What is there is waited for, and nothing is taken in its place."""


@pytest.mark.parametrize(
    ("docker", "options", "taken", "says"),
    [
        ("docker", {}, "local", ""),  # as torchrun would run it, although an engine is there
        ("docker", {"image": "my/image:1"}, "docker", "Docker, image fabric-train:cpu, no GPU: g"),
        ("docker", {"code": "image"}, "docker", "Docker, image fabric-train:cpu, no GPU: gloo"),
        ("docker", {"mounts": ["./data:/data"]}, "docker", "image fabric-train:cpu, no GPU: gloo"),
        ("cuda", {"code": "image"}, "docker", "8 GPUs, NCCL"),
        ("64 cores", {"code": "image"}, "docker", "64 CPU cores"),
        ("none", {"code": "image"}, "local", f"because {NO_ENGINE.what}"),
        ("docker", {"local": NO_TORCH}, "docker", f"because {NO_TORCH.what}"),
        ("docker", {"forced": "local"}, "local", ""),
    ],
    ids=str,
)
def test_what_a_job_names_and_what_is_here_decide_where_it_runs_and_the_reason_is_said(
    docker, options, taken, says, choose, docker_facts, cuda_facts, local_facts
):
    found: dict[str, TargetFacts | TargetError] = {
        "docker": docker_facts,
        "cuda": cuda_facts,
        "64 cores": replace(docker_facts, machine=MachineFacts(cpu_count=64)),
        "none": NO_ENGINE,
    }
    choice = choose(found[docker], **options)
    assert choice.facts is (local_facts if taken == "local" else found[docker])
    assert says in choice.why


@pytest.mark.parametrize(
    ("docker", "options", "what", "hint"),
    [
        (NO_ENGINE, {"image": "my/image:1"}, NO_ENGINE.what, "start it; without it: --on local"),
        (SILENT, {"code": "image"}, SILENT.what, "docker info; without it: --on local"),
        (NO_ENGINE, {"local": NO_TORCH}, f"{NO_TORCH.what}; {NO_ENGINE.what}", NO_TORCH.hint),
        (NO_ENGINE, {"forced": "docker"}, NO_ENGINE.what, "start it"),
    ],
    ids=str,
)
def test_what_a_person_has_named_is_never_replaced(docker, options, what, hint, choose):
    with pytest.raises(TargetError) as caught:
        choose(docker, **options)
    assert (caught.value.what, caught.value.hint) == (what, hint)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("lsf", "one of: docker, local, kubernetes, hosts, slurm"),
        ("dokcer", "did you mean --on docker?"),
    ],
)
def test_an_unknown_target_names_the_known_ones_that_a_job_may_name(tmp_path, name, fix):
    with pytest.raises(InputError) as caught:
        open_target(name, tmp_path)
    assert (caught.value.what, caught.value.hint) == (f"--on {name}: no such target", fix)


def test_one_variable_switches_the_agent_off_for_every_job(make_job):
    job = make_job(nnodes="1:2", start="fork", rdzv={"backend": "roster"})
    plain = choose_engine(job, {"LAUNCHER_ENGINE": "torchrun"})
    assert (plain.uses_agent, plain.start, plain.rdzv.backend) == (False, None, None)
    for value in ({}, {"LAUNCHER_ENGINE": ""}, {"LAUNCHER_ENGINE": "agent"}):
        assert choose_engine(job, value) is job
    with pytest.raises(InputError, match="LAUNCHER_ENGINE=trchrun is no engine"):
        choose_engine(job, {"LAUNCHER_ENGINE": "trchrun"})


def test_a_run_in_a_hold_is_on_the_target_of_such_runs(make_run, tmp_path):
    _, plan = make_run(name="hold-1")
    assert type(target_of(plan, tmp_path)) is LocalTarget
    assert type(target_of(replace(plan, own=HeldSettings(hold="hold-1")), tmp_path)) is HeldTarget


def test_nodes_that_a_process_was_given_are_not_those_of_its_workers(monkeypatch):
    assert name_here({}) is None
    monkeypatch.setattr(SlurmRoom, "is_here", lambda *_: True)
    assert name_here({}) == "slurm"
    assert name_here({"LAUNCHER_RUN_ID": "a"}) is None
