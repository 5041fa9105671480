"""Every strategy in whole trainings: equal to one process, saved by one and loaded by another, and
killed in the middle of a step. ``strategy_rows`` has the table.

A strategy's first row trains in each world size, its other rows in their first and largest. All
write the same kind of checkpoint, so each row loads what four rows saved: the first row, the row
before it, its strategy's first row and the row itself. And the first row loads what each saved.
"""

import json
import shutil
import time
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from fabric_train.strategies import STRATEGIES, make_strategy
from tests.fabric_train.forked import ForkedError
from tests.train.strategy_rows import ELSEWHERE, ONE, ROWS, STEPS, Ending, Row, run

HALF = STEPS // 2


class Trainings:
    """Undisturbed trainings and checkpoints, each made once for all tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._endings: dict[Path, Ending] = {}

    def ending(
        self, row: Row, world: int, steps: int = STEPS, options: tuple[str, ...] = ()
    ) -> Ending:
        path = self._path(f"{row.id}-one" if row is ONE else row.id, world, steps, *options)
        if path not in self._endings:
            self._endings[path] = run(row, world, path, steps=steps, options=options)
        return self._endings[path]

    def copy_checkpoint(self, row: Row, world: int, steps: int, to: Path) -> Ending:
        ending = self.ending(row, world, steps)
        shutil.copytree(self._path(row.id, world, steps), to, symlinks=True)
        return ending

    def _path(self, *words: object) -> Path:
        return self._folder / "-".join(map(str, words)).replace("/", "-")


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("trainings"))


def named(table: list[tuple[object, ...]]) -> list[ParameterSet]:
    return [
        pytest.param(*given, id="-".join(getattr(g, "id", str(g)) for g in given))
        for given in table
    ]


def check(losses: dict[int, float], expected: dict[int, float], tolerance: float) -> None:
    assert losses == pytest.approx({step: expected[step] for step in losses}, abs=tolerance, rel=0)


def test_each_strategy_has_a_row_or_a_place_elsewhere():
    assert {row.name for row in ROWS} | set(ELSEWHERE) == set(STRATEGIES)


LOSSES = [
    (row, world)
    for row in ROWS
    for world in (row.worlds if row.is_first else sorted({row.world, max(row.worlds)}))
    if row.like_one is not None
]
QUICK_LOSSES = [(row, world) for row, world in LOSSES if row.fast and world == 2]


@pytest.mark.parametrize(("row", "world"), named(QUICK_LOSSES))
def test_losses_and_scores_are_those_of_one_process(trainings, row, world):
    alone, ending = trainings.ending(ONE, 1), trainings.ending(row, world)
    check(ending.losses, alone.losses, row.like_one)
    for score in ("test_loss", "train_loss", "test_bits_per_character"):
        assert ending.metrics[score] == pytest.approx(alone.metrics[score], abs=10 * row.like_one)
    for count in ("test_samples", "steps", "epochs"):
        assert ending.metrics[count] == alone.metrics[count]


def savers_for(loader: Row) -> list[Row]:
    """The rows whose checkpoints this one loads, each once."""
    place = ROWS.index(loader)
    own = next(row for row in ROWS if row.name == loader.name)
    near = {0, place, place - 1, ROWS.index(own)} if place else range(len(ROWS))
    return [ROWS[index] for index in sorted(near)]


PAIRS = [(saver, loader) for loader in ROWS for saver in savers_for(loader)]
QUICK_PAIRS = [
    (saver, loader) for saver, loader in PAIRS if saver is ROWS[0] and loader.id == "fsdp"
]
QUICK_ROWS = [(row,) for row in ROWS if row.id == "fsdp"]


@pytest.mark.parametrize(("saver", "loader"), named(QUICK_PAIRS))
def test_what_one_saves_another_loads_in_another_world_or_says_why_not(
    trainings, tmp_path, saver, loader
):
    folder, world = tmp_path / "checkpoints", loader.another_world(saver.world)
    saved = trainings.copy_checkpoint(saver, saver.world, HALF, folder)
    if is_bound(saver, loader, world):
        with pytest.raises(ForkedError, match=r"cannot go on with another number of processes"):
            run(loader, world, folder)
        return
    ending = run(loader, world, folder)
    assert ending.metrics["resumed_from_step"] == HALF
    assert ending.loaded == saved.metrics["weights_sha256"]
    assert set(ending.losses) == set(range(HALF + 1, STEPS + 1))
    if saver.like_one is not None and loader.like_one is not None:
        # The moments were loaded too.
        check(ending.losses, trainings.ending(ONE, 1).losses, saver.like_one + loader.like_one)


def is_bound(saver: Row, loader: Row, world: int) -> bool:
    """Whether the checkpoint is of the same strategy, which cannot follow a resize."""
    if saver.name != loader.name or world == saver.world:
        return False
    return not make_strategy(loader.name).can_resize


@pytest.mark.parametrize("row", named(QUICK_ROWS))
def test_a_worker_killed_in_the_middle_of_a_step_leaves_no_trace_in_the_losses(
    trainings, tmp_path, row
):
    often = ("--checkpoint_every_steps=2",)
    undisturbed = trainings.ending(row, row.world, options=often if row.saves_show else ())
    with pytest.raises(ForkedError, match=f"rank {row.world - 1} died: exit code -9"):
        run(row, row.world, tmp_path, kill_in=5, options=often)
    ending = run(row, row.world, tmp_path, options=often)
    # The save of step 4 may have been in flight; it began when that of step 2 had ended.
    assert ending.metrics["resumed_from_step"] in (2, 4)
    if row.like_undisturbed is None:
        return
    check(ending.losses, undisturbed.losses, row.like_undisturbed)
    if not row.like_undisturbed:
        assert ending.metrics["weights_sha256"] == undisturbed.metrics["weights_sha256"]


@pytest.mark.parametrize("row", named(QUICK_ROWS))
def test_a_stop_commits_first_and_the_next_start_goes_on_from_there(trainings, tmp_path, row):
    undisturbed = trainings.ending(row, row.world)
    folder, node_dir = tmp_path / "checkpoints", tmp_path / "node"
    node_dir.mkdir()
    now = time.time()
    request = {"reason": "preempted", "at": now, "deadline": now + 1}
    (node_dir / "stop-request").write_text(json.dumps(request))
    with pytest.raises(ForkedError, match="PreemptedError: stopped on request, after a commit"):
        run(row, row.world, folder, node_dir=node_dir)
    step = json.loads((node_dir / "stop-ack").read_text())["step"]
    (node_dir / "stop-request").unlink()
    ending = run(row, row.world, folder)
    assert 0 < ending.metrics["resumed_from_step"] == step < STEPS
    if row.like_undisturbed is not None and not row.saves_show:
        check(ending.losses, undisturbed.losses, row.like_undisturbed)
