"""Stacks of pods, by exec into them."""

from launcher.api.stacks import take_stacks
from launcher.contract.clock import SystemClock
from launcher.follow.look import NO_ANSWER
from tests.launcher.looks import answering
from tests.launcher.targets.kubernetes.test_exec import start_pods


def test_a_pod_whose_agent_says_nothing_is_named(server, tmp_path):
    run, inside = start_pods(server, tmp_path)
    with answering(inside[0], 0):
        told = take_stacks(run, SystemClock())
    assert sorted(told.stacks) == [0]
    assert told.silent == {1: NO_ANSWER}
