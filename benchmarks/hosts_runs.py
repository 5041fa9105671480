"""Whole runs on two hosts: the start, against torchrun on each in a shell loop, and the stop."""

from __future__ import annotations

import random
import shlex
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import ROOT, TIMEOUT_S, find_launcher, read, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.start import TRAINING, read_first_step
from benchmarks.trials import Trial, compare
from launcher.targets.hosts.inventory.inventory import Inventory, read_inventory
from launcher.targets.hosts.settings import Host

NODES = 2
PORTS = range(20000, 32000)
LONG = ("--epochs=10000",)
POLL_S = 0.1


def runs_on_hosts(given: str) -> Generator[Trial]:
    """A row for the start of a run, and one for its end."""
    inventory = read_inventory(given)
    yield compare(
        f"command to the first optimizer step, {NODES} nodes",
        partial(start_launcher, given),
        partial(start_torchrun, inventory),
        Goal(of="ratio", most=1.1),
    )
    yield compare(
        f"launcher stop of a run on {len(inventory.hosts)} hosts",
        partial(stop_launcher, given, len(inventory.hosts)),
        goal=Goal(of="seconds", most=2.0),
        warm_up=0,
    )


def start_launcher(given: str) -> float:
    """Seconds from the launcher's start to the end of the first optimizer step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        ran = run((*command(given, runs, NODES), "--", *TRAINING))
        return read_first_step(Path(runs) / "latest") - ran.started_at


def start_torchrun(inventory: Inventory) -> float:
    """The same by ``loop_over``. The code must lie on the hosts where it lies here, and their
    clocks be right."""
    run_dir = f"/tmp/launcher-bench-{random.randrange(10**9)}"
    before = f"mkdir -p {run_dir} && cd {shlex.quote(str(ROOT))} && export RUN_DIR={run_dir}"
    ran = run(loop_over(inventory, ("-m", "train", *TRAINING), before))
    first = _ssh(inventory, inventory.hosts[0])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        metrics = read((*first, f"cat {run_dir}/metrics.json; rm -r {run_dir}"))
        (Path(folder) / "metrics.json").write_text(metrics)
        return read_first_step(Path(folder)) - ran.started_at


def loop_over(
    inventory: Inventory, command: Sequence[str], before: str, stdin: str = "/dev/null"
) -> tuple[str, ...]:
    """``for host in ...; do ssh host 'before && torchrun command' & done; wait``, written out.

    Each host's shell reads the file ``stdin`` of this machine.
    """
    hosts = inventory.hosts[:NODES]
    address, port = _address(inventory, hosts[0]), random.choice(PORTS)
    lines = []
    for rank, host in enumerate(hosts):
        there = f"{before} && {_torchrun(host, rank, address, port)} {shlex.join(command)}"
        lines.append(f"{shlex.join((*_ssh(inventory, host), there))} <{shlex.quote(stdin)} &")
    return ("sh", "-c", "\n".join([*lines, "wait"]))


def _torchrun(host: Host, rank: int, address: str, port: int) -> str:
    python = host.python or sys.executable
    words = [python, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--node-rank"]
    words += [str(rank), "--nproc-per-node", "1", "--master-addr", address]
    words += ["--master-port", str(port)]
    return f"OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 {shlex.join(words)}"


def stop_launcher(given: str, nodes: int) -> float:
    """Seconds of ``launcher stop`` for a detached run that trains on all hosts."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        run((*command(given, runs, nodes), "--detach", "--", *LONG))
        try:
            _wait_for_step(Path(runs) / "latest")
        finally:
            ran = run((*find_launcher(), "stop", "--runs", runs))
        return ran.duration_s


def command(given: str, runs: str, nodes: int) -> tuple[str, ...]:
    """``launcher run`` of the digits on some hosts, with their own Python."""
    # The loop asks no other host either.
    chosen = ",".join(host.name for host in read_inventory(given).hosts[:nodes])
    options = ("--hosts", given, "--include", chosen, "--runs", runs)
    options += ("--nnodes", str(nodes), "--nproc-per-node", "1")
    return (*find_launcher(), "run", "jobs/digits.yaml", *options, "--set", "hosts.runtime=python")


def _wait_for_step(folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not any('"progress"' in path.read_text() for path in folder.glob("ledger/train-*")):
        if time.monotonic() > deadline:
            raise BenchmarkError("the run that is to be stopped has made no step")
        time.sleep(POLL_S)


def _ssh(inventory: Inventory, host: Host) -> tuple[str, ...]:
    config = ("-F", inventory.ssh_config) if inventory.ssh_config else ()
    port = ("-p", str(host.port)) if host.port else ()
    user = ("-l", host.user) if host.user else ()
    return ("ssh", *config, "-o", "BatchMode=yes", *port, *user, host.name)


def _address(inventory: Inventory, host: Host) -> str:
    """Where the others reach it: as the inventory or the ssh configuration has it."""
    told = read(("ssh", "-G", *_ssh(inventory, host)[1:]))
    names = [line.partition(" ")[2] for line in told.splitlines() if line.startswith("hostname ")]
    return host.address or names[0]
