"""Runs from their start to their end, on two hosts that are this machine."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.code.files import list_files
from launcher.code.place import CodePlace
from launcher.code.record import pack_code
from launcher.contract.clock import SystemClock
from launcher.contract.errors import TargetError
from launcher.contract.process_stat import name_machine
from launcher.contract.reports.look import LookRequest
from launcher.follow.target import NodeObservation
from launcher.plan.launch_plan import LaunchPlan, parse_plan
from launcher.runs.folder import RunFolder
from launcher.targets.hosts.program import leases
from launcher.targets.hosts.program.node_state import read_state
from launcher.targets.hosts.settings import Host, HostsSettings
from launcher.targets.hosts.target import HostsTarget
from tests.launcher.looks import answering
from tests.launcher.targets.hosts.conftest import host
from tests.waiting import wait_until

RUN_ID = f"whole-{os.getpid()}"
NAMES = ("gpu1", "gpu2")
PYTHON = """#!/bin/sh
# In place of the agent: tells how it was started, writes beside the code, and ends at once.
trap 'echo has ended; exit 143' TERM
echo "$LAUNCHER_NODE_INDEX.$LAUNCHER_INCARNATION $KEY: $* in $PWD"
echo 0.5 >loss
while :; do sleep 0.05; done
"""
ASKED = "case \"$*\" in *'-F my.cfg '*) ;; *) exit 9;; esac\n"
REFUSES = f"""{ASKED}case "$*" in *'-- gpu2 '*)
echo 'ssh: connect to host gpu2 port 22: Connection refused' >&2; exit 255;; esac"""
AWAY = (
    "gpu2: nothing listens at its ssh port (ssh: connect to host gpu2 port 22: Connection refused)"
)


class Bench:
    """A run of two hosts that are this machine, and its launcher."""

    def __init__(self, folder: Path, plan: LaunchPlan) -> None:
        self.folder, self.plan = folder, plan
        self.run = RunFolder(Path(plan.run_dir))
        self.run.create(plan, "", 0.0)
        self.target = self.launcher()

    def launcher(self, *, elsewhere: bool = False) -> HostsTarget:
        """A launcher of this run, with a folder of its own if it is another machine's."""
        runs = self.run.path.parent
        if elsewhere:
            runs = self.folder / "elsewhere"
            own = replace(self.plan, run_dir=str(runs / RUN_ID))
            RunFolder(runs / RUN_ID).create(own, "", 0.0)
        return HostsTarget(runs)

    def start(self, plan: LaunchPlan | None = None) -> None:
        """Returns when both nodes have said their first word here."""
        self.target.submit(plan or self.plan)
        wait_until(lambda: self.console(0) and self.console(1))

    def console(self, node: int, incarnation: int = 0) -> str:
        path = self.run.path / f"nodes/{node}/{incarnation}/console.log"
        return path.read_text() if path.exists() else ""

    def on_host(self, node: int) -> Path:
        """The run's folder on a node's host."""
        return self.folder / NAMES[node] / "state/runs" / RUN_ID

    def says(self, node: int, incarnation: int = 0) -> str:
        """What a node says of its start."""
        run_dir = self.on_host(node)
        task = f"{run_dir}/nodes/{node}/{incarnation}/node-plan.json"
        words = f"{run_dir}/agent.pyz {task} in {run_dir}/code/examples"
        return f"{node}.{incarnation} secret: {words}\n"

    def observed(self) -> list[str]:
        return [tell(node) for node in self.target.observe(self.plan).nodes]

    def held(self) -> list[list[str]]:
        """Who holds something of each host."""
        found = [leases.read_leases(str(self.folder / name / "leases")) for name in NAMES]
        return [[f"{one.run_id} {one.node_index}: {one.holding}" for one in each] for each in found]

    def left(self) -> list[str]:
        """What is on the hosts, but for the programs that start there and the code's archives."""
        found = (path for name in NAMES for path in (self.folder / name).rglob("*"))
        names = (path.relative_to(self.folder).as_posix() for path in found if path.is_file())
        return sorted(name for name in names if name.split("/")[2] not in ("bin", "code"))


def tell(node: NodeObservation) -> str:
    code = "" if node.exit_code is None else f" {node.exit_code}"
    return f"{node.node_index}.{node.incarnation} {node.state.value}{code} {node.detail}".strip()


@pytest.fixture
def bench(tmp_path: Path, ssh_here: Any, make_host_plan: Any, monkeypatch: Any) -> Iterator[Bench]:
    ssh_here(ASKED)
    monkeypatch.setenv("KEY", "secret")
    monkeypatch.setattr("launcher.targets.hosts.target._away", {})
    python, source = tmp_path / "bin/python", tmp_path / "source"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (source / "examples").mkdir(parents=True)
    (source / "examples/train.py").touch()
    hosts = [
        host(
            name,
            "127.0.0.1",
            host=Host(name=name, lease_dir=f"{tmp_path}/{name}/leases", slots=2),
            python=str(python),
            state_dir=f"{tmp_path}/{name}/state",
            machine=name_machine(),
        )
        for name in NAMES
    ]
    place = CodePlace(root=source, inner="examples", command=("train.py",))
    code = pack_code(place, list_files(source, tmp_path / "runs"))
    plan = make_host_plan(
        tuple(hosts),
        run_root=str(tmp_path / "runs"),
        engine="agent",
        command=["train.py"],
        secrets=["KEY"],
        nproc_per_node=2,
    )
    plan = replace(plan, own=replace(HostsSettings.of(plan), ssh_config="my.cfg"))
    text = plan.to_json().replace(plan.run_id, RUN_ID).replace('"c0de"', f'"{code.hash}"')
    bench = Bench(tmp_path, parse_plan(text))
    bench.target.code = code
    yield bench
    ssh_here(ASKED)
    bench.launcher().stop(RUN_ID, 0.0)


def restarted(plan: LaunchPlan, index: int) -> LaunchPlan:
    """The plan with the next incarnation of one node."""
    text = plan.to_json().replace(f"nodes/{index}/0", f"nodes/{index}/1")
    plan = parse_plan(text)
    node = replace(plan.nodes[index], incarnation=1)
    env = tuple((k, "1" if k == "LAUNCHER_INCARNATION" else v) for k, v in node.env)
    nodes = [*plan.nodes]
    nodes[index] = replace(node, env=env)
    return replace(plan, nodes=tuple(nodes))


def test_a_run_takes_leases_brings_what_it_writes_and_leaves_only_outputs(bench):
    bench.start()
    assert bench.target.is_sending is False
    assert bench.held() == [[f"{RUN_ID} 0: 2 slots"], [f"{RUN_ID} 1: 2 slots"]]
    assert [bench.console(0), bench.console(1)] == [bench.says(0), bench.says(1)]
    assert bench.observed() == ["0.0 running", "1.0 running"]
    bench.target.stop(RUN_ID, 5.0)
    assert bench.console(1) == f"{bench.says(1)}has ended\n"
    assert (bench.left(), bench.held()) == (
        [f"gpu2/state/outputs/{RUN_ID}/examples/loss"],
        [[], []],
    )
    beside = "what the training wrote beside its code: "
    kept = f"scp -r -F my.cfg gpu2:{bench.folder}/gpu2/state/outputs/{RUN_ID} ."
    assert sorted(bench.target.notes) == [
        f"gpu2 keeps {beside}{kept}",
        f"{beside}{bench.run.path}/code",
    ]
    assert (bench.run.path / "code/examples/loss").read_text() == "0.5\n"
    assert bench.observed() == ["0.0 missing", "1.0 missing"]
    bench.target.stop("another", 0.0)


def test_a_node_that_was_killed_is_told_and_starts_again_while_the_other_runs_on(bench):
    bench.start()
    (node,) = [
        one.pid
        for one in psutil.process_iter(["environ", "cmdline"])
        if (one.info["environ"] or {}).get("LAUNCHER_RUN_ID") == RUN_ID
        and f"{bench.folder}/bin/python" in one.info["cmdline"]
        and "/nodes/1/0/" in " ".join(one.info["cmdline"])
    ]
    os.kill(node, signal.SIGKILL)
    wait_until(lambda: bench.observed()[1] != "1.0 running")
    assert bench.observed() == ["0.0 running", "1.0 exited 137"]
    assert bench.held() == [[f"{RUN_ID} 0: 2 slots"], []]
    bench.plan = restarted(bench.plan, 1)
    bench.target.submit(bench.plan, (1,))
    wait_until(lambda: bench.console(1, 1))
    assert [bench.console(0), bench.console(1, 1)] == [bench.says(0), bench.says(1, 1)]
    assert bench.observed() == ["0.0 running", "1.1 running"]
    bench.target.stop(RUN_ID, 5.0, only=(1,))
    wait_until(lambda: bench.observed()[1] != "1.1 running")
    assert bench.observed() == ["0.0 running", "1.1 exited 143"]
    assert bench.held() == [[f"{RUN_ID} 0: 2 slots"], []]


def test_a_start_that_fails_on_one_host_leaves_nothing_on_the_others(bench, ssh_here):
    ssh_here(REFUSES)
    with pytest.raises(TargetError) as error:
        bench.start()
    assert error.value.what == AWAY
    assert (bench.left(), bench.held(), bench.target.is_sending) == ([], [[], []], False)
    # A node that starts again may lack its host: the run goes on without it.
    bench.target.submit(bench.plan, (0, 1))
    wait_until(lambda: bench.console(0))
    fix = "start its sshd, or correct port: in the inventory"
    assert bench.observed() == ["0.0 running", f"1.0 missing {AWAY}; {fix}"]
    ssh_here(ASKED)
    bench.target.submit(bench.plan, (1,))
    wait_until(lambda: bench.console(1))
    assert bench.observed() == ["0.0 running", "1.0 running"]


def test_a_machine_that_has_the_name_of_another_by_now_is_not_taken_for_it(bench):
    text = bench.plan.to_json().replace(name_machine(), "of-then")
    with pytest.raises(TargetError, match="gpu1: it is another machine "):
        bench.target.submit(parse_plan(text))
    assert bench.left() == []


def test_what_another_run_holds_is_not_given_and_a_node_is_then_missing(bench):
    lease = leases.Lease(run_id="b-2", node_index=0, owner="bob@desk", gpus=(), slots=1)
    held = leases.acquire(str(bench.folder / "gpu2/leases"), lease, 2)
    bench.target.submit(bench.plan, (0, 1))
    told = "gpu2: held by bob@desk with b-2 (1 slots)"
    hint = "wait for it, or name other hosts; launcher hosts shows all leases"
    assert bench.observed() == [f"{index}.0 missing {told}; {hint}" for index in (0, 1)]
    assert bench.held() == [[], ["b-2 0: 1 slots"]]
    # All took leases first, so nothing was sent.
    assert [name for name in bench.left() if not name.endswith(".followed")] == [
        "gpu2/leases/slot-0"
    ]
    leases.release(held)


def test_the_launcher_of_a_run_has_a_stop_from_elsewhere_before_its_nodes_end(bench):
    bench.start()
    other, sessions = bench.launcher(elsewhere=True), list[int]()
    for line in bench.target._lines.values():
        assert line._session
        sessions.append(line._session._talk._popen.pid)
    with ThreadPoolExecutor(1) as pool:
        for pid in sessions:
            os.kill(pid, signal.SIGSTOP)
        stop = pool.submit(other.stop, RUN_ID, 5.0)
        # The hosts bring nothing to the run's own launcher for a while.
        wait([stop], timeout=2.0)
        states = [read_state(bench.on_host(node) / f"nodes/{node}/0").state for node in (0, 1)]
        for pid in sessions:
            os.kill(pid, signal.SIGCONT)
        stop.result()
    assert states == ["running", "running"]
    assert (bench.run.path / "stop-run").read_text() == "stopped from elsewhere\n"


def test_a_launcher_elsewhere_sees_a_run_and_asks_its_own_for_what_it_wants(bench):
    bench.start()
    other = bench.launcher(elsewhere=True)
    folder = bench.folder / "elsewhere" / RUN_ID
    plan = RunFolder(folder).read_plan()
    assert other.find_end(RunFolder(folder), plan) is None
    assert [tell(node) for node in other.observe(plan).nodes] == ["0.0 running", "1.0 running"]
    assert (folder / "nodes/1/0/console.log").read_text() == bench.says(1)
    assert other.scale(RunFolder(folder), plan, 1) is True
    wait_until((bench.run.path / "scale-request").exists)
    assert (bench.run.path / "scale-request").read_text() == '{"nodes": 1}'
    with answering(bench.folder / f"gpu1/state/runs/{RUN_ID}/nodes/0/0", 0):
        looked = other.look_at_workers(
            RunFolder(folder), plan, LookRequest(id="x"), 1.0, SystemClock()
        )
    assert looked == {1: "its agent does not answer"}
    assert (folder / "nodes/0/0/looks/x/rank-0.stacks.json").exists()
    turns = other.bring_output(RunFolder(folder), plan, follow=True)
    next(turns)
    HostsTarget(folder.parent).stop(RUN_ID, 5.0)
    assert (bench.run.path / "stop-run").read_text() == "stopped from elsewhere\n"
    assert (folder / "nodes/1/0/console.log").read_text() == f"{bench.says(1)}has ended\n"
    assert not any(turns), "it ends once no node is seen any more"
    assert bench.held() == [[], []]
    with pytest.raises(TargetError) as error:
        other.scale(RunFolder(folder), plan, 1)
    assert error.value.what == f"the launcher of {RUN_ID} does not answer"
