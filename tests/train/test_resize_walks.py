"""Walks of world sizes with a resume at each: the weights are those of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PROGRAM = str(Path(__file__).parent / "programs" / "resize_walks.py")
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


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(WORKLOADS[0], id="digits", marks=pytest.mark.slow),  # below, in every CI
        pytest.param(WORKLOADS[1], id="charlm"),
    ],
)
def test_a_training_that_shrank_and_grew_ends_with_the_undisturbed_bits(
    processes, finish, workload
):
    undisturbed, resized = digests(
        processes, finish, [[(2, STEPS)], [(3, 2), (1, 5), (4, STEPS)]], *workload
    )
    assert undisturbed == resized


@pytest.mark.slow
def test_worker_processes_and_a_resize_leave_the_bits_alone(processes, finish):
    walk: list[Walk] = [[(1, 2), (2, 4)]]
    (helped,) = digests(processes, finish, walk, *WORKLOADS[0], "--num_workers=1")
    (alone,) = digests(processes, finish, [[(1, 4)]], *WORKLOADS[0])
    assert helped == alone


@pytest.mark.slow
def test_with_fast_a_resize_shows_in_the_bits(processes, finish):
    # Or the tests above could not fail: equal by nature, whatever the reduction does.
    both: list[Walk] = [[(1, 4)], [(3, 2), (2, 4)]]
    undisturbed, resized = digests(processes, finish, both, *WORKLOADS[0], "--reduction=fast")
    assert undisturbed != resized


@pytest.mark.slow
def test_a_scaled_training_goes_on_in_a_larger_world_and_takes_larger_batches(processes, finish):
    options = ("--workload=charlm", "--reduction=scaled", "--global_batch_size=16", "--epochs=2")
    walk: list[Walk] = [[(1, 2), (3, 5)]]
    code, _, err = finish(processes.fork(PROGRAM, json.dumps(walk), json.dumps(options)))
    assert code == 0, err
    assert "trained 2 steps" in err
    assert "trained 5 steps" in err


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=["digits", "charlm"])
@given(drawn=st.lists(walks(), min_size=3, max_size=3))
@settings(
    max_examples=2,
    deadline=None,
    # Each example has folders of its own, in the program.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_walk_ends_with_the_undisturbed_bits(processes, finish, workload, drawn):
    assert len(set(digests(processes, finish, [[(1, STEPS)], *drawn], *workload))) == 1
