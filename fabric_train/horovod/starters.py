"""Who started this process (torchrun, horovodrun or mpirun), and where the ranks meet.

A starter is a frozen value, read from the environment alone; only ``open_store`` has effects.
"""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Self

from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from fabric_train.errors import InputError
from fabric_train.horovod.pmix import exchange
from fabric_train.worker_env import RESTART_COUNT, WORLD_VARIABLES, parse_worker_env

MEET_LIMIT_S = 300.0
"""How long a rank waits for rank 0's address."""
KEY = "fabric-train-store"


@dataclass(frozen=True, kw_only=True)
class Starter:
    """A process' place in the job; ``cross_rank`` is among the processes with its local rank.

    The base class is one process alone.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self | None:
        """This starter's value; None if it did not start the process."""
        return cls()

    def open_store(self) -> Store:
        """The store of all ranks. Blocks."""
        return HashStore()

    def settle(self, gather: Callable[[object], list[Any]]) -> Starter:
        """Adds what only all ranks together know; ``gather`` collects a value of every rank."""
        return self


@dataclass(frozen=True, kw_only=True)
class Torchrun(Starter):
    """torchrun, and the launcher's own agent."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self | None:
        names = (*WORLD_VARIABLES, RESTART_COUNT)
        world = parse_worker_env({n: environ[n] for n in names if n in environ}).world
        if world is None:
            return None
        return cls(
            rank=world.rank,
            size=world.world_size,
            local_rank=world.local_rank,
            local_size=world.local_world_size,
            cross_rank=world.rank // world.local_world_size,
            cross_size=world.num_nodes,
        )

    def open_store(self) -> Store:
        store: Store = next(rendezvous("env://", self.rank, self.size))[0]
        return store


@dataclass(frozen=True, kw_only=True)
class Horovodrun(Starter):
    """horovodrun with its gloo controller, whose rendezvous server keeps rank 0's address.

    Variables: horovod/runner/gloo_run.py. The server answers PUT and GET of ``/scope/key``.
    """

    VARIABLES: ClassVar = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    address: str
    port: int

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self | None:
        if "HOROVOD_RANK" not in environ:
            return None
        if environ.get("HOROVOD_ELASTIC") == "1":
            raise InputError(
                "horovodrun was started in elastic mode (HOROVOD_ELASTIC=1), whose driver wants "
                "processes to live on after a loss; here they are started again",
                "launcher run SCRIPT --nnodes MIN:MAX, which resumes from state.commit()",
            )
        places = _read_numbers(environ, [f"HOROVOD_{name}" for name in cls.VARIABLES])
        (port,) = _read_numbers(environ, ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        (address,) = _read_texts(environ, ["HOROVOD_GLOO_RENDEZVOUS_ADDR"])
        names = [name.lower() for name in cls.VARIABLES]
        return cls(**dict(zip(names, places, strict=True)), address=address, port=port)

    def open_store(self) -> Store:
        def put(text: str) -> None:
            self._ask("PUT", text.encode())

        if self.rank == 0:
            return serve_store(self.size, [_own_address(self.address, self.port)], put)
        deadline = time.monotonic() + MEET_LIMIT_S
        while time.monotonic() < deadline:
            try:
                return join_store(self.size, self._ask("GET").decode())
            except urllib.error.HTTPError as error:
                if error.code != 404:  # not there yet
                    raise
                time.sleep(0.05)
        raise InputError(
            f"rank 0 has not come to http://{self.address}:{self.port} within {MEET_LIMIT_S:.0f} s",
            "look for an error in the output of rank 0",
        )

    def _ask(self, method: str, content: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://{self.address}:{self.port}/{KEY}/store", data=content, method=method
        )
        # The environment's proxy does not reach the nodes of a cluster.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return bytes(answer.read())


@dataclass(frozen=True, kw_only=True)
class Mpirun(Starter):
    """Open MPI's mpirun; ranks meet at MASTER_ADDR:MASTER_PORT, else through its PMIx server.

    Variables: https://docs.open-mpi.org, "Environment variables that Open MPI sets at run time".
    """

    VARIABLES: ClassVar = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    master: tuple[str, int] | None = None
    has_pmix: bool = False
    node: str = ""
    """A text that is equal on all ranks of one node only."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self | None:
        if "OMPI_COMM_WORLD_RANK" not in environ:
            return None
        rank, size, local_rank, local_size = _read_numbers(
            environ, [f"OMPI_COMM_WORLD_{name}" for name in cls.VARIABLES]
        )
        master = None
        if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
            (port,) = _read_numbers(environ, ["MASTER_PORT"])
            master = environ["MASTER_ADDR"], port
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            master=master,
            has_pmix="PMIX_NAMESPACE" in environ and "PMIX_RANK" in environ,
            node=environ.get("OMPI_MCA_orte_local_daemon_uri") or environ.get("PMIX_HOSTNAME", ""),
        )

    def settle(self, gather: Callable[[object], list[Any]]) -> Starter:
        # mpirun maps ranks to nodes in any order, and sets no variable that numbers the nodes.
        places = gather((self.local_rank, self.node))
        peers = [node for local_rank, node in places if local_rank == self.local_rank]
        return replace(self, cross_rank=peers.index(self.node), cross_size=len(peers))

    def open_store(self) -> Store:
        if self.master is not None:
            host, port = self.master
            return TCPStore(host, port, self.size, self.rank == 0, wait_for_workers=False)
        fix = "mpirun -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29500 ..."
        if not self.has_pmix:
            raise InputError("mpirun has set neither MASTER_ADDR and MASTER_PORT nor PMIX_*", fix)
        if self.rank > 0:
            return join_store(self.size, exchange(KEY, None, fix))
        addresses = ["127.0.0.1"] if self.local_size == self.size else _all_addresses()
        return serve_store(self.size, addresses, lambda text: exchange(KEY, text, fix))


STARTERS: tuple[type[Starter], ...] = (Torchrun, Horovodrun, Mpirun, Starter)
"""Tried in this order: torchrun's variables are the most specific, and the last always fits."""


def find_starter(environ: Mapping[str, str]) -> Starter:
    """Who started this process; raises InputError for an environment that contradicts itself."""
    found = next(starter for kind in STARTERS if (starter := kind.read(environ)))
    for rank, size in ((found.rank, found.size), (found.local_rank, found.local_size)):
        if rank >= size:
            raise InputError(
                f"the environment says rank {rank} of {size}",
                "start the processes with the launcher, torchrun, horovodrun or mpirun",
            )
    return found


def serve_store(size: int, addresses: Sequence[str], publish: Callable[[str], object]) -> Store:
    """Opens rank 0's store on a free port, and passes port and addresses to ``publish``."""
    store = TCPStore(
        "0.0.0.0" if addresses != ["127.0.0.1"] else "127.0.0.1",
        0,
        size,
        is_master=True,
        wait_for_workers=False,
    )
    publish(f"{store.port} {' '.join(addresses)}")
    return store


def join_store(size: int, place: str) -> Store:
    """Joins the store at the first address of ``place`` that answers."""
    port, *addresses = place.split()
    for address in addresses:
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
        except OSError:
            continue
        limit = timedelta(seconds=MEET_LIMIT_S)
        return TCPStore(address, int(port), size, is_master=False, timeout=limit)
    raise InputError(
        f"rank 0 cannot be reached at port {port} of {', '.join(addresses)}",
        "let the nodes reach each other on all ports, or name a host and a port that they reach: "
        "MASTER_ADDR and MASTER_PORT with mpirun",
    )


def _own_address(host: str, port: int) -> str:
    """The address by which this machine reaches a server, and its peers reach this machine."""
    with socket.create_connection((host, port), timeout=30) as connection:
        return str(connection.getsockname()[0])


def _all_addresses() -> list[str]:
    """This machine's name, and the IPv4 addresses that it has by that name."""
    name = socket.gethostname()
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)]
    return list(dict.fromkeys([*(a for a in found if not a.startswith("127.")), name]))


def _read_texts(environ: Mapping[str, str], names: Sequence[str]) -> list[str]:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise InputError(
            f"{', '.join(missing)} missing, although other variables of the same starter are set",
            "start the processes with the launcher, torchrun, horovodrun or mpirun",
        )
    return [environ[name] for name in names]


def _read_numbers(environ: Mapping[str, str], names: Sequence[str]) -> list[int]:
    texts = _read_texts(environ, names)
    for name, text in zip(names, texts, strict=True):
        if not (text.isascii() and text.isdigit()):
            raise InputError(f"{name}={text!r} is not a whole number", f"correct or unset {name}")
    return [int(text) for text in texts]
