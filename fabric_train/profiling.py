"""torch.profiler's traces, one for each rank, of planned steps or steps that a node asks for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from fabric_train.worker_env import LOOKS_DIR, PROFILE_REQUEST, TRACE, WorkerEnv

LOOK_INTERVAL_S = 0.1


class Profiler:
    """Begins and ends traces between two steps. ``speaks``: this rank reads its node's requests."""

    def __init__(self, env: WorkerEnv, *, speaks: bool) -> None:
        self._node_dir, self._speaks = env.node_dir, speaks
        self._rank = env.world.rank if env.world else 0
        self._looked_at = 0.0
        self._wish = 0
        self._answered = ""
        self._planned: tuple[int, int, Path] | None = None
        self._trace: Any = None
        self._last, self._path = 0, Path()

    def plan(self, first: int, last: int, folder: Path) -> None:
        """Traces the steps from ``first`` to ``last``, which count from 1, into ``folder``."""
        self._planned = first, last, folder / TRACE.format(rank=self._rank)

    def look(self) -> int:
        """How many steps the agent asks for; 0 for none. Cheap enough for every step."""
        now = time.monotonic()
        if self._speaks and now - self._looked_at >= LOOK_INTERVAL_S:
            self._looked_at, self._wish = now, 0 if self._trace else self._read_request()[0]
        return self._wish

    def after_step(self, step: int, request: int = 0) -> None:
        """Begins or ends a trace; ``request`` is what all ranks agreed on. Raises no OSError."""
        if self._trace and step >= self._last:
            self.stop()
        if self._trace:
            return
        if self._planned and self._planned[0] - 1 <= step < self._planned[1]:
            _, last, path = self._planned
            self._start(last, path)
        elif request:
            steps, id = self._read_request()
            if steps and self._node_dir:
                self._answered, self._wish = id, 0
                folder = self._node_dir / LOOKS_DIR / id
                self._start(step + steps, folder / TRACE.format(rank=self._rank))

    def _start(self, last: int, path: Path) -> None:
        self._last, self._path = last, path
        self._trace = torch.profiler.profile()
        self._trace.start()

    def stop(self) -> None:
        """Ends and writes the running trace, if any: a training may end during one."""
        trace, self._trace = self._trace, None
        if trace is None:
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        trace.stop()
        staged = self._path.with_name(f".{self._path.name}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            trace.export_chrome_trace(str(staged))
            os.replace(staged, self._path)
        except (OSError, RuntimeError):  # a full disk must not end the training
            staged.unlink(missing_ok=True)

    def _read_request(self) -> tuple[int, str]:
        """The request that is not answered yet: its steps and its id."""
        if self._node_dir is None:
            return 0, ""
        try:
            request = json.loads((self._node_dir / PROFILE_REQUEST).read_bytes())
            steps, id = int(request["steps"]), str(request["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, ""
        return (0, "") if id == self._answered else (steps, id)
