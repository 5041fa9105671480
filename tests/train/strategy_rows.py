"""How each strategy is tried in whole trainings: ``ROWS``, to which a new strategy adds its own.

The trainings are of ``charlm``, six steps of eight samples in four virtual shards, each rank in a
forked process as torchrun would start it.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import train.loop
from fabric_train.checkpointing.state import digest_weights
from fabric_train.worker_env import parse_worker_env
from tests.fabric_train.forked import run_forked
from train.config import parse_config

STEPS, SHARDS = 6, 4
OPTIONS = (
    *("--workload=charlm", "--global_batch_size=8", f"--virtual_shards={SHARDS}"),
    *("--warmup_steps=2", "--max_grad_norm=1", "--accelerator=cpu"),
)
LIMIT_S = 200.0
"""For a whole training; its processes share two cores with other tests."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strategy, and what may be expected of it."""

    name: str
    options: tuple[str, ...] = ()
    """Further options of ``python -m train``."""
    worlds: tuple[int, ...] = (1, 2, 3, 4)
    """The numbers of processes, of these, in which it can train the model."""
    processes_per_node: int | None = None
    """In how large nodes the processes are; without it all are in one."""
    like_one: float | None = 2e-5
    """How far each step's loss may be from one process' without a strategy; None if it computes
    something else."""
    like_undisturbed: float | None = 0.0
    """How far a resumed training's losses may be from an undisturbed one's in the same world; None
    if no two trainings are alike."""
    saves_show: bool = False
    """Whether a checkpoint changes the weights that are trained on: the ranks' mean."""
    fast: bool = False
    """Whether it is tried in every CI; else only in ``make soak``."""
    needs: str | None = None
    """A package without which it is skipped."""

    @property
    def id(self) -> str:
        """The name of the test."""
        chosen = (each.removeprefix("--strategy_options.") for each in self.options)
        return ",".join((self.name, *chosen))

    @property
    def world(self) -> int:
        """The size that it is tried in first: two processes where it can."""
        return 2 if 2 in self.worlds else self.worlds[0]

    @property
    def is_first(self) -> bool:
        """Whether it is its strategy's first row."""
        return self is next(row for row in ROWS if row.name == self.name)

    def another_world(self, size: int) -> int:
        """A size of its own that is not ``size``, if it has one: uneven shards are the hardest."""
        return next((each for each in (3, 1, 4, 2) if each in self.worlds and each != size), size)


EVERY = ("--strategy_options.every=2",)
MICROBATCHES = ("--strategy_options.microbatches=4",)
ROWS = (
    Row(name="ddp", fast=True),
    Row(name="ddp2", fast=True),
    Row(name="fsdp", fast=True),
    Row(name="fsdp", options=("--strategy_options.reshard=false", "--strategy_options.units=size")),
    Row(name="fsdp", options=("--strategy_options.offload=true", "--strategy_options.units=whole")),
    Row(name="fsdp", options=("--strategy_options.span=node",), worlds=(2, 4),
        processes_per_node=2),
    Row(name="tp", worlds=(1, 2, 4), fast=True),
    Row(name="tp", options=("--strategy_options.tensor_size=2",), worlds=(2, 4)),
    Row(name="fsdp+tp", options=("--strategy_options.unit_elements=1000",), worlds=(2, 4),
        fast=True),
    Row(name="pipeline", options=MICROBATCHES, fast=True),
    Row(name="pipeline", options=(*MICROBATCHES, "--strategy_options.schedule=gpipe")),
    Row(name="pipeline", options=(*MICROBATCHES, "--strategy_options.schedule=interleaved_1f1b"),
        worlds=(1, 2)),
    Row(name="pipeline",
        options=("--strategy_options.pipeline_size=2", "--strategy_options.microbatches=2"),
        worlds=(2, 4)),
    Row(name="local_sgd", options=EVERY, like_one=None),
    Row(name="diloco", options=EVERY, like_one=None),
    # It magnifies rounding, by which a resumed process differs on some processors.
    Row(name="powersgd", like_one=None, like_undisturbed=1e-3),
    Row(name="fp16", like_one=5e-3),
    Row(name="bagua:gradient_allreduce"),
    Row(name="bagua:bytegrad", like_one=None),
    Row(name="bagua:decentralized", like_one=None, saves_show=True),
    Row(name="bagua:low_precision_decentralized", like_one=None, saves_show=True),
    Row(name="bagua:qadam", like_one=None),
    # What others have sent when a process looks depends on the machine's load.
    Row(name="bagua:async", like_one=None, like_undisturbed=None, saves_show=True),
    Row(name="deepspeed", needs="deepspeed"),
    Row(name="deepspeed", options=("--strategy_options.stage=1",), needs="deepspeed"),
    Row(name="deepspeed", options=("--strategy_options.offload=true",), needs="deepspeed"),
)  # fmt: skip
ONE = Row(name="ddp", worlds=(1,))
"""What all are compared with, in a process without a world."""
OF_STRATEGIES = "tests/fabric_train/strategies/"
ELSEWHERE = {
    **dict.fromkeys(
        ("ddp_spawn", "ddp_fork", "ddp_notebook"),
        "tests/fabric_train/launch/test_processes.py: they start processes of their own",
    ),
    "dp": f"{OF_STRATEGIES}test_dp.py: one process and several GPUs",
    "model_parallel": f"{OF_STRATEGIES}test_model_parallel.py: one process and several devices",
    "xla": f"{OF_STRATEGIES}test_xla.py: one process and torch_xla",
    "bf16": f"{OF_STRATEGIES}test_bagua.py: GPUs",
}
"""Strategies without a row, and where they are tried instead."""


@dataclass(kw_only=True)
class Ending:
    """What a training told; ``losses`` of the whole batch, by the number of the step."""

    metrics: dict[str, Any]
    loaded: str
    """SHA-256 of the weights that it began with."""
    losses: dict[int, float] = field(default_factory=dict)


def run(
    row: Row,
    world: int,
    folder: Path,
    *,
    steps: int = STEPS,
    kill_in: int | None = None,
    options: tuple[str, ...] = (),
    node_dir: Path | None = None,
) -> Ending:
    """A training up to ``steps``, from the newest checkpoint in ``folder``.

    With ``kill_in`` the last rank kills itself in the middle of that step, and ForkedError is
    raised. ``node_dir``: where the agent asks for a stop.
    """
    if row.needs and importlib.util.find_spec(row.needs) is None:
        pytest.skip(f"{row.name} needs the package {row.needs}")
    arguments = [*OPTIONS, *row.options, *options, f"--strategy={row.name}", f"--max_steps={steps}"]
    told = run_forked(
        work,
        world,
        [*arguments, f"--checkpoint_dir={folder}"],
        row is ONE,
        kill_in,
        group=False,
        nodes=world // (row.processes_per_node or world),
        environ={"LAUNCHER_NODE_DIR": str(node_dir)} if node_dir else {},
        limit_s=LIMIT_S,
    )
    assert len({each.metrics["weights_sha256"] for each in told}) == 1
    first = told[0]
    for other in told[1:]:
        first.losses = {step: loss + other.losses[step] for step, loss in first.losses.items()}
    return first


def work(arguments: list[str], alone: bool, kill_in: int | None) -> Ending:
    """One rank."""
    sys.stdout = sys.stderr
    if alone:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            del os.environ[name]
    loaded: list[str] = []
    losses: dict[int, float] = {}
    take_step, resume = train.loop.take_step, train.loop.resume

    def resume_and_digest(run: Any) -> Any:
        result = resume(run)
        loaded.append(digest_weights(run.strategy.gather_weights()))
        return result

    def take_step_and_note(run: Any, batches: Iterator[list[torch.Tensor]], *more: Any) -> Any:
        step = run.state.step + 1
        if step == kill_in and run.fabric.global_rank == run.fabric.world_size - 1:
            kill_in_loss(min(2, len(run.sampler.shards)))
        loss = take_step(run, batches, *more)
        if run.strategy.leads_replica:
            losses[step] = loss.item() * len(run.sampler.shards) / run.sampler.virtual_shards
        else:
            losses[step] = 0.0
        return loss

    train.loop.resume, train.loop.take_step = resume_and_digest, take_step_and_note
    metrics = train.loop.train(parse_config(arguments), parse_worker_env(os.environ))
    return Ending(metrics=dict(metrics), loaded=loaded[0], losses=losses)


def kill_in_loss(calls: int) -> None:
    """The process dies after so many micro-batches' forward passes."""
    real, left = train.loop.mean_loss, calls

    def die(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(outputs, targets)

    train.loop.mean_loss = die
