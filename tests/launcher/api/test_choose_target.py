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
from tests.launcher.conftest import DOCKER, LOCAL

NO_ENGINE = TargetError("no Docker engine answers at /run/docker.sock", "start it")
NO_TORCH = TargetError("/usr/bin/python3 has no torch", "pip install torch")
SILENT = SilentTargetError("the Docker engine is there, but does not answer", "docker info")


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


IMAGE, BUILT = {"image": "my/image:1"}, {"code": "image"}
CORES = replace(DOCKER, machine=MachineFacts(cpu_count=64))


@pytest.mark.parametrize(
    ("docker", "local", "job", "taken", "why"),
    [
        (DOCKER, LOCAL, {}, LOCAL, ""),
        *((DOCKER, LOCAL, job, DOCKER, "local Docker, image fabric-train:cpu, no GPU: gloo")
          for job in (IMAGE, BUILT, {"mounts": ["./data:/data"]})),
        (CORES, LOCAL, BUILT, CORES, "64 CPU cores"),
        (NO_ENGINE, LOCAL, BUILT, LOCAL, f"because {NO_ENGINE.what}"),
        (DOCKER, NO_TORCH, {}, DOCKER, f"because {NO_TORCH.what}"),
    ],
)  # fmt: skip
def test_processes_are_taken_unless_the_job_names_what_only_containers_have_or_torch_is_missing(
    choose, docker, local, job, taken, why
):
    choice = choose(docker, local=local, **job)
    assert choice.facts is taken
    assert why in choice.why


def test_gpus_are_named(choose, cuda_facts):
    assert "8 GPUs, NCCL" in choose(cuda_facts, code="image").why


@pytest.mark.parametrize(
    ("docker", "local", "job", "what", "hint"),
    [
        # An image that is named is never left out.
        (NO_ENGINE, LOCAL, IMAGE, NO_ENGINE.what, "start it; without it: --on local"),
        (SILENT, LOCAL, BUILT, SILENT.what, "docker info; without it: --on local"),
        (NO_ENGINE, NO_TORCH, {}, f"{NO_TORCH.what}; {NO_ENGINE.what}", NO_TORCH.hint),
    ],
)
def test_what_cannot_run_anywhere_is_refused_with_the_fix(choose, docker, local, job, what, hint):
    with pytest.raises(TargetError) as caught:
        choose(docker, local=local, **job)
    assert (caught.value.what, caught.value.hint) == (what, hint)


def test_a_forced_target_is_taken_or_refused_but_never_replaced(choose):
    assert choose(DOCKER, forced="local").facts is LOCAL
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
