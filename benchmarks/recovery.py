"""``recovery``: what the node agent is for, fault by fault, beside stock torchrun.

Real processes, killed by real signals, on loopback. Our side is the agent with ``start: fork`` and
the rendezvous ``roster``; theirs is torchrun with the rendezvous ``c10d``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.groups import BUSY, SLEEPS, Setting, find_first, group_of
from benchmarks.measure import Goal, Measurement, Row, interleave
from benchmarks.trees import read_pss_bytes

NAME = "recovery"
LOSSES = "losses"
START_GOALS = {1: 0.8, 2: 0.8, 4: 0.45}
RESTART_GOAL = Goal(of="ratio", most=0.1)
MEMORY_GOAL = Goal(of="ratio", most=0.6)
GROWTH_GOAL = Goal(of="ratio", most=0.6)
LIMITS_S = (1, 10)
SLACK_S = 1
NEVER_S = 60.0
"""Stock torchrun is waited for so long where it does not react at all: once, as a fact."""
SLOW_REPETITIONS = 2
"""Of what takes torchrun most of a minute with its defaults."""
TUNED = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
QUICK_SETUP = {"last_call_timeout": "1"}
"""Lets one node start alone at once; the last call is over when the second one comes."""


def measure_recovery(repetitions: int) -> Iterator[Row]:
    """What needs no lost node: starts, killed workers, growth, memory."""
    for nproc, goal in START_GOALS.items():
        yield _compare(
            repetitions,
            f"start to the first collective, nproc {nproc}",
            partial(time_start, Setting(side="agent", nproc=nproc)),
            partial(time_start, Setting(side="torchrun", nproc=nproc)),
            Goal(of="ratio", most=goal),
            warm_up=1,
        )
    for nproc in START_GOALS:
        yield _compare(
            repetitions,
            f"worker killed, to the next collective, nproc {nproc}",
            partial(time_restart, Setting(side="agent", nproc=nproc)),
            partial(time_restart, Setting(side="torchrun", nproc=nproc)),
            RESTART_GOAL,
        )
    yield _compare(
        repetitions,
        "a node joins a running group, to the first collective of both",
        partial(time_growth, Setting(side="agent", max_nodes=2)),
        partial(time_growth, Setting(side="torchrun", max_nodes=2, conf=QUICK_SETUP)),
        GROWTH_GOAL,
    )
    yield measure_memory(repetitions)


def measure_losses(repetitions: int) -> Iterator[Row]:
    """A node lost while workers sleep, in a collective, with the store; at each of the limits."""
    yield from measure_loss_while_sleeping(repetitions)
    yield from measure_loss_in_collective(repetitions)
    yield from measure_loss_of_store(repetitions)


def measure_loss_while_sleeping(repetitions: int) -> Iterator[Row]:
    """Nobody's collective fails: only the rendezvous can notice."""
    measured = interleave(
        repetitions,
        *(partial(time_loss, _agents(limit_s, pause_s=SLEEPS)) for limit_s in LIMITS_S),
        warm_up=0,
    )
    stock = describe_stock_loss(1, Setting(side="torchrun", max_nodes=2, pause_s=SLEEPS))
    for limit_s, ours in zip(LIMITS_S, measured, strict=True):
        what = f"node killed while workers sleep, detection limit {limit_s} s"
        goal = Goal(of="seconds", most=limit_s + SLACK_S)
        yield Row(benchmark=LOSSES, what=what, ours=ours, theirs_instead=stock, goal=goal)


def measure_loss_in_collective(repetitions: int) -> Iterator[Row]:
    """The survivor's collective fails at once; the rest is the rendezvous."""
    defaults, tuned = (Setting(side="torchrun", max_nodes=2, conf=conf) for conf in ({}, TUNED))
    (slow,) = interleave(
        min(SLOW_REPETITIONS, repetitions), partial(time_loss, defaults), warm_up=0
    )
    *ours, quick = interleave(
        repetitions,
        *(partial(time_loss, _agents(limit_s)) for limit_s in LIMITS_S),
        partial(time_loss, tuned),
        warm_up=0,
    )
    at_1_s, at_default = ours
    what = "node killed in a collective, detection limit"
    note = f"torchrun with its defaults was measured {len(slow.samples_s)} times"
    goal = Goal(of="ratio", most=0.1)
    yield Row(
        benchmark=LOSSES,
        what=f"{what} 1 s, against torchrun's defaults",
        ours=at_1_s,
        theirs=slow,
        goal=goal,
        note=note,
    )
    for limit_s, measured in zip(LIMITS_S, (at_1_s, at_default), strict=True):
        yield Row(
            benchmark=LOSSES,
            what=f"{what} {limit_s} s, against tuned torchrun",
            ours=measured,
            theirs=quick,
            goal=Goal(of="seconds", most=limit_s + SLACK_S),
        )


def measure_loss_of_store(repetitions: int) -> Iterator[Row]:
    """The first node serves the rendezvous' store; the second one has to take that over."""
    measured = interleave(
        repetitions,
        *(partial(time_loss, _agents(limit_s), victim=0) for limit_s in LIMITS_S),
        warm_up=0,
    )
    stock = describe_stock_loss(0, Setting(side="torchrun", max_nodes=2, conf=TUNED))
    for limit_s, ours in zip(LIMITS_S, measured, strict=True):
        what = f"node 0 with the store killed, detection limit {limit_s} s"
        yield Row(benchmark=LOSSES, what=what, ours=ours, theirs_instead=stock)


def measure_memory(repetitions: int) -> Row:
    """The whole tree with four workers that wait."""
    row = _compare(
        repetitions,
        "memory of all processes, nproc 4",
        partial(read_memory, Setting(side="agent", nproc=4, pause_s=SLEEPS)),
        partial(read_memory, Setting(side="torchrun", nproc=4, pause_s=SLEEPS)),
        MEMORY_GOAL,
    )
    assert row.theirs
    ours, theirs = (
        Measurement(samples_s=side.samples_s, unit="MB") for side in (row.ours, row.theirs)
    )
    return Row(benchmark=NAME, what=row.what, ours=ours, theirs=theirs, goal=row.goal)


# -- one sample --------------------------------------------------------------------------------
def time_start(setting: Setting) -> float:
    """Seconds from the command to the end of the first collective."""
    with group_of(setting) as group:
        began = time.monotonic()
        group.start_node()
        return group.wait_for_first(setting.nproc) - began


def time_restart(setting: Setting) -> float:
    """Seconds from SIGKILL to one worker, the last, to the next collective of all."""
    with group_of(setting) as group:
        group.start(1)
        old = group.pids()
        victim = next(one for one in group.told() if one.rank == setting.nproc - 1)
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        return group.wait_for_first(setting.nproc, old) - killed_at


def time_loss(setting: Setting, victim: int = 1) -> float:
    """Seconds from SIGKILL to one of two nodes to the next collective of the other."""
    with group_of(setting) as group:
        group.start(2)
        old = group.pids()
        killed_at = group.trees.kill(group.nodes[victim])
        return group.wait_for_first(1, old) - killed_at


def time_growth(setting: Setting) -> float:
    """Seconds from the start of a second node to the first collective of both."""
    with group_of(setting) as group:
        group.start(1)
        began = time.monotonic()
        group.start_node()
        return group.wait_for_first(2) - began


def read_memory(setting: Setting) -> float:
    """Megabytes of the whole tree after the first collective."""
    with group_of(setting) as group:
        group.start(1)
        return read_pss_bytes(group.trees.living()) / 1e6


def describe_stock_loss(victim: int, setting: Setting) -> str:
    """What torchrun's other node does about the loss, in words: nothing, or it ends."""
    with group_of(setting) as group:
        group.start(2)
        old = group.pids()
        killed_at = group.trees.kill(group.nodes[victim])
        other = group.nodes[1 - victim]
        while (passed_s := time.monotonic() - killed_at) < NEVER_S:
            if first := find_first(group.told(), 1, old):
                return f"{first.at - killed_at:.1f} s"
            try:
                code = other.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            return f"the job is over after {passed_s:.0f} s (exit code {code})"
        return f"> {NEVER_S:g} s"


# -- within ------------------------------------------------------------------------------------
def _agents(limit_s: int, pause_s: float = BUSY) -> Setting:
    conf = {"detection_limit_s": str(limit_s)}
    return Setting(side="agent", max_nodes=2, pause_s=pause_s, conf=conf)


def _compare(
    repetitions: int,
    what: str,
    ours: partial[float],
    theirs: partial[float],
    goal: Goal,
    warm_up: int = 0,
) -> Row:
    left, right = interleave(repetitions, ours, theirs, warm_up=warm_up)
    return Row(benchmark=NAME, what=what, ours=left, theirs=right, goal=goal)
