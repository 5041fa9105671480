"""A worker's connection to its node's agent, which tells it of losses and of its next world.

Lines of JSON over a Unix socket. The agent says ``{"lost": why, "generation": n}`` when the group
of that generation is broken, and ``{"world": variables, "generation": n, "joined": bool}`` when the
nodes have met again. The worker says ``{"worker": local rank}``, ``{"ready": true}``
when it waits for a world, ``{"broken": why, "generation": n}``, ``{"formed": n}`` and
``{"healed": ...}``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]


class AgentLink:
    """Calls ``hear`` from a thread of its own for each message, until the agent has gone."""

    def __init__(self, path: Path, local_rank: int, hear: Callable[[Message], None]) -> None:
        """Raises OSError where no agent listens."""
        self._hear, self._sending = hear, threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self.say(worker=local_rank)
        threading.Thread(target=self._listen, name="agent", daemon=True).start()

    def say(self, **message: object) -> None:
        """Tells the agent; an agent that is gone ends this process by itself."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            # Ended with the agent, or with this process.
            for line in self._socket.makefile("rb"):
                self._hear(json.loads(line))
