"""Walks of world sizes with a resume at each: the weights are those of an undisturbed run."""

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

PROGRAM = str(Path(__file__).parents[1] / "programs" / "resize_walks.py")
STEPS = 8
EXACT = (
    *("--reduction=exact", "--virtual_shards=4", "--epochs=2"),
    *("--dropout=0.1", "--max_grad_norm=0.5", "--warmup_steps=3"),
)
"""Four shards: a rank of a world of one or two accumulates gradients, one of four does not."""
WORKLOADS = [
    # Batches of 600 cross the end of an epoch of 1,440 twice on the way.
    ("--workload=digits", "--shift_images=true", "--global_batch_size=600", "--epochs=4"),
    ("--workload=charlm", "--global_batch_size=16"),
]
Walk = list[tuple[int, int]]


@st.composite
def walks(draw) -> Walk:
    """World sizes, each up to a later step, the last up to the end."""
    stops = draw(st.sets(st.integers(1, STEPS - 1), min_size=1, max_size=4))
    return [(draw(st.integers(1, 4)), stop) for stop in sorted(stops | {STEPS})]


def digests(processes, finish, walks: list[Walk], *options: str) -> list[str]:
    """The weights' digest at the end of each walk."""
    code, out, err = finish(
        processes.fork(PROGRAM, json.dumps(walks), json.dumps([*EXACT, *options]))
    )
    assert code == 0, err
    return out.split()


@pytest.mark.parametrize("workload", WORKLOADS, ids=["digits", "charlm"])
def test_a_training_that_shrank_and_grew_ends_with_the_undisturbed_bits(
    processes, finish, workload
):
    both: list[Walk] = [[(2, STEPS)], [(3, 2), (1, 5), (4, STEPS)]]
    assert len(set(digests(processes, finish, both, *workload))) == 1
