"""Where a process stands among all, read from the environment."""

import pytest

from fabric_train.errors import InputError
from fabric_train.horovod.context import ALONE, find_world
from fabric_train.worker_env import World

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
PLACE = World(
    rank=3, world_size=4, local_rank=1, local_world_size=2, master_addr="host", master_port=29500
)


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, ALONE),
        ({"MASTER_ADDR": "left", "MASTER_PORT": "1"}, ALONE),
        (TORCHRUN, PLACE),
        ({**MPIRUN, **TORCHRUN}, PLACE),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, ALONE),
    ],
    ids=["alone", "left", "torchrun", "within mpirun", "one of mpirun"],
)
def test_the_place_is_read_from_the_environment(environ, world):
    assert find_world(environ) == world


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (MPIRUN, r"mpirun started 4 processes.*\n.*mpirun -N 1 launcher node SCRIPT"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, r"horovodrun started 2.*\n.*launcher run"),
        ({"RANK": "0"}, "WORLD_SIZE"),
    ],
)
def test_an_environment_by_which_ranks_could_not_meet_is_refused_with_the_fix(environ, message):
    with pytest.raises(InputError, match=message):
        find_world(environ)
