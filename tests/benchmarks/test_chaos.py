"""Failures in real containers, one after the other, and the weights of the undisturbed run."""

import random

from benchmarks.chaos import FAULTS, plan_faults


def test_every_kind_of_failure_comes_before_one_comes_again():
    kinds = plan_faults(2 * len(FAULTS), random.Random(7))
    assert set(kinds[: len(FAULTS)]) == set(kinds[len(FAULTS) :]) == set(FAULTS)


def test_a_seed_plans_the_same_failures_again():
    assert plan_faults(9, random.Random(3)) == plan_faults(9, random.Random(3))
