"""Decides which runs that have ended ``clean`` removes, here and on their machines; one whose
checkpoints others use stays."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from launcher.api.choose_target import target_of
from launcher.api.listing import list_runs
from launcher.contract import protocol
from launcher.contract.causes import OVER
from launcher.contract.errors import InputError
from launcher.follow.target import ListedRun
from launcher.runs.folder import RunFolder
from launcher.targets.machine import read_size
from launcher.targets.room import Left


def find_old(
    run_root: Path,
    left: Iterable[Left],
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    states: Collection[str] = (),
) -> list[Left]:
    """The runs of a folder of which all that is given is true, and what is ``left`` elsewhere.

    A run stays if a run that stays has gone on from its checkpoints. What machines hold goes with
    its run. Where a launcher could not end the run there, it is brought here and removed there even
    if the run stays. Records outcomes of runs that ended unseen.
    """
    rows = list_runs(run_root, everything=True)
    chosen: list[Left] = []
    if older_than_s is not None or keep is not None or states:
        old = map(_of_folder, _ended(rows[: max(0, len(rows) - (keep or 0))], states or OVER))
        chosen = [run for run in old if run.age_s >= (older_than_s or 0)]
    gone = {run.run_id for run in chosen}
    used = {part for row in rows if row.run_id not in gone for part in _checkpoints(row)}
    chosen = [run for run in chosen if run.run_id not in used]
    gone -= used
    state_of = {row.run_id: row.state for row in rows}
    for run in left:
        state = state_of.get(run.run_id)
        # Another machine may have started a run that has no folder here.
        is_old = older_than_s is not None and run.age_s >= older_than_s
        if run.run_id in gone or (state is None and is_old and run.run_id not in used):
            chosen.insert(0, run._replace(state=state or "unknown"))
        elif state in OVER and run.is_cut:
            plan = RunFolder(run_root / run.run_id).read_plan()
            end = functools.partial(target_of(plan, run_root).stop, plan.run_id, 0)
            chosen.insert(0, run._replace(state=state, remove=end))
    return chosen


def _ended(rows: Iterable[ListedRun], states: Collection[str]) -> Iterator[ListedRun]:
    for row in rows:
        if row.state in states and RunFolder(Path(row.folder)).launcher_pid() is None:
            yield row


def _checkpoints(row: ListedRun) -> set[str]:
    """The parts of the path of a run's checkpoints; a run that owns them is one of the parts."""
    try:
        plan = RunFolder(Path(row.folder)).read_plan()
    except InputError:
        return set()
    return {*PurePosixPath(plan.checkpoint_dir).parts} - {row.run_id}


def _of_folder(row: ListedRun) -> Left:
    folder = Path(row.folder)
    return Left(
        run_id=row.run_id,
        place="here",
        state=row.state,
        age_s=time.time() - (folder / protocol.OUTCOME_FILE).stat().st_mtime,
        size_bytes=read_size(folder),
        remove=functools.partial(_remove_folder, folder),
    )


def _remove_folder(folder: Path) -> None:
    """What makes the folder a run goes last, so that a run removed in part is found again."""
    last = (protocol.PLAN_FILE, protocol.OUTCOME_FILE)
    for path in (path for path in folder.iterdir() if path.name not in last):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(folder)
    latest = folder.parent / protocol.LATEST_LINK
    if not latest.exists():
        latest.unlink(missing_ok=True)
