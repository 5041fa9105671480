"""The environment of a worker, as typed values; which variables contradict each other.

Repeats the names of ``launcher/contract/protocol.py``, because this package never imports
``launcher``; a test checks that both are equal.
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
AGENT_SOCKET = "LAUNCHER_AGENT_SOCKET"
JOINS = "LAUNCHER_JOINS"
ASKED_FILE = "LAUNCHER_ASKED_FILE"
OMP_NUM_THREADS = "OMP_NUM_THREADS"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
METRICS_FILE = "metrics.json"
CHECKPOINTS_DIR = "checkpoints"
STOP_READY_FILE = "stop-ready"
STOP_REQUEST_FILE = "stop-request"
STOP_REASON_RESIZE = "resize"
STOP_ACK_FILE = "stop-ack"
PROFILE_REQUEST = "profile-request"
LOOKS_DIR = "looks"
TRACE = "rank-{rank}.trace.json"
LEDGER_DIR = "ledger"
LEDGER_SCHEMA = 1
TRAIN_LEDGER = "train-{node_index}-{incarnation}-{attempt}-{rank}.jsonl"

ProgressMode = Literal["bar", "lines"]

MOST_DIGITS = 20
"""The most digits of a number in a variable, leading zeros included."""

WORLD_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What torchrun sets for every worker; if none is set, torchrun did not start this process."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This worker's place among all workers of the job, as torchrun assigned it.

    Rank 0 listens at ``master_addr`` and ``master_port`` in this round; that is not the rendezvous
    endpoint. ``restart_count`` counts torchrun's own restarts of the workers.
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
    """The whole environment: the world, and what the launcher adds; None for what is not set.

    ``world`` is None without torchrun.
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
    variables = _Variables(environ)
    env = WorkerEnv(
        world=_parse_world(variables),
        run_dir=variables.path(RUN_DIR),
        checkpoint_dir=variables.path(CHECKPOINT_DIR),
        node_index=variables.integer(NODE_INDEX),
        max_world_size=variables.integer(MAX_WORLD_SIZE, least=1),
        rdzv_backend=variables.values.get(RDZV_BACKEND),
        rdzv_endpoint=variables.values.get(RDZV_ENDPOINT),
        progress=variables.progress(),
        omp_num_threads=variables.integer(OMP_NUM_THREADS, least=1),
        generation=variables.integer(GENERATION),
        node_dir=variables.path(NODE_DIR),
        incarnation=variables.integer(INCARNATION),
        node_attempt=variables.integer(NODE_ATTEMPT),
    )
    # Fabric silently prefers LT_* variables to what the program asks for.
    stale = sorted(name for name in variables.values if name.startswith("LT_"))
    if stale:
        variables.problems.append(
            f"Fabric would follow {', '.join(stale)} instead of torchrun's variables"
        )
    if variables.problems:
        raise InputError(
            "the environment does not fit: " + "; ".join(variables.problems),
            "start the workers with torchrun or the launcher, or unset these variables "
            "to train on one device",
        )
    return env


def read_generation(folder: Path, environ: Mapping[str, str]) -> int | None:
    """The generation that the node agent took in this folder; None where it took none."""
    number = environ.get(GENERATION, "") if Path(environ.get(CHECKPOINT_DIR, "")) == folder else ""
    return int(number) if number.isdigit() else None


class _Variables:
    """The variables that are not empty, and the ``problems`` found while reading them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.values = {name: value for name, value in environ.items() if value.strip()}
        self.problems: list[str] = []

    def integer(self, name: str, *, least: int = 0) -> int | None:
        """The number; None if the variable is not set."""
        return self.required(name, least=least) if name in self.values else None

    def required(self, name: str, *, least: int = 0, most: int = 2**31) -> int:
        """The number in a variable that is set; notes a problem and returns ``least`` if bad."""
        text = self.values[name]
        digits = text.strip()
        # int() also takes "1_0" and other scripts' digits, which no launcher writes, and it raises
        # for more than 4300 digits.
        is_number = text.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
        number = int(digits) if is_number else None
        if number is None or not least <= number <= most:
            self.problems.append(f"{name}={text!r} is not a whole number from {least} to {most}")
            return least
        return number

    def path(self, name: str) -> Path | None:
        return Path(self.values[name]) if name in self.values else None

    def progress(self) -> ProgressMode | None:
        mode, modes = self.values.get(PROGRESS), get_args(ProgressMode)
        if mode is not None and mode not in modes:
            self.problems.append(f"{PROGRESS}={mode!r} is not one of {', '.join(modes)}")
        return cast("ProgressMode | None", mode)


def _parse_world(variables: _Variables) -> World | None:
    present = [name for name in WORLD_VARIABLES if name in variables.values]
    # Many shells and clusters leave MASTER_* behind, which describes no worker.
    if all(name.startswith("MASTER_") for name in present):
        return None
    missing = [name for name in WORLD_VARIABLES if name not in variables.values]
    if missing:
        variables.problems.append(f"{', '.join(present)} set, but {', '.join(missing)} missing")
        return None
    before = len(variables.problems)
    world = World(
        rank=variables.required("RANK"),
        local_rank=variables.required("LOCAL_RANK"),
        world_size=variables.required("WORLD_SIZE", least=1),
        local_world_size=variables.required("LOCAL_WORLD_SIZE", least=1),
        master_addr=variables.values["MASTER_ADDR"],
        master_port=variables.required("MASTER_PORT", least=1, most=65535),
        restart_count=variables.integer(RESTART_COUNT) or 0,
    )
    if len(variables.problems) == before:
        variables.problems += _find_conflicts(world)
    return world


def _find_conflicts(world: World) -> list[str]:
    """What torchrun would never assign, and what Fabric cannot express."""
    conflicts = []
    for name in ("RANK", "LOCAL_RANK"):
        size_name = name.replace("RANK", "WORLD_SIZE")
        rank, size = getattr(world, name.lower()), getattr(world, size_name.lower())
        if rank >= size:
            conflicts.append(f"{name}={rank} is not below {size_name}={size}")
    if world.world_size % world.local_world_size:
        conflicts.append(
            f"WORLD_SIZE={world.world_size} is no multiple of LOCAL_WORLD_SIZE="
            f"{world.local_world_size}: every node needs the same number of workers"
        )
    return conflicts
