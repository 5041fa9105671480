"""The agent's own process: imports torch or refuses it as too old, records versions and a hash of
the code, then runs the workers.

Imports torch only inside functions: between the import and the fork nothing may start a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from launcher.agent.endings import AttemptJudge
from launcher.agent.engine import preload
from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.gpu_memory import GpuGate, open_devices, open_gauges
from launcher.agent.engine.monitoring.vitals import read_hardware, tell_vitals
from launcher.agent.engine.monitoring.watchdog import Watchdog
from launcher.agent.engine.node_state import Node
from launcher.agent.ledger import AgentLedger
from launcher.agent.streams import say
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import NodeOutcome
from launcher.contract.node_plan import AgentSettings, NodeTask

_FABRIC = "lightning.fabric"
_IMPORTS = re.compile(rb"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
_SETTINGS = re.compile(r"[^=]+\.(?:ya?ml|json|toml|ini|cfg)$")
MOST_FILES = 200
"""The most files that are read of a package behind ``-m``."""
LEAST_LEFT_BYTES = 64 << 20
"""The address space that the agent's threads need beside torch."""


def run_agent(task: NodeTask, *, run_dir: Path, scratch: Path, ledger: AgentLedger) -> NodeOutcome:
    """Runs this node's workers until they are done; returns how the node ended. Blocks.

    Call in a process of its own with one thread. ``scratch`` is a private folder.
    """
    place = task.node
    end = partial(NodeOutcome, node_index=place.node_index, incarnation=place.incarnation)
    archive = archive_path()
    settings = task.settings
    try:
        token = read_token(run_dir)
    except OSError as error:
        return end(cause=Cause.BAD_INPUT, detail=f"the run's token cannot be read: {error}")
    if settings.hold_idle_s:
        from launcher.agent.engine.hold import Holder

        cause, detail = Holder(task, run_dir, archive).run((_FABRIC, *settings.preload))
        return end(cause=cause, detail=detail)
    forks = settings.start == "fork" and warm_up(task, scratch)
    with preload.without_collector():
        if refused := refuse_torch() or refuse_limit():
            return end(cause=Cause.BAD_INPUT, detail=refused)
        from launcher.agent.engine import torch_agent
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    versions = read_installed(place.command)
    ledger.write("installed", versions=versions, hardware=read_hardware(visible))
    clock = SystemClock()
    node_dir = Path(task.node.log_dir)
    attempts = Attempts(node_dir, run_dir, scratch)
    judge = AttemptJudge(
        max_restarts=task.node.max_restarts, same_failure_limit=settings.same_failure_limit
    )
    gate = GpuGate(open_devices(visible), settings.gpu_free_limit_s, clock)
    node = Node(attempts, judge, ledger, gate, clock, scratch)
    node.token = token
    watchdog = Watchdog(attempts, settings, ledger, node.looker, clock, lambda: node.healer.waits)
    _start_health(settings, node, watchdog, clock)

    def begin_threads() -> None:
        watchdog.start()
        tell_vitals(node, run_dir, open_gauges(visible), clock)

    # Not before the first round: until then the store may be forked, which needs a single thread.
    node.on_first_round = begin_threads
    outcome = torch_agent.run_workers(task, node, archive, clock, forks=forks)
    watchdog.stop()
    return outcome


def _start_health(settings: AgentSettings, node: Node, watchdog: Watchdog, clock: Clock) -> None:
    if settings.health_port is None:
        return
    from launcher.agent.engine.monitoring.health_server import read_health, start_health_server

    book = watchdog.book if settings.hang_min_s > 0 else None
    try:
        port = start_health_server(
            settings.health_host,
            settings.health_port,
            lambda: read_health(node, book, clock),
        )
    except OSError as error:
        say(f"no health server on port {settings.health_port}: {error}")
        return
    say(f"health: http://{settings.health_host}:{port}/healthz")


def read_token(run_dir: Path, of_pod: Path = Path(protocol.CONTAINER_TOKEN)) -> str:
    """The secret that each connection of this run proves to know; empty if this node has none.

    Only an operator's pod has it in ``of_pod``.
    """
    for folder in (run_dir, of_pod):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return (folder / protocol.TOKEN_FILE).read_text().strip()
    return ""


def archive_path() -> str:
    """The zipapp that this code runs from. Raises RuntimeError where it is none."""
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is None:
        raise RuntimeError("the agent runs from its archive: build it with render_agent_archive")
    return os.path.abspath(str(archive))


def warm_up(task: NodeTask, scratch: Path) -> bool:
    """Imports what workers need and starts the process that forks them.

    Returns False and prints why if nothing can be forked here; workers then start fresh.
    Must come before anything in this process starts a thread.
    """
    named = task.settings.preload
    problems = preload.import_all(plan_preload(task.settings, _read_sources(task.node.command)))
    for name, problem in problems.items():
        if name in named:
            say(f"preload: {name} cannot be imported ({problem}); going on without it")
    refused = preload.find_refusal(problems)
    if not refused:
        try:
            preload.start_server(scratch / "fork")
        except OSError as error:  # such as a TMPDIR that is too long for a socket's name
            refused = f"{scratch}: {error}"
    if refused:
        say(f"start: fork is not possible here ({refused}); starting fresh interpreters")
    return not refused


def refuse_torch() -> str:
    """Why this torch cannot be used; empty if it can. The launcher cannot see an image's torch."""
    try:
        import torch
    except Exception as error:  # to start the node again would change nothing
        return f"{sys.executable}: {str(error) or type(error).__name__}"
    oldest = protocol.OLDEST_TORCH
    if tuple(map(int, torch.__version__.split(".")[:2])) >= oldest:
        return ""
    return f"torch {torch.__version__} is too old: {oldest[0]}.{oldest[1]} or newer is needed"


def refuse_limit() -> str:
    """Why the address space that torch has left is too small; empty if it is not."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit == resource.RLIM_INFINITY or limit - used >= LEAST_LEFT_BYTES:
        return ""
    left, needed = max(0, limit - used) >> 20, LEAST_LEFT_BYTES >> 20
    return f"MemoryError: ulimit -v leaves {left} MiB beside torch, and the agent needs {needed}"


def read_installed(command: tuple[str, ...]) -> dict[str, str]:
    """What has to be the same on all nodes: versions, and a hash of the code that starts here.

    The code is the script, the modules beside it that it imports, and files of settings that
    its arguments name; or the files of the package behind ``-m``.
    """
    import torch

    versions = {"torch": str(torch.__version__), "Python": platform.python_version()}
    with contextlib.suppress(AttributeError):  # torch without CUDA has no NCCL
        versions["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    with contextlib.suppress(OSError):
        versions["Driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    files = _module_files(command[1]) if command[0] == "-m" else [Path(command[0])]
    files += [Path(match[0]) for word in command if (match := _SETTINGS.search(word))]
    digest = hashlib.sha256()
    for path in files:  # it grows meanwhile
        with contextlib.suppress(OSError):
            digest.update(source := path.read_bytes())
            beside = (path.with_name(f"{name.decode()}.py") for name in _IMPORTS.findall(source))
            files += [
                module for module in sorted({*beside}) if module not in files and module.is_file()
            ]
    return {**versions, "code": digest.hexdigest()[:12]}


def plan_preload(settings: AgentSettings, sources: Iterable[bytes]) -> tuple[str, ...]:
    """What the warm process imports beside torch: what the job names, and Fabric if it is used."""
    uses_fabric = any(b"lightning" in source for source in sources)
    named = settings.preload
    return (_FABRIC, *named) if uses_fabric and _FABRIC not in named else named


def _read_sources(command: tuple[str, ...]) -> Iterator[bytes]:
    """The script, or the files of the package behind ``-m``, to see what they mention."""
    for path in _module_files(command[1]) if command[0] == "-m" else [Path(command[0])]:
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def _module_files(name: str) -> list[Path]:
    # Not importlib.util.find_spec: it would import the parents of a dotted name here.
    parts = name.split(".")
    for entry in (str(Path.cwd()), *sys.path):
        folder = Path(entry or ".").joinpath(*parts)
        if folder.is_dir():
            return sorted(folder.rglob("*.py"))[:MOST_FILES]
        if folder.with_suffix(".py").is_file():
            return [folder.with_suffix(".py")]
    return []
