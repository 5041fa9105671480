"""Keeps one node: starts it, holds its lease, ends it, also where no launcher is heard any more.

The keeper is a process of its own, which outlives the session that started it. It ends the node of
a followed run if the launcher is silent for a while, but never that of a detached run.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from launcher.agent import disk
from launcher.contract import protocol
from launcher.contract.waits import SOON_S
from launcher.targets.held.child import HeldChild, write
from launcher.targets.hosts.program import leases, processes
from launcher.targets.hosts.program.messages import TYPE_CHECKING, KeeperSpec
from launcher.targets.hosts.program.node_state import is_node_followed
from launcher.targets.process_table import send
from launcher.targets.subprocesses import children
from launcher.targets.subprocesses.short_command import read_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

SWEEP_LIMIT_S = 5.0
LAST_WORD_S = 2.0
"""How long a node may take beyond its grace: an agent that is killed leaves its scratch folder."""
SETUP_FAILED, DISK_FULL = 126, 198
MOST_DETAIL = 2000
"""Characters of what is told of an end: the record holds no more on a full disk."""
SHOWN_S = 1.0
"""Between two signs to a held node that the run lives."""


class NodeKeeper:
    """Starts a node, and sees to its end; ``held`` are the open files of its lease."""

    def __init__(self, spec: KeeperSpec, held: list[int]) -> None:
        self._spec, self._held = spec, held
        self._run_id, self._node = spec.run_id, spec.node_index
        self._folder = Path(spec.node_dir)
        self._is_to_end = False
        self._why = ""
        self._kill_at: float | None = None

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._is_to_end = True

    def run(self) -> None:
        """Blocks until the node has ended and none of its processes is left."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        processes.record_process(self._folder, os.getpid())
        try:
            code = self._follow(self._spec)
        except OSError as error:
            self._close(SETUP_FAILED, f"cannot start {self._spec.argv[0]}: {error.strerror}")
            return
        container = self._spec.container
        out_of_memory, docker_error = inspect_container(container) if container else (False, "")
        detail = docker_error or self._why
        if code == DISK_FULL and not (self._folder / protocol.OUTCOME_FILE).exists():
            # The node's own report found no room, and only this host sees its disk.
            full = os.strerror(errno.ENOSPC)
            detail = f"{full}: {disk.describe(full, self._folder.parents[2])}"
        self._close(code, detail, out_of_memory=out_of_memory)

    def _follow(self, spec: KeeperSpec) -> int:
        """Runs the program, and returns its exit code as in a shell."""
        unset = (processes.KEEPER, *spec.unset)
        inherited = {k: v for k, v in os.environ.items() if k not in unset}
        env = {**inherited, **spec.env, **spec.secrets}
        if held := KeptChild(spec, env) if spec.held else None:
            poll, end = held.poll, partial(held.end, spec.run_id)
        else:
            console = self._folder / protocol.CONSOLE_FILE
            pid = children.start(tuple(spec.argv), cwd=spec.cwd, env=env, console=console)
            poll, end = partial(children.poll, pid), partial(_end, pid)
        while (code := poll()) is None:
            self._turn(end)
            time.sleep(SOON_S)
        self._why = self._why or (held.why if held else "")
        return code

    def _turn(self, end: Callable[[float], None]) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            if grace_s := self._grace_s():
                # Without a grace it is to end at once.
                limit_s = grace_s + min(LAST_WORD_S, grace_s)
                self._kill_at = now + (limit_s if self._hears() else 0.0)
                end(grace_s)
        elif now > self._kill_at:
            self._sweep()

    def _hears(self) -> bool:
        """Whether SIGTERM reaches the node: a container's first process needs a handler for it.

        An agent that has not begun has none yet, and nothing to save either.
        """
        name = protocol.AGENT_LEDGER.format(node_index=self._node, incarnation=self._folder.name)
        is_agent = self._spec.container and (self._folder / protocol.NODE_TASK_FILE).exists()
        return not is_agent or (self._folder.parents[2] / protocol.LEDGER_DIR / name).exists()

    def _grace_s(self) -> float:
        """The grace once the node is to end; 0 before that."""
        spec = self._spec
        if self._is_to_end:
            with suppress(OSError, ValueError):
                return max(0.01, float((self._folder / processes.GRACE_FILE).read_text()))
        elif spec.detached or is_node_followed(self._folder.parent, spec.followed_s):
            return 0.0
        else:
            self._why = protocol.LAUNCHER_GONE
        return max(0.01, spec.stop_grace_s)

    def _sweep(self) -> None:
        if self._spec.container:
            processes.remove_containers(self._spec.container)
        send(processes.find(self._run_id, self._node), signal.SIGKILL)

    def _close(self, code: int, detail: str, *, out_of_memory: bool = False) -> None:
        deadline = time.monotonic() + SWEEP_LIMIT_S
        self._sweep()
        while processes.find(self._run_id, self._node) and time.monotonic() < deadline:
            self._sweep()
            time.sleep(SOON_S)
        leases.release(self._held)
        processes.record_process(
            self._folder,
            os.getpid(),
            exit_code=code,
            detail=detail[:MOST_DETAIL],
            out_of_memory=out_of_memory,
        )


def _end(pid: int, _grace_s: float) -> None:
    # Signal only the agent, which ends its workers: it would report a worker that gets a signal
    # from elsewhere as failed.
    send((pid,), signal.SIGTERM)
    send((pid,), signal.SIGCONT)


# -- held nodes and containers ---------------------------------------------------------------------


class KeptChild(HeldChild):
    """The forked node as its keeper sees it, which also shows the held node that the run lives."""

    def __init__(self, spec: KeeperSpec, env: Mapping[str, str]) -> None:
        assert spec.held is not None
        hold_dir, request = Path(spec.held.run_dir), json.loads(spec.held.request)
        super().__init__(hold_dir, spec.node_index, Path(request["record_dir"]))
        self._user, self._show_at = hold_dir / protocol.HOLD_USER, 0.0
        # A container has an environment of its own, and pids that say nothing here.
        given = {**spec.env, **spec.secrets} if request.get("adds_env") else env
        write(self._user, spec.held.user)
        self.ask(json.dumps({**request, "env": list(given.items())}))

    def poll(self) -> int | None:
        if (now := time.monotonic()) > self._show_at:
            self._show_at = now + SHOWN_S
            with suppress(OSError):
                os.utime(self._user)
        return super().poll()


def inspect_container(name: str) -> tuple[bool, str]:
    """Whether a container ran out of memory, and its engine's error, if it is there."""
    argv = ("docker", "inspect", "--format", "{{.State.OOMKilled}} {{.State.Error}}", name)
    out_of_memory, _, error = (read_output(argv) or "").strip().partition(" ")
    return out_of_memory == "true", error
