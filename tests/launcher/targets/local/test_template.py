"""The nodes of a run share one import of torch: real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launcher.contract import protocol
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets import adoption, proc
from launcher.targets.local import early, early_program
from launcher.targets.local.render import Process, render_local
from launcher.targets.local.target import find_agents
from launcher.targets.local.template import Settled, Template, environment_of, start_template
from tests.launcher.runner import Runner, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are forked on Linux alone")

COUNTS = """
import os, pathlib, sys
class Told:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._C":
            pathlib.Path(os.environ["COUNTED"], str(os.getpid())).touch()
sys.meta_path.insert(0, Told())
"""
"""As ``sitecustomize``: leaves a file for each process that imports torch."""
WAITS = """
import json, os, pathlib, time
index, life = os.environ["LAUNCHER_NODE_INDEX"], os.environ["LAUNCHER_INCARNATION"]
told = pathlib.Path(f"up-{index}-{life}")
told.with_suffix(".new").write_text(json.dumps(dict(os.environ)))
told.with_suffix(".new").rename(told)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
print("node", index, "incarnation", life)
"""
THREE = ("run", "train.py", "--on", "local", "--nnodes", "3", "--nproc-per-node", "1")
JOB = ("run", "job.yaml", "--on", "local", "--set", "agent.detection_limit_s=2", "--nnodes", "2")


@pytest.fixture
def counted(launcher: Runner) -> Callable[[], set[int]]:
    """Pids of all processes that have imported torch."""
    folder = launcher.folder / "counted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(COUNTS)
    launcher.env["PYTHONPATH"] += f":{folder}"
    launcher.env["COUNTED"] = str(folder)
    return lambda: {int(path.name) for path in folder.glob("[0-9]*")}


def agent_of(launcher: Runner, index: int) -> int:
    """The supervisor of one node, found as ``launcher stop`` finds it."""
    (run_id,) = launcher.run_ids()
    of_node = proc.find(**{protocol.NODE_INDEX: str(index), protocol.RUN_ID: run_id})
    (agent,) = find_agents(of_node)
    return agent


def template_of(launcher: Runner) -> int:
    (pid,) = [p for p in launcher.processes() if proc.variable_of(p, protocol.NODE_INDEX) is None]
    return pid


def is_up(launcher: Runner, *names: str) -> bool:
    return all((launcher.folder / f"up-{name}").exists() for name in names)


def test_three_nodes_share_one_import_and_each_is_a_node_of_its_own(
    launcher: Runner, counted: Callable[[], set[int]]
) -> None:
    launcher.write(WAITS)
    process = launcher.start(*THREE)
    try:
        wait_until(lambda: is_up(launcher, "0-0", "1-0", "2-0"))
        agents = [agent_of(launcher, index) for index in range(3)]
        assert counted() == {template_of(launcher)}
        assert len(set(agents)) == 3
        for index, agent in enumerate(agents):
            assert proc.parent_of(agent) == process.pid
            assert os.getsid(agent) == agent
            worker = json.loads((launcher.folder / f"up-{index}-0").read_text())
            for name in (protocol.NODE_INDEX, protocol.RUN_DIR, "OMP_NUM_THREADS", "PATH"):
                assert proc.variable_of(agent, name) == worker[name]
            task = f"{worker[protocol.RUN_DIR]}/nodes/{index}/0/node-plan.json"
            assert [word for word in psutil.Process(agent).cmdline() if word][-1] == task
        (launcher.folder / "go").touch()
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, stderr.decode()
    assert sorted(line.partition("] ")[2] for line in stdout.decode().splitlines()) == [
        f"node {index} incarnation 0" for index in range(3)
    ]
    assert launcher.processes() == []


def test_a_lost_node_is_forked_again_or_started_by_itself_where_the_template_is_gone(
    launcher: Runner, counted: Callable[[], set[int]]
) -> None:
    launcher.write(WAITS)
    process = launcher.start(*JOB)
    try:
        wait_until(lambda: is_up(launcher, "0-0", "1-0"))
        template = template_of(launcher)
        os.kill(agent_of(launcher, 1), signal.SIGKILL)
        wait_until(lambda: is_up(launcher, "1-1"))
        assert counted() == {template}
        assert proc.parent_of(agent_of(launcher, 1)) == process.pid
        os.kill(template, signal.SIGKILL)
        wait_until(lambda: proc.variable_of(template, protocol.RUN_ID) is None)
        os.kill(agent_of(launcher, 1), signal.SIGKILL)
        wait_until(lambda: is_up(launcher, "1-2"))
        assert len(counted()) == 2
        (launcher.folder / "go").touch()
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 1
    assert "node 1 incarnation 2" in stdout.decode()
    assert "node 0 incarnation 0" in stdout.decode()
    assert launcher.processes() == []


def test_an_interrupt_during_the_import_leaves_nothing(launcher: Runner) -> None:
    launcher.write(WAITS)
    process = launcher.start(*JOB)
    try:
        wait_until(lambda: [*launcher.folder.glob("runs/*-*/nodes/1/0/node-plan.json")])
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr.decode()
    assert launcher.outcome["reason"] == "interrupted"
    assert launcher.processes() == []
    assert not is_up(launcher, "0-0")


@pytest.mark.slow  # the other ends of a launcher are tried in every CI
def test_nodes_and_template_end_with_a_launcher_that_is_killed(launcher: Runner) -> None:
    launcher.write(WAITS)
    process = launcher.start(*JOB)
    wait_until(lambda: is_up(launcher, "0-0", "1-0"))
    assert len(launcher.processes()) > 4
    process.kill()
    process.communicate()
    wait_until(lambda: launcher.processes() == [])


@pytest.mark.slow  # each agent's own word is tried by the agent's tests in every CI
def test_a_node_that_is_told_to_end_does_not_tell_the_others(launcher: Runner) -> None:
    launcher.write(WAITS)
    process = launcher.start(*JOB[:-1], "1:2")
    try:
        wait_until(lambda: is_up(launcher, "0-0", "1-0"))
        assert launcher("scale", "1").returncode == 0
        (run_id,) = launcher.run_ids()
        of_node = {protocol.RUN_ID: run_id, protocol.NODE_INDEX: "1"}
        wait_until(lambda: not proc.find(**of_node))
        # As Slurm does it: SIGTERM to all processes, of which only the supervisor may act on it.
        supervisor = agent_of(launcher, 0)
        of_run = proc.find(**{protocol.RUN_ID: run_id})
        children = [pid for pid in of_run if proc.parent_of(pid) == supervisor]
        proc.send(tuple(children), signal.SIGTERM)
        (launcher.folder / "go").touch()
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, stderr.decode()
    # Twice where its worker ended before its agent knew that the other node has left.
    assert {*stdout.decode().splitlines()} == {"[0/0] node 0 incarnation 0"}, stderr.decode()


def test_launcher_and_program_name_the_room_alike() -> None:
    assert early.ROOM == early_program.ROOM


# -- the template alone --------------------------------------------------------------------------

RUN = "digits-0a1b2c"
THREADED = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"


@pytest.fixture
def nodes(tmp_path: Path, make_plan: Callable[..., LaunchPlan]) -> tuple[Process, ...]:
    """Two nodes of a plan whose folders are here."""
    plan = make_plan(nnodes=2, workdir=str(tmp_path))
    processes = render_local(plan).processes
    return tuple(
        replace(
            process,
            argv=(sys.executable, *process.argv[1:]),
            node=replace(process.node, log_dir=str(tmp_path)),
        )
        for process in processes
    )


@contextlib.contextmanager
def template_for(nodes: tuple[Process, ...]) -> Iterator[Template]:
    # No fixture: pytest changes the environment between those and a test.
    template = start_template(nodes[0])
    try:
        yield template
    finally:
        template.end()


@pytest.mark.parametrize(
    ("name", "differ"),
    [
        ("CUDA_VISIBLE_DEVICES", True),
        (protocol.NODE_INDEX, True),
        ("LAUNCHER_ATTEMPT", True),
        ("OMP_NUM_THREADS", False),
        ("LD_PRELOAD", False),
    ],
)
def test_nodes_share_an_import_only_where_it_can_find_no_difference(
    nodes: tuple[Process, ...], name: str, differ: bool
) -> None:
    first, second = nodes
    template = Template(0, environment_of(first), first)
    assert template.suits(second, environment_of(second))
    assert template.suits(second, environment_of(second) | {name: "2"}) is differ
    without = {key: value for key, value in environment_of(second).items() if key != "PATH"}
    assert not template.suits(second, without)
    elsewhere = replace(second, node=replace(second.node, workdir="/elsewhere"))
    assert not template.suits(elsewhere, environment_of(elsewhere))


def settle(template: Template) -> Settled:
    """What became of all that was ordered."""
    found = Settled()

    def all_told() -> bool:
        told = template.settle()
        found.pids.update(told.pids)
        found.codes.update(told.codes)
        found.refused += told.refused
        return not template.awaits((0, 1))

    wait_until(all_told)
    return found


@pytest.mark.parametrize("torch", ["raise ImportError", THREADED])
def test_where_torch_cannot_be_forked_every_node_is_refused(
    tmp_path: Path, nodes: tuple[Process, ...], torch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "torch/distributed", "torch/distributed/launcher"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(torch if name == "torch" else "")
    (tmp_path / "torch/distributed/launcher/api.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    template = start_template(nodes[0])
    assert [template.order(process) for process in nodes] == [True, True]
    settled = settle(template)
    assert (settled.refused, settled.pids, settled.codes) == ([*nodes], {}, {})
    assert not template.order(nodes[0])


def test_nodes_that_were_not_forked_yet_end_as_their_killed_template(
    nodes: tuple[Process, ...],
) -> None:
    with template_for(nodes) as template:
        assert template.order(nodes[0])
        (pid,) = proc.find(**{protocol.RUN_ID: RUN})
        os.kill(pid, signal.SIGKILL)
        settled = settle(template)
        assert (settled.refused, settled.pids, settled.codes) == ([], {}, {(0, 0): 137})


def test_ended_it_gives_back_what_it_has_not_forked(nodes: tuple[Process, ...]) -> None:
    with template_for(nodes) as template:
        assert all(template.order(process) for process in nodes)
        assert template.end().refused == [*nodes]
        assert template.end() == Settled()
        assert not template.order(nodes[0])
    assert proc.find(**{protocol.RUN_ID: RUN}) == ()


def test_adopted_children_are_polled_as_others() -> None:
    adoption.begin()
    try:
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            if (pid := os.fork()) == 0:
                signal.pause()
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        pid = int(os.read(reader, 20))
    finally:
        adoption.end()
        os.close(reader)
        os.close(writer)
    assert proc.poll(pid) is None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: proc.poll(pid) is not None)
    assert proc.poll(pid) == proc.poll(pid) == 137
