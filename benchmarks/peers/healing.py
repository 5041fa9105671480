"""One language model under ways to survive a lost node: ``healing.py FILE PAUSE_S SIDE ...``.

After each optimizer step, ``<monotonic seconds> <world size> <rank> <pid> <step>`` is appended to
FILE, and the loop sleeps. It runs until it is killed. The module imports nothing but torch at its
top: each side has an environment of its own. SIDE is one of the functions at the end.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

SYMBOLS, WIDTH, INNER, LAYERS, HEADS, LENGTH, BATCH = 65, 128, 448, 2, 4, 32, 2
"""Weights of 1.5 MB."""
BLOCK, BLOCKS = 20, 16
"""Steps of a block, and blocks of each kind, where the cost of a step is measured."""


class LanguageModel(nn.Module):
    """``table_mb``: megabytes of weights beside it that are not trained, for a larger state."""

    def __init__(self, table_mb: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, SYMBOLS)
        self.table = nn.Parameter(torch.zeros(int(table_mb * 1e6 / 4)), requires_grad=False)

    def forward(self, symbols: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.body(self.embedding(symbols), mask, is_causal=True))


def build(table_mb: float = 0) -> tuple[LanguageModel, torch.optim.Optimizer]:
    """The same on every node."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LanguageModel(table_mb)
    trained = [one for one in model.parameters() if one.requires_grad]
    return model, torch.optim.AdamW(trained, lr=1e-3)


def find_loss(model: Callable[[Tensor], Tensor], step: int, rank: int) -> Tensor:
    """Of this rank's samples in this step."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    text = torch.randint(SYMBOLS, (BATCH, LENGTH + 1), generator=generator)
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class Teller:
    """Appends a line to ``file`` for each step, and sleeps."""

    def __init__(self, file: str, pause_s: float) -> None:
        self.file, self._pause_s = Path(file), pause_s
        self._told = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(self, size: int, rank: int, step: int) -> None:
        os.write(self._told, f"{time.monotonic()} {size} {rank} {os.getpid()} {step}\n".encode())
        time.sleep(self._pause_s)


# -- the sides -------------------------------------------------------------------------------------
def ours(teller: Teller, table_mb: str = "0") -> None:
    """This project: the loop of ``fabric_train.worlds``."""
    from fabric_train.worlds import Worlds

    model, optimizer = build(float(table_mb))
    worlds = Worlds()
    for world in worlds:
        with world:
            world.share(model, optimizer)
            replica = DistributedDataParallel(model, init_sync=False)
            while True:
                with world.step():
                    find_loss(replica, worlds.step or 0, world.rank).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                teller.tell(world.env.world_size, world.rank, worlds.step or 0)


def ours_and_plain(teller: Teller) -> None:
    """What ``world.step()`` costs: blocks of steps with it and without it in turn, in one world.

    Rank 0 writes both medians of a step's seconds into ``seconds.json`` beside FILE.
    """
    from fabric_train.worlds import Worlds

    model, optimizer = build()
    worlds = Worlds()
    for world in worlds:
        with world:
            world.share(model, optimizer)
            replica = DistributedDataParallel(model, init_sync=False)

            def take_step(replica: nn.Module = replica, rank: int = world.rank) -> None:
                find_loss(replica, 0, rank).backward()
                optimizer.step()
                optimizer.zero_grad()

            seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
            while True:
                began = time.perf_counter()
                for _ in range(BLOCK):
                    with world.step():
                        take_step()
                middle = time.perf_counter()
                for _ in range(BLOCK):
                    take_step()
                seconds["ours"].append((middle - began) / BLOCK)
                seconds["theirs"].append((time.perf_counter() - middle) / BLOCK)
                teller.tell(world.env.world_size, world.rank, worlds.step or 0)
                if world.rank == 0 and world.env.world_size == 2 and len(seconds["ours"]) == BLOCKS:
                    # The first of each kind allocates what all later ones use again.
                    medians = {side: statistics.median(one[1:]) for side, one in seconds.items()}
                    new = teller.file.with_name("seconds.new")
                    new.write_text(json.dumps(medians))
                    new.rename(teller.file.with_name("seconds.json"))


def restarted(teller: Teller, save_every: str) -> None:
    """torchrun and ft_launcher: a checkpoint each so many steps, which new workers read."""
    dist.init_process_group("gloo")
    size, rank = dist.get_world_size(), dist.get_rank()
    model, optimizer = build()
    checkpoint, step = teller.file.with_name("checkpoint.pt"), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    replica = DistributedDataParallel(model)
    while True:
        find_loss(replica, step, rank).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % int(save_every) == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step}, new := checkpoint.with_suffix(".new"))
            new.rename(checkpoint)
        teller.tell(size, rank, step)


def torchft(teller: Teller) -> None:
    """torchft: its manager, its group and its wrappers, as in its example for DDP."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    model, inner = build()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]),
            inner.load_state_dict(state["optimizer"]),
        ),
        replica_id=f"node-{os.environ['NODE_INDEX']}",
        hostname="127.0.0.1",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    replica = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    step = 0
    while True:
        optimizer.zero_grad()
        find_loss(replica, step, int(os.environ["NODE_INDEX"])).backward()
        optimizer.step()
        if manager.current_step() != step:
            step = manager.current_step()
            teller.tell(manager.num_participants(), manager.participating_rank() or 0, step)


SIDES = {one.__name__: one for one in (ours, ours_and_plain, restarted, torchft)}


if __name__ == "__main__":
    SIDES[sys.argv[3]](Teller(sys.argv[1], float(sys.argv[2])), *sys.argv[4:])
