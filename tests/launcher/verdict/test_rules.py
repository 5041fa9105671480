"""What lines of logs mean: each family's rules, on texts as programs write them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.causes import Cause
from launcher.contract.reports.look import Frame, RankLook
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.all import RULES, judge_end, judge_line, judge_lines, judge_run_cause
from launcher.verdict.rules.rule import Weight
from launcher.verdict.rules.standstill import Standing, computes, judge_standing
from launcher.verdict.scan import SETTING, find_telling
from tests.launcher.worker_ends import worker_end


def read_lines() -> Iterator[tuple[str, str]]:
    """Each cause, and a line that means it."""
    cause = ""
    for line in Path(__file__).with_name("lines.txt").read_text().splitlines():
        if line.startswith("  "):
            yield cause, line[2:]
        elif line.endswith(":"):
            cause = line[:-1]


@pytest.mark.parametrize(("cause", "text"), read_lines())
def test_a_line_means_its_cause(cause, text):
    (line,) = find_telling([text.encode()], LogLine(file="log", number=0, text=""))
    found = judge_line(line)
    assert found.cause == cause


@pytest.mark.parametrize("where", ["job 19 waits in the queue:", "pending;"])
@pytest.mark.parametrize("why", ["PartitionConfig", "JobHeldUser", "job requeued in held state"])
def test_a_job_that_slurm_does_not_start_by_itself_has_no_room(why, where):
    found = judge_line(LogLine(file="launcher", text=f"{where} {why}"))
    assert found is not None
    assert (found.cause, found.weight) == ("no-room", Weight.ROOT)
    assert ("scontrol release" in found.fix) == ("Partition" not in why)


def test_each_cause_that_a_line_can_mean_has_one():
    assert {rule.cause for rule in RULES} - {cause for cause, _ in read_lines()} == set()


@pytest.mark.parametrize(
    "text",
    [
        "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
        "W1125 01:02:03.123000 42 torch] The server socket has failed to listen on [::]:29500",
        "[W socket.cpp:464] The client socket has failed to connect to [n1]:29500 (errno: 22)",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "epoch 1: 0 errors, 12 warnings, timeout 30 s, loss 0.31",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
        "2026-01-01: W tensorflow/dso_loader.cc:64] libnvinfer.so.7: cannot open shared object",
        "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "n1:9:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    ],
)
def test_what_is_no_failure_never_weighs_as_one(text):
    found = judge_line(LogLine(file="log", number=1, text=text))
    assert found is None or found.weight < Weight.LIKELY


LIBRARY = "/venv/lib/python3.11/site-packages/torch"
OWN = Frame(function="<module>", file="/code/train.py", line=9)
REDUCES = (Frame(function="all_reduce", file=f"{LIBRARY}/distributed/c10d.py", line=3), OWN)
WRAPPED = (Frame(function="my_wrapper", file=f"{LIBRARY}/distributed/c10d_logger.py"), *REDUCES[1:])
RECEIVES = (Frame(function="recv", file=f"{LIBRARY}/distributed/c10d.py", line=3), OWN)
SENDS = (Frame(function="send", file=f"{LIBRARY}/distributed/c10d.py", line=3), OWN)
LOADS = (Frame(function="_next", file=f"{LIBRARY}/utils/data/dataloader.py"), OWN)
LOCKS = (Frame(function="acquire", file="/usr/lib/python3.11/threading.py"), OWN)
POLLS = (Frame(function="select", file="/usr/lib/python3.11/selectors.py"), OWN)
COPIES = (Frame(function="item", file=f"{LIBRARY}/_tensor.py"), OWN)


def stand(rank: int, frames: tuple[Frame, ...], state: str = "S", **fields: Any) -> Standing:
    thread = fields.pop("thread", "")
    look = RankLook(rank=rank, pid=1, state=state, **fields)
    return Standing(line=LogLine(rank=rank, node=0), frames=frames, look=look, thread=thread)


@pytest.mark.parametrize(
    ("standing", "stood", "cause", "rank", "text"),
    [
        ([(0, REDUCES), (1, (OWN,), "R")], False, "endless-loop", 1,
         "rank 1 stands at train.py:9; rank 0: all_reduce <- train.py:9"),
        ([(0, COPIES), (1, (OWN,))], False, "deadlock", 1,
         "rank 1 stands at train.py:9; rank 0: item <- train.py:9"),
        ([(0, REDUCES), (1, LOCKS)], False, "deadlock", 1,
         "rank 1 stands at acquire <- train.py:9; rank 0: all_reduce <- train.py:9"),
        ([(0, REDUCES), (1, LOADS)], False, "data-stall", 1,
         "rank 1 stands at _next <- train.py:9; rank 0: all_reduce <- train.py:9"),
        ([(0, (OWN,)), (1, (OWN,))], False, None, None, ""),
        ([(0, (OWN,)), (1, LOCKS)], True, "deadlock", 1,
         "rank 1 stands at acquire <- train.py:9"),
        ([(0, (OWN,)), (1, (OWN,))], True, None, None, ""),
        ([(0, (OWN,)), (1, POLLS)], True, None, None, ""),
        ([(0, REDUCES), (1, (OWN,))], True, "deadlock", 1,
         "rank 1 stands at train.py:9; rank 0: all_reduce <- train.py:9"),
        ([(3, LOCKS)], False, "deadlock", 3, "rank 3 stands at acquire <- train.py:9"),
        ([(0, REDUCES), (1, REDUCES)], True, None, None, ""),
        ([(0, REDUCES), (1, REDUCES), (2, RECEIVES)], False, "mismatched-collective", 2,
         "rank 2 stands at recv <- train.py:9; rank 0: all_reduce <- train.py:9"),
        ([(0, SENDS), (1, RECEIVES)], False, "deadlock", 0,
         "rank 0 stands at send <- train.py:9; rank 1: recv <- train.py:9"),
        ([(0, WRAPPED)], False, None, None, ""),
        ([(0, (OWN,)), (1, (), "T")], False, "deadlock", 0, "rank 0 stands at train.py:9"),
        ([(1, (), "T")], False, "deadlock", 1,
         "rank 1 stands; stopped by a signal; kill -CONT continues it"),
    ],
)  # fmt: skip
def test_the_rank_outside_of_what_the_others_wait_in_is_blamed(standing, stood, cause, rank, text):
    found = list(judge_standing([stand(*one) for one in standing], stood=stood))
    first = found[0] if found else None
    assert (first and first.cause) == cause
    if first:
        assert (first.rank, first.line.text, first.weight) == (rank, text, Weight.LIKELY)
        assert first.line.frame == ("train.py:9" if standing[-1][1] else first.line.frame)
        assert bool(first.fix) == (cause == "data-stall")


@pytest.mark.parametrize(
    ("steps", "waits_in", "is_blamed"),
    [(9, "futex_do_wait", True), (9, "", True), (9, "hrtimer_nanosleep", False), (0, "", False)],
)
def test_a_rank_that_is_stopped_while_it_sleeps_or_before_any_step_stands_still_for_nobody(
    steps, waits_in, is_blamed
):
    own = [stand(rank, (OWN,), steps=steps, waits_in=waits_in) for rank in (0, 1)]
    assert bool([*judge_standing(own, stood=True)]) == is_blamed
    assert [*judge_standing([*own, stand(2, REDUCES)], stood=True)]


def test_a_rank_that_waits_in_the_kernel_blames_its_driver_or_its_disk():
    for waits_in, silent_s, cause, joined in (
        ("nv_wait", 10.1, "gpu-fault", True),
        ("_nvidia", 10.0, "gpu-fault", False),
        ("x_nv", 0.0, "data-stall", False),
        ("", 11.0, "data-stall", True),
    ):
        one = stand(1, LOADS, "D", waits_in=waits_in, silent_s=silent_s)
        (found,) = judge_standing([stand(0, REDUCES), one])
        assert (found.cause, found.line.joined, found.fix) == (cause, joined, "")
        assert "waits in the kernel, for a disk or a driver" in found.line.text
    (found,) = judge_standing([stand(1, LOCKS, thread="pin")], stood=True)
    assert found.line.text.startswith("rank 1 has ended but for its thread pin, which stands at")
    assert not found.line.joined


def test_a_rank_computes_if_it_used_a_core_and_did_not_spin_in_a_wait():
    for frames, share, told in (
        ((OWN,), 0.06, True),
        ((OWN,), 0.05, False),
        ((OWN,), 0.01, False),
        (REDUCES, 0.9, False),
        (COPIES, 0.9, False),
        (LOCKS, 0.9, True),
    ):
        assert computes(stand(0, frames, cpu_share=share)) == told


@pytest.mark.parametrize(
    ("fields", "cause", "weight", "text"),
    [
        ({"exception": "ValueError: boom"}, "script-error", Weight.LIKELY, "ValueError: boom"),
        ({"exception": "exit code 3", "exit_code": 3}, "script-error", Weight.LIKELY,
         "exit code 3"),
        ({"exception": "exit code 3", "exit_code": 3, "log_tail": ("a", "ends here")},
         "script-error", Weight.LIKELY, "exit code 3: ends here"),
        ({"exception": "exit code 3", "log": ""}, "script-error", Weight.SIGN, "exit code 3"),
        ({"exception": "SIGKILL (9)", "exit_code": -9}, "killed", Weight.LIKELY, "SIGKILL (9)"),
        ({"exception": "ended by its agent", "exit_code": 143, "cause": "terminated"}, "killed",
         Weight.SIGN, "ended by its agent"),
        ({"exception": "x", "exit_code": -64}, "killed", Weight.LIKELY, "x"),
        ({"exception": "x", "exit_code": -2}, "stopped-by-user", Weight.LIKELY, "x"),
        ({"exception": "x", "exit_code": -11}, "crashed", Weight.LIKELY, "x"),
        ({"exception": "frame #1: x", "exit_code": -6}, "crashed", Weight.SIGN, "SIGABRT (6)"),
        ({"exception": "it hung", "exit_code": -9, "cause": "hang"}, "deadlock", Weight.SIGN,
         "it hung"),
        ({"cause": "out-of-memory", "exit_code": -9}, "host-out-of-memory", Weight.ROOT, ""),
        ({"cause": "disk-full"}, "disk-full", Weight.SURE, ""),
        ({"cause": "exited-early", "exit_code": 0}, "exited-early", Weight.SURE, ""),
        ({"exception": "OSError: [Errno 28] No space left on device", "cause": "disk-full"},
         "disk-full", Weight.SURE, "OSError: [Errno 28] No space left on device"),
        ({"exception": "RuntimeError: x: Connection reset by peer"}, "network-cut", Weight.SIGN,
         "RuntimeError: x: Connection reset by peer"),
    ],
)  # fmt: skip
def test_a_workers_end_means_something_by_itself(fields, cause, weight, text):
    found = judge_end(worker_end(3, **{"log": "rank-3", "node_index": 1, **fields}))
    assert (found.cause, found.weight, found.line.text) == (cause, weight, text)
    assert (found.line.node, found.line.rank, found.line.at) == (1, 3, 1.0)


@pytest.mark.parametrize(
    ("exit_code", "exception", "raised"),
    [(1, "KeyError: 'x'", True), (-15, "KeyError: 'x'", True), (2, "a.py: error: no", False),
     (1, "exit code 1", False)],
)  # fmt: skip
def test_a_worker_that_its_exception_has_ended_has_raised_it(exit_code, exception, raised):
    found = judge_end(worker_end(3, exit_code=exit_code, exception=exception))
    assert found.line.raised is raised


@pytest.mark.parametrize(
    ("reason", "detail", "told"),
    [
        (Cause.NODE_LOST, "", ("node-lost", Weight.LIKELY, 7)),
        (Cause.NODE_LOST, "its container is gone from node 2", ("node-lost", Weight.LIKELY, 2)),
        (Cause.DISK_FULL, "x", ("disk-full", Weight.ROOT, 7)),
        (Cause.STORE_LOST, "run-a-3-x7k2p: gone", ("node-lost", Weight.SIGN, 3)),
        (Cause.LAUNCHER_LOST, "found later", ("launcher-lost", Weight.LIKELY, 7)),
        (Cause.TRAINING_FAILED, "why", None),
        (None, "", None),
        (Cause.TRAINING_FAILED, "rank 0: ValueError: x", None),
        (Cause.KILLED, "node 1: rank 0: Xid 79, lost", ("gpu-fault", Weight.LIKELY, 1)),
        (Cause.KILLED, "node 1: GPU has fallen off the bus", ("gpu-fault", Weight.ROOT, 1)),
    ],
)  # fmt: skip
def test_the_launchers_word_for_an_end_means_something(reason, detail, told):
    found = [(one.cause, one.weight, one.line.node) for one in judge_run_cause(reason, detail, 7)]
    assert found == ([told] if told else [])


@pytest.mark.parametrize(
    ("exit_code", "fix"), [(-14, "signal.alarm()"), (-24, "ulimit -t"), (-9, "")]
)
def test_a_worker_that_its_own_clock_or_a_limit_has_ended_was_killed_by_nobody(exit_code, fix):
    found = judge_end(worker_end(3, exit_code=exit_code, exception=""))
    assert found.cause == "killed"
    assert fix in found.fix if fix else not found.fix


WATCHDOG = (
    "[PG {group} Rank {rank}] caught collective operation timeout: WorkNCCL(SeqNum={number}, "
)
WATCHDOG += "OpType={kind}, NumelIn={size}"


@pytest.mark.parametrize(
    ("told", "last", "cause", "rank"),
    [
        ([(7, "A", 1)] * 3, [], None, None),
        ([(7, "A", 1), (7, "A", 1), (6, "A", 1)], [], "missing-collective", 2),
        ([(7, "A", 1), (7, "A", 1), (8, "A", 1)], [], None, None),
        ([(7, "A", 1), (6, "A", 1)], [], None, None),
        ([(7, "B", 1), (7, "A", 1), (7, "A", 1)], [], "mismatched-collective", 0),
        ([(7, "A", 1), (7, "A", 9), (7, "A", 1)], [], "shape-mismatch-in-collective", 1),
        ([(7, "A", 1)] * 2, [(3, 6)], "missing-collective", 3),
        ([(7, "A", 1)] * 2, [(3, 7)], None, None),
        ([], [(3, 6)], None, None),
        ([(7, "A", 1, "x"), (7, "B", 2, "y")], [], None, None),
    ],
)
def test_watchdogs_of_all_ranks_tell_who_is_behind_or_elsewhere(told, last, cause, rank):
    names = ("number", "kind", "size", "group")
    lines = [
        LogLine(
            text=WATCHDOG.format(rank=r, **{"group": "dp", **dict(zip(names, one, strict=False))})
        )
        for r, one in enumerate(told)
    ]
    lines += [LogLine(text=f"[Rank {r}] last enqueued work: {n}") for r, n in last]
    found = [one for one in judge_lines(lines) if one.weight is Weight.SURE]
    assert [(one.cause, one.line.rank) for one in found] == ([(cause, rank)] if cause else [])


def own_lines(*lines: LogLine) -> list[tuple[str, str, Weight]]:
    """What lines mean together that none means by itself."""
    alone = {one.line.text for one in map(judge_line, lines) if one}
    found = [one for one in judge_lines(lines) if one.line.text not in alone]
    return [(one.cause, one.line.text, one.weight) for one in found]


def test_lines_mean_more_together_than_each_by_itself():
    waited = LogLine(text="Timed out waiting 8ms for recv", frame="a.py:1", rank=0)
    other = LogLine(text="gloo/x: closed by peer", frame="b.py:2", rank=1)
    told = "two ranks are in different collectives: at a.py:1 (rank 0) and b.py:2 (rank 1)"
    assert own_lines(waited, other) == [("mismatched-collective", told, Weight.LIKELY)]
    sized = replace(waited, text="op.preamble.length <= op.nbytes")
    assert own_lines(sized, other) == [("mismatched-collective", told, Weight.SURE)]
    for alike in ({"rank": 0}, {"frame": "a.py:1"}, {"frame": ""}, {"text": "said"}):
        assert own_lines(waited, replace(other, **alike)) == []
    proxy = LogLine(file=SETTING, text="HTTP_PROXY is set")
    failed = LogLine(text="URLError: urlopen error", raised=True)
    both = "URLError: urlopen error; HTTP_PROXY is set"
    assert own_lines(proxy, failed) == [("proxy", both, Weight.LIKELY)]
    assert own_lines(proxy, replace(failed, raised=False)) == own_lines(failed) == []
    name = "addresses of (gpu7, 29500) cannot be retrieved (gai error: -3 - x)"
    (dns,) = (x for x in judge_lines([LogLine(text=name)]) if x.cause == "dns" and x.weight > 1)
    assert dns.weight is Weight.LIKELY
    tried = LogLine(text="connect to gpu7 failed (errno: 110)")
    assert not [
        x for x in judge_lines([LogLine(text=name), tried]) if x.cause == "dns" and x.weight > 1
    ]


def test_versions_that_differ_between_nodes_are_told_of_the_fewest():
    def versions(*told: tuple[int | None, str], joined: bool = False) -> list[tuple[Any, ...]]:
        lines = [LogLine(text=text, node=node, joined=joined) for node, text in told]
        found = [one for one in judge_lines(lines) if "differ in" in one.line.text]
        return [(x.cause, x.weight, x.line.node, x.line.text, x.line.joined) for x in found]

    torch = [(0, "torch version 2.13.0"), (1, "torch 2.12.1."), (2, "torch: 2.13.0")]
    text = "the nodes differ in torch: 2.12.1 and 2.13.0"
    assert versions(*torch) == [("version-mismatch", Weight.SURE, 1, text, False)]
    assert versions(*torch[::2]) == versions((None, "torch 1.0"), (None, "torch 2.0")) == []
    assert versions((0, "torch 1.0"), (0, "torch 2.0"), (1, "torch 2.0")) == [], "node 0 has both"
    python = [(0, "Python version 3.11"), (1, "Python version 3.12")]
    text = "the nodes differ in Python: 3.11 and 3.12"
    assert versions(*python) == [("version-mismatch", Weight.LIKELY, 1, text, False)]
    assert versions(*python, joined=True) == [("version-mismatch", Weight.SIGN, 1, text, False)]
