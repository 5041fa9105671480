"""Whose a line is: by its prefix, by its file, and by what other lines tell."""

from __future__ import annotations

import pytest

from launcher.verdict.log_line import LogLine
from launcher.verdict.places import name_nodes, split_prefix
from launcher.verdict.scan import tell_both

SAID = "RuntimeError: failed"


@pytest.mark.parametrize(
    ("prefix", "named"),
    [
        ("[1/5] ", {"node": 1, "rank": 5}),
        ("[rank5]: ", {"rank": 5}),
        ("[default1]:[rank5]: ", {"local_rank": 1, "rank": 5}),
        ("3: [rank5]: ", {"task": 3, "rank": 5}),
        ("[1,5]<stderr>:", {"rank": 5}),
        ("[1,1]<stderr>:[rank5]: ", {"rank": 5}),  # mpirun starts torchrun on each node
        ("[pod/ddp-1-x7k2p/trainer] ", {"pod": "ddp-1-x7k2p"}),
        ("gpu07: [1/4] ", {"host": "gpu07", "node": 1, "rank": 4}),
        ("node1-1  | ", {"host": "node1-1"}),
        ("ddp-1 trainer ", {"pod": "ddp-1"}),
    ],
)
def test_the_innermost_prefix_tells_who_wrote_a_line(prefix: str, named: dict[str, object]) -> None:
    assert split_prefix(prefix + SAID, frozenset({"gpu#", "node#-#", "ddp-#"})) == (SAID, named)


@pytest.mark.parametrize("line", ["python3: No module named torch", "eth0: link down"])
def test_a_word_that_begins_few_lines_is_no_host(line: str) -> None:
    assert split_prefix(line) == (line, {})


def place(*lines: str, reports: tuple[str, ...] = ()) -> LogLine:
    """The last of these lines of one log, with its node and rank."""
    text = "\n".join(lines).encode()
    told = tell_both(text, b"", LogLine(file="log", number=0, text=""))
    return name_nodes(told, reports=reports)[-1]


def test_hosts_have_the_nodes_of_their_ranks_and_not_of_their_names() -> None:
    said = "NCCL INFO comm 0x5 rank {} nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
    ranks = [f"n17:9:9 [0] {said.format(0)}", f"n03:9:9 [0] {said.format(8)}"]
    assert place(*ranks, "Mar  2 01:02:03 n03 kernel: NVRM: Xid 79, lost").node == 1


def test_a_label_of_srun_is_a_rank_where_each_rank_is_a_task() -> None:
    told = place("NODELIST=cn[1-2]", "NTASKS_PER_NODE=4", f"6: {SAID}")
    assert (told.node, told.rank) == (1, 6)
    told = place("NODELIST=cn[1-2]", f"1: {SAID}")
    assert (told.node, told.rank) == (1, None)


def test_a_local_rank_is_a_rank_where_torchruns_report_tells_of_both() -> None:
    report = "  host      : gpu-b\n  rank      : 6 (local_rank: 2)\n"
    told = place(f"[default2]:{SAID}", reports=(report,))
    assert (told.node, told.rank) == (1, 6)


def test_hosts_that_nothing_places_have_the_nodes_of_their_numbers() -> None:
    begun = [f"gpu{number}: exit of a step" for number in (1, 2, 3)]
    told = place(*begun, f"gpu3: {SAID}")
    assert (told.node, told.is_inferred) == (2, True)
    assert place(*(line.replace("gpu", "cn4") for line in begun), f"cn43: {SAID}").node is None


def test_a_host_is_the_same_with_and_without_its_domain() -> None:
    report = "  host      : gpu-b.lab.org\n  rank      : 6 (local_rank: 2)\n"
    said = "Mar  2 01:02:03 gpu-b kernel: NVRM: Xid 79, lost"
    assert place(said, reports=(report,)).node == 1


def test_an_operators_pod_is_placed_wherever_it_is_named() -> None:
    assert place("time=1 msg=failed: pod bert-worker-1 was OOMKilled").node == 2
