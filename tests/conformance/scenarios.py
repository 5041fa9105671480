"""What torch's elastic agent does on each backend: scenarios, and how each of them ends."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance import workers
from tests.conformance.nodes import Group, Node

BACKENDS = ("roster", "c10d", "etcd-v2")
STILL = "still runs"
"""Part of a cell that is known to hang."""
NOTICE_S = 25.0
"""Longer than any backend's own limit for a silent node: 10 s for roster and etcd, 15 s for c10d"""
ALONE = "starts again alone, completes"
NO_NOTICE = "takes no notice, completes"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A scenario, whose docstring is what a reader is told, and how it ends on each backend."""

    section: str
    play: Callable[[Group], str]
    roster: str
    others: dict[str, str]
    """By backend, where it ends in another way there than on the roster."""

    def cell(self, backend: str) -> str:
        return self.others.get(backend, self.roster)


ROWS: list[Row] = []


def ends(section: str, roster: str, torchs: str = "", **others: str) -> Callable[..., None]:
    """Makes a row of the scenario that it decorates; ``torchs`` is for both of torch's backends."""

    def add(play: Callable[[Group], str]) -> None:
        given = others | (dict.fromkeys(BACKENDS[1:], torchs) if torchs else {})
        ROWS.append(Row(section=section, play=play, roster=roster, others=given))

    return add


@ends(
    "Failing",
    "node 0 RendezvousClosedError, node 1 exit code 7",
    torchs=f"node 0 {STILL}, node 1 exit code 7",
)
def a_node_fails_and_the_others_work(group: Group) -> str:
    """The worker of node 1 fails for good, that of node 0 works on without any collective.
    torch's backends tell node 0 nothing: it works until it is done."""
    nodes = group.start_all(2, workers.obey)
    group.told(nodes, 1)
    group.order(nodes[1].ranks()[0], "exit 7")
    group.wait(nodes[1].ended)
    return group.endings()


@ends(
    "Workers that drift apart",
    "completes",
    c10d="node 0 completes, node 1 RendezvousConnectionError",
)
def one_outlives_the_exit_barrier(group: Group) -> str:
    """Node 0, which serves the store, is done at once; node 1 needs 4 s more than the exit
    barrier. On c10d node 0 takes the store with it, and node 1 loses its work."""
    nodes, last = _one_is_done(group, barrier_s=1)
    # On the roster it stays at the barrier until the other is done as well.
    group.comes_true(lambda: nodes[0].ended() or nodes[0].is_past_the_barrier(), 4)
    group.comes_true(lambda: False, 4)
    group.order(last, "return")
    return group.endings()


@ends("Workers that drift apart", "completes", torchs="node 0 completes, node 1 gives up")
def one_ends_and_the_other_may_try_again(group: Group) -> str:
    """Node 0 is done; node 1 fails and has a restart left, in a run of 1 to 2 nodes. torch closes
    the run, or takes its store away, when node 0 leaves its exit barrier."""
    nodes, last = _one_is_done(group, barrier_s=8, max_restarts=1, least=1)
    group.comes_true(lambda: False, 2)
    group.order(last, "exit 7")
    group.comes_true(lambda: nodes[1].ended() or nodes[1].runs_in(1, rounds=2), 30)
    group.finish()
    ending = group.endings()
    gave_up = nodes[1].ending().startswith("Rendezvous")
    return f"node 0 {nodes[0].ending()}, node 1 gives up" if gave_up else ending


def _one_is_done(group: Group, barrier_s: float, **more: int) -> tuple[list[Node], int]:
    """Node 0, which serves the store, is done at once; both nodes, and the rank of the other."""
    nodes = group.start_all(2, workers.obey, exit_barrier_s=barrier_s, **more)
    group.told(nodes, 1)
    first, last = (node.ranks()[0] for node in nodes)
    group.order(first, "return")
    return nodes, last


# -- nodes that come, are lost, are kept out -----------------------------------------------------
CHANGING = "Nodes that come and go"


@ends(CHANGING, "starts again, completes")
def a_lost_node_comes_back_while_workers_work(group: Group) -> str:
    """An agent and its workers are killed, and started again. The roster knows the newcomer by its
    place, and takes 1 to 2 s; torch's backends wait for the lost one's 15 s first."""
    nodes = group.start_all(2, workers.obey, nproc=2, max_restarts=2)
    group.told(nodes, 2)
    nodes[1].kill()
    again = group.start(workers.obey, index=1, nproc=2, least=2, most=2, max_restarts=2)
    group.wait(lambda: nodes[0].runs_in(4, rounds=2) and again.runs_in(4))
    group.finish()
    return "starts again, " + group.endings()


@ends(CHANGING, ALONE, torchs=NO_NOTICE)
def a_lost_node_is_done_without_while_workers_work(group: Group) -> str:
    """An agent and its workers are killed in a run of 1 to 2 nodes; the other's workers only work.
    torch's backends drop the lost node and tell nobody."""
    return _does_without(group, workers.obey, lambda node: node.kill())


@ends(CHANGING, ALONE, torchs=f"takes no notice, {STILL}")
def a_lost_node_is_done_without_while_workers_meet(group: Group) -> str:
    """The same while rank 0 waits for the lost one in `init_process_group`: on torch's backends
    until that gives up, after 30 minutes."""
    return _does_without(group, workers.meet_late, lambda node: node.kill())


@ends(CHANGING, ALONE, torchs=NO_NOTICE)
def a_node_that_is_told_to_end_is_done_without(group: Group) -> str:
    """An agent gets SIGTERM in a run of 1 to 2 nodes; the other's workers only work."""
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


@ends(
    CHANGING,
    "the other: RendezvousConnectionError",
    **{"etcd-v2": "the other: completes"},
)
def the_node_with_the_store_is_lost(group: Group) -> str:
    """The first node is killed, and with it the store or the coordinator. torch's own agent has one
    endpoint and ends; the node agent of this project goes on with the next candidate."""
    nodes = group.start_all(2, workers.obey, least=1, max_restarts=2, exit_barrier_s=3)
    group.told(nodes, 1)
    nodes[0].kill()
    survivor = nodes[1]
    group.comes_true(lambda: survivor.ended() or survivor.runs_in(1, rounds=2), NOTICE_S)
    group.finish()
    return "the other: " + group.endings()


@ends(CHANGING, "completes, completes, the spare one gives up")
def more_than_the_most(group: Group) -> str:
    """A third node comes where two run and two are the most: it waits, disturbs nobody, and gives
    up when the run is over. On the roster it learns why (RendezvousClosedError); on c10d the store
    is gone, and on etcd-v2 torch's launcher trips over the missing result (AttributeError)."""
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
    told = spare.ending() if spare.ending() in ("completes", STILL) else "gives up"
    return f"{nodes[0].ending()}, {nodes[1].ending()}, the spare one {told}"
