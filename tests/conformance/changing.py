"""Scenarios in which the membership changes: nodes come, are lost, are kept out."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance import workers
from tests.conformance.nodes import Group, Node

NOTICE_S = 25.0
"""Longer than any backend's own limit for a silent node: 10 s for roster and etcd, 15 s for c10d"""


def grows(group: Group) -> str:
    first = group.start(workers.obey, least=1, most=2)
    group.wait(lambda: first.runs_in(1))
    second = group.start(workers.obey, least=1, most=2)
    group.wait(lambda: first.runs_in(2, rounds=2) and second.runs_in(2))
    assert first.starts()[-1]["TORCHELASTIC_RESTART_COUNT"] == "0"
    group.finish()
    return "grows to 2 nodes, " + group.endings()


def a_lost_node_comes_back_while_workers_work(group: Group) -> str:
    return _comes_back(group, workers.obey)


def a_lost_node_comes_back_in_a_collective(group: Group) -> str:
    return _comes_back(group, workers.obey_together)


def _comes_back(group: Group, worker: Callable[[], str]) -> str:
    nodes = group.start_all(2, worker, nproc=2, max_restarts=2)
    group.told(nodes, 2)
    nodes[1].kill()
    again = group.start(worker, index=1, nproc=2, least=2, most=2, max_restarts=2)
    group.wait(lambda: nodes[0].runs_in(4, rounds=2) and again.runs_in(4))
    group.finish()
    return "starts again, " + group.endings()


def a_lost_node_is_done_without_while_workers_work(group: Group) -> str:
    return _does_without(group, workers.obey, lambda node: node.kill())


def a_lost_node_is_done_without_in_a_collective(group: Group) -> str:
    return _does_without(group, workers.obey_together, lambda node: node.kill())


def a_lost_node_is_done_without_while_workers_meet(group: Group) -> str:
    return _does_without(group, workers.meet_late, lambda node: node.kill())


def a_node_that_is_told_to_end_is_done_without(group: Group) -> str:
    return _does_without(group, workers.obey, lambda node: node.terminate())


def _does_without(group: Group, worker: Callable[[], str], lose: Callable[[Node], None]) -> str:
    nodes = group.start_all(2, worker, least=1, max_restarts=2, exit_barrier_s=3)
    group.told(nodes, 1)
    # On a busy machine one may begin alone, and the other join it.
    group.wait(lambda: all(node.runs_in(2) for node in nodes))
    lost = next(node for node in nodes if node.ranks() != [0])
    (left,) = (node for node in nodes if node is not lost)
    lose(lost)
    lost.gone = True
    alone = group.comes_true(lambda: left.runs_in(1, rounds=2), NOTICE_S)
    group.finish()
    return ("starts again alone, " if alone else "takes no notice, ") + group.endings()


def the_node_with_the_store_is_lost(group: Group) -> str:
    """Workers only sleep. The agent of this project goes on with a store on another node."""
    nodes = group.start_all(2, workers.obey, least=1, max_restarts=2, exit_barrier_s=3)
    group.told(nodes, 1)
    nodes[0].kill()
    survivor = nodes[1]
    group.comes_true(lambda: survivor.ended() or survivor.runs_in(1, rounds=2), NOTICE_S)
    group.finish()
    return "the other: " + group.endings()


def more_than_the_most(group: Group) -> str:
    """The third waits, disturbs nobody, and is told when the run is over."""
    nodes = group.start_all(2, workers.obey, least=2)
    group.told(nodes, 1)
    spare = group.start(workers.obey, least=2, most=2, join_timeout_s=60)
    group.wait(spare.rendezvous)
    group.comes_true(spare.starts, 3.0)
    assert [len(node.starts()) for node in nodes] == [1, 1]
    group.finish()
    group.endings()
    if group.backend == "roster":  # whose store stays until it has heard
        assert spare.ending() == "RendezvousClosedError", group.logs()
    told = spare.ending() if spare.ending() in ("completes", "still runs") else "gives up"
    return f"{nodes[0].ending()}, {nodes[1].ending()}, the spare one {told}"


def a_spare_steps_in(group: Group) -> str:
    nodes = group.start_all(2, workers.obey, least=2, max_restarts=2)
    group.told(nodes, 1)
    spare = group.start(workers.obey, least=2, most=2, max_restarts=2)
    group.wait(spare.rendezvous)
    nodes[1].kill()
    in_it = group.comes_true(lambda: nodes[0].runs_in(2, rounds=2) and spare.runs_in(2), NOTICE_S)
    group.finish()
    return ("it steps in, " if in_it else "it goes on waiting, ") + group.endings()


def a_newcomer_after_success(group: Group) -> str:
    """The store is apart, as a run that is over takes its own store with it."""
    group.start(workers.echo, "value", least=1, most=2)
    group.endings()
    newcomer = group.start(workers.echo, "value", least=1, most=2, join_timeout_s=20)
    return _newcomer(group, newcomer)


def _newcomer(group: Group, newcomer: Node) -> str:
    group.wait(newcomer.ended)
    assert newcomer.starts() == []
    return newcomer.ending()
