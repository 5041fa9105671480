"""``healing``: training that goes on in the same processes, beside four others that survive a loss.

Real processes on loopback, killed by real signals, train one small language model: a loop of
``fabric_train.worlds`` under the agent; plain DDP with checkpoints under torchrun and NVIDIA's
``ft_launcher``; and torchft. All sides of a round take their samples in turn.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import psutil

from benchmarks.commands import ROOT, free_port
from benchmarks.environments import find_environment
from benchmarks.groups import HOST, Collective, Group, Setting, group_of
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.recovery import SLOW_PAIRS, TUNED
from benchmarks.trees import Trees
from benchmarks.trials import Comparison, Round, Trial, compare

SCRIPT = ROOT / "benchmarks" / "peers" / "healing.py"
PAUSE_S = 0.01
"""Between two steps of a worker, so that four of them do not wait for a core all the time."""
SAVE_EVERY = 20
"""Steps between two checkpoints of who starts its workers anew; a loss comes halfway."""
WARM_STEPS = 30
TORCHFT = "torchft-nightly==2026.10.26"
NVRX = "nvidia-resiliency-ext==0.4.1"
TUNED_LIGHTHOUSE = ("--heartbeat_timeout_ms", "500", "--join_timeout_ms", "200")
LIMIT_S, SLACK_S = 1, 0.4
"""The detection limit of the frozen node, and what may come on top."""
KILLED_GOAL = Goal(of="seconds", most=0.3)
AGAIN_GOAL = Goal(of="seconds", most=0)
TORCHFT_GOAL = Goal(of="ratio", most=0.6)
STEP_GOAL = Goal(of="ratio", most=1.03)
TABLES_MB = {"1.5": 0, "100": 100, "1,000": 1000}
"""Megabytes of weights, and how many of them are none of the language model's."""
LOSSES: dict[str, tuple[int, tuple[int, ...]]] = {
    "1 of 4 nodes killed": (4, (3,)),
    "2 of 4 nodes killed at once": (4, (2, 3)),
    "node 0 with the coordinator killed": (2, (0,)),
}
"""Nodes, and those that are lost."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Seconds from a loss to the first new step, and how many steps were made a second time."""

    seconds: float
    again: int


def find_recovery(
    told: Sequence[Collective], lost_at: float, size: int, lost_pids: frozenset[int]
) -> Recovery | None:
    """None while the survivors have made no step that is new to them in a world of this size.

    Raises BenchmarkError where they have left one out.
    """
    living = [one for one in told if one.pid not in lost_pids]
    before = [one.step for one in living if one.at < lost_at or one.world_size != size]
    after = [one for one in living if one.at >= lost_at and one.world_size == size]
    newest = max(before)
    new = [one for one in after if one.step > newest]
    if not new:
        return None
    first = min(new, key=lambda one: one.at)
    if first.step > newest + 1:
        raise BenchmarkError(f"after step {newest} came step {first.step}")
    again = {one.step for one in after if one.step <= newest}
    return Recovery(seconds=first.at - lost_at, again=len(again))


class Torchft(Group):
    """A lighthouse, whose options are the ``words`` of the setting, and replicas that find it."""

    def __init__(self, setting: Setting, trees: Trees) -> None:
        super().__init__(setting, trees)
        self._programs, port = find_environment(TORCHFT), free_port()
        self._lighthouse = f"http://{HOST}:{port}"
        lighthouse = (str(self._programs / "torchft_lighthouse"), "--bind", f"{HOST}:{port}")
        trees.start((*lighthouse, "--min_replicas", "1", *setting.words))

    def describe_node(self, index: int) -> tuple[str, ...]:
        variables = (f"TORCHFT_LIGHTHOUSE={self._lighthouse}", f"NODE_INDEX={index}")
        python = str(self._programs / "python")
        return ("env", *variables, python, str(SCRIPT), str(self.file), str(PAUSE_S), "torchft")


T = TypeVar("T")
Sample = Callable[[], Recovery]


# -- the trials --------------------------------------------------------------------------------
def healings() -> Generator[Trial]:
    """A node killed, on all sides; then ours alone: other losses, newcomers, the cost of a step."""
    yield compare_losses()
    for what, (nodes, victims) in LOSSES.items():
        yield lose_ours(what, partial(lose, agents(nodes), victims=victims), KILLED_GOAL)
    yield lose_ours(
        f"node frozen, detection limit {LIMIT_S} s",
        partial(lose, agents(2, LIMIT_S), signum=signal.SIGSTOP),
        Goal(of="seconds", most=LIMIT_S + SLACK_S),
    )
    for size, table_mb in TABLES_MB.items():
        yield compare(
            f"a node joins, {size} MB of weights, pause of the other",
            partial(time_pause, table_mb),
            goal=KILLED_GOAL,
            warm_up=0,
        )
    what = "a step with world.step() against the same without, 2 nodes"
    yield Trial(take=time_steps, rows=(Comparison(what=what, goal=STEP_GOAL),), warm_up=0)


def compare_losses() -> Trial:
    """One of two nodes killed; a peer that cannot be installed is told in words."""
    peers: dict[str, tuple[Sample, str, Goal | None]] = {
        "torchrun's defaults": (partial(lose, _restarted()), "", KILLED_GOAL),
        "tuned torchrun": (partial(lose, _restarted(TUNED)), "", None),
        "torchft's defaults": (partial(lose, _torchft(), kind=Torchft), TORCHFT, None),
        "tuned torchft": (
            partial(lose, _torchft(TUNED_LIGHTHOUSE), kind=Torchft),
            TORCHFT,
            TORCHFT_GOAL,
        ),
        "ft_launcher's defaults": (lose_under_ft_launcher, NVRX, None),
        "tuned ft_launcher": (partial(lose_under_ft_launcher, TUNED), NVRX, None),
    }
    samples: dict[str, Sample] = {"ours": partial(lose, agents(2))}
    rows: list[Comparison] = []
    for peer, (sample, requirement, goal) in peers.items():
        fault = _find_fault(requirement)
        if not fault:
            samples[peer] = sample
        rows += _describe_rows(f"node killed, against {peer}", goal, peer, fault)
    return Trial(take=partial(_take, samples), rows=tuple(rows), warm_up=0, pairs=SLOW_PAIRS)


def lose_ours(what: str, sample: Sample, goal: Goal) -> Trial:
    """Without a peer."""
    return Trial(
        take=partial(_take, {"ours": sample}),
        rows=tuple(_describe_rows(what, goal)),
        warm_up=0,
    )


# -- one sample --------------------------------------------------------------------------------
def lose(
    setting: Setting,
    victims: Sequence[int] = (1,),
    signum: signal.Signals = signal.SIGKILL,
    kind: type[Group] = Group,
) -> Recovery:
    """All nodes train, the victims get a signal, and the others go on."""
    with group_of(setting, kind) as group:
        group.start(setting.max_nodes)
        _train_on(group, setting.max_nodes)
        lost = [group.nodes[victim] for victim in victims]
        trees = [psutil.Process(node.pid).children(recursive=True) for node in lost]
        pids = frozenset(one.pid for tree in trees for one in tree) | {one.pid for one in lost}
        lost_at = group.trees.kill(*lost, signum=signum)
        size = setting.max_nodes - len(victims)
        find = lambda: find_recovery(group.told(), lost_at, size, pids)  # noqa: E731
        return _await(group, find, "a new step of the survivors")


def lose_under_ft_launcher(conf: Mapping[str, str] = MappingProxyType({})) -> Recovery:
    """The same for NVIDIA's, which has torchrun's rendezvous."""
    program = str(find_environment(NVRX) / "ft_launcher")
    return lose(_restarted(conf, (program, "--ignore-missing-fault-tol-cfg")))


def time_pause(table_mb: float) -> float:
    """Seconds from a node's last step alone to its first step with a second one that comes."""
    with group_of(agents(2, words=(str(table_mb),))) as group:
        group.start(1)
        _train_on(group, 1)
        (pid,) = group.pids()
        group.start_node()

        def find_pause() -> float | None:
            steps = [one for one in group.told() if one.pid == pid]
            alone = [one for one in steps if one.world_size == 1]
            return steps[len(alone)].at - alone[-1].at if len(steps) > len(alone) else None

        return _await(group, find_pause, "a step of both nodes")


def time_steps() -> Round:
    """The mean seconds of a step of both kinds, from blocks in turn in the same processes."""
    with group_of(agents(2, side="ours_and_plain", pause_s=0)) as group:
        group.start(2)
        file = group.file.with_name("seconds.json")
        group.trees.wait_for(file.exists, "all steps")
        seconds: dict[str, float] = json.loads(file.read_text())
        return seconds


# -- within ------------------------------------------------------------------------------------
def _take(samples: Mapping[str, Sample]) -> Round:
    figures: dict[str, float] = {}
    for side, sample in samples.items():
        recovery = sample()
        figures |= {side: recovery.seconds, f"{side}, again": recovery.again}
    return figures


def _describe_rows(
    what: str, goal: Goal | None, peer: str = "", fault: str = ""
) -> list[Comparison]:
    has_peer = bool(peer) and not fault
    return [
        Comparison(
            what=f"{what}, to the first new step",
            theirs=peer if has_peer else None,
            theirs_instead=fault,
            goal=goal,
        ),
        Comparison(
            what=f"{what}, steps made again",
            ours="ours, again",
            theirs=f"{peer}, again" if has_peer else None,
            theirs_instead=fault,
            unit="steps",
            goal=AGAIN_GOAL,
        ),
    ]


def _find_fault(requirement: str) -> str:
    try:
        if requirement:
            find_environment(requirement)
    except BenchmarkError as error:
        return f"not installed: {str(error).splitlines()[-1].strip()}"
    return ""


def _await(group: Group, find: Callable[[], T | None], what: str) -> T:
    """What is found, once it is."""
    found: list[T | None] = []

    def look() -> bool:
        found.append(find())
        return found[-1] is not None

    group.trees.wait_for(look, what)
    assert found[-1] is not None
    return found[-1]


def _train_on(group: Group, size: int) -> None:
    """Until the group of this size has made some steps, and stands halfway to a checkpoint."""

    def has_trained() -> bool:
        steps = [one.step for one in group.told() if one.world_size == size]
        past = max(steps, default=0) % SAVE_EVERY - SAVE_EVERY // 2
        return len(set(steps)) > WARM_STEPS and 0 <= past < SAVE_EVERY // 4

    group.trees.wait_for(has_trained, f"{WARM_STEPS} steps of {size} nodes")


def agents(
    nodes: int,
    limit_s: int | None = None,
    side: str = "ours",
    words: tuple[str, ...] = (),
    pause_s: float = PAUSE_S,
) -> Setting:
    return Setting(
        side="agent",
        max_nodes=nodes,
        pause_s=pause_s,
        conf={} if limit_s is None else {"detection_limit_s": str(limit_s)},
        script=SCRIPT,
        words=(side, *words),
    )


def _restarted(
    conf: Mapping[str, str] = MappingProxyType({}), program: tuple[str, ...] = ()
) -> Setting:
    return Setting(
        side="torchrun",
        max_nodes=2,
        pause_s=PAUSE_S,
        conf=conf,
        script=SCRIPT,
        words=("restarted", str(SAVE_EVERY)),
        torchrun=program,
    )


def _torchft(lighthouse: tuple[str, ...] = ()) -> Setting:
    return Setting(side="torchrun", max_nodes=2, words=lighthouse)
