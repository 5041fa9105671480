"""Where a process stands among all, read from the environment."""

from __future__ import annotations

import pytest

from fabric_train.errors import InputError
from fabric_train.horovod.starters import Starter, find_starter

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
PLACE = Starter(rank=3, size=4, local_rank=1, local_size=2, cross_rank=1, cross_size=2)


@pytest.mark.parametrize(
    ("environ", "starter"),
    [
        ({}, Starter()),
        ({"MASTER_ADDR": "left", "MASTER_PORT": "1"}, Starter()),
        (TORCHRUN, PLACE),
        ({**MPIRUN, **TORCHRUN}, PLACE),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, Starter()),
    ],
    ids=["alone", "left", "torchrun", "within mpirun", "one of mpirun"],
)
def test_the_place_is_read_from_the_environment(environ, starter):
    assert find_starter(environ) == starter


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (MPIRUN, r"mpirun started 4 processes.*\n.*mpirun -N 1 launcher node SCRIPT"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, r"horovodrun started 2.*\n.*launcher run"),
        ({"RANK": "0"}, "WORLD_SIZE"),
    ],
)
def test_an_environment_by_which_ranks_could_not_meet_is_refused_with_the_fix(environ, told):
    with pytest.raises(InputError, match=told):
        find_starter(environ)
