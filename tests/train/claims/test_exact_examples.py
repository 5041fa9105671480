"""The exact parts in other people's loops, as examples/ shows it."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("exact_*.py"))


def digest_of(processes, finish, example: str, workers: int) -> str:
    """The weights' digest that rank 0 prints."""
    code, out, err = finish(processes.fork(str(FOLDER / example), ranks=workers))
    assert code == 0, err
    word, digest, world = out.split()
    assert (word, world) == ("weights", f"world_size={workers}")
    return digest


@pytest.mark.parametrize(
    "runs",
    [
        [("exact_ddp.py", 3), ("exact_fabric.py", 1)],
        [(example, workers) for example in EXAMPLES for workers in (1, 2, 3, 4)],
    ],
)
def test_both_kinds_of_loop_end_with_the_same_weights_in_any_world(processes, finish, runs):
    # The same model and data: nothing of Fabric or of loader processes is in the result.
    assert len({digest_of(processes, finish, *run) for run in runs}) == 1


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_an_example_adds_to_a_loop_is_about_ten_lines(example):
    marked = [line for line in (FOLDER / example).read_text().splitlines() if "  # exact" in line]
    assert [line for line in marked if "import" in line] == ["from fabric_train import (  # exact"]
    assert len(marked) <= 11
