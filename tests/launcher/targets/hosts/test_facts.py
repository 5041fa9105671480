"""What one host finds out: which others answer, what it has for RDMA, and what a probe tells."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.targets.hosts.program import session
from launcher.targets.hosts.program.facts import run_probe
from launcher.targets.hosts.program.messages import (
    HostReport,
    Lease,
)
from launcher.targets.hosts.program.reach import call_hosts, find_tokens, listen
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.survey import why_not


def call(*calls: Sequence[Any], wait_s: float = 5.0) -> dict[str, str]:
    return call_hosts(calls=calls, wait_s=wait_s)


def test_hosts_are_told_by_their_tokens_and_with_the_address_of_the_way_there():
    port = listen(token="mine")
    with socket.create_server(("127.0.0.2", 0)) as silent:
        found = call(
            ["127.0.0.1", port, "mine"],
            ["127.0.0.1", port, "yours"],
            ["127.0.0.3", port, "mine"],
            ["127.0.0.2", silent.getsockname()[1], "silent"],
            ["no-such-host.invalid", 1, "there"],
            wait_s=0.5,
        )
    assert found == {"0": "127.0.0.1", "2": "127.0.0.1"}


MANY = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
from launcher.targets.hosts.program.reach import call_hosts, listen
port = listen(token="here")
calls = [["127.0.0.1", port, "here"]] * 1200
print(len(call_hosts(calls=calls, wait_s=5.0)))
"""


def test_many_hosts_are_called_with_few_descriptors():
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True)
    assert done.stdout == "1200\n", done.stderr


FIT = HostReport(docker="27.1", has_rdma=True)


LEASE = Lease(run_id="a-1", node_index=0, owner="me@desk", gpus=["1"], slots=3)
BARE = {"hosts": {"runtime": "python"}}


@pytest.mark.parametrize(
    ("host", "found", "job", "why"),
    [
        ({}, {"has_rdma": False}, {}, ""),
        ({}, {}, {"resources": {"rdma": True}}, ""),
        (
            {},
            {"has_rdma": False},
            {"resources": {"rdma": True}},
            "has no RDMA device (/dev/infiniband/uverbs*), and resources.rdma is set: modprobe",
        ),
        ({}, {"docker": ""}, {}, "no Docker engine answers: docker version there"),
        ({}, {}, BARE, "has no python3: set python: for it"),
        ({"python": "/p"}, {}, BARE, "has no /p: set python: for it"),
        ({}, {"python": "/p"}, BARE, "/p has no torch: name one that has"),
        ({}, {"python": "/p", "torch_version": "2"}, BARE, ""),
        ({"slots": 4}, {}, {"nproc_per_node": 4}, ""),
        ({"slots": 4}, {}, {"nproc_per_node": 5}, "has 4 slots, and the job wants 5 of each node"),
        ({"slots": 4}, {"leases": [LEASE]}, {"nproc_per_node": 1}, ""),
        (
            {"slots": 4},
            {"leases": [LEASE]},
            {"nproc_per_node": "auto"},
            "3 of its 4 slots are held by me@desk with a-1; the job wants 4",
        ),
        ({}, {"leases": [LEASE]}, {"nproc_per_node": 9}, ""),
        ({}, {"gpus": ["0", "1"]}, {"nproc_per_node": "auto"}, ""),
        (
            {},
            {"gpus": ["0", "1"], "leases": [LEASE]},
            {"nproc_per_node": "gpu", "resources": {"gpus": 2}},
            "1 of its 2 GPUs are held by me@desk with a-1; the job wants 2",
        ),
        (
            {"gpus": ("1", "2")},
            {"gpus": ["0", "1"]},
            {"nproc_per_node": 2},
            "has 1 GPUs that gpus: of the inventory allows, and the job wants 2 of each node",
        ),
        (
            {"gpus": ("1", "2")},
            {"gpus": ["0", "1"], "leases": [LEASE]},
            {"nproc_per_node": 1},
            "1 of its 1 GPUs are held by me@desk with a-1; the job wants 1",
        ),
    ],
)
def test_why_a_host_takes_no_node_of_a_job(make_job, host, found, job, why):
    told = why_not(Host(name="gpu1", **host), FIT.having(**found), make_job(**job))
    assert told.startswith(why)
    assert bool(told) == bool(why)


# -- a probe, and what hosts share -----------------------------------------------------------------


def run(source: str, folder: Path, **asked: Any) -> object:
    usual = {"python": sys.executable, "arguments": [], "env": {}, "wait_s": 20.0}
    return run_probe(program=source.encode(), checkpoint_dir=str(folder), **{**usual, **asked})


def test_a_program_is_told_the_nearest_folder_that_is_there(tmp_path):
    source = "import json, os; print('hello'); print(json.dumps(os.environ['CHECKPOINT_DIR']))"
    assert run(source, tmp_path) == str(tmp_path)
    missing = tmp_path / "not" / "there"
    assert run(source, missing) == str(tmp_path)


def test_a_program_has_the_jobs_variables_and_its_arguments(tmp_path):
    source = "import json, os, sys; print(json.dumps([os.environ['A'], sys.argv[1:]]))"
    told = run(source, tmp_path, env={"A": "1 2"}, arguments=["node"])
    assert told == ["1 2", ["node"]]


@pytest.mark.parametrize(
    ("source", "asked", "words"),
    [
        ("raise SystemExit(1)", {}, "does not start"),
        ("print('welcome')", {}, "printed 'welcome"),
        ("", {}, "printed ''"),
        ("import time; time.sleep(60)", {"wait_s": 0.2}, "takes longer than 0.2 s"),
        ("", {"python": "/nowhere/python"}, "/nowhere/python does not start"),
    ],
)
def test_a_program_that_tells_nothing_is_an_error(source, asked, words, tmp_path):
    with pytest.raises(OSError, match=words):
        run(source, tmp_path, **asked)


def test_tokens_are_seen_before_their_folder_is_there(tmp_path):
    folder = str(tmp_path / "a" / "b")
    session.leave_token(folder=folder, name="one")
    found = find_tokens(folder=folder, names=["one", "two"], wait_s=0.2)
    assert found == ["one"]
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    session.end()
    assert find_tokens(folder=folder, names=["one"], wait_s=0.0) == []
