"""Nodes as real processes over a real store: what they did is told in a file each."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["launcher.agent.roster.backend"])


def live(told: str, index: int, port: int, nnodes: tuple[int, int], config: dict[str, Any]) -> None:
    """An agent without workers: re-forms whenever it is told to, until it is refused."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from launcher.agent.roster.backend import create_handler

    def tell(what: str, **more: Any) -> None:
        with open(told, "a") as file:
            file.write(json.dumps({"at": time.monotonic(), "what": what, **more}) + "\n")

    try:
        params = RendezvousParameters(
            "roster", f"127.0.0.1:{port}", "run", *nnodes, "127.0.0.1", node_index=index, **config
        )
        handler = create_handler(params)
        signal.signal(signal.SIGTERM, lambda *_: (handler.leave(), os._exit(0)))
        while True:
            info = handler.next_rendezvous()
            assert handler.membership
            generation = handler.membership.generation
            tell("in", rank=info.rank, size=info.world_size, generation=generation)
            while not handler.num_nodes_waiting():
                time.sleep(0.02)
            tell("out", counts=handler.head.counts)
    except Exception as error:
        tell("refused", kind=type(error).__name__, text=str(error))
        os._exit(0)


@dataclass
class Node:
    """A node's process, and the story it has told so far."""

    process: ForkServerProcess
    told: Path

    def story(self) -> list[dict[str, Any]]:
        if not self.told.exists():
            return []
        return [json.loads(line) for line in self.told.read_text().splitlines(keepends=False)]

    def last(self) -> dict[str, Any]:
        return (self.story() or [{"what": "nothing", "at": 0.0}])[-1]

    def is_in(self, size: int) -> bool:
        last = self.last()
        return last["what"] == "in" and last["size"] == size

    def signal(self, number: int) -> float:
        """Sends it; the instant it was sent."""
        assert self.process.pid is not None
        at = time.monotonic()
        os.kill(self.process.pid, number)
        return at


class Nodes:
    """Starts nodes around one store and ends them all."""

    def __init__(self, folder: Path, port: int, nnodes: tuple[int, int], **config: Any) -> None:
        self.folder, self.port, self.nnodes = folder, port, nnodes
        self.config = {"detection_limit_s": 1.0, "last_call_s": 0.5, "fence_dir": str(folder)}
        self.config |= config
        self.all: list[Node] = []

    def start(self, index: int) -> Node:
        told = self.folder / f"node-{len(self.all)}.jsonl"
        args = (str(told), index, self.port, self.nnodes, self.config)
        process = CONTEXT.Process(target=live, args=args, daemon=True)
        process.start()
        self.all.append(Node(process, told))
        return self.all[-1]

    def start_group(self, size: int) -> list[Node]:
        nodes = [self.start(index) for index in range(size)]
        wait_until(lambda: all(node.is_in(size) for node in nodes), 30)
        return nodes

    def end(self) -> None:
        for node in self.all:
            with contextlib.suppress(ProcessLookupError):
                node.signal(signal.SIGKILL)
            node.process.join(5)


def wait_until(condition: Callable[[], Any], limit_s: float) -> None:
    """Fails when the condition does not hold within ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
