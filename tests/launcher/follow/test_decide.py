"""What a run needs next, as tables of situations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from launcher.contract.reasons import NodeState, Reason
from launcher.follow.decide import (
    FALL_S,
    FINISH_S,
    Action,
    Replace,
    Restart,
    Wait,
    decide_action,
    is_lost,
)
from launcher.follow.target import NodeObservation, Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.outcome import Outcome

MakePlan = Callable[..., LaunchPlan]
RUNS, GONE = "runs", "gone"


@pytest.fixture
def make_plan(make_plan: MakePlan) -> MakePlan:
    """Plans for plain torchrun; the agent's are decided in ``test_decide_agent.py``."""
    return functools.partial(make_plan, engine="torchrun")


def observe(*nodes: int | str, out_of_memory: bool = False) -> Observation:
    """A node for each value: its exit code, RUNS or GONE."""
    states = {RUNS: NodeState.RUNNING, GONE: NodeState.MISSING}
    made = (
        NodeObservation(
            node_index=index,
            incarnation=0,
            state=states.get(value, NodeState.EXITED),
            exit_code=value if isinstance(value, int) else None,
            out_of_memory=out_of_memory and isinstance(value, int),
        )
        for index, value in enumerate(nodes)
    )
    return Observation(run_id="r", nodes=tuple(made))


def decide(
    plan: LaunchPlan,
    *nodes: int | str,
    replaced: dict[int, int] | None = None,
    since: float = 1e9,
    working: frozenset[int] = frozenset(),
) -> Action:
    return decide_action(
        plan,
        observe(*nodes),
        replaced=replaced or {},
        since_first_exit_s=since,
        working=working,
    )


def test_a_run_is_complete_when_all_nodes_ended_well(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes=2)
    assert decide(plan, 0, RUNS) == Wait()
    assert decide(plan, 0, 0) == Outcome(reason=Reason.COMPLETED)


def test_an_elastic_node_that_joins_too_late_is_not_waited_for_for_ever(
    make_plan: MakePlan,
) -> None:
    plan = make_plan(nnodes="1:2")
    assert decide(plan, 0, RUNS, since=FINISH_S - 1) == Wait()
    assert decide(plan, 0, RUNS, since=FINISH_S + 1) == Outcome(reason=Reason.COMPLETED)


def test_a_node_that_works_when_another_has_finished_gets_all_the_time_it_needs(
    make_plan: MakePlan,
) -> None:
    plan = make_plan(nnodes="1:2")
    assert decide(plan, 0, RUNS, since=100 * FINISH_S, working=frozenset({1})) == Wait()


@pytest.mark.parametrize("ending", [1, 137, GONE])
def test_a_static_group_is_started_again_as_a_whole(make_plan: MakePlan, ending: int | str) -> None:
    plan = make_plan(nnodes=2, max_restarts=1)
    assert isinstance(decide(plan, RUNS, ending), Restart)
    assert isinstance(decide(replace(plan, attempt=1), RUNS, ending), Outcome)


def test_nodes_that_fall_with_a_failed_one_get_time_to_say_so(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes=2)
    assert decide(plan, 1, RUNS, since=FALL_S - 1) == Wait()
    assert decide(plan, 1, 1, since=0) == Outcome(reason=Reason.TRAINING_FAILED)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [((1, 1), Reason.TRAINING_FAILED), ((1, 137), Reason.NODE_LOST), ((GONE, 1), Reason.NODE_LOST)],
)
def test_a_lost_node_is_told_from_a_failed_script(
    make_plan: MakePlan, nodes: tuple[int | str, ...], reason: Reason
) -> None:
    action = decide(make_plan(nnodes=2), *nodes)
    assert isinstance(action, Outcome)
    assert action.reason is reason


def test_used_up_restarts_are_named_as_such(make_plan: MakePlan) -> None:
    plan = replace(make_plan(nnodes=2, max_restarts=2), attempt=2)
    assert decide(plan, 1, 1) == Outcome(reason=Reason.RESTARTS_EXHAUSTED)


def test_torchruns_own_restarts_are_not_made_a_second_time(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes=1, max_restarts=3)
    assert decide(plan, 1) == Outcome(reason=Reason.RESTARTS_EXHAUSTED)


def test_a_lost_elastic_node_is_replaced_at_once_and_the_others_go_on(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:3", max_restarts=1)
    action = decide(plan, RUNS, 137, RUNS, since=0)
    assert isinstance(action, Replace)
    assert action.node_index == 1


def test_a_node_index_is_replaced_as_often_as_max_restarts_allows(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:3", max_restarts=1)
    assert decide(plan, RUNS, 137, RUNS, replaced={1: 1}) == Wait()
    assert isinstance(decide(plan, RUNS, RUNS, 137, replaced={1: 1}), Replace)


def test_fewer_nodes_than_min_cannot_go_on(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="2:3", max_restarts=1)
    action = decide(plan, RUNS, 137, GONE, replaced={1: 1, 2: 1})
    assert isinstance(action, Restart)


def test_losing_the_host_of_the_store_starts_all_again(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:3", max_restarts=1)
    assert isinstance(decide(plan, 137, RUNS, RUNS), Restart)


def test_nobody_is_replaced_once_a_node_has_finished(make_plan: MakePlan) -> None:
    plan = make_plan(nnodes="1:3", max_restarts=3)
    assert not isinstance(decide(plan, 0, 137, 0), Replace)


def test_running_out_of_memory_is_named(make_plan: MakePlan) -> None:
    seen = observe(137, out_of_memory=True)
    action = decide_action(make_plan(), seen, replaced={}, since_first_exit_s=1e9)
    assert isinstance(action, Outcome)
    assert action.reason is Reason.OUT_OF_MEMORY
    assert "out of memory" in action.detail


@pytest.mark.parametrize(
    ("ending", "lost"), [(0, False), (1, False), (127, False), (137, True), (143, True)]
)
def test_only_a_signal_or_silence_counts_as_a_lost_node(ending: int, lost: bool) -> None:
    assert is_lost(observe(ending).nodes[0]) == lost
