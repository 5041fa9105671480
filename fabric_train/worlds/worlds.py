"""Training that goes on in the same processes when a node is lost or comes; whose state counts, and
which exceptions are a loss.

    worlds = Worlds()                                  # once
    for world in worlds:                               # for each group of nodes
        with world:
            world.share(model, optimizer)              # who lacks the state gets it from who has it
            replica = DistributedDataParallel(model, init_sync=False)  # they are equal
            while (worlds.step or 0) < steps:
                with world.step():                     # what belongs to one optimizer step
                    loss(replica(batch)).backward()
                    optimizer.step()
                    optimizer.zero_grad()

Build model and optimizer before the loop. A step that a loss breaks off counts for nothing and is
made again; an exception of the script itself is raised as always. Without the launcher's agent
there is one world.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fabric_train.checkpointing.lineage import FencedError
from fabric_train.errors import DivergedError, InputError
from fabric_train.ranks import FORM_LIMIT_S, Agreement, Ranks
from fabric_train.worker_env import AGENT_SOCKET, JOINS, WorkerEnv, parse_worker_env
from fabric_train.worlds.agent_link import AgentLink, Message
from fabric_train.worlds.group import (
    Breaker,
    is_group_failure,
    leave_groups,
    open_store,
    wait_for_all,
)
from fabric_train.worlds.handover import Stateful, send_model, send_parts, send_state

T = TypeVar("T")
GROUP_TIMEOUT_S = 1800.0
"""torch's own limit of a collective with gloo; the agent finds a hang much sooner."""
BREAK_AGAIN_S = 0.05
HUNG_UP_LIMIT_S = 1.0
"""How long the agent may take to know of a loss after a peer has hung up."""
AGREE_EVERY_S = 0.25
"""About how often the ranks agree whether to let newcomers in."""


class WorldLostError(Exception):
    """This world has lost a node. Leave the ``with`` block: the training goes on in the next."""


class _NewcomersError(Exception):
    """All ranks leave the world after this step, because its successor has more nodes."""


class StateLostError(RuntimeError):
    """No process has the state any more, so that the workers have to start anew."""


class Worlds:
    """The groups that this process trains in, one after the other.

    ``env``: the first one, by default as the environment describes it. ``backend``: of the process
    group, by default NCCL with CUDA and gloo without. Without ``in_place`` there is one world, and
    a loss restarts the workers.
    """

    def __init__(
        self,
        env: WorkerEnv | None = None,
        *,
        backend: str | None = None,
        in_place: bool = True,
    ) -> None:
        self.step: int | None = None
        """Optimizer steps that the state in this process has had, over all starts; None where the
        state is not one to continue from. Set it after a checkpoint was loaded."""
        self.heals = 0
        """How often the training went on here in another world."""
        self._in_place = in_place
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self._changed = threading.Condition()
        self._generation, self._lost = -1, ""
        self._next: Message | None = None
        self._breaker: Breaker | None = None
        self._is_forming, self._is_done = False, False
        self._in_step: TrainingWorld | None = None
        self._had_state, self._left_at = False, 0.0
        self._state_of = -1
        """The generation of the last world in which all ranks had this process' state."""
        self._old: list[dist.ProcessGroup] = []
        self._excepthook = sys.excepthook
        self._first = env = env or parse_worker_env(os.environ)
        path = os.environ.get(AGENT_SOCKET)
        self._link: AgentLink | None = None
        if in_place and env.world is not None and env.generation is not None and path:
            # Without its socket the agent has said that a loss costs a restart.
            with contextlib.suppress(OSError):
                self._link = AgentLink(Path(path), env.world.local_rank, self._hear)
                register_optimizer_step_pre_hook(self._before_update)

    def __iter__(self) -> Iterator[TrainingWorld]:
        """Forms one world after the other, until the block of one ends by itself. Blocks."""
        while not self._is_done:
            yield self._form()

    def newest_generation(self) -> int | None:
        """The last generation that the agent has sent, perhaps the next world's; None without one.

        Checkpoints of earlier generations are refused.
        """
        if self._link is None:
            return None
        next_world = self._next
        return self._generation if next_world is None else int(next_world["generation"])

    # -- what the agent says, in the link's thread -------------------------------------------------
    def _hear(self, message: Message) -> None:
        with self._changed:
            if message["generation"] < self._generation:
                return
            if "world" in message:
                self._next = message
                if self._is_forming or not message["joined"]:
                    self._lose("the nodes have met again")
            else:
                self._lose(message["lost"])
            self._changed.notify_all()

    def _lose(self, why: str) -> None:
        if not self._lost:
            self._lost, self._left_at = why, self._left_at or time.monotonic()
            threading.Thread(target=self._break_off, args=[self._breaker], daemon=True).start()

    def _break_off(self, breaker: Breaker | None) -> None:
        """Wakes the main thread, again and again: it may be about to wait for another peer."""
        while breaker and self._breaker is breaker:
            breaker.shut()
            time.sleep(BREAK_AGAIN_S)

    def check(self) -> None:
        """Raises ``WorldLostError`` where the present world is lost."""
        if self._lost:
            raise WorldLostError(self._lost)

    def _before_update(self, *_: object) -> None:
        if (world := self._in_step) is None:
            return
        if not world._updates and torch.cuda.is_initialized():
            # A group that is ended leaves a wrong sum and no error: see whether it was.
            torch.cuda.current_stream().synchronize()
        if self._breaker and self._breaker.has_hung_up():
            # The sum may have failed, and the script may have caught the error. But a peer that
            # ended well hangs up too, and is not lost: the agent knows.
            with self._changed:
                self._changed.wait_for(lambda: self._lost, HUNG_UP_LIMIT_S)
        self.check()
        world._updates = True

    # -- forming -----------------------------------------------------------------------------------
    def _form(self) -> TrainingWorld:
        while True:
            try:
                env = self._enter()
                if self._link is None:
                    ranks = Ranks(GROUP_TIMEOUT_S if self._in_place else None)
                    return TrainingWorld(self, env, ranks)
                world = self._agree(env)
                self._is_forming = False
                if not self._lost:
                    return world
                self._leave(WorldLostError(self._lost))
            except Exception as error:
                if not self._may_leave(error):
                    raise
                self._leave(error)

    def _enter(self) -> WorkerEnv:
        """Forms the group of the next world, or the first one that the environment describes."""
        with self._changed:
            self._is_forming = True
            is_first = self._generation < 0 and os.environ.get(JOINS) != "1"
            if self._link:
                self._link.say(ready=True)
            if self._link and not is_first:
                # Ended by the agent: it tells a world, or ends this process with its own limits.
                self._changed.wait_for(lambda: self._next)
            env = self._first
            if self._next:
                os.environ.update(self._next["world"])
                env = parse_worker_env(os.environ)
            self._generation = env.generation or 0
            self._next, self._lost = None, ""
            if env.world and self._link:
                # Else NCCL's own threads end the process at an error, or while a group is ended.
                os.environ |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
                os.environ |= {"TORCH_NCCL_ENABLE_MONITORING": "0"}
                self._breaker = Breaker(env.world.master_port)
        if env.world is None or self._link is None:
            if env.world and self._in_place and not dist.is_initialized():
                dist.init_process_group(self._backend)
            return env
        store = open_store(env.world, lambda: bool(self._lost))
        wait_for_all(store, env.world)
        dist.init_process_group(
            self._backend,
            store=PrefixStore(f"world-{self._generation}", store),
            rank=env.world.rank,
            world_size=env.world_size,
            timeout=timedelta(seconds=FORM_LIMIT_S),
        )
        distributed_c10d._set_pg_timeout(timedelta(seconds=GROUP_TIMEOUT_S))
        return env

    def _agree(self, env: WorkerEnv) -> TrainingWorld:
        assert self._breaker
        assert self._link
        ranks = Ranks(GROUP_TIMEOUT_S)
        states = ranks.gather(RankState(self.step, self._state_of, self._had_state))
        self._breaker.formed()
        world = TrainingWorld(self, env, ranks, states)
        self._link.say(formed=self._generation)
        if world.source is None and any(state.had_state for state in states):
            raise StateLostError("those who had the training's state are gone")
        return world

    def _may_leave(self, error: BaseException) -> bool:
        """Whether an exception is the loss of the world, and not the script's own."""
        if self._link is None:
            return False
        if isinstance(error, (WorldLostError, _NewcomersError)):
            return True
        if isinstance(error, (InputError, DivergedError, StateLostError)):
            return False
        if not isinstance(error, (RuntimeError, ValueError)):
            return False
        # A later generation was taken: by the next world, or the agent ends this process soon.
        return bool(self._lost) or isinstance(error, FencedError) or is_group_failure(error)

    def _leave(self, error: BaseException) -> None:
        """Ends the present group, so that no other rank waits for this one in it."""
        assert self._link
        with self._changed:
            self._left_at = self._left_at or time.monotonic()
            is_broken = not self._lost and not isinstance(error, _NewcomersError)
            self._is_forming = True
            self._had_state |= self.step is not None
            self.heals += self._had_state
        if is_broken:
            why = f"{type(error).__name__}: {error}"[:200]
            self._link.say(broken=why, generation=self._generation)
        breaker, self._breaker = self._breaker, None
        if breaker and not isinstance(error, _NewcomersError):
            breaker.shut()
        self._old += leave_groups()
        # Each group puts its rank in front of what this prints.
        sys.excepthook = self._excepthook


@dataclass(frozen=True)
class RankState:
    """What a rank brings into a world."""

    step: int | None
    generation: int
    """Of the last world in which all ranks had its state."""
    had_state: bool
    """Whether the rank has trained, so that its weights are not the initial ones."""


class TrainingWorld:
    """One group of nodes; made by ``Worlds``.

    ``env``: this worker's place in it. ``ranks``: all ranks, in a CPU group of their own.
    """

    def __init__(
        self,
        worlds: Worlds,
        env: WorkerEnv,
        ranks: Ranks | None = None,
        standings: Sequence[RankState] = (),
    ) -> None:
        self.env, self.ranks = env, ranks or Ranks()
        self._worlds = worlds
        self.source = find_source(standings)
        """The rank whose state all others get; None where nobody has one to continue from."""
        states = [(standing.generation, standing.step) for standing in standings]
        newest = None if self.source is None else states[self.source]
        self.newest = newest[1] if newest else None
        """The steps of the newest state that any rank has."""
        self._has_newest = [state == newest for state in states]
        self._has_stepped, self._updates = False, False
        self._agreement = Agreement(1, pause_s=AGREE_EVERY_S) if worlds._link else None
        self._batch_norms: list[Tensor] = []
        self._copies: list[Tensor] = []

    def __enter__(self) -> TrainingWorld:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False] | bool:
        worlds = self._worlds
        if error is None:
            worlds._is_done, worlds._breaker = True, None
        elif worlds._may_leave(error):
            worlds._leave(error)
            return True
        return False

    @property
    def is_live(self) -> bool:
        """Whether some rank has a state to continue from, so that no checkpoint is read."""
        return self.source is not None

    @property
    def rank(self) -> int:
        """This worker's rank; 0 without torchrun."""
        return self.env.world.rank if self.env.world else 0

    def from_source(self, value: T) -> T:
        """The value of the rank whose state all others get; all ranks must call it."""
        assert self.source is not None
        return self.ranks.gather(value)[self.source]

    def share(self, model: nn.Module, optimizer: Optimizer, *parts: Stateful) -> bool:
        """Gives the newest state of all ranks to those that have an older one or none.

        In the first world all get the weights of rank 0. So DistributedDataParallel need not send
        them again.

        ``model`` without wrappers; ``parts``: what else a step changes, such as a schedule. All
        ranks must call it, before the model is wrapped. Returns ``is_live``.
        """
        norms = [module for module in model.modules() if isinstance(module, _NormBase)]
        self._batch_norms = [each for module in norms for each in module.buffers(recurse=False)]
        self._copies = [each.clone() for each in self._batch_norms]
        optimizer.zero_grad(set_to_none=True)
        worlds = self._worlds
        if self.source is None:
            send_model(model, self.ranks, source=0, receives=self.rank != 0)
            worlds._state_of = worlds._generation
            return False
        receives = not self._has_newest[self.rank]
        if receives:
            worlds.step = None  # half of it may be here when a second node is lost
        if not all(self._has_newest):
            send_state(model, optimizer, self.ranks, source=self.source, receives=receives)
        send_parts(parts, self.ranks, source=self.source)
        worlds.step, worlds._state_of = self.newest, worlds._generation
        return True

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around all that belongs to one optimizer step; counts it in ``Worlds.step``.

        All ranks must make equally many steps. If the world is lost meanwhile, random numbers and
        BatchNorm's statistics are as before the step.
        """
        worlds = self._worlds
        if self._agreement is None:
            yield
            worlds.step = (worlds.step or 0) + 1
            return
        worlds.check()
        if self._has_stepped:
            (agreed,) = self._agreement.settle()
            if agreed:
                raise _NewcomersError
            self._agreement.propose([int(worlds._next is not None)])
        before = read_random_states()
        if self._copies:
            torch._foreach_copy_(self._copies, self._batch_norms)
        self._updates, worlds._in_step = False, self
        try:
            yield
        except BaseException:
            if self._updates:
                worlds.step, worlds._had_state = None, True  # some weights may have changed
            else:
                write_random_states(before)
                if self._copies:
                    with torch.no_grad():
                        torch._foreach_copy_(self._batch_norms, self._copies)
            raise
        finally:
            worlds._in_step = None
        worlds.step = (worlds.step or 0) + 1
        if not self._has_stepped:
            self._has_stepped = True
            self._tell_healed()

    def _tell_healed(self) -> None:
        worlds = self._worlds
        if old := worlds._old:
            # To free a gloo group waits for its threads, and one may wait for a peer up to the
            # group's limit though all connections were shut.
            worlds._old = []
            threading.Thread(target=old.clear, daemon=True).start()
        if worlds.heals and worlds._link:
            paused_s = time.monotonic() - worlds._left_at
            worlds._link.say(healed=worlds._generation, step=worlds.step, paused_s=paused_s)
        worlds._left_at = 0.0


def find_source(ranks: Sequence[RankState]) -> int | None:
    """The rank with the newest state that can be trusted; None if no rank has a state. Pure.

    A rank of an older world was left behind, as by a freeze. A rank of the newest world may be one
    step ahead of the others, if all gradients had reached it but not them. A rank that is further
    ahead is not trusted: its script caught the group's exception and went on alone.
    """
    newest = max((state.generation for state in ranks if state.step is not None), default=-1)
    known = sorted(
        (-state.step, rank)
        for rank, state in enumerate(ranks)
        if state.step is not None and state.generation == newest
    )
    if not known:
        return None
    is_too_far = len(known) > 1 and known[0][0] < known[1][0] - 1
    return known[is_too_far][1]


def read_random_states() -> list[Any]:
    """The states of the generators that training code uses, those of this process' devices."""
    numpy = sys.modules.get("numpy")
    return [
        random.getstate(),
        numpy.random.get_state() if numpy else None,
        torch.get_rng_state(),
        torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    ]


def write_random_states(states: list[Any]) -> None:
    """The reverse of ``read_random_states``."""
    python_state, numpys, torchs, cudas = states
    random.setstate(python_state)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)
    torch.set_rng_state(torchs)
    if cudas is not None:
        torch.cuda.set_rng_state(cudas)
