"""From a job to a new run's folder: its code, its id, and what may surprise a person."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from launcher.api.starting.planning import (
    PlannedRun,
    note_no_checkpoint,
    plan_job,
    read_job_of,
    resume_job,
)
from launcher.code import files
from launcher.code.record import read_kept_code
from launcher.contract.causes import Cause
from launcher.contract.errors import InputError
from launcher.follow.target import Traits
from launcher.job.spec import JobSpec
from launcher.plan.nnodes import NodesThere
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.runs.outcome import Outcome
from launcher.targets.local.target import LocalTarget

Plan = Callable[..., PlannedRun]
NOTHING: Mapping[str, Any] = MappingProxyType({})
OWN_DISKS = {"shares_storage": False}


@pytest.fixture
def plan(
    make_job: Callable[..., JobSpec],
    local_facts: TargetFacts,
    on_local: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Plan:
    """Plans a job of ``train.py`` in the current folder; ``facts`` are what differs from LOCAL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_DATA", "here")
    Path("train.py").write_text("first = environ['MY_DATA']")

    def planned(
        facts: Mapping[str, Any] = NOTHING,
        there: NodesThere | None = None,
        traits: Traits = LocalTarget.traits,
        options: Mapping[str, Any] = NOTHING,
        **keys: Any,
    ) -> PlannedRun:
        found = replace(local_facts, run_root=f"{tmp_path}/runs", cwd=str(tmp_path), **facts)
        on_local(check=lambda *_: None, facts=lambda *_: found, traits=traits)
        target = LocalTarget(Path("runs"))
        target.there = there
        job = make_job(**{"command": ["train.py"], **keys})
        return plan_job(job, Path("runs"), **{"opened": target, **options})

    return planned


def test_a_run_keeps_its_job_and_its_code_and_starts_again_from_a_copy(plan):
    first = plan(options={"extra_args": ("--x",), "detached": True})
    run = first.create()
    assert (first.plan.nodes[0].command, first.plan.detached) == (("train.py", "--x"), True)
    assert first.choice.target.notes == []
    text, path = read_job_of(run)
    assert json.loads(text) == {"name": "digits", "command": ["train.py", "--x"]}
    assert path == str(run.path / "job.json")
    Path("train.py").write_text("second")
    again = plan(options={"again": run, "run_id": "digits-2"})
    where = f"runs/digits-2/code, a copy of the code of {run.run_id}"
    left = "what git ignores or .launcherignore names is not in it"
    assert again.choice.target.notes == [f"starts in {where}: {left}"]
    copy = again.create().path / "code"
    assert (copy / "train.py").read_text().startswith("first")
    assert again.plan.nodes[0].workdir == str(copy)
    # Where the code is sent, the earlier one is: no copy of it is made here.
    sent = plan(traits=Traits(sends_code=True), options={"again": run})
    kept = read_kept_code(run.path)
    assert (sent.choice.target.code, sent.copy) == (kept, None)
    assert "starts in" not in str(sent.choice.target.notes)
    assert not (sent.create().path / "code").exists()


def test_a_run_that_keeps_no_code_or_job_is_not_repeated(plan):
    run = plan(code="image").create()
    assert plan(code="image", options={"again": run}).read_code is None, "its image holds the code"
    with pytest.raises(InputError, match=f"{run.run_id} keeps no code in "):
        plan(options={"again": run})
    other = plan().create()
    (other.path / "code.tar.gz").unlink()
    with pytest.raises(InputError, match="keeps no code in "):
        plan(code="image", options={"again": other})
    (run.path / "job.json").unlink()
    with pytest.raises(InputError, match=f"{run.run_id} keeps no job: .*/job.json: No such file"):
        read_job_of(run)


def test_a_run_that_cannot_be_made_leaves_nothing(plan, on_local):
    def refuse(*_: object) -> None:
        raise InputError("HF_TOKEN is not set", "export it")

    run = plan().create()
    for options in ({}, {"again": run}):
        planned = plan(options=options)
        on_local(check=refuse)
        with pytest.raises(InputError, match="HF_TOKEN"):
            planned.create()
        assert sorted(path.name for path in Path("runs").iterdir()) == [run.run_id, "latest"]


def test_code_that_a_folder_cannot_hold_is_no_reason_not_to_start(plan, monkeypatch, tmp_path):
    planned = plan()
    monkeypatch.setattr(files, "MAX_BYTES", 3)
    run = planned.create()
    what = f"the code in {tmp_path} is 0 MiB, more than 0 MiB; the largest files: 0 MiB train.py"
    cannot = "the run folder will not hold the code, and --again cannot repeat this run"
    assert planned.choice.target.notes == [f"{cannot}: {what}; fix: {files.FIX}"]
    assert not (run.path / "code.tar.gz").exists()


@pytest.mark.parametrize(
    ("traits", "options", "run_id"),
    [
        (Traits(plans_offline=True), {"preview": True}, "digits"),
        (Traits(plans_offline=True), {}, "digits-"),
        (Traits(), {"preview": True}, "digits-"),
        (Traits(), {"run_id": "digits-0a"}, "digits-0a"),
    ],
)
def test_a_preview_has_the_jobs_name_where_no_target_is_asked(traits, options, run_id, plan):
    planned = plan(traits=traits, options=options)
    assert planned.plan.run_id.startswith(run_id)
    assert (planned.plan.run_id == "digits") == (planned.choice.why == "") == (run_id == "digits")


def test_nodes_that_are_there_and_images_that_hold_no_code_decide(plan, on_local):
    there = NodesThere(count=3, says="a hold", fix="more")
    assert len(plan(there=there).plan.nodes) == 3
    assert len(plan(options={"opened": None}).plan.nodes) == 1
    assert plan(code="image").read_code is None
    on_local(has_image=lambda *_: False)
    assert plan(code="image").read_code is not None


MINORITY = "no folder for checkpoints is shared"
SHELL = "the script asks for MY_DATA"
DISKS = "CHECKPOINT_DIR is each node's own disk"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, []),
        ({"traits": Traits()}, [SHELL]),
        ({"traits": Traits(), "env": {"MY_DATA": "a"}}, []),
        ({"traits": Traits(), "secrets": ["MY_DATA"]}, []),
        ({"nnodes": 2, "facts": OWN_DISKS}, [DISKS]),
        ({"nnodes": "1:3", "facts": OWN_DISKS, "checkpoint_dir": "ephemeral"}, [MINORITY]),
        ({"nnodes": 2, "facts": OWN_DISKS, "traits": Traits(own_checkpoints="a")}, [SHELL]),
        ({"nnodes": 1, "facts": OWN_DISKS}, []),
        (
            {
                "nnodes": 2,
                "nproc_per_node": 8,
                "facts": {"machine": MachineFacts(cpu_count=1, most_processes=99)},
            },
            ["16 workers share 1 CPU core:"],
        ),
    ],
    ids=str,
)
def test_what_may_surprise_is_told_before_the_start(given, told, plan):
    notes = plan(**given).choice.target.notes
    assert [note[: len(line)] for note, line in zip(notes, told, strict=True)] == told


def test_a_run_is_resumed_from_the_checkpoints_of_another(make_run, make_job, tmp_path, on_local):
    run, earlier = make_run()
    job, run_id = resume_job(make_job(), tmp_path, "latest", LocalTarget(tmp_path))
    assert (job.checkpoint_dir, run_id) == (earlier.checkpoint_dir, run.run_id)
    assert resume_job(make_job(), tmp_path, "latest", None) == (job, run_id)
    on_local(traits=Traits(own_checkpoints="kubernetes.checkpoints"))
    with pytest.raises(InputError, match="--resume a: on Local a job goes on from its own check"):
        resume_job(make_job(), tmp_path, "a", LocalTarget(tmp_path))


def test_a_run_that_goes_on_shares_its_checkpoints_with_no_other(plan, tmp_path):
    saves = {"checkpoint_dir": str(tmp_path / "saved")}
    living = plan(**saves).create()
    with pytest.raises(InputError, match=f"{living.run_id} goes on, and saves its checkpoints in"):
        plan(**saves)
    apart = Traits(sends_code=True)  # this machine's folders are not those of the nodes
    queues = Traits(goes_on_alone=True)  # it may be meant to follow
    others = {"engine": "torchrun"}, {"traits": apart}, {"traits": queues}
    for given in ({}, *({**saves, **other} for other in others)):
        plan(**given)
    plan(**saves, options={"preview": True})
    living.write_outcome(Outcome(cause=Cause.COMPLETED))
    plan(**saves)


@pytest.mark.parametrize(
    ("held", "is_here", "is_told"),
    [
        ([], True, True),
        ([], False, True),
        (["generations"], False, True),
        (["generations", "step-7"], True, False),
        (None, True, True),
        (None, False, False),  # it may be on the nodes
    ],
)
def test_a_folder_without_checkpoints_is_told(held, is_here, is_told, make_job, tmp_path):
    folder = tmp_path / "checkpoints"
    for name in held or ():
        (folder / name).mkdir(parents=True)
    if held == []:
        folder.mkdir()
    job = make_job(checkpoint_dir=str(folder))
    what = f"digits-1 has no checkpoint in {folder}"
    told = [f"nothing to resume: {what}; the training starts from the beginning"]
    assert note_no_checkpoint(job, "digits-1", is_here=is_here) == (told if is_told else [])
