"""Logs that anybody left: whose each file is, and how the workers ended by them."""

import io
from typing import Any

import pytest

from launcher.contract.ending import WorkerEnd
from launcher.verdict.torchrun_logs import read_file, read_folder, read_stdin
from launcher.verdict.verdict import decide_verdict
from tests.launcher.torchrun_report import report, worker

RAISED = "[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]: {exception}\n"
PEER = "RuntimeError: Connection closed by peer [10.0.0.2]:5"


def ends(text: str) -> list[tuple[Any, ...]]:
    """Rank, local rank, node, code, cause and exception of each worker, the first one first."""
    failure = read_stdin(io.BytesIO(text.encode())).failure

    def tell(end: WorkerEnd) -> tuple[Any, ...]:
        node = None if end.node_index < 0 else end.node_index
        return end.rank, end.local_rank, node, end.exit_code, end.cause, end.exception

    return [tell(end) for end in failure.ranks] if failure else []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("step 1\n", []),
        (report(worker(1, 1)), [(1, 1, 0, 1, "script-error", "exit code 1")]),
        (report(worker(1, -9)), [(1, 1, 0, -9, "killed", "SIGKILL (9)")]),
        (report(worker(1, -15)), [(1, 1, 0, -15, "terminated", "SIGTERM (15)")]),
        (
            report(worker(1, 1), worker(0, -15)) + RAISED.format(rank=0, exception="KeyError: 'x'"),
            [(0, 0, 0, -15, "killed", "KeyError: 'x'"),
             (1, 1, 0, 1, "script-error", "exit code 1")],
        ),
        (
            report(worker(1, 1)) + "Traceback (most recent call last):\nKeyError: 'x'\n",
            [(1, 1, 0, 1, "script-error", "KeyError: 'x'")],
        ),
        (
            report(worker(1, 2)) + "Traceback (most recent call last):\nKeyError: 'x'\n",
            [(1, 1, 0, 2, "script-error", "exit code 2")],
        ),
        (
            RAISED.format(rank=2, exception=PEER) + RAISED.format(rank=2, exception="KeyError: 'x'")
            + RAISED.format(rank=2, exception="KeyError: 'y'"),
            [(2, 2, None, 1, "script-error", "KeyError: 'x'")],
        ),
        (RAISED.format(rank=2, exception=PEER), [(2, 2, None, 1, "terminated", PEER)]),
        (
            RAISED.format(rank=0, exception="KeyboardInterrupt"),
            [(0, 0, None, 1, "terminated", "exit code 1")],
        ),
        ("failed (exitcode: -9) local_rank: 3", [(3, 3, None, -9, "killed", "SIGKILL (9)")]),
        ("[1/4] failed (exitcode: -9) local_rank: 3", []),
        (report(worker(9, 1, 1)), [(9, 1, 1, 1, "script-error", "exit code 1")]),
        (report(worker(25, 1, 1)), [(25, 1, 3, 1, "script-error", "exit code 1")]),
        (report(worker(13, 1, 2)), [(13, 2, 1, 1, "script-error", "exit code 1")]),
    ],
)  # fmt: skip
def test_workers_ends_are_read_from_reports_and_from_what_they_raised(text, told):
    assert ends(text) == told


def test_a_folders_files_belong_to_those_that_their_names_give(tmp_path):
    said = {
        "node-2/out.log": {"node": 2, "host": "node-2"},
        "rank_5.txt": {"rank": 5},
        "a.rank3": {"rank": 3},
        "id/attempt_1/2/stderr.log": {"local_rank": 2, "rank": 2},
        "gpu7/train.log": {"host": "gpu7"},
        "ddp-worker-1.log": {"pod": "ddp-worker-1", "host": "ddp-worker-1"},
        "ddp-master-0.log": {"pod": "ddp-master-0", "host": "ddp-master-0"},
        "train.log": {},
        "train": {},
    }
    left_out = [
        "id/attempt_0/2/stderr.log",
        "x.pt",
        "a.tar.gz",
        "b.py",
        ".hidden/a.log",
        "_c/a.log",
    ]
    for name in (*said, *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"error in {'abcdefghij'[len(name) % 10]} {name}\n")
    evidence = read_folder(tmp_path)
    found = {line.file: line for line in evidence.lines}
    assert set(found) == set(said)
    for name, fields in said.items():
        for key in ("node", "rank", "local_rank", "host", "pod"):
            empty: object = "" if key in ("host", "pod") else None
            if key != "node" or fields.get("node"):  # nodes are inferred by the names together
                assert getattr(found[name], key) == fields.get(key, empty), (name, key)
    assert evidence.subject == str(tmp_path)
    (tmp_path / "empty").mkdir()
    assert read_folder(tmp_path / "empty").missing == ("a log: the folder holds none",)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("[cn3:12] error", 0),
        ("[cn3:12] error\n[cn4:12] error", None),
        (RAISED.format(rank=3, exception="KeyError: 'x'"), 0),
        (RAISED.format(rank=8, exception="KeyError: 'x'"), None),
        ("[1/7] error", None),
        ("error", None),
        (report(worker(9, 1, 1)), None),
        ("[pod/a-worker-0/x] [rank0]: error", None),
        ("W1125 01:02:03.123000 42 torch/distributed/x] error", 0),
        ("E1125 01:02:03 42 torch/distributed/ error\nE1125 01:02:03 43 torch/distributed/ failed",
         None),
    ],
)  # fmt: skip
def test_a_log_is_of_one_node_if_it_names_one_and_no_second(text, only):
    evidence = read_stdin(io.BytesIO(text.encode()))
    assert (evidence.only_node, evidence.is_placed) == (only, False)


def test_a_peer_that_closed_on_the_same_machine_has_left():
    left = "a rank that the others still needed has ended without an error"
    for peer, told in (("10.0.0.2", False), ("127.0.0.1", True), ("::1", True)):
        text = RAISED.format(rank=0, exception=PEER.replace("10.0.0.2", peer))
        lines = read_stdin(io.BytesIO(text.encode())).lines
        assert (left in {line.text for line in lines}) == told
    both = text + RAISED.format(rank=1, exception=PEER)
    assert left not in {line.text for line in read_stdin(io.BytesIO(both.encode())).lines}


def test_ranks_of_rank_0s_agent_are_on_node_0():
    agent = "E1125 01:02:03.123000 42 torch/distributed/x] error"
    raised = [RAISED.format(rank=rank, exception=f"KeyError: {rank}") for rank in (0, 9)]
    for text, nodes in ((agent + "\n" + "".join(raised), {0}), (agent + "\n" + raised[1], {None})):
        assert {line.node for line in read_stdin(io.BytesIO(text.encode())).lines} == nodes


def test_a_file_that_is_gone_is_missing(tmp_path):
    (tmp_path / "log").write_text("error: a\n")
    assert read_file(tmp_path / "log").lines[0].file == "log"
    evidence = read_file(tmp_path / "none")
    assert (evidence.lines, evidence.missing, evidence.failure) == ((), (), None)
    assert decide_verdict(evidence).certainty == "unclear"
