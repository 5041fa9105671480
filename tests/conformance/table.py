"""What torch's elastic agent does in each scenario on each backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from tests.conformance import changing, failing, starting
from tests.conformance.nodes import Group

BACKENDS = ("roster", "c10d", "etcd-v2")
STILL = "still runs"
"""Part of a cell that is known to hang."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A scenario, and how it ends on each backend."""

    play: Callable[[Group], str]
    says: str
    """What happens, for a reader."""
    roster: str
    c10d: str = ""
    etcd: str = ""
    """Where nothing is given, the same as on the roster."""
    apart: bool = False
    """The store is served apart from all nodes."""

    @property
    def name(self) -> str:
        return self.play.__name__

    def cell(self, backend: str) -> str:
        return {"c10d": self.c10d, "etcd-v2": self.etcd}.get(backend) or self.roster


ALONE = "starts again alone, completes"
NO_NOTICE = "takes no notice, completes"
GONE = "node 0 completes, node 1 RendezvousConnectionError"
STARTING = (
    Row(
        play=starting.a_function,
        says="Two workers run a Python function; the agent returns their values by rank.",
        roster="completes",
    ),
    Row(play=starting.a_command, says="Two workers run a command.", roster="completes"),
    Row(
        play=starting.a_command_that_fails,
        says="A command ends with code 7.",
        roster="exit code 7",
    ),
    Row(
        play=starting.output_teed,
        says="Each worker's stdout and stderr lie in files of their own and go to the console, "
        "each line with its prefix.",
        roster="completes",
    ),
    Row(
        play=starting.the_environment,
        says="Two nodes of two workers: ranks, sizes, restart counts and the run's id are right, "
        "and all workers have the same master.",
        roster="completes",
    ),
    Row(
        play=starting.a_master_address_that_is_given,
        says="MASTER_ADDR and MASTER_PORT are those of the worker spec, where it has some.",
        roster="completes",
    ),
    Row(
        play=starting.ranks_of_25_workers,
        says="Seven nodes of 8, 1, 2, 3, 4, 5 and 2 workers: ranks are without a gap in the run "
        "and on each node.",
        roster="completes",
    ),
    Row(
        play=starting.a_sum_of_unequal_nodes,
        says="Nodes of 1, 2 and 3 workers add up their ranks over gloo.",
        roster="completes",
    ),
    Row(
        play=starting.a_remote_call,
        says="Rank 0 calls a function of rank 1 by torch's RPC.",
        roster="completes",
    ),
    Row(
        play=starting.fewer_than_the_least,
        says="Two nodes come where 3 are needed, and have 5 s. On the roster each has its whole "
        "time, and ends with RendezvousTimeoutError; on the others the first to give up ends "
        "the wait of the rest.",
        roster="all give up",
    ),
)
FAILING = (
    Row(
        play=failing.one_worker_fails_every_time,
        says="Odd ranks of one node raise, two restarts are allowed: three starts, and the error "
        "file names the exception.",
        roster="exit code 1",
    ),
    Row(
        play=failing.a_worker_is_killed,
        says="One worker of two gets SIGKILL.",
        roster="exit code -9",
    ),
    Row(
        play=failing.a_worker_of_each_node_fails,
        says="One worker of each node raises while the others work; nobody waits at the exit "
        "barrier, which would take 300 s.",
        roster="exit code 1, all end",
    ),
    Row(
        play=failing.a_node_fails_and_the_others_work,
        says="The worker of node 1 fails for good, that of node 0 works on without any "
        "collective. torch's backends tell node 0 nothing: it works until it is done.",
        roster="node 0 RendezvousClosedError, node 1 exit code 7",
        c10d=f"node 0 {STILL}, node 1 exit code 7",
        etcd=f"node 0 {STILL}, node 1 exit code 7",
    ),
    Row(
        play=failing.a_node_fails_in_a_collective,
        says="The same while both take part in collectives, which fail on node 0.",
        roster="node 1 exit code 7, node 0 ends too",
    ),
    Row(
        play=failing.a_failure_beside_working_nodes_restarts,
        says="A worker fails once, a restart is allowed, the other node only works.",
        roster="starts again, completes",
    ),
    Row(
        play=failing.a_failure_in_a_collective_restarts,
        says="A worker fails once, a restart is allowed, both take part in collectives.",
        roster="starts again, completes",
    ),
)
DRIFTING = (
    Row(
        play=failing.one_ends_long_before_the_other,
        says="Node 0 is done at once, node 1 later, both within the exit barrier.",
        roster="completes",
    ),
    Row(
        play=failing.one_ends_and_the_other_fails,
        says="Node 0 is done at once, node 1 fails within the exit barrier, which runs out.",
        roster="node 0 completes, node 1 exit code 7",
    ),
    Row(
        play=failing.one_outlives_the_exit_barrier,
        says="Node 0, which serves the store, is done at once; node 1 needs 4 s more than the exit "
        "barrier. On c10d node 0 takes the store with it, and node 1 loses its work.",
        roster="completes",
        c10d=GONE,
    ),
    Row(
        play=failing.one_outlives_the_exit_barrier_and_fails,
        says="The same, and node 1 fails in the end: its own failure is what is told.",
        roster="node 0 completes, node 1 exit code 7",
        c10d=GONE,
    ),
    Row(
        play=failing.no_exit_barrier,
        says="The exit barrier takes no time, and the store is served apart.",
        roster="completes",
        apart=True,
    ),
    Row(
        play=failing.one_ends_and_the_other_may_try_again,
        says="Node 0 is done; node 1 fails and has a restart left, in a run of 1 to 2 nodes. torch "
        "closes the run, or takes its store away, when node 0 leaves its exit barrier.",
        roster="completes",
        c10d="node 0 completes, node 1 gives up",
        etcd="node 0 completes, node 1 gives up",
    ),
)
ENDING = (
    Row(
        play=failing.all_are_told_to_end,
        says="All agents get SIGTERM while workers run; no worker is left.",
        roster="SignalException",
    ),
    Row(
        play=failing.told_to_end_in_the_first_rendezvous,
        says="SIGTERM while the first other node is awaited: torch handles signals only from the "
        "first start of workers on.",
        roster="dies by SIGTERM",
    ),
    Row(
        play=failing.told_to_end_in_a_later_rendezvous,
        says="SIGTERM while a lost node is awaited.",
        roster="SignalException",
    ),
    Row(
        play=failing.one_gives_up_before_the_group_has_met,
        says="One node gets SIGTERM before the group has met; two others meet. The roster waits "
        "for its detection limit, if that node was the first.",
        roster="the others meet, completes",
        apart=True,
    ),
)
CHANGING = (
    Row(
        play=changing.grows,
        says="A second node comes to a run of 1 to 2 nodes; no restart is used up.",
        roster="grows to 2 nodes, completes",
    ),
    Row(
        play=changing.a_lost_node_comes_back_while_workers_work,
        says="An agent and its workers are killed, and started again. The roster knows the "
        "newcomer by its place, and takes 1 to 2 s; torch's backends wait for the lost one's "
        "15 s first.",
        roster="starts again, completes",
    ),
    Row(
        play=changing.a_lost_node_comes_back_in_a_collective,
        says="The same while all take part in collectives.",
        roster="starts again, completes",
    ),
    Row(
        play=changing.a_lost_node_is_done_without_while_workers_work,
        says="An agent and its workers are killed in a run of 1 to 2 nodes; the other's workers "
        "only work. torch's backends drop the lost node and tell nobody.",
        roster=ALONE,
        c10d=NO_NOTICE,
        etcd=NO_NOTICE,
    ),
    Row(
        play=changing.a_lost_node_is_done_without_in_a_collective,
        says="The same while all take part in collectives.",
        roster=ALONE,
    ),
    Row(
        play=changing.a_lost_node_is_done_without_while_workers_meet,
        says="The same while rank 0 waits for the lost one in `init_process_group`: on torch's "
        "backends until that gives up, after 30 minutes.",
        roster=ALONE,
        c10d=f"takes no notice, {STILL}",
        etcd=f"takes no notice, {STILL}",
    ),
    Row(
        play=changing.a_node_that_is_told_to_end_is_done_without,
        says="An agent gets SIGTERM in a run of 1 to 2 nodes; the other's workers only work.",
        roster=ALONE,
        c10d=NO_NOTICE,
        etcd=NO_NOTICE,
    ),
    Row(
        play=changing.the_node_with_the_store_is_lost,
        says="The node that serves the store is killed. torch's own agent has one endpoint and "
        "ends; the node agent of this project goes on with the next candidate.",
        roster="the other: RendezvousConnectionError",
        etcd="the other: completes",
    ),
    Row(
        play=changing.more_than_the_most,
        says="A third node comes where two run and two are the most: it waits, disturbs nobody, "
        "and gives up when the run is over. On the roster it learns why "
        "(RendezvousClosedError); on c10d the store is gone, and on etcd-v2 torch's launcher "
        "trips over the missing result (AttributeError).",
        roster="completes, completes, the spare one gives up",
    ),
    Row(
        play=changing.a_spare_steps_in,
        says="Such a third node takes the place of one that is killed.",
        roster="it steps in, completes",
    ),
    Row(
        play=changing.a_newcomer_after_success,
        says="A node comes to a run that has succeeded; the store is served apart.",
        roster="RendezvousClosedError",
        apart=True,
    ),
)
SECTIONS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("Starting", STARTING),
    ("Failing", FAILING),
    ("Workers that drift apart", DRIFTING),
    ("Told to end", ENDING),
    ("Nodes that come and go", CHANGING),
)
ROWS: tuple[Row, ...] = tuple(row for _, rows in SECTIONS for row in rows)
MODULES: tuple[ModuleType, ...] = (starting, failing, changing)
