"""Walks of world sizes with a resume at each: the weights are those of an undisturbed run."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.claims.test_resize_walks import PROGRAM, STEPS, WORKLOADS, Walk, digests, walks


def test_worker_processes_and_a_resize_leave_the_bits_alone(processes, finish):
    walk: list[Walk] = [[(1, 2), (2, 4)]]
    (helped,) = digests(processes, finish, walk, *WORKLOADS[0], "--num_workers=1")
    (alone,) = digests(processes, finish, [[(1, 4)]], *WORKLOADS[0])
    assert helped == alone


def test_with_fast_a_resize_shows_in_the_bits(processes, finish):
    # Or the tests above could not fail: equal by nature, whatever the reduction does.
    both: list[Walk] = [[(1, 4)], [(3, 2), (2, 4)]]
    undisturbed, resized = digests(processes, finish, both, *WORKLOADS[0], "--reduction=fast")
    assert undisturbed != resized


def test_a_scaled_training_goes_on_in_a_larger_world_and_takes_larger_batches(processes, finish):
    options = ("--workload=charlm", "--reduction=scaled", "--global_batch_size=16", "--epochs=2")
    walk: list[Walk] = [[(1, 2), (3, 5)]]
    code, _, err = finish(processes.fork(PROGRAM, json.dumps(walk), json.dumps(options)))
    assert code == 0, err
    assert "trained 2 steps" in err
    assert "trained 5 steps" in err


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
