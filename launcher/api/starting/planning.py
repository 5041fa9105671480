"""From a job to the plan of a new run: where it runs, the code it takes, whose checkpoints it
resumes, notes before the start.

What only a run needs is imported where it is used: a rendering takes as long as its imports.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.api.choose_target import Choice, choose_target
from launcher.code.place import CodePlace, find_code
from launcher.contract import protocol, typed
from launcher.contract.errors import InputError
from launcher.follow.target import Target
from launcher.job.spec import JobSpec
from launcher.job.values import IN_IMAGE
from launcher.plan.agent_task import TRAINING, Purpose
from launcher.plan.devices import describe_crowd
from launcher.plan.launch_plan import LaunchPlan, new_run_id, plan_run
from launcher.plan.nnodes import decide_nnodes
from launcher.runs.folder import RunFolder, find_run, has_checkpoints, list_runs
from launcher.targets.preflight import (
    check_own_disks,
    describe_left_behind,
    describe_minority,
    read_script,
)

if TYPE_CHECKING:
    from launcher.code.record import PackedCode


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is planned and not yet started. ``read_code`` reads the code that the job takes
    along, if any; ``copy`` is the folder to unpack it into; None where it is used in place."""

    choice: Choice
    job: JobSpec
    plan: LaunchPlan
    read_code: Callable[[], PackedCode] | None
    copy: Path | None = None

    def create(self) -> RunFolder:
        """Makes the run's folder, with the job and its code, or nothing. Raises ``InputError``."""
        from launcher.code.record import write_code
        from launcher.follow.loop import create_run

        target = self.choice.target
        code = target.code or self._read_code(target)

        def fill(folder: Path) -> None:
            (folder / protocol.JOB_FILE).write_text(text_of(self.job))
            if code is not None:
                write_code(folder, code)

        try:
            if self.copy and code:
                from launcher.code.archive import unpack

                unpack(code.data, self.copy)
            return create_run(self.plan, target, fill)
        except BaseException:
            if self.copy:
                shutil.rmtree(self.copy.parent, ignore_errors=True)
            raise

    def _read_code(self, target: Target) -> PackedCode | None:
        """The code; None if there is none, or if the run's folder cannot hold it."""
        try:
            return self.read_code() if self.read_code else None
        except InputError as error:
            first, *largest = (" ".join(line.split()) for line in error.what.splitlines())
            why = f"{first} {', '.join(largest)}".rstrip()
            cannot = "the run folder will not hold the code, and --again cannot repeat this run"
            target.notes.append(f"{cannot}: {why}; fix: {error.hint}")
            return None


def plan_job(
    job: JobSpec,
    run_root: Path,
    *,
    opened: Target | None = None,
    again: RunFolder | None = None,
    extra_args: tuple[str, ...] = (),
    detached: bool = False,
    preview: bool = False,
    run_id: str = "",
    purpose: Purpose = TRAINING,
) -> PlannedRun:
    """Decides where a job runs and plans a new run there. Raises ``InputError``, ``TargetError``.

    ``opened`` is the target, if one is named. ``again`` is an earlier run whose code is taken.
    ``preview``: if the target can plan offline, it is not asked, and the run's id is the job's
    name. ``run_id`` is the id of a run that has one already.
    """
    if opened and opened.there:
        job = decide_nnodes(job, opened.there)
    run_id = run_id or new_run_id(job.name)
    copy = run_root.absolute() / run_id / protocol.CODE_DIR if again else None
    if job.code == IN_IMAGE and opened and not opened.has_image(job):
        job = job.model_copy(update={"code": None})
    place = find_code(job.command, job.code, job.workdir, Path.cwd())
    read_code: Callable[[], PackedCode] | None = None
    if place:
        read_code = functools.partial(_read_place, place, run_root)
    if again and copy:
        kept = _read_kept(again, job, copy, is_needed=place is not None)
        place, read_code = (kept[0], lambda: kept[1]) if kept else (None, None)
    if opened and opened.traits.sends_code and read_code:
        opened.code = read_code()
        opened.notes += opened.code.notes
    if opened and preview and opened.traits.plans_offline:
        choice, run_id = Choice(target=opened, facts=opened.facts(job), why=""), job.name
    else:
        choice = choose_target(job, run_root, opened)
    plan = plan_run(
        job,
        choice.facts,
        run_id=run_id,
        extra_args=extra_args,
        detached=detached,
        place=place,
        code_hash=choice.target.code.hash if choice.target.code else "",
        purpose=purpose,
    )
    if job.checkpoint_dir and not preview:
        _refuse_shared(plan, choice.target, run_root)
    choice.target.notes += _describe_surprises(choice, job, plan, place)
    ran = job.model_copy(update={"command": (*job.command, *extra_args)})
    in_place = choice.target.traits.sends_code or not read_code
    if again and not in_place:
        where = f"{run_root / run_id / protocol.CODE_DIR}, a copy of the code of {again.run_id}"
        left = "what git ignores or .launcherignore names is not in it"
        choice.target.notes.append(f"starts in {where}: {left}")
    return PlannedRun(
        choice=choice, job=ran, plan=plan, read_code=read_code, copy=None if in_place else copy
    )


def _refuse_shared(plan: LaunchPlan, target: Target, run_root: Path) -> None:
    """Raises ``InputError`` if a run that goes on saves into the plan's folder.

    Only the newest generation of nodes may save there: each run would start the other's anew.
    """
    # They import what manages runs, which a render does not need.
    from launcher.api.listing import GOES_ON, read_state

    if plan.agent is None or target.traits.goes_on_alone:
        # A run that waits in a queue may be meant to follow the one that goes on.
        return
    hosts = {machine.name for machine in plan.machines}
    for run in list_runs(run_root):
        if run.run_id == plan.run_id or run.is_elsewhere or run.read_outcome() is not None:
            continue
        with contextlib.suppress(InputError):  # a damaged plan
            other = run.read_plan()
            is_same = (other.target, other.checkpoint_dir) == (plan.target, plan.checkpoint_dir)
            is_shared = not target.traits.sends_code or hosts & {m.name for m in other.machines}
            if is_same and is_shared and not other.is_hold and read_state(run, other)[0] in GOES_ON:
                break
    else:
        return
    raise InputError(
        f"{run.run_id} goes on, and saves its checkpoints in {plan.checkpoint_dir} too",
        f"{typed.command('stop', run.run_id)}, wait for its end, or --set checkpoint_dir=DIR",
    )


def _describe_surprises(
    choice: Choice, job: JobSpec, plan: LaunchPlan, place: CodePlace | None
) -> list[str]:
    """Lines on the code that is taken, crowded cores, the shell's variables, nodes' own disks.

    Raises ``KeyInputError`` for a job that these disks would break.
    """
    target, node = choice.target, plan.nodes[0]
    workers = plan.max_nodes * plan.nproc_per_node
    lines = [
        place.note if place and plan.code else None,
        describe_crowd(workers, choice.facts.machine),
    ]
    source = read_script(job.command, Path(job.workdir or ""))
    if not target.traits.takes_shell:
        has = {*(name for name, _ in node.env), *node.secrets}
        lines.append(describe_left_behind(source, os.environ, has))
    # Where all runs of a job share its checkpoints, the target itself judges what holds them.
    if not (choice.facts.shares_storage or target.traits.own_checkpoints or node.max_nodes == 1):
        lines += [check_own_disks(job, source), describe_minority(node)]
    return [line for line in lines if line]


def text_of(job: JobSpec) -> str:
    """What a run's folder keeps of its job."""
    return f"{job.model_dump_json(indent=2, exclude_defaults=True)}\n"


def _read_kept(
    again: RunFolder, job: JobSpec, copy: Path, *, is_needed: bool
) -> tuple[CodePlace, PackedCode] | None:
    from launcher.code.record import read_kept_code, read_record

    kept = read_kept_code(again.path)
    if kept is None and not is_needed and read_record(again.path) is None:
        return None  # its image held the code
    if kept is None:
        raise InputError(
            f"{again.run_id} keeps no code in {again.path}",
            "run the script itself: that takes the code as it is now",
        )
    record = kept.record
    command = (*record.start, *job.command[len(record.start) :])
    place = CodePlace(root=copy, inner=record.inner, command=command, is_copy=True)
    return place, kept


def read_job_of(run: RunFolder) -> tuple[str, str]:
    """The job of an earlier run as the text of a job file, and that file. Raises ``InputError``."""
    path = run.path / protocol.JOB_FILE
    try:
        return path.read_text(), str(path)
    except OSError as error:
        what = f"{run.run_id} keeps no job: {path}: {error.strerror}"
        raise InputError(what, "name the script or job file") from None


def resume_job(
    job: JobSpec, run_root: Path, earlier: str, target: Target | None
) -> tuple[JobSpec, str]:
    """The job with the checkpoints of an earlier run, and that run's id. Raises ``InputError``."""
    if target and target.traits.own_checkpoints:
        what = f"on {target.name.capitalize()} a job goes on from its own checkpoints"
        raise InputError(
            f"--resume {earlier}: {what}",
            f"leave it out; {target.traits.own_checkpoints} says where they are",
        )
    run = find_run(run_root, earlier)
    checkpoint_dir = run.read_plan().checkpoint_dir
    # ``latest`` is another run by the time it is printed.
    return job.model_copy(update={"checkpoint_dir": checkpoint_dir}), run.run_id


def note_no_checkpoint(job: JobSpec, earlier: str, *, is_here: bool) -> list[str]:
    """A line that says that the ``earlier`` run left no checkpoint; none if it left one.

    ``is_here``: the nodes have this machine's folders. Else they may have one that is not here.
    """
    folder = job.checkpoint_dir or ""
    held = has_checkpoints(folder)
    if held or (held is None and not is_here):
        return []
    what = f"{earlier} has no checkpoint in {folder}"
    return [f"nothing to resume: {what}; the training starts from the beginning"]


def _read_place(place: CodePlace, run_root: Path) -> PackedCode:
    from launcher.code.record import read_code

    return read_code(place, run_root)
