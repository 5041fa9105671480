"""Where a job runs. Targets are stood in for by their facts or their refusal: which of them can
run is what the choice is made from; how they find out is tested with the real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.api.choose_target import choose_engine, choose_target, open_target
from launcher.contract.errors import InputError, SilentTargetError, TargetError
from launcher.follow.target import Target
from launcher.job.spec import JobSpec
from launcher.plan.target_facts import MachineFacts, TargetFacts

NO_ENGINE = TargetError("no Docker engine answers at /run/docker.sock", "start it")
NO_TORCH = TargetError("/usr/bin/python3 has no torch", "pip install torch")
NAMES_CONTAINERS = ({"image": "my/image:1"}, {"code": "image"}, {"mounts": ["./data:/data"]})


def known(name: str, found: TargetFacts | TargetError, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target whose facts are known before they are asked for."""
    target = open_target(name, Path())

    def facts(job: JobSpec) -> TargetFacts:
        if isinstance(found, TargetError):
            raise found
        return found

    monkeypatch.setattr(target, "facts", facts)
    return target


@pytest.fixture
def choose(
    make_job: Callable[..., JobSpec],
    tmp_path: Path,
    local_facts: TargetFacts,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)

    def chosen(
        docker: TargetFacts | TargetError,
        forced: str | None = None,
        local: TargetFacts | TargetError = local_facts,
        **job: Any,
    ) -> Any:
        found = {"docker": docker, "local": local}
        targets = {name: known(name, facts, monkeypatch) for name, facts in found.items()}
        with monkeypatch.context() as patch:
            patch.setattr(
                "launcher.api.choose_target.open_target", lambda name, root: targets[name]
            )
            return choose_target(make_job(**job), tmp_path, targets[forced] if forced else None)

    return chosen


def test_a_job_that_says_nothing_runs_where_torchrun_would_run_it_also_beside_an_engine(
    choose, docker_facts, local_facts
):
    assert choose(docker_facts).facts is local_facts


@pytest.mark.parametrize("job", NAMES_CONTAINERS, ids=lambda job: next(iter(job)))
def test_a_job_that_names_what_only_containers_have_runs_in_containers(job, choose, docker_facts):
    choice = choose(docker_facts, **job)
    assert choice.facts is docker_facts
    assert "local Docker, image fabric-train:cpu, no GPU: gloo" in choice.why


def test_gpus_are_named(choose, cuda_facts):
    assert "8 GPUs, NCCL" in choose(cuda_facts, code="image").why


def test_without_an_engine_processes_are_taken_and_the_reason_is_said(choose, local_facts):
    choice = choose(NO_ENGINE, code="image")
    assert choice.facts is local_facts
    assert f"because {NO_ENGINE.what}" in choice.why


def test_an_image_that_is_named_is_never_left_out(choose):
    with pytest.raises(TargetError, match="no Docker engine") as caught:
        choose(NO_ENGINE, image="my/image:1")
    assert caught.value.hint == "start it; without it: --on local"


def test_without_torch_here_containers_are_taken_and_the_reason_is_said(choose, docker_facts):
    choice = choose(docker_facts, local=NO_TORCH)
    assert choice.facts is docker_facts
    assert f"because {NO_TORCH.what}" in choice.why


def test_without_torch_and_without_an_engine_both_are_told_and_the_fix_of_the_first(choose):
    with pytest.raises(TargetError) as caught:
        choose(NO_ENGINE, local=NO_TORCH)
    assert caught.value.what == f"{NO_TORCH.what}; {NO_ENGINE.what}"
    assert caught.value.hint == NO_TORCH.hint


def test_a_forced_target_is_taken_or_refused_but_never_replaced(choose, docker_facts, local_facts):
    assert choose(docker_facts, forced="local").facts is local_facts
    with pytest.raises(TargetError, match="no Docker engine"):
        choose(NO_ENGINE, forced="docker")


def test_an_unknown_target_names_the_known_ones(tmp_path):
    with pytest.raises(InputError, match="--on lsf: no such target"):
        open_target("lsf", tmp_path)
    with pytest.raises(InputError) as caught:
        open_target("dokcer", tmp_path)
    assert caught.value.hint == "did you mean --on docker?"
    with pytest.raises(InputError) as caught:
        open_target("stater", tmp_path)
    assert "starter" not in caught.value.hint, "no job may name it"


def test_a_job_without_gpus_says_how_many_cores_it_has(choose, docker_facts):
    docker = replace(docker_facts, machine=MachineFacts(cpu_count=64))
    assert "64 CPU cores" in choose(docker, code="image").why


def test_one_variable_switches_the_agent_off_for_every_job(make_job):
    job = make_job(nnodes="1:2", start="fork", rdzv={"backend": "roster"})
    plain = choose_engine(job, {"LAUNCHER_ENGINE": "torchrun"})
    assert not plain.uses_agent
    assert (plain.start, plain.rdzv.backend) == (None, None)


@pytest.mark.parametrize("value", [{}, {"LAUNCHER_ENGINE": ""}, {"LAUNCHER_ENGINE": "agent"}])
def test_without_it_the_job_chooses(make_job, value):
    job = make_job(nnodes="1:2")
    assert choose_engine(job, value) is job


def test_a_misspelt_engine_is_refused(make_job):
    with pytest.raises(InputError, match="LAUNCHER_ENGINE=trchrun is no engine"):
        choose_engine(make_job(), {"LAUNCHER_ENGINE": "trchrun"})


def test_nothing_is_taken_in_the_place_of_an_engine_that_does_not_answer(choose):
    silent = SilentTargetError("the Docker engine is there, but does not answer", "docker info")
    with pytest.raises(TargetError, match="does not answer") as caught:
        choose(silent, code="image")
    assert caught.value.hint == "docker info; without it: --on local"
