"""The table "What a job gets" of the documentation: each row is planned, and loses a node."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import pytest

from launcher.contract import protocol
from launcher.targets import process_table
from launcher.targets.local.target import find_agents
from tests.launcher.runner import PREFIX, Runner
from tests.launcher.test_what_a_job_gets import HERE, Row
from tests.waiting import wait_until

# -- a node of each is lost ---------------------------------------------------------------------

SCRIPT = """
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
start = f"{os.environ['LAUNCHER_NODE_INDEX']}-{time.time_ns()}"
pathlib.Path(f"started-{start}-of-{dist.get_world_size()}").touch()
go = torch.zeros(1)
while not go:
    time.sleep(0.1)
    # All of them see it at the same step.
    go += pathlib.Path("go").exists()
    dist.all_reduce(go)
dist.destroy_process_group()
"""


class Told(NamedTuple):
    """What is to be seen of a run that lost ``node``."""

    launcher: Runner
    node: int
    code: int
    stderr: str

    @property
    def counts(self) -> tuple[int, int]:
        """Attempts of the whole run, and failures of workers that were counted."""
        outcome = self.launcher.outcome
        return outcome["attempts"], outcome["restarts"].get("worker-fault", 0)


def is_started_again(told: Told) -> bool:
    return told.code == 0 and told.counts == (2, 0) and "(at most 16 times)" in told.stderr


def is_replaced(told: Told, others: str) -> bool:
    says = f"; replacing it, the others {others}\n"
    return told.code == 0 and told.counts == (1, 0) and says in told.stderr


def starts_all_again(told: Told) -> bool:
    return told.code == 0 and told.counts == (2, 0) and "(at most 3 times)" in told.stderr


def ends(told: Told) -> bool:
    return told.code == 137 and told.launcher.outcome["cause"] == "node-lost"


LOSSES: dict[str, Callable[[Told], bool]] = {
    "is started again; no restart is used up": is_started_again,
    "is replaced, the others wait for it; no restart is used up": lambda told: is_replaced(
        told, "wait for it"
    ),
    "is replaced, the others go on; no restart is used up": lambda told: is_replaced(told, "go on"),
    "starts all again, which uses up a restart": starts_all_again,
    "ends the run, as max_restarts is 0": ends,
    "starts all again if it is node 0, else it is replaced; each uses up a restart": lambda told: (
        is_replaced(told, "go on") if told.node else starts_all_again(told)
    ),
}


def lose_a_node(launcher: Runner, row: Row, index: int) -> Told:
    """Runs the row's job, and kills one node while all of them are in a collective."""
    launcher.write(SCRIPT, PREFIX + "agent: {detection_limit_s: 2}\n")
    settings = (word for key in row.job for word in ("--set", key))
    process = launcher.start("run", "job.yaml", "--on", "local", *settings)
    nodes = 1 if "nnodes=1" in row.job else 2

    def started() -> int:
        return len(list(launcher.folder.glob(f"started-*-of-{nodes}")))

    wait_until(lambda: started() == nodes)
    (run_id,) = launcher.run_ids()
    is_of_node = {protocol.NODE_INDEX: str(index), protocol.RUN_ID: run_id}
    (agent,) = find_agents(process_table.find(**is_of_node))
    # torchrun's workers would outlive it, and so the loss.
    for process_of_node in (psutil.Process(agent), *psutil.Process(agent).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process_of_node.kill()
    wait_until(lambda: started() == 2 * nodes or process.poll() is not None)
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=90)
    return Told(launcher, index, process.returncode, stderr.decode())


def losses(*indices: int) -> list[Any]:
    """Each row with the nodes that it loses, of these."""
    return [
        pytest.param(row, index, id=f"{row.name} node {index}")
        for row in HERE
        for index in indices
        if index == 0 or "nnodes=1" not in row.job
    ]


# Node 0 has the store as well; ``make soak`` has each row lose node 1.
ROWS = [*losses(0), *(one for one in losses(1) if "else" in one.values[0].loss)]


@pytest.mark.parametrize(("row", "index"), ROWS)
def test_a_lost_node_does_what_the_row_says(launcher, row, index):
    told = lose_a_node(launcher, row, index)
    assert LOSSES[row.loss](told), told.stderr
    is_told = f"launcher: engine: torchrun: a lost node {row.loss}\n"
    assert told.stderr.count(is_told) == (row.engine == "torchrun"), told.stderr
