"""What the environment says about this process, as typed values.

Repeats the names of ``launcher/contract/protocol.py`` because ``train`` never imports
``launcher``; a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from fabric_train.errors import InputError

RUN_DIR = "RUN_DIR"
CHECKPOINT_DIR = "CHECKPOINT_DIR"
NODE_INDEX = "LAUNCHER_NODE_INDEX"
MAX_WORLD_SIZE = "LAUNCHER_MAX_WORLD_SIZE"
RDZV_BACKEND = "LAUNCHER_RDZV_BACKEND"
RDZV_ENDPOINT = "LAUNCHER_RDZV_ENDPOINT"
PROGRESS = "LAUNCHER_PROGRESS"
GENERATION = "LAUNCHER_GENERATION"
NODE_DIR = "LAUNCHER_NODE_DIR"
INCARNATION = "LAUNCHER_INCARNATION"
NODE_ATTEMPT = "LAUNCHER_NODE_ATTEMPT"
OMP_NUM_THREADS = "OMP_NUM_THREADS"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
METRICS_FILE = "metrics.json"
CHECKPOINTS_DIR = "checkpoints"
STOP_READY_FILE = "stop-ready"
STOP_REQUEST_FILE = "stop-request"
STOP_REASON_RESIZE = "resize"
STOP_ACK_FILE = "stop-ack"
LEDGER_DIR = "ledger"
LEDGER_SCHEMA = 1
TRAIN_LEDGER = "train-{node_index}-{incarnation}-{attempt}-{rank}.jsonl"

ProgressMode = Literal["bar", "lines"]

WORLD_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What torchrun gives every worker; none of them means that there is no torchrun."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This worker's place among all workers of the job, as torchrun assigned it.

    ``master_addr`` and ``master_port`` are where rank 0 listens in this round, which is not the
    rendezvous endpoint. ``restart_count`` counts torchrun's own restarts of the workers.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    restart_count: int = 0

    @property
    def num_nodes(self) -> int:
        """Nodes of the job; every node has the same number of workers."""
        return self.world_size // self.local_world_size


@dataclass(frozen=True, kw_only=True)
class WorkerEnv:
    """All that the environment says: the world, and what the launcher adds to it.

    ``world`` is None without torchrun. The other fields are None where nothing is said.
    """

    world: World | None = None
    run_dir: Path | None = None
    checkpoint_dir: Path | None = None
    node_index: int | None = None
    max_world_size: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    progress: ProgressMode | None = None
    omp_num_threads: int | None = None
    generation: int | None = None
    node_dir: Path | None = None
    incarnation: int | None = None
    node_attempt: int | None = None

    @property
    def world_size(self) -> int:
        """Workers of the job, 1 without torchrun."""
        return self.world.world_size if self.world else 1


def parse_worker_env(environ: Mapping[str, str]) -> WorkerEnv:
    """The environment as a value; an empty variable counts as not set.

    Raises InputError that names every variable that is missing, malformed or in conflict.
    """
    values = {name: value for name, value in environ.items() if value.strip()}
    problems: list[str] = []
    refuse_lightning_variables(values, problems)
    world = parse_world(values, problems)
    node_index = parse_optional_integer(values, NODE_INDEX, problems)
    max_world_size = parse_optional_integer(values, MAX_WORLD_SIZE, problems, least=1)
    threads = parse_optional_integer(values, OMP_NUM_THREADS, problems, least=1)
    progress = parse_progress(values, problems)
    generation = parse_optional_integer(values, GENERATION, problems)
    incarnation = parse_optional_integer(values, INCARNATION, problems)
    node_attempt = parse_optional_integer(values, NODE_ATTEMPT, problems)
    if problems:
        raise InputError(
            "the environment does not fit: " + "; ".join(problems),
            "start the workers with torchrun or the launcher, or unset these variables "
            "to train on one device",
        )
    return WorkerEnv(
        world=world,
        run_dir=parse_path(values, RUN_DIR),
        checkpoint_dir=parse_path(values, CHECKPOINT_DIR),
        node_index=node_index,
        max_world_size=max_world_size,
        rdzv_backend=values.get(RDZV_BACKEND),
        rdzv_endpoint=values.get(RDZV_ENDPOINT),
        progress=progress,
        omp_num_threads=threads,
        generation=generation,
        node_dir=parse_path(values, NODE_DIR),
        incarnation=incarnation,
        node_attempt=node_attempt,
    )


def parse_world(values: Mapping[str, str], problems: list[str]) -> World | None:
    """The world, or None where there is none or ``problems`` was added to."""
    present = [name for name in WORLD_VARIABLES if name in values]
    # MASTER_* alone is what many shells and clusters leave behind; it describes no worker.
    if not any(not name.startswith("MASTER_") for name in present):
        return None
    missing = [name for name in WORLD_VARIABLES if name not in values]
    if missing:
        problems.append(f"{', '.join(present)} set, but {', '.join(missing)} missing")
        return None
    before = len(problems)
    world = World(
        rank=parse_integer(values, "RANK", problems),
        local_rank=parse_integer(values, "LOCAL_RANK", problems),
        world_size=parse_integer(values, "WORLD_SIZE", problems, least=1),
        local_world_size=parse_integer(values, "LOCAL_WORLD_SIZE", problems, least=1),
        master_addr=values["MASTER_ADDR"],
        master_port=parse_integer(values, "MASTER_PORT", problems, least=1, most=65535),
        restart_count=parse_optional_integer(values, RESTART_COUNT, problems) or 0,
    )
    if len(problems) == before:
        problems += find_conflicts(world)
    return world if len(problems) == before else None


def find_conflicts(world: World) -> list[str]:
    """What no torchrun would assign, and what Fabric cannot express."""
    conflicts = []
    if world.rank >= world.world_size:
        conflicts.append(f"RANK={world.rank} is not below WORLD_SIZE={world.world_size}")
    if world.local_rank >= world.local_world_size:
        conflicts.append(
            f"LOCAL_RANK={world.local_rank} is not below LOCAL_WORLD_SIZE={world.local_world_size}"
        )
    if world.world_size % world.local_world_size:
        conflicts.append(
            f"WORLD_SIZE={world.world_size} is no multiple of LOCAL_WORLD_SIZE="
            f"{world.local_world_size}: every node needs the same number of workers"
        )
    return conflicts


def refuse_lightning_variables(values: Mapping[str, str], problems: list[str]) -> None:
    """Fabric obeys LT_* silently, ahead of what the program asks it for."""
    stale = sorted(name for name in values if name.startswith("LT_"))
    if stale:
        problems.append(f"{', '.join(stale)} set, which Fabric would obey instead of torchrun")


def parse_integer(
    values: Mapping[str, str], name: str, problems: list[str], least: int = 0, most: int = 2**31
) -> int:
    """The integer of a variable that is set; adds to ``problems`` and gives ``least`` if none."""
    text = values[name]
    # int() also takes "1_0" and other scripts' digits, which no launcher writes.
    number = int(text) if text.isascii() and text.strip().isdigit() else None
    if number is None or not least <= number <= most:
        problems.append(f"{name}={text!r} is not a whole number from {least} to {most}")
        return least
    return number


def parse_optional_integer(
    values: Mapping[str, str], name: str, problems: list[str], least: int = 0
) -> int | None:
    """The integer of a variable, None where it is not set."""
    return parse_integer(values, name, problems, least) if name in values else None


def parse_path(values: Mapping[str, str], name: str) -> Path | None:
    """The folder that a variable names."""
    return Path(values[name]) if name in values else None


def parse_progress(values: Mapping[str, str], problems: list[str]) -> ProgressMode | None:
    """How progress is to be shown, None where the terminal decides."""
    mode = values.get(PROGRESS)
    if mode is not None and mode not in get_args(ProgressMode):
        problems.append(f"{PROGRESS}={mode!r} is not one of {', '.join(get_args(ProgressMode))}")
        return None
    return cast("ProgressMode | None", mode)
