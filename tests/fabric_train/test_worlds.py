"""Training in one world after the other: what needs no agent. Real losses: ``launcher/agent``."""

import os
import random
import socket
import threading

import numpy
import pytest
import torch
from torch import nn

from fabric_train.breaking import Breaker, is_group_failure, list_connections
from fabric_train.handover import _put_back, _take_out, cut
from fabric_train.worlds import (
    RankState,
    Worlds,
    find_source,
    read_random_states,
    write_random_states,
)
from tests.waiting import wait_until


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


@pytest.mark.parametrize(
    ("error", "is_groups"),
    [
        (RuntimeError("[gloo/pair.cc:537] Read error: Connection reset by peer"), True),
        (RuntimeError("NCCL error: unhandled system error"), True),
        (torch.distributed.DistNetworkError("the store is gone"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_a_groups_failure_is_told_from_the_scripts_own(error, is_groups):
    assert is_group_failure(error) is is_groups
    around = KeyError("from it")
    around.__cause__ = error
    assert is_group_failure(around) is is_groups


def test_connections_that_were_there_before_and_those_to_strangers_are_left_alone():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as elsewhere,
    ):
        old = socket.create_connection(server.getsockname())
        breaker = Breaker(store_port=1)
        member = socket.create_connection(server.getsockname())
        breaker.formed()
        stranger = socket.create_connection(elsewhere.getsockname()[:2])
        assert not breaker.has_hung_up()
        breaker.shut()
        with old, member, stranger:
            member.settimeout(5.0)
            assert member.recv(1) == b"", "it was shut down"
            assert old.send(b"x") == stranger.send(b"x") == 1
        assert breaker.has_hung_up()
        assert not breaker.has_hung_up(), "said once"


def test_connections_are_listed_with_their_ends():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as mine:
            own = mine.getsockname()[1]
            (found,) = [one for one in list_connections() if one.port == own]
            assert (found.peer, found.peer_port) == ("127.0.0.1", port)


def test_a_state_is_put_together_again_from_its_outline_and_its_tensors():
    state = {"state": {0: {"step": torch.tensor(3.0), "m": torch.ones(2)}}, "groups": [{"lr": 0.1}]}
    tensors: list[torch.Tensor] = []
    outline = _take_out(state, tensors)
    assert len(tensors) == 2
    again = _put_back(outline, [tensor + 1 for tensor in tensors])
    assert again["state"][0]["m"].tolist() == [2, 2]
    assert again["groups"] == [{"lr": 0.1}]


def test_small_tensors_are_sent_together_and_large_ones_alone(monkeypatch):
    monkeypatch.setattr("fabric_train.handover.PIECE_BYTES", 40)
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
