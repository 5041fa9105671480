"""Training in one world after the other; the agent is played. Real losses: ``launcher/agent``."""

import json
import os
import random
import socket
import threading
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from fabric_train.checkpointing.lineage import FencedError
from fabric_train.errors import DivergedError, InputError
from fabric_train.worlds.handover import _put_back, _take_out, cut
from fabric_train.worlds.worlds import (
    RankState,
    StateLostError,
    WorldLostError,
    Worlds,
    find_source,
    read_random_states,
    write_random_states,
)
from tests.fabric_train.forked import find_free_port, run_forked, torchrun_variables
from tests.waiting import wait_until


class Agent:
    """Each time the worker is ready for a world it gets the next of ``worlds``, None is nothing."""

    def __init__(self, path, *worlds: dict | None) -> None:
        self.heard: list[dict] = []
        self._listener, self._worlds = socket.socket(socket.AF_UNIX), [*worlds]
        self._listener.bind(str(path))
        self._listener.listen()
        os.environ["LAUNCHER_AGENT_SOCKET"] = str(path)
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        self._worker, _ = self._listener.accept()
        for line in self._worker.makefile("rb"):
            self.heard.append(json.loads(line))
            if "ready" in self.heard[-1] and (world := self._worlds.pop(0)):
                self.say(**world)

    def say(self, **message: object) -> None:
        self._worker.sendall(json.dumps(message).encode() + b"\n")


def told(generation: int, rank: int, size: int, port: int, *, joined: bool = False) -> dict:
    return {
        "world": {
            **torchrun_variables(rank, size, port, nodes=size),
            "LAUNCHER_GENERATION": str(generation),
        },
        "generation": generation,
        "joined": joined,
    }


def train_four_steps(worlds: Worlds, in_third=lambda world: None) -> list[list[Any]]:
    """The weights and statistics after each step, of a model whose input is random."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for world in worlds:
        with world:
            world.share(model, optimizer)
            while (worlds.step or 0) < 4:
                with world.step():
                    model(torch.rand(8, 2)).sum().backward()
                    if worlds.step == 2:
                        in_third(world)
                    optimizer.step()
                    optimizer.zero_grad()
                seen.append(
                    [n for one in model.state_dict().values() for n in one.view(-1).tolist()]
                )
    return seen


@pytest.mark.parametrize("peer_hung_up", [False, True])
def test_a_step_that_a_loss_breaks_off_leaves_nothing_and_is_made_again(tmp_path, peer_hung_up):
    def lose() -> tuple[list[list[Any]], list[int], list[dict]]:
        agent = Agent(tmp_path / "agent", None, told(2, 0, 1, find_free_port()))
        worlds, generations = Worlds(backend="gloo"), []

        def in_third(world) -> None:
            generations.append(worlds.newest_generation())
            if len(generations) == 1:
                agent.say(lost="of an earlier world", generation=0)
                lose = partial(agent.say, lost="a node has gone", generation=1)
                if peer_hung_up:  # before the update it is seen; the agent tells a little later
                    later = threading.Timer(0.2, lose)
                    worlds._breaker.has_hung_up = lambda: later.start() or True
                    return
                lose()
                wait_until(lambda: worlds._lost == "a node has gone")

        seen = train_four_steps(worlds, in_third)
        wait_until(lambda: "healed" in agent.heard[-1])
        return seen, generations, agent.heard

    environ = {"LAUNCHER_GENERATION": "1"}
    ((seen, generations, heard),) = run_forked(lose, 1, group=False, environ=environ)
    (alone,) = run_forked(lambda: train_four_steps(Worlds(backend="gloo")), 1, group=False)
    assert seen == alone
    assert generations == [1, 2]
    *heard, healed = heard
    assert heard == [
        {"worker": 0}, {"ready": True}, {"formed": 1}, {"ready": True}, {"formed": 2}
    ]  # fmt: skip
    assert (healed["healed"], healed["step"]) == (2, 3)
    assert 0 < healed["paused_s"] < 60


def test_a_newcomer_gets_the_state_and_when_it_has_gone_the_other_goes_on(tmp_path):
    port, last = find_free_port(), 9

    def train() -> tuple[list[tuple[int, bool]], dict[int, list[float]], int, str]:
        rank = int(os.environ["RANK"])
        if rank == 0:
            os.environ |= torchrun_variables(0, 1, find_free_port(), 1)
            agent = Agent(tmp_path / "0", None, None, told(3, 0, 1, find_free_port()))
        else:
            os.environ["LAUNCHER_JOINS"] = "1"
            agent = Agent(tmp_path / "1", told(2, 1, 2, port, joined=True))
        torch.manual_seed(rank)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        worlds, seen = Worlds(backend="gloo"), dict[int, list[float]]()
        formed = []
        for world in worlds:
            with world:
                formed.append((world.env.world_size, world.share(model, optimizer, schedule)))
                if world.is_live:
                    assert world.from_source(rank) == 0
                while (worlds.step or 0) < last - 3 * rank:
                    with world.step():
                        model(torch.ones(1, 2)).sum().backward()
                        for each in model.parameters():
                            torch.distributed.all_reduce(each.grad)
                        optimizer.step()
                        optimizer.zero_grad()
                    schedule.step()
                    seen[worlds.step] = [*model.weight.view(-1).tolist(), schedule.get_last_lr()[0]]
                    if worlds.step == 2:
                        agent.say(**told(2, 0, 2, port, joined=True))
                        wait_until(lambda: worlds.newest_generation() == 2)
        wait_until(lambda: len(agent.heard) == (10, 3)[rank], agent.heard)
        said = [next(iter(message)) for message in agent.heard]
        return formed, seen, worlds.heals, " ".join(said)

    environ = {"LAUNCHER_GENERATION": "1"}
    one, other = run_forked(train, 2, group=False, environ=environ, nodes=2)
    assert one[0] == [(1, False), (2, True), (1, True)]
    assert [*one[1]] == [*range(1, last + 1)]
    assert other[0] == [(2, True)]
    assert other[1] == {step: one[1][step] for step in (4, 5, 6)}
    assert (one[2], other[2]) == (2, 0)
    assert one[3] == "worker ready formed ready formed healed broken ready formed healed"
    assert other[3] == "worker ready formed"


def test_a_training_whose_weights_a_loss_left_half_changed_starts_anew(tmp_path):
    def train() -> None:
        Agent(tmp_path / "agent", None, told(2, 0, 1, find_free_port()))
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        worlds = Worlds(backend="gloo")
        for world in worlds:
            try:
                with world, world.step():
                    optimizer.step()
                    raise RuntimeError("Connection closed by peer")
            finally:
                assert worlds.step is None

    with pytest.raises(AssertionError, match="StateLostError: those who had the training's state"):
        run_forked(train, 1, group=False, environ={"LAUNCHER_GENERATION": "1"})


@pytest.mark.parametrize(
    ("error", "lost", "leaves"),
    [
        (WorldLostError("gone"), "", True),
        (RuntimeError("gloo"), "", True),
        (FencedError("generation 2 has taken over"), "", True),
        (RuntimeError("a mistake"), "", False),
        (RuntimeError("what a broken sum led to"), "gone", True),
        (ValueError("what a broken sum led to"), "gone", True),
        (KeyError("a mistake"), "gone", False),
        (InputError("a mistake", "a fix"), "gone", False),
        (DivergedError("a mistake"), "gone", False),
        (StateLostError("all are gone"), "gone", False),
    ],
)
def test_only_what_a_loss_explains_is_not_the_scripts_own_error(error, lost, leaves):
    worlds = Worlds()
    assert not worlds._may_leave(error), "without an agent nothing is left"
    worlds._link, worlds._lost = object(), lost
    assert worlds._may_leave(error) is leaves


def test_without_an_agent_there_is_one_world_and_steps_are_counted(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("LAUNCHER_", "RANK", "WORLD"))]:
        monkeypatch.delenv(name)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worlds, sizes = Worlds(), []
    for world in worlds:
        with world:
            sizes.append(world.env.world_size)
            assert not world.share(model, optimizer)
            assert (world.rank, world.is_live) == (0, False)
            for _ in range(3):
                with world.step():
                    optimizer.step()
    assert (sizes, worlds.step, worlds.heals) == ([1], 3, 0)
    assert worlds.newest_generation() is None


@pytest.mark.parametrize(("in_place", "size"), [(True, 2), (False, 1)])
def test_ranks_whom_no_agent_heals_are_in_one_world_if_they_want_one(tmp_path, in_place, size):
    def train() -> tuple[int, bool, list[float], int | None]:
        if not in_place:
            Agent(tmp_path / os.environ["RANK"])
        torch.manual_seed(int(os.environ["RANK"]))
        model = nn.Linear(2, 1)
        worlds = Worlds(backend="gloo", in_place=in_place)
        world = next(iter(worlds))
        world.share(model, torch.optim.SGD(model.parameters(), lr=0.1))
        is_formed = torch.distributed.is_initialized()
        return world.ranks.size, is_formed, model.bias.tolist(), worlds.newest_generation()

    one, other = run_forked(train, 2, group=False, environ={"LAUNCHER_GENERATION": "1"})
    assert one[:2] == other[:2] == (size, in_place)
    assert (one[2] == other[2]) is in_place
    assert one[3] is None
    default = "nccl" if torch.cuda.is_available() else "gloo"
    assert Worlds()._backend == default


@pytest.mark.parametrize(
    ("forms", "joined", "leaves"),
    [(False, False, True), (False, True, False), (True, True, True)],
)
def test_a_next_world_ends_the_present_one_at_once_unless_it_only_lets_others_in(
    forms, joined, leaves
):
    worlds = Worlds()
    worlds._is_forming = forms
    worlds._hear(told(1, 0, 1, 1, joined=joined))
    assert bool(worlds._lost) is leaves


def test_an_error_of_the_script_is_raised_as_always():
    (world,) = [world for world, _ in zip(Worlds(in_place=False), range(1), strict=False)]
    with pytest.raises(RuntimeError, match="a mistake"), world:
        raise RuntimeError("a mistake")


@pytest.mark.parametrize(
    ("steps", "generations", "source"),
    [
        ([], "", None),
        ([None, None], "44", None),
        ([7], "4", 0),
        ([None, 7], "44", 1),
        ([7, 8, 7], "444", 1),
        # It went on without the others.
        ([7, 9, 7], "444", 0),
        ([7, 9], "444", 0),
        ([9, 9, 3], "444", 0),
        # It was frozen while the others went on, or while they began again from a checkpoint.
        ([7, 900], "34", 1),
        ([900, 7], "43", 0),
        ([7, 900, 901, 5], "3443", 2),
        ([900, 7, 7], "344", 1),
        ([None, 7], "43", 1),
    ],
)
def test_all_get_the_state_of_the_newest_world_at_most_one_step_ahead_of_another_rank(
    steps, generations, source
):
    states = zip(steps, generations, strict=False)
    ranks = [RankState(step, int(of), had_state=True) for step, of in states]
    assert find_source(ranks) == source


def test_random_numbers_go_on_from_the_states_that_were_read():
    states = read_random_states()
    first = random.random(), numpy.random.rand(), torch.rand(()).item()
    write_random_states(states)
    assert (random.random(), numpy.random.rand(), torch.rand(()).item()) == first


def test_a_state_is_put_together_again_from_its_outline_and_its_tensors():
    state = {"state": {0: {"step": torch.tensor(3.0), "m": torch.ones(2)}}, "groups": [{"lr": 0.1}]}
    tensors: list[torch.Tensor] = []
    outline = _take_out(state, tensors)
    assert len(tensors) == 2
    again = _put_back(outline, [tensor + 1 for tensor in tensors])
    assert again["state"][0]["m"].tolist() == [2, 2]
    assert again["groups"] == [{"lr": 0.1}]


def test_small_tensors_are_sent_together_and_large_ones_alone(monkeypatch):
    monkeypatch.setattr("fabric_train.worlds.handover.PIECE_BYTES", 40)
    tensors = [torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.zeros(4, dtype=torch.int64)]
    tensors += [torch.zeros(100), torch.zeros(1)]
    assert [[one.numel() for one in piece] for piece in cut(tensors)] == [
        [4, 4],
        [4],
        [4],
        [100],
        [1],
    ]


def test_an_old_group_that_is_slow_to_be_freed_keeps_nobody_from_the_next_step():
    goes_on = threading.Event()
    in_time: list[bool] = []

    class Stuck:
        def __del__(self) -> None:
            in_time.append(goes_on.wait(5))

    worlds = Worlds()
    world = next(iter(worlds))
    worlds._old.append(Stuck())
    world._tell_healed()
    goes_on.set()
    wait_until(lambda: in_time == [True])
