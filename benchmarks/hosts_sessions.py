"""Opening sessions to many hosts at once, against a plain parallel ssh loop.

Where the machines are fewer than the sessions, each gets several.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from benchmarks.measure import BenchmarkError, Goal, Measurement, Row
from launcher.contract.errors import TargetError
from launcher.targets.hosts.inventory import Inventory, read_inventory
from launcher.targets.hosts.program.messages import HasCode
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh import Ssh

SESSIONS = (4, 16, 64, 128)
FEW, MANY = 16, 128
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One fan-out: seconds, and the memory that it took at its peak in MB."""

    seconds: float
    memory_mb: float


def measure_sessions(given: str, repetitions: int) -> Iterator[Row]:
    """Two rows for each number of sessions, time and memory, and how both grow."""
    inventory = read_inventory(given)
    times: dict[int, Measurement] = {}
    memory: dict[int, Measurement] = {}
    for count in SESSIONS:
        hosts = list(itertools.islice(itertools.cycle(inventory.hosts), count))
        sides = _interleave(
            repetitions,
            lambda hosts=hosts: open_all(inventory, hosts),  # type: ignore[misc]
            lambda hosts=hosts: loop_over(inventory, hosts),  # type: ignore[misc]
        )
        (ours, ours_mb), (theirs, theirs_mb) = sides
        times[count], memory[count] = ours, ours_mb
        what = f"{count} sessions to {len(inventory.hosts)} machines"
        yield _row(what, ours, theirs, Goal(of="ratio", most=1.0))
        yield _row(f"{what}, memory", ours_mb, theirs_mb)
    linear = Goal(of="ratio", most=1.1)
    what = f"one session, of {MANY} against of {FEW}"
    yield _row(f"{what}: time", times[MANY].per(MANY), times[FEW].per(FEW), linear)
    few_mb, many_mb = (_per(memory[count], count) for count in (FEW, MANY))
    yield _row(f"{what}: memory", many_mb, few_mb, linear)


def _row(what: str, ours: Measurement, theirs: Measurement, goal: Goal | None = None) -> Row:
    return Row(benchmark="hosts", what=what, ours=ours, theirs=theirs, goal=goal)


def _per(measurement: Measurement, count: int) -> Measurement:
    return Measurement(samples_s=measurement.per(count).samples_s, unit="MB")


def _interleave(
    repetitions: int, *sides: Callable[[], Sample]
) -> list[tuple[Measurement, Measurement]]:
    """As ``measure.interleave``, with time and memory of the same call."""
    rounds = [[side() for side in sides] for _ in range(repetitions + 1)][1:]
    return [
        (
            Measurement(samples_s=tuple(sample.seconds for sample in samples)),
            Measurement(samples_s=tuple(sample.memory_mb for sample in samples), unit="MB"),
        )
        for samples in zip(*rounds, strict=True)
    ]


def open_all(inventory: Inventory, hosts: list[Host]) -> Sample:
    """Until each of ``hosts`` has answered, from no connection at all."""
    ssh = Ssh(inventory)
    for host in inventory.hosts:
        ssh.disconnect(host)

    def ask(host: Host) -> None:
        with ssh.open(host) as session:
            session.call(HasCode(state_dir="/nowhere", hash="none"))

    try:
        return measure(lambda: ssh.each(ask, hosts))
    except TargetError as error:
        raise BenchmarkError(f"{len(hosts)} sessions: {error}") from error


def loop_over(inventory: Inventory, hosts: list[Host]) -> Sample:
    """``for host in ...; do ssh host python3 -c pass & done; wait``."""
    config = ("-F", inventory.ssh_config) if inventory.ssh_config else ()

    def loop() -> None:
        children = [
            subprocess.Popen(
                ("ssh", *config, "-o", "BatchMode=yes", "--", host.name, "python3", "-c", "pass"),
                stdin=subprocess.DEVNULL,
            )
            for host in hosts
        ]
        failed = sum(child.wait() != 0 for child in children)
        if failed:
            raise BenchmarkError(f"{failed} of {len(hosts)} plain ssh sessions failed")

    return measure(loop)


def measure(work: Callable[[], object]) -> Sample:
    """Runs it, and watches the memory of this process and of all ssh clients meanwhile."""
    before, peak = read_memory_mb(), 0.0
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(POLL_S):
            peak = max(peak, read_memory_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        work()
    finally:
        seconds = time.perf_counter() - began
        over.set()
        watcher.join()
    return Sample(seconds=seconds, memory_mb=max(0.0, peak - before))


def read_memory_mb() -> float:
    """Of this process, its children, and the clients that hold shared connections."""
    own = psutil.Process(os.getpid())
    found = {own.pid: own, **{child.pid: child for child in own.children(recursive=True)}}
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "ssh":
            found[process.pid] = process
    total = 0
    for process in found.values():
        try:
            memory = process.memory_info()
        except psutil.Error:
            continue
        # What each has of its own: the program's text is there once for all.
        total += memory.rss - getattr(memory, "shared", 0)
    return total / 1e6
