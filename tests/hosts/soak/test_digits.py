"""Digits trains on hosts to its accuracy: each runtime, rendezvous and size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.typist import Typist

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
BARE = ("--set", "hosts.runtime=python")
TORCHRUN = ("--set", "engine=torchrun", "--set", "start=null", "--set", "max_restarts=0")
DOCKER = pytest.mark.docker


def train_digits(typist: Typist, nnodes: str, *options: str) -> dict[str, Any]:
    """Trains on as many hosts as ``nnodes`` allows, one process on each; returns the plan."""
    shutil.copytree(ROOT / "jobs", typist.folder / "jobs")
    if options[: len(BARE)] == BARE:  # an image brings the program with it
        for name in ("fabric_train", "train"):
            shutil.copytree(ROOT / name, typist.folder / name)
    typist.limit_s = 500.0
    checkpoints = f"checkpoint_dir={typist.folder}/checkpoints"
    argv = ("--nnodes", nnodes, "--nproc-per-node", "1", "--set", checkpoints)
    typist.well("run", "jobs/digits.yaml", *argv, *options)
    metrics = typist.outcome["metrics"]
    assert metrics["test_accuracy"] >= 0.97
    # A group that starts without a host would be as good at digits.
    assert metrics["world_size"] == int(nnodes.rpartition(":")[2])
    plan: dict[str, Any] = json.loads((typist.folder / "runs/latest/plan.json").read_text())
    return plan


@pytest.mark.parametrize(
    ("nnodes", "options"),
    [
        # In every CI a short script runs on hosts; each of these takes half a minute.
        pytest.param("2", (), id="2 by the agent"),
        pytest.param("2", TORCHRUN, id="2 by torchrun, static"),
        pytest.param("4", (), id="4 by the agent"),
        pytest.param("2:4", (), id="4 by the agent, elastic"),
        pytest.param("2:4", TORCHRUN, id="4 by torchrun, elastic"),
    ],
)
def test_digits_trains_with_the_hosts_own_python(typist, nnodes, options):
    plan = train_digits(typist, nnodes, *BARE, *options)
    is_static = options == TORCHRUN and ":" not in nnodes
    assert ("backend" not in plan["nodes"][0]["rendezvous"]) == is_static


@DOCKER
@pytest.mark.parametrize(
    ("nnodes", "options"),
    [
        pytest.param("2", TORCHRUN, id="2 by torchrun, static"),
        pytest.param("2:4", (), id="4 by the agent, elastic"),
    ],
)
def test_digits_trains_in_containers_of_the_hosts_engines(typist, four_engines, nnodes, options):
    train_digits(typist, nnodes, "--set", "hosts.runtime=docker", *options)
    for host in four_engines.hosts:
        assert host.docker("ps", "--all", "--quiet") == ""
