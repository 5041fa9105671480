"""Training processes that a program starts by itself, on one node, for interactive use."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import (
    LightningEnvironment,
    find_free_network_port,
)
from torch.multiprocessing.spawn import ProcessException

from fabric_train.checkpointing.lineage import FencedError
from fabric_train.errors import DivergedError, InputError
from fabric_train.launch.fabric import (
    Accelerator,
    build_ddp,
    check_world,
    choose_accelerator,
    leave_world,
    use_one_thread,
)
from fabric_train.launch.precision import Precision, build_fabric, set_precision
from fabric_train.strategies.ddp import DdpSpawn
from fabric_train.worker_env import WorkerEnv, World

# It logs every process that it ends after another has failed, ahead of the error itself.
logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)

T = TypeVar("T")

OWN_ERRORS = (InputError, DivergedError, FencedError)
"""Raised here as in the new process; any other error arrives as a traceback."""
TERMINATE_LIMIT_S = 5.0


def launch_processes(
    function: Callable[..., T],
    env: WorkerEnv,
    *arguments: Any,
    strategy: DdpSpawn,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
) -> T:
    """What ``function(fabric, env, *arguments)`` returns in rank 0 of new processes on this node.

    The ``env`` passed to it has the world of the new processes. With ``ddp_spawn`` function,
    arguments and result must be picklable, and a script needs ``if __name__ == "__main__"``.
    Blocks; leaves no process behind, even if interrupted. Raises InputError if processes cannot be
    started, and the first error of OWN_ERRORS that a rank raises.
    """
    strategy.check_start(env.world)
    count = strategy.processes
    chosen = choose_accelerator(accelerator, describe_node(0, count, 0) if count else None)
    set_precision(strategy, precision, chosen)
    count = count or (torch.cuda.device_count() if chosen == "cuda" else 2)
    environment = OwnNode()
    fabric = build_fabric(
        precision,
        chosen,
        environment,
        devices=count,
        strategy=build_ddp(chosen, strategy.start_method),
    )
    errors = multiprocessing.get_context(strategy.start_method).SimpleQueue()
    work = Work(function, arguments, env, count, environment.main_port, errors)
    with no_process_left(), unchanged_environment():
        try:
            result: Result = fabric.launch(work.run)
        except ProcessException:
            if errors.empty():
                raise
            raise errors.get() from None
    value: T = result.load()
    return value


class Work:
    """What each of the processes does.

    A plain object and no collection, because Fabric looks for tensors in all arguments, and fails
    at a frozen dataclass.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        env: WorkerEnv,
        count: int,
        port: int,
        errors: SimpleQueue[Exception],
    ) -> None:
        self._function, self._arguments = function, arguments
        self._env, self._count, self._port, self._errors = env, count, port, errors

    def run(self, fabric: Fabric) -> Result:
        """Called in a new process, after Fabric has made its process group."""
        if fabric.device.type == "cpu" and self._env.omp_num_threads is None:
            use_one_thread()
        world = describe_node(int(os.environ["LOCAL_RANK"]), self._count, self._port)
        try:
            check_world(fabric, world)
            value = self._function(fabric, replace(self._env, world=world), *self._arguments)
        except OWN_ERRORS as error:
            self._errors.put(error)
            raise
        leave_world()
        return Result(value)


class Result:
    """What a function returned, as bytes that Fabric sends on as they are.

    Tensors would be sent as handles to the memory of a process that may have ended before the read.
    """

    def __init__(self, value: Any) -> None:
        content = io.BytesIO()
        torch.save(value, content)
        self._content = content.getvalue()

    def load(self) -> Any:
        """The value, with tensors in host memory: a process that uses a GPU cannot fork again."""
        content = io.BytesIO(self._content)
        return torch.load(content, map_location="cpu", weights_only=False)


def describe_node(rank: int, count: int, port: int) -> World:
    """The world of processes on one node."""
    return World(
        rank=rank,
        local_rank=rank,
        world_size=count,
        local_world_size=count,
        master_addr=OwnNode.main_address,
        master_port=port,
    )


class OwnNode(LightningEnvironment):
    """One node, whatever variables an earlier job or a batch system left behind."""

    main_address = "127.0.0.1"
    creates_processes_externally = False

    def __init__(self) -> None:
        super().__init__()
        self._main_port = find_free_network_port()

    def node_rank(self) -> int:
        return 0


@contextmanager
def no_process_left() -> Iterator[None]:
    """Ends processes that were started inside and still run, as they do after an interrupt."""
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        end_processes(set(multiprocessing.active_children()) - before)


def end_processes(processes: set[BaseProcess]) -> None:
    """Sends SIGTERM, and SIGKILL to processes that still run after TERMINATE_LIMIT_S."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(TERMINATE_LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def unchanged_environment() -> Iterator[None]:
    """Restores MASTER_PORT, which Fabric's launcher sets in this process, for its next start."""
    before = os.environ.get("MASTER_PORT")
    try:
        yield
    finally:
        os.environ.pop("MASTER_PORT", None)
        if before is not None:
            os.environ["MASTER_PORT"] = before
