"""Scenarios in which workers fail, end at different times, or are told to end."""

from __future__ import annotations

import json

from tests.conformance import workers
from tests.conformance.nodes import Group, Node


def one_worker_fails_every_time(group: Group) -> str:
    node = group.start(workers.fail_if_odd, nproc=4, max_restarts=2)
    ending = group.endings()
    assert {s["TORCHELASTIC_RESTART_COUNT"] for s in node.starts()} == {"0", "1", "2"}
    assert set(node.outcome()["failures"]) <= {"1", "3"}
    first = json.loads((node.folder / "error.json").read_text())["message"]["message"]
    assert first in ("RuntimeError: rank 1 is odd", "RuntimeError: rank 3 is odd")
    return ending


def a_worker_is_killed(group: Group) -> str:
    node = group.start(workers.obey, nproc=2)
    group.told([node], 2)
    group.order(1, "kill SIGKILL")
    return group.endings()


def a_worker_of_each_node_fails(group: Group) -> str:
    # The even ones sleep for ten minutes, and the exit barrier would take five.
    nodes = group.start_all(2, workers.fail_if_odd_while_others_work, nproc=2, exit_barrier_s=300)
    group.endings()
    # Whose agent hears of the other's failure before its own is a matter of luck.
    failed = {node.ending() for node in nodes if node.ending().startswith("exit")}
    return (
        f"{' and '.join(failed)}, {'all end' if all(n.ended() for n in nodes) else 'not all end'}"
    )


def a_node_fails_and_the_others_work(group: Group) -> str:
    nodes = group.start_all(2, workers.obey)
    group.told(nodes, 1)
    group.order(nodes[1].ranks()[0], "exit 7")
    group.wait(nodes[1].ended)
    return group.endings()


def a_node_fails_in_a_collective(group: Group) -> str:
    nodes = group.start_all(2, workers.obey_together)
    group.told(nodes, 1)
    group.order(nodes[1].ranks()[0], "exit 7")
    return _and_the_other_ends(group, nodes)


def _and_the_other_ends(group: Group, nodes: list[Node]) -> str:
    """Of the other, by what: its worker's failure or the run's end, is a matter of luck."""
    group.endings()
    other = "ends too" if nodes[0].ended() else "still runs"
    return f"node 1 {nodes[1].ending()}, node 0 {other}"


def a_failure_beside_working_nodes_restarts(group: Group) -> str:
    return _restarts(group, group.start_all(2, workers.obey, max_restarts=1))


def a_failure_in_a_collective_restarts(group: Group) -> str:
    return _restarts(group, group.start_all(2, workers.obey_together, max_restarts=1))


def _restarts(group: Group, nodes: list[Node]) -> str:
    group.told(nodes, 1)
    group.order(nodes[1].ranks()[0], "exit 7")
    group.wait(lambda: all(node.runs_in(2, rounds=2) for node in nodes))
    group.finish()
    return "starts again, " + group.endings()


# -- workers that drift apart ------------------------------------------------------------------
def one_ends_long_before_the_other(group: Group) -> str:
    return _drift(group, barrier_s=60.0, then_s=3.0, order="return")


def one_ends_and_the_other_fails(group: Group) -> str:
    return _drift(group, barrier_s=8.0, then_s=3.0, order="exit 7")


def one_outlives_the_exit_barrier(group: Group) -> str:
    return _drift(group, barrier_s=1.0, then_s=4.0, order="return")


def one_outlives_the_exit_barrier_and_fails(group: Group) -> str:
    return _drift(group, barrier_s=1.0, then_s=4.0, order="exit 7")


def no_exit_barrier(group: Group) -> str:
    """The store is apart: whose node ends first takes nothing with it."""
    return _drift(group, barrier_s=0.0, then_s=2.0, order="return")


def one_ends_and_the_other_may_try_again(group: Group) -> str:
    ending = _drift(*(group, 8.0, 2.0, "exit 7"), max_restarts=1, least=1, go_on=True)
    gave_up = group.nodes[1].ending().startswith("Rendezvous")
    return f"node 0 {group.nodes[0].ending()}, node 1 gives up" if gave_up else ending


def _drift(
    group: Group,
    barrier_s: float,
    then_s: float,
    order: str,
    go_on: bool = False,
    **more: int,
) -> str:
    """Node 0, which serves the store, is done at once; the other later.

    ``then_s`` counts from the end of the exit barrier, if that is sooner and node 0 heeds it.
    """
    nodes = group.start_all(2, workers.obey, exit_barrier_s=barrier_s, **more)
    group.told(nodes, 1)
    ranks = [node.ranks()[0] for node in nodes]
    group.order(ranks[0], "return")
    if barrier_s < then_s:
        # On the roster it stays at the barrier until the other is done as well.
        is_past = lambda: nodes[0].ended() or nodes[0].is_past_the_barrier()  # noqa: E731
        group.comes_true(is_past, barrier_s + 3)
    group.comes_true(lambda: False, then_s / group.patience)
    group.order(ranks[1], order)
    if go_on:
        group.comes_true(lambda: nodes[1].ended() or nodes[1].runs_in(1, rounds=2), 30)
        group.finish()
    return group.endings()


# -- signals -----------------------------------------------------------------------------------
def all_are_told_to_end(group: Group) -> str:
    nodes = group.start_all(2, workers.obey, nproc=2)
    group.told(nodes, 2)
    # The store's host last: on a busy machine it may end before another node has got its signal.
    for node in reversed(nodes):
        node.terminate()
    ending = group.endings()
    group.wait(lambda: not any(node.workers() for node in nodes), 10)
    return ending


def told_to_end_in_the_first_rendezvous(group: Group) -> str:
    node = group.start(workers.obey, least=2, most=2)
    group.wait(node.rendezvous)
    node.terminate()
    return group.endings()


def told_to_end_in_a_later_rendezvous(group: Group) -> str:
    nodes = group.start_all(2, workers.obey, max_restarts=1)
    group.told(nodes, 1)
    nodes[1].kill()
    group.order(nodes[0].ranks()[0], "exit 7")
    group.wait(lambda: nodes[0].rendezvous() == 2)
    nodes[0].terminate()
    return group.endings()


def one_gives_up_before_the_group_has_met(group: Group) -> str:
    """The store is apart. The group meets without the one that was told to end."""
    first = group.start(workers.obey, index=1, least=2, most=2)
    group.wait(first.rendezvous)
    first.terminate()
    group.wait(first.ended)
    others = [group.start(workers.obey, index=i, least=2, most=2) for i in (0, 1)]
    group.wait(lambda: all(node.runs_in(2) for node in others))
    group.finish()
    first.gone = True
    return "the others meet, " + group.endings()
