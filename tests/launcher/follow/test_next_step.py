"""What a run needs next, as tables of situations."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from launcher.contract.causes import NodeState
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
    describe,
    pause_before_replacing_s,
)
from launcher.follow.target import NodeObservation, Observation
from launcher.plan.launch_plan import LaunchPlan

MakePlan = Callable[..., LaunchPlan]
RUNS, GONE = "runs", "gone"


@pytest.fixture
def make_plan(make_plan: MakePlan) -> MakePlan:
    """Plans for plain torchrun; the agent's are decided in ``test_next_step_agent.py``."""
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


def test_a_node_index_is_replaced_as_often_as_max_restarts_allows(make_plan):
    plan = make_plan(nnodes="1:3", max_restarts=1)
    assert decide(plan, RUNS, 137, RUNS, replaced={1: 1}) == Wait()
    assert isinstance(decide(plan, RUNS, RUNS, 137, replaced={1: 1}), Replace)


def test_fewer_nodes_than_min_cannot_go_on(make_plan):
    plan = make_plan(nnodes="3:4", max_restarts=1)
    for nodes in ((RUNS, 137, GONE), (RUNS, 137, RUNS)):
        assert isinstance(decide(plan, *nodes, replaced={1: 1, 2: 1}), Restart)


PLANS: dict[str, dict[str, Any]] = {
    "torchrun, fixed": {"nnodes": 2},
    "torchrun, elastic": {"nnodes": "1:2"},
    "agent": {"nnodes": 2, "engine": "agent"},
    "agent, elastic": {"nnodes": "1:2", "engine": "agent"},
    "agent, static": {"nnodes": 2, "engine": "agent", "rdzv": {"backend": "static"}},
}
ENDS = (0, 1, 137, GONE, int(ExitCode.RENDEZVOUS_CLOSED), int(ExitCode.DISK_FULL), "memory")
TIMES = (FALL_S - 0.1, FALL_S, FINISH_S, FINISH_S + 0.1)


def tell(action: Action) -> str:
    if isinstance(action, Replace):
        return f"replace {action.node_index}"
    if isinstance(action, Restart):
        return f"restart (node {action.why.split()[1]}, {action.left} left)"
    return str(action.cause) if isinstance(action, Ending) else "wait"


def tell_steps(plan: LaunchPlan, used: int, pair: tuple[int | str, ...]) -> str:
    """The steps at each of ``TIMES``, for example ``wait, 5 s replace 1``."""
    seen = observe(*(137 if end == "memory" else end for end in pair))
    nodes = [replace(n, out_of_memory=pair[n.node_index] == "memory") for n in seen.nodes]
    told = [
        decide_action(
            plan,
            replace(seen, nodes=tuple(nodes)),
            replaced={0: used, 1: used},
            since_first_exit_s=since_s,
            working=frozenset({0}),
        )
        for since_s in TIMES
    ]
    steps = [tell(told[0])]
    for at, before, step in zip(TIMES[1:], told, told[1:], strict=False):
        steps += [f"{at:g} s {tell(step)}"] * (step != before)
    return ", ".join(steps)


def test_each_pair_of_ends_has_its_step_at_each_time(make_plan, expect_golden):
    lines = []
    for name, fields in PLANS.items():
        for used in (0, 1, MAX_REPLACEMENTS) if "agent" in name else (0, 1):
            plan = make_plan(max_restarts=1, **fields)
            nodes = tuple(replace(node, incarnation=used) for node in plan.nodes)
            plan = replace(plan, nodes=nodes, attempt=min(used, 1))
            for first in (RUNS, *ENDS):
                steps: dict[str, str] = {}
                for second in (RUNS, *ENDS):
                    step = tell_steps(plan, used, (first, second))
                    steps[step] = f"{steps.get(step, '')} {second}"
                shown = "; ".join(f"{seconds[1:]}: {step}" for step, seconds in steps.items())
                lines.append(f"{name}, {used} used, {first} and {shown}\n")
    expect_golden("decisions.txt", "".join(lines))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"state": NodeState.RUNNING},
            "node 3 still lives though the run is over: it may be frozen",
        ),
        ({"state": NodeState.MISSING}, "node 3 is gone"),
        (
            {"state": NodeState.MISSING, "detail": "its host is off"},
            "node 3 is gone: its host is off",
        ),
        ({"exit_code": 1}, "node 3 ended with exit code 1"),
        ({"exit_code": 127}, "node 3 ended with exit code 127"),
        ({"exit_code": 128}, "node 3 ended with exit code 128 (training-failed)"),
        ({"exit_code": 197}, "node 3 ended with exit code 197 (gpu-busy)"),
        ({"exit_code": 197, "detail": "why"}, "node 3 ended with exit code 197 (why)"),
        (
            {"exit_code": 137, "detail": "why", "out_of_memory": True},
            "node 3 ended with exit code 137, SIGKILL (9) (out of memory)",
        ),
    ],
)
def test_an_agents_end_is_told_in_words(fields, told):
    made = {"node_index": 3, "incarnation": 0, "state": NodeState.EXITED, "exit_code": None}
    assert describe(NodeObservation(**{**made, **fields}), by_agent=True) == told


def test_the_pause_before_a_replacement_doubles_up_to_its_limit():
    assert [pause_before_replacing_s(n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
