"""``recovery`` and ``losses``: starts, killed workers, and lost or frozen nodes under the agent,
beside stock torchrun.

Real processes, killed by real signals, on loopback. Our side is the agent with ``start: fork`` and
the rendezvous ``roster``; theirs is torchrun with the rendezvous ``c10d``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from functools import partial
from types import MappingProxyType

from benchmarks.groups import BUSY, SLEEPS, Group, Setting, find_first, group_of
from benchmarks.measure import Goal
from benchmarks.trials import Comparison, Sample, Trial, compare, in_turn

START_GOALS = {1: 0.8, 2: 0.8, 4: 0.45}
RESTART_GOAL = Goal(of="ratio", most=0.1)
MEMORY_GOAL = Goal(of="ratio", most=0.6)
GROWTH_GOAL = Goal(of="ratio", most=0.35)
LIMITS_S = (1, 10)
"""Detection limits at which a frozen node is measured; a killed one at the default."""
SLACK_S = 0.3
KILLED_GOAL = Goal(of="seconds", most=0.3)
NEVER_S = 60.0
"""Stock torchrun is waited for so long where it does not react at all: once, as a fact."""
SLOW_PAIRS = 3
"""Of what takes torchrun most of a minute with its defaults."""
TUNED = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
QUICK_SETUP = {"last_call_timeout": "1"}
"""Lets one node start alone at once; the last call is over when the second one comes."""


def recoveries() -> Generator[Trial]:
    """What needs no lost node: starts, killed workers, growth, memory."""
    for nproc, goal in START_GOALS.items():
        yield compare(
            f"start to the first collective, nproc {nproc}",
            partial(time_start, Setting(side="agent", nproc=nproc)),
            partial(time_start, Setting(side="torchrun", nproc=nproc)),
            Goal(of="ratio", most=goal),
        )
    for nproc in START_GOALS:
        yield compare(
            f"worker killed, to the next collective, nproc {nproc}",
            partial(time_restart, Setting(side="agent", nproc=nproc)),
            partial(time_restart, Setting(side="torchrun", nproc=nproc)),
            RESTART_GOAL,
            warm_up=0,
        )
    yield compare(
        "a node joins a running group, to the first collective of both",
        partial(time_growth, Setting(side="agent", max_nodes=2)),
        partial(time_growth, Setting(side="torchrun", max_nodes=2, conf=QUICK_SETUP)),
        GROWTH_GOAL,
        warm_up=0,
    )
    # The whole tree with four workers that wait.
    yield compare(
        "memory of all processes, nproc 4",
        partial(read_memory, Setting(side="agent", nproc=4, pause_s=SLEEPS)),
        partial(read_memory, Setting(side="torchrun", nproc=4, pause_s=SLEEPS)),
        MEMORY_GOAL,
        unit="MB",
        warm_up=0,
    )


def losses() -> Generator[Trial]:
    """A node killed while workers sleep, in a collective, with the coordinator; one frozen."""
    yield lose_while_sleeping()
    yield from lose_in_collective()
    yield lose_coordinator()
    yield freeze_while_sleeping()


def lose_while_sleeping() -> Trial:
    """Nobody's collective fails: only the rendezvous can notice."""
    return compare(
        "node killed while workers sleep",
        partial(time_loss, _agents(pause_s=SLEEPS)),
        goal=KILLED_GOAL,
        theirs_instead=describe_stock_loss(1, _torchruns(pause_s=SLEEPS)),
        warm_up=0,
    )


def lose_in_collective() -> Generator[Trial]:
    """The survivor's collective fails at once; the rest is the rendezvous."""
    ours = partial(time_loss, _agents())
    yield compare(
        "node killed in a collective, against torchrun's defaults",
        ours,
        partial(time_loss, _torchruns()),
        Goal(of="ratio", most=0.05),
        warm_up=0,
        pairs=SLOW_PAIRS,
    )
    yield compare(
        "node killed in a collective, against tuned torchrun",
        ours,
        partial(time_loss, _torchruns(TUNED)),
        KILLED_GOAL,
        warm_up=0,
    )


def lose_coordinator() -> Trial:
    """The first node coordinates the run; the second one has to take that over."""
    return compare(
        "node 0 with the coordinator killed",
        partial(time_loss, _agents(), 0),
        goal=KILLED_GOAL,
        theirs_instead=describe_stock_loss(0, _torchruns(TUNED)),
        warm_up=0,
    )


def freeze_while_sleeping() -> Trial:
    """No connection closes: only the silence tells, after the detection limit."""
    stock = describe_stock_loss(1, _torchruns(pause_s=SLEEPS), freezes=True)
    samples: dict[str, Sample] = {
        f"{limit_s} s": partial(time_loss, _agents(limit_s, SLEEPS), freezes=True)
        for limit_s in LIMITS_S
    }
    return Trial(
        take=in_turn(samples),
        rows=tuple(
            Comparison(
                what=f"node frozen while workers sleep, detection limit {limit_s} s",
                ours=f"{limit_s} s",
                theirs=None,
                theirs_instead=stock,
                goal=Goal(of="seconds", most=limit_s + SLACK_S),
            )
            for limit_s in LIMITS_S
        ),
        warm_up=0,
    )


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
        lost_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        return group.wait_for_first(setting.nproc, old) - lost_at


def time_loss(setting: Setting, victim: int = 1, *, freezes: bool = False) -> float:
    """Seconds from the loss of one of two nodes to the next collective of the other.

    The node gets SIGKILL, or SIGSTOP where it ``freezes``.
    """
    with group_of(setting) as group:
        group.start(2)
        old = group.pids()
        lost_at = _lose(group, victim, freezes=freezes)
        return group.wait_for_first(1, old) - lost_at


def time_growth(setting: Setting) -> float:
    """Seconds from the start of a second node to the first collective of both."""
    with group_of(setting) as group:
        group.start(1)
        began = time.monotonic()
        group.start_node()
        return group.wait_for_first(2) - began


def read_memory(setting: Setting) -> float:
    """Megabytes of the whole tree after the first collective; what several share counts once."""
    with group_of(setting) as group:
        group.start(1)
        return sum(float(one.memory_full_info().pss) for one in group.trees.living()) / 1e6


def describe_stock_loss(victim: int, setting: Setting, *, freezes: bool = False) -> str:
    """What torchrun's other node does about the loss, in words: nothing, or it ends."""
    with group_of(setting) as group:
        group.start(2)
        old = group.pids()
        lost_at = _lose(group, victim, freezes=freezes)
        other = group.nodes[1 - victim]
        while (passed_s := time.monotonic() - lost_at) < NEVER_S:
            if first := find_first(group.told(), 1, old):
                return f"{first.at - lost_at:.1f} s"
            try:
                code = other.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            return f"the job is over after {passed_s:.0f} s (exit code {code})"
        return f"> {NEVER_S:g} s"


# -- within ------------------------------------------------------------------------------------
def _lose(group: Group, victim: int, *, freezes: bool) -> float:
    signum = signal.SIGSTOP if freezes else signal.SIGKILL
    return group.trees.kill(group.nodes[victim], signum=signum)


def _agents(limit_s: int | None = None, pause_s: float = BUSY) -> Setting:
    conf = {} if limit_s is None else {"detection_limit_s": str(limit_s)}
    return Setting(side="agent", max_nodes=2, pause_s=pause_s, conf=conf)


def _torchruns(conf: Mapping[str, str] = MappingProxyType({}), pause_s: float = BUSY) -> Setting:
    return Setting(side="torchrun", max_nodes=2, pause_s=pause_s, conf=conf)
