"""Where a job runs. Targets are stood in for by their facts or their refusal: which of them can
run is what the choice is made from; how they find out is tested with the real ones."""

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
    ("name", "says"),
    [("lsf", "--on lsf: no such target"), ("dokcer", "did you mean --on docker?")],
)
def test_an_unknown_target_names_the_known_ones(tmp_path, name, says):
    with pytest.raises(InputError) as caught:
        open_target(name, tmp_path)
    assert says in f"{caught.value.what}\n{caught.value.hint}"
    assert "starter" not in caught.value.hint, "no job may name it"


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
