"""Process trees that are started, killed and measured; whoever starts one here ends it, by pid."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.commands import TAIL_LINES, measured_environment, start
from benchmarks.measure import BenchmarkError

LABEL = "BENCHMARK_LABEL"
"""Finds also the processes whose parents are gone: torchrun's workers outlive their agent."""
POLL_S = 0.005
LIMIT_S = 120.0


class Trees:
    """The trees of one sample; as a context manager, it leaves no process behind."""

    def __init__(self, folder: Path, extra_env: Mapping[str, str]) -> None:
        self.folder = folder
        self._label = uuid.uuid4().hex
        self._env = {**measured_environment(os.environ), **extra_env, LABEL: self._label}
        self._roots: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Trees:
        return self

    def __exit__(self, *_: object) -> None:
        """Until none is left: a dying agent may start another process meanwhile."""
        for root in self._roots:
            if root.poll() is None:
                root.kill()
        while left := self.living():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(POLL_S)
        for root in self._roots:
            root.wait()

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts a tree's root; its output goes to a file of the folder."""
        with (self.folder / f"console-{len(self._roots)}").open("wb") as console:
            root = start(
                argv,
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        self._roots.append(root)
        return root

    def kill(
        self, *roots: subprocess.Popen[bytes], signum: signal.Signals = signal.SIGKILL
    ) -> float:
        """SIGKILL, or SIGSTOP, to whole trees, each root first; the instant before it."""
        processes = [psutil.Process(root.pid) for root in roots]
        trees = [[process, *process.children(recursive=True)] for process in processes]
        at = time.monotonic()
        for one in itertools.chain(*trees):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signum)
        if signum == signal.SIGKILL:
            for root in roots:
                root.wait()
        return at

    def living(self) -> list[psutil.Process]:
        """All processes of all trees, wherever they hang now."""
        return [one for one in psutil.process_iter() if self._is_ours(one)]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Raises BenchmarkError, with the last lines of the consoles, where it does not come."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end:
                tail = "\n  ".join(self._tail())
                raise BenchmarkError(f"{what} did not come within {LIMIT_S:g} s\n  {tail}")
            time.sleep(POLL_S)

    def _tail(self) -> Iterator[str]:
        for path in sorted(self.folder.glob("console-*")):
            yield from path.read_text(errors="replace").splitlines()[-TAIL_LINES:]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            # A process that is being forked or replaced shows no environment for an instant.
            labelled = process.environ().get(LABEL) == self._label
            return labelled and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False
