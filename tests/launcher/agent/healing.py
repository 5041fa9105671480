"""A training that heals, in a group of real nodes, for tests."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.launcher.agent.group import Group
from tests.launcher.agent.place import LIMIT_S, Place
from tests.waiting import wait_until

TRAINING = """
import os, pathlib, random, sys, time
import numpy, torch
from torch import nn
from fabric_train import (
    ExactReduction, GlobalBatchSampler, Worlds, align, digest_weights, make_deterministic,
    seed_generators,
)

torch.set_num_threads(1)
make_deterministic()
torch.manual_seed(0)
inputs, targets = torch.randn(512, 20), torch.randn(512, 3)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(model.parameters())
# once
node = os.environ.get("LAUNCHER_NODE_INDEX", "alone")
steps = open(f"steps-{node}", "a")
worlds = Worlds()
for world in worlds:
    with world:
        world.share(model, optimizer)
        size = world.env.world_size
        with open(f"seen-{node}", "a") as file:
            generation = os.environ.get("LAUNCHER_GENERATION", "0")
            file.write(f"{size} {generation} here\\n")
        place = {"virtual_shards": 6, "rank": world.rank, "world_size": size}
        sampler = GlobalBatchSampler(size=512, global_batch_size=48, seed=0, **place)
        reduction = ExactReduction(model, **place)
        last = pathlib.Path("last-step")
        while not last.exists() or (worlds.step or 0) < int(last.read_text()):
            # before_step
            with world.step():
                step = worlds.step or 0
                # in_step
                for shard in sampler.shards:
                    batch, labels = align(
                        tensor[sampler.read_shard(step, shard)] for tensor in (inputs, targets)
                    )
                    seed_generators(0, step, shard)
                    reduction.backward(nn.functional.mse_loss(model(batch), labels), shard)
                # reduce
                reduction.finish()
                optimizer.step()
                # after_update
            steps.write(f"{os.getpid()} {worlds.step}\\n")
            steps.flush()
            if len(sys.argv) == 1:
                time.sleep(0.02)
print("weights", digest_weights(model), worlds.step, flush=True)
"""
"""Notes each step; ends after the step that a file names, which must not have been made yet."""


@dataclass(frozen=True)
class Step:
    """A step that a process of a node has completed."""

    pid: int
    number: int


class HealingGroup(Group):
    """A group whose workers go on in the same processes."""

    def __init__(
        self,
        places: list[Place],
        training: str = TRAINING,
        settings: Any = None,
        **conf: str,
    ) -> None:
        super().__init__(places, settings, **conf)
        places[0].write(training)

    def steps(self, index: int) -> list[Step]:
        """All steps that processes of the node made, in order."""
        path = self.folder / f"steps-{index}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [Step(*map(int, line.split())) for line in lines if line.endswith("\n")]

    def newest_step(self) -> int:
        return max((s.number for i in range(self.size) for s in self.steps(i)[-1:]), default=0)

    def make_steps(self, number: int = 5) -> None:
        """Waits until so many further steps are made."""
        until = self.newest_step() + number
        wait_until(lambda: self.newest_step() >= until, self.describe)

    def finish_soon(self, *places: Place, steps: int = 60) -> tuple[int, set[str]]:
        """Ends the training; returns its last step, and what each node's worker printed of it."""
        last = self.newest_step() + steps
        whole = self.folder / "last-step.new"
        whole.write_text(str(last))
        whole.rename(self.folder / "last-step")
        for place in places:
            assert place.process is not None
            assert place.process.wait(LIMIT_S) == 0, place.console()
        told = {line for place in places for line in read_weights(place)}
        return last, told


def change(**changes: str) -> str:
    """``TRAINING`` with other lines: ``once`` and the places in a step."""
    training = TRAINING
    for name, new in changes.items():
        old = f"# {name}\n"
        assert old in training
        indent = training.partition(old)[0].rpartition("\n")[2]
        training = training.replace(old, textwrap.indent(new, indent).lstrip() + "\n")
    return training


def read_weights(place: Place) -> list[str]:
    """The lines with which a node's workers ended."""
    found = place.node_dir.glob("attempt-*/rank-*/stdout")
    return [one for path in found for one in path.read_text().splitlines() if "weights" in one]


def train_alone(folder: Path, steps: int, training: str = TRAINING) -> str:
    """What one process prints that makes the same steps undisturbed."""
    folder.mkdir()
    (folder / "last-step").write_text(str(steps))
    (folder / "script.py").write_text(training)
    ran = subprocess.run(
        [sys.executable, "script.py", "fast"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return ran.stdout.strip()
