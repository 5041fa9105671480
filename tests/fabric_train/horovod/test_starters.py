"""Who started a process, read from the environment that each starter documents."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

import fabric_train.horovod as hvd
from fabric_train.errors import InputError
from fabric_train.horovod.starters import Horovodrun, Mpirun, Starter, Torchrun, find_starter
from tests.fabric_train.forked import run_forked
from tests.programs import run_program
from tests.training import clean_environment

ROOT = Path(__file__).parents[3]
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}
HOROVODRUN = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4242",
    "HOROVOD_CONTROLLER": "gloo",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PLACE = {
    "rank": 3,
    "size": 4,
    "local_rank": 1,
    "local_size": 2,
    "cross_rank": 1,
    "cross_size": 2,
}
BEFORE = {**PLACE, "cross_rank": 0, "cross_size": 1}
"""Before the ranks have told each other their nodes."""


@pytest.mark.parametrize(
    ("environ", "starter"),
    [
        ({}, Starter()),
        ({"MASTER_ADDR": "left", "MASTER_PORT": "1"}, Starter()),
        (TORCHRUN, Torchrun(**PLACE)),
        (HOROVODRUN, Horovodrun(**PLACE, address="10.0.0.1", port=4242)),
        (MPIRUN, Mpirun(**BEFORE)),
        (
            {**MPIRUN, "MASTER_ADDR": "host", "MASTER_PORT": "29500"},
            Mpirun(**BEFORE, master=("host", 29500)),
        ),
        (
            {**MPIRUN, "PMIX_NAMESPACE": "1", "PMIX_RANK": "3", "PMIX_HOSTNAME": "b"},
            Mpirun(**BEFORE, has_pmix=True, node="b"),
        ),
        ({**MPIRUN, **TORCHRUN}, Torchrun(**PLACE)),
    ],
    ids=["alone", "left", "torchrun", "horovodrun", "mpirun", "master", "pmix", "within"],
)
def test_the_starter_is_read_from_the_environment(environ, starter):
    assert find_starter(environ) == starter


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK"),
        (
            {**HOROVODRUN, "HOROVOD_GLOO_RENDEZVOUS_ADDR": ""},
            "HOROVOD_GLOO_RENDEZVOUS_ADDR missing",
        ),
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK='x' is not a whole number"),
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "4"}, "rank 4 of 4"),
        ({**HOROVODRUN, "HOROVOD_ELASTIC": "1"}, r"elastic mode.*\n.*launcher run SCRIPT --nnodes"),
        ({"RANK": "0"}, "WORLD_SIZE"),
    ],
)
def test_an_environment_that_lacks_something_is_refused_with_its_name(environ, told):
    with pytest.raises(InputError, match=told):
        find_starter(environ)


def test_mpiruns_nodes_are_numbered_by_their_first_ranks_however_ranks_are_mapped():
    nodes = [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a")]
    for (local_rank, node), cross in zip(
        nodes, [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)], strict=True
    ):
        settled = Mpirun(local_rank=local_rank, local_size=3, node=node).settle(lambda _: nodes)
        assert (settled.cross_rank, settled.cross_size) == cross


def test_without_an_address_and_without_pmix_mpirun_is_told_how_to_give_one():
    with pytest.raises(InputError, match="fix: mpirun -x MASTER_ADDR=HOST_OF_RANK_0"):
        find_starter(MPIRUN).open_store()


class KeyValueServer(BaseHTTPRequestHandler):
    """As horovod/runner/http/http_server.py answers: PUT, and GET with 404 before it."""

    content: dict[str, bytes]

    def do_PUT(self) -> None:
        self.content[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_GET(self) -> None:
        found = self.content.get(self.path)
        self.answer(404 if found is None else 200, found or b"")

    def answer(self, code: int, content: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def rendezvous() -> Iterator[int]:
    """The port of horovodrun's rendezvous server."""
    handler = type("Handler", (KeyValueServer,), {"content": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()


def test_ranks_of_horovodrun_meet_through_its_rendezvous_server(rendezvous):
    def meet() -> tuple[int, float]:
        rank = os.environ["RANK"]
        for name in TORCHRUN:
            del os.environ[name]
        os.environ["HOROVOD_RANK"] = os.environ["HOROVOD_LOCAL_RANK"] = rank
        hvd.init()
        result = hvd.rank(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        hvd.shutdown()
        return result

    environ = {
        **HOROVODRUN,
        "HOROVOD_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous),
        "HOROVOD_GLOO_IFACE": "lo",
        "http_proxy": "http://127.0.0.1:1",  # leads nowhere
    }
    assert run_forked(meet, 2, group=False, environ=environ) == [(0, 2.0), (1, 2.0)]


def mpirun(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return run_program(
        ["mpirun", *root, "--oversubscribe", *arguments], env=clean_environment(**environ)
    )
