"""What a run left in its folder and on the Docker engine, for tests of whole runs there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

from launcher.contract.protocol import LABEL_NODE_INDEX, LABEL_RUN_ID
from tests.launcher.runner import PREFIX, Runner

MOUNTED = PREFIX + "mounts: [./:/code:ro]\nworkdir: /code\n"
UNTIL_TOLD = """
import os, time
run = os.environ["RUN_DIR"]
open(f"{run}/up-" + os.environ["RANK"], "w").close()
while not os.path.exists(f"{run}/go"):
    time.sleep(0.05)
"""
"""Trains until a file ``go`` is in the run's folder."""


class Wire:
    """A socket that leads to the engine until it is cut, as while an engine is started anew whose
    containers live on (``live-restore``)."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix://{path}"
        self._path, self._open = path, list[socket.socket]()
        usual = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self._engine = usual.removeprefix("unix://")
        self.mend()

    def mend(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self._path))
        self._server.listen(64)
        threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        self._path.unlink(missing_ok=True)
        for one in (self._server, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = server.accept()
                theirs = socket.socket(socket.AF_UNIX)
                theirs.connect(self._engine)
                self._open += (ours, theirs)
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def containers(engine: Any, run_id: str, **labels: str) -> list[Any]:
    wanted = {LABEL_RUN_ID: run_id, **labels}
    filters = {"label": [f"{name}={value}" for name, value in wanted.items()]}
    found: list[Any] = engine.containers.list(all=True, filters=filters)
    return found


def node(engine: Any, run_id: str, index: int) -> Any:
    return containers(engine, run_id, **{LABEL_NODE_INDEX: str(index)})[0]


def has(launcher: Runner, pattern: str) -> bool:
    return bool(list((launcher.folder / "runs/latest").glob(pattern)))


def remove_left(engine: Any, run_ids: list[str]) -> list[str]:
    """Removes what the engine still holds of runs; the names of it."""
    left = [container for run_id in run_ids for container in containers(engine, run_id)]
    names = [container.name for container in left]
    for container in left:
        container.remove(force=True)
    networks = [n for run_id in run_ids for n in engine.networks.list(names=[run_id])]
    for network in networks:
        network.remove()
    return names + [network.name for network in networks]
