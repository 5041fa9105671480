"""The store of a world whose rank 0 dies while the others come."""

import socket
import threading

import pytest
import torch.distributed as dist

from fabric_train.store import open_store
from fabric_train.worker_env import World


def test_a_rank_0_that_dies_after_it_was_dialled_is_not_waited_for():
    server = socket.create_server(("127.0.0.1", 0))
    died = threading.Event()

    def die() -> None:
        server.accept()[0].close()
        server.close()
        died.set()

    threading.Thread(target=die).start()
    port = server.getsockname()[1]
    place = {"rank": 1, "local_rank": 0, "world_size": 2, "local_world_size": 1}
    world = World(**place, master_addr="127.0.0.1", master_port=port)
    with pytest.raises(dist.DistNetworkError, match=f"no store at 127.0.0.1:{port}"):
        open_store(world, died.is_set)
