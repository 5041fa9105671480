"""The agent's own process: warm process first, then torch, then torch's elastic agent.

Imports torch only inside functions, because the fork server must be started before; then
both import it side by side.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.agent import preload
from launcher.agent.attempts import Attempts
from launcher.agent.faults import FaultBook
from launcher.agent.gpu import GpuGate, open_devices
from launcher.agent.node import Node, say
from launcher.agent.report import AgentReport, Ledger
from launcher.agent.settings import AgentSettings, NodeTask
from launcher.agent.watchdog import Watchdog
from launcher.clock import Clock, SystemClock

PRELOAD_LIMIT_S = 180.0
_FABRIC = "lightning.fabric"


def run_agent(task: NodeTask, *, run_dir: Path, scratch: Path, ledger: Ledger) -> AgentReport:
    """Runs this node's workers until they are done, and reports how that ended. Blocks.

    Call in a process of its own with one thread; ``scratch`` is a private folder.
    """
    archive = archive_path()
    settings = task.settings
    warm = _Warm(task, scratch, archive) if settings.start == "fork" else None
    clock = SystemClock()
    node_dir = Path(task.node.log_dir)
    attempts = Attempts(node_dir, run_dir, scratch)
    book = FaultBook(
        max_restarts=task.node.max_restarts, same_failure_limit=settings.same_failure_limit
    )
    gate = GpuGate(
        open_devices(os.environ.get("CUDA_VISIBLE_DEVICES")), settings.gpu_free_limit_s, clock
    )
    node = Node(attempts, book, ledger, gate, clock)
    watchdog = Watchdog(attempts, settings, ledger, clock)
    _start_health(settings, node, watchdog, clock)
    from launcher.agent import launch

    forks = warm is not None and warm.wait()
    watchdog.start()
    reason, detail = launch.run_elastic_agent(task, node, archive, forks=forks)
    watchdog.stop()
    return AgentReport(
        reason=reason,
        detail=detail,
        attempts=attempts.count,
        restarts=dict(book.restarts),
        ends=node.ends,
        carried=node.link.carried() if node.link else {},
    )


def _start_health(settings: AgentSettings, node: Node, watchdog: Watchdog, clock: Clock) -> None:
    if settings.health_port is None:
        return
    from launcher.agent.health import read_health, start_health_server

    book = watchdog.book if settings.hang_min_s > 0 else None
    try:
        port = start_health_server(
            settings.health_host, settings.health_port, lambda: read_health(node, book, clock)
        )
    except OSError as error:
        say(f"no health server on port {settings.health_port}: {error}")
        return
    say(f"health: http://{settings.health_host}:{port}/healthz")


def archive_path() -> str:
    """The zipapp that this code runs from. Raises RuntimeError where it is none."""
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is None:
        raise RuntimeError("the agent runs from its archive: build it with render_agent_archive")
    return os.path.abspath(str(archive))


class _Warm:
    """The fork server, started at construction; ``wait`` says whether it may be forked."""

    def __init__(self, task: NodeTask, scratch: Path, archive: str) -> None:
        from multiprocessing import forkserver

        self._report = scratch / "preload.json"
        self._report.unlink(missing_ok=True)
        self._named = task.settings.preload
        modules = plan_preload(task.settings, _read_sources(task.node.command))
        # The server has '' on its path, and 3.11's does not take its parent's; both are undone
        # in it before it imports anything of the image.
        ours: dict[str, str | None] = {
            "PYTHONPATH": os.pathsep.join(filter(None, (archive, os.environ.get("PYTHONPATH")))),
            "PYTHONSAFEPATH": "1",
        }
        theirs = {name: os.environ.get(name) for name in ours}
        order = {
            "report": str(self._report),
            "agent_pid": os.getpid(),
            "archive": archive,
            "modules": modules,
            "environment": theirs,
        }
        preload.restore_environment({**ours, preload.ORDER: json.dumps(order)})
        try:
            forkserver.set_forkserver_preload([preload.__name__])
            forkserver.ensure_running()
        finally:
            preload.restore_environment({**theirs, preload.ORDER: None})

    def wait(self) -> bool:
        """Blocks until the imports are done. Says in one line why it falls back, if it does."""
        refused = self._read_refusal()
        if refused:
            say(f"start: fork is not possible here ({refused}); starting fresh interpreters")
        return not refused

    def _read_refusal(self) -> str:
        deadline = time.monotonic() + PRELOAD_LIMIT_S
        while time.monotonic() < deadline:
            try:
                report = json.loads(self._report.read_text())
            except (OSError, ValueError):
                time.sleep(0.01)
                continue
            for name, problem in report["problems"].items():
                if name != "torch" and (name != _FABRIC or _FABRIC in self._named):
                    say(f"preload: {name} cannot be imported ({problem}); going on without it")
            return str(report["refused"])
        return f"the warm process was not ready after {PRELOAD_LIMIT_S:.0f} s"


def plan_preload(settings: AgentSettings, sources: Mapping[str, bytes]) -> tuple[str, ...]:
    """What the warm process imports beside torch: what the job names, and Fabric if it is used."""
    uses_fabric = any(b"lightning" in source for source in sources.values())
    named = settings.preload
    return (_FABRIC, *named) if uses_fabric and _FABRIC not in named else named


def _read_sources(command: tuple[str, ...]) -> dict[str, bytes]:
    """The script, or the files of the package behind ``-m``, to see what they mention."""
    paths = _module_files(command[1]) if command[0] == "-m" else [Path(command[0])]
    found = {}
    for path in paths:
        try:
            found[str(path)] = path.read_bytes()
        except OSError:
            continue
    return found


def _module_files(name: str) -> list[Path]:
    # Not importlib.util.find_spec: it would import the parents of a dotted name here.
    parts = name.split(".")
    for entry in (str(Path.cwd()), *sys.path):
        folder = Path(entry or ".").joinpath(*parts)
        if folder.is_dir():
            return sorted(folder.rglob("*.py"))[:200]
        if folder.with_suffix(".py").is_file():
            return [folder.with_suffix(".py")]
    return []
