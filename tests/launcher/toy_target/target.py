"""A target that only the tests know: each node is a session of this machine that outlives all.

What is known of a node lies in a folder beside the runs: its process' number, then its exit code.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from launcher.api.choose_target import ROOMS
from launcher.contract.causes import NodeState
from launcher.contract.node_plan import NodePlan
from launcher.contract.protocol import AGENT_ARCHIVE, CONSOLE_FILE, STALE_VARIABLES
from launcher.follow.target import Artifact, LiveRun, NodeObservation, Observation, Target
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.targets.agent_files import render_agent_files, start_argv, write_agent_files
from launcher.targets.room import Room

KEPT = ".toy"


class ToyRoom(Room):
    """The toy's room."""

    name = "toy"
    opens = f"{__name__}:ToyTarget"


def register() -> None:
    """Enters the toy in the table of targets, for this process."""
    ROOMS[ToyRoom.name] = f"{__name__}:ToyRoom"


@dataclass(frozen=True, kw_only=True)
class ToyArtifact(Artifact):
    """Command lines, one for each node."""

    lines: tuple[str, ...]

    def shell(self, *, embed: bool = False) -> str:
        return "\n".join(self.lines) + "\n"


class ToyTarget(Target):
    """Starts agents, and forgets them."""

    name = "toy"

    def __init__(self, run_root: Path) -> None:
        super().__init__()
        self._run_root = run_root.absolute()

    def facts(self, job: JobSpec) -> TargetFacts:
        return TargetFacts(
            target=self.name,
            accelerator="cpu",
            machine=MachineFacts(cpu_count=2),
            torch_version=metadata.version("torch"),
            run_root=str(self._run_root),
            cwd=str(Path.cwd()),
            ports=_free_ports(3),
        )

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ToyArtifact:
        nodes = (node for node in plan.nodes if only is None or node.node_index in only)
        lines = (shlex.join((*_argv(plan, node), "#", *node.command)) for node in nodes)
        return ToyArtifact(lines=tuple(lines))

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        nodes = tuple(n for n in plan.nodes if only is None or n.node_index in only)
        for folder in (plan.checkpoint_dir, *(node.log_dir for node in nodes)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        write_agent_files(render_agent_files(plan, nodes))
        for node in nodes:
            self._start(plan, node)

    def _start(self, plan: LaunchPlan, node: NodePlan) -> None:
        kept = self._kept(plan.run_id, node.node_index, node.incarnation)
        kept.parent.mkdir(parents=True, exist_ok=True)
        env = {name: value for name, value in os.environ.items() if name not in STALE_VARIABLES}
        with Path(node.log_dir, CONSOLE_FILE).open("ab") as console:
            process = subprocess.Popen(
                ("sh", "-c", '"$@"; echo $? >"$0.code"', kept, *_argv(plan, node)),
                cwd=node.workdir,
                env={**env, **dict(node.env)},
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        kept.write_text(str(process.pid))

    def _kept(self, run_id: str, index: int, incarnation: int) -> Path:
        return self._run_root / KEPT / run_id / f"{index}.{incarnation}"

    def observe(self, plan: LaunchPlan) -> Observation:
        nodes = (self._observe(plan.run_id, n.node_index, n.incarnation) for n in plan.nodes)
        return Observation(run_id=plan.run_id, nodes=tuple(nodes))

    def _observe(self, run_id: str, index: int, incarnation: int) -> NodeObservation:
        kept = self._kept(run_id, index, incarnation)
        code = _read_number(kept.with_name(f"{kept.name}.code"))
        pid = _read_number(kept)
        state = NodeState.EXITED
        if code is None:
            state = NodeState.RUNNING if pid and _lives(pid) else NodeState.MISSING
        return NodeObservation(
            node_index=index, incarnation=incarnation, state=state, exit_code=code
        )

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        held = self._held(run_id)
        indices = {path: int(path.name.partition(".")[0]) for path in held}
        self._end([path for path in held if only is None or indices[path] in only], grace_s)

    def _held(self, run_id: str) -> list[Path]:
        return [p for p in (self._run_root / KEPT / run_id).glob("*.*") if p.suffix != ".code"]

    def _end(self, held: list[Path], grace_s: float) -> None:
        pids = [pid for path in held if (pid := _read_number(path)) is not None]
        for pid in pids:
            # The shell waits for its agent, which ends the workers.
            for agent in _children(pid):
                os.kill(agent, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(map(_lives, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in filter(_lives, pids):
            os.killpg(pid, signal.SIGKILL)

    def live_runs(self) -> tuple[LiveRun, ...]:
        folders = (self._run_root / KEPT).glob("*")
        return tuple(self._live(folder.name) for folder in folders)

    def _live(self, run_id: str) -> LiveRun:
        pids = map(_read_number, self._held(run_id))
        running = sum(pid is not None and _lives(pid) for pid in pids)
        return LiveRun(run_id=run_id, run_dir=str(self._run_root / run_id), running_nodes=running)


def _argv(plan: LaunchPlan, node: NodePlan) -> tuple[str, ...]:
    return start_argv(plan, node, sys.executable, f"{plan.run_dir}/{AGENT_ARCHIVE}")


def _free_ports(count: int) -> tuple[int, ...]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(int(probe.getsockname()[1]) for probe in probes)
    for probe in probes:
        probe.close()
    return ports


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _children(pid: int) -> list[int]:
    try:
        told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in told.split()]
