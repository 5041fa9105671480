"""What a run needs next where agents hold it together, as tables of situations."""

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import ExitCode
from launcher.follow.endings import (
    FALL_S,
    FINISH_S,
    MAX_REPLACEMENTS,
    Action,
    Replace,
    Restart,
    Wait,
    decide_action,
)
from launcher.plan.launch_plan import LaunchPlan
from tests.launcher.follow.test_next_step import GONE, RUNS, observe

MakePlan = Callable[..., LaunchPlan]
CLOSED = int(ExitCode.RENDEZVOUS_CLOSED)
LATE = FINISH_S + 1


@pytest.fixture
def make_plan(make_plan: MakePlan) -> MakePlan:
    return functools.partial(make_plan, engine="agent")


def decide(
    plan: LaunchPlan,
    *nodes: int | str,
    since: float = LATE,
    out_of_memory: bool = False,
    working: frozenset[int] = frozenset(),
    left_early: frozenset[int] = frozenset(),
) -> Action:
    return decide_action(
        plan,
        observe(*nodes, out_of_memory=out_of_memory),
        replaced={},
        since_first_exit_s=since,
        working=working,
        left_early=left_early,
    )


def replaced_before(plan: LaunchPlan, times: int) -> LaunchPlan:
    return replace(plan, nodes=tuple(replace(node, incarnation=times) for node in plan.nodes))


def reason_of(action: Action) -> Cause | None:
    return action.cause if isinstance(action, Ending) else None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, Cause.TRAINING_FAILED),
        (2, Cause.BAD_INPUT),
        (3, Cause.TARGET_UNREACHABLE),
        (127, Cause.TRAINING_FAILED),
    ],
)
def test_a_permanent_cause_ends_the_run_once_the_others_had_time_to_fall(make_plan, code, reason):
    plan = make_plan(nnodes="1:3", max_restarts=9)
    assert decide(plan, RUNS, code, 137, since=FALL_S - 1) == Wait()
    assert decide(plan, RUNS, code, 137, since=FALL_S + 1) == Ending(cause=reason)
    assert decide(plan, CLOSED, code, CLOSED, since=0) == Ending(cause=reason)
    assert reason_of(decide(make_plan(nnodes=1, max_restarts=9), code, since=0)) is reason


@pytest.mark.parametrize("ending", [128, 137, 143, 193, 195, 196, 197, GONE])
@pytest.mark.parametrize("nnodes", [3, "1:3", "2:3"])
@pytest.mark.parametrize("index", [0, 2])
def test_a_lost_node_is_replaced_whichever_it_is_and_uses_up_no_restart(
    make_plan, nnodes, index, ending
):
    nodes = [ending if i == index else RUNS for i in range(3)]
    action = decide(make_plan(nnodes=nnodes, max_restarts=0), *nodes, since=0)
    assert isinstance(action, Replace)
    assert action.node_index == index


def test_a_node_that_is_lost_for_ever_ends_the_run_unless_the_others_are_enough(make_plan):
    fixed = replaced_before(make_plan(nnodes=2, max_restarts=1), MAX_REPLACEMENTS)
    assert decide(fixed, RUNS, 137, since=0) == Wait()
    assert reason_of(decide(fixed, RUNS, 137)) is Cause.NODE_LOST
    elastic = replaced_before(make_plan(nnodes="1:2", max_restarts=1), MAX_REPLACEMENTS)
    assert decide(elastic, RUNS, 137) == Wait()
    assert reason_of(decide(elastic, GONE, 137)) is Cause.NODE_LOST
    assert reason_of(decide(fixed, RUNS, int(ExitCode.GPU_BUSY))) is Cause.GPU_BUSY


@pytest.mark.parametrize("nodes", [(137,), (137, GONE), (143, 143), (CLOSED, 137), (CLOSED, 194)])
def test_where_nobody_is_left_all_start_again_with_a_rendezvous_of_their_own(make_plan, nodes):
    plan = make_plan(nnodes=len(nodes), max_restarts=0)
    action = decide(plan, *nodes, since=0)
    assert isinstance(action, Restart)
    assert action.left == MAX_REPLACEMENTS
    ended = decide(replaced_before(plan, MAX_REPLACEMENTS), *nodes)
    assert isinstance(ended, Ending)


@pytest.mark.parametrize("nodes", [(0, RUNS), (0, RUNS, 137), (0, 0, RUNS), (CLOSED, RUNS, 0)])
def test_a_node_that_never_ends_after_the_others_is_started_again_with_them(make_plan, nodes):
    plan = make_plan(nnodes=len(nodes), max_restarts=0)
    works = frozenset(index for index, node in enumerate(nodes) if node == RUNS)
    assert decide(plan, *nodes, since=FINISH_S - 1, working=works) == Wait()
    action = decide(plan, *nodes, working=works)
    assert isinstance(action, Restart)
    assert action.left == MAX_REPLACEMENTS
    ended = decide(replaced_before(plan, MAX_REPLACEMENTS), *nodes)
    assert reason_of(ended) is Cause.NODE_LOST


@pytest.mark.parametrize(("nnodes", "nodes"), [("1:3", (0, 0, RUNS)), ("2:3", (0, 0, RUNS))])
def test_enough_finished_nodes_are_a_complete_run_whoever_never_ends(make_plan, nnodes, nodes):
    plan = make_plan(nnodes=nnodes, max_restarts=0)
    assert decide(plan, *nodes, since=FINISH_S - 1) == Wait()
    assert decide(plan, *nodes) == Ending(cause=Cause.COMPLETED)


@pytest.mark.parametrize("nnodes", [2, "1:2"])
def test_who_works_on_after_a_finished_node_was_stopped_gets_all_the_time_it_needs(
    make_plan, nnodes
):
    plan = make_plan(nnodes=nnodes, max_restarts=0)
    left, works = frozenset({0}), frozenset({1})
    assert decide(plan, 0, RUNS, since=100 * LATE, working=works, left_early=left) == Wait()
    # A replacement that has never met the others finds nobody any more.
    assert decide(plan, 0, RUNS, left_early=left) != Wait()
