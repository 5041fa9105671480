"""Whose a line is: by its prefix, by its file, and by what other lines tell."""

import pytest

from launcher.verdict.log_line import LogLine
from launcher.verdict.places import find_hosts, form_of, name_nodes, node_in, split_prefix
from launcher.verdict.scan import find_in_both

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
def test_the_innermost_prefix_tells_who_wrote_a_line(prefix, named):
    assert split_prefix(prefix + SAID, frozenset({"gpu#", "node#-#", "ddp-#"})) == (SAID, named)


@pytest.mark.parametrize("line", ["python3: No module named torch", "eth0: link down"])
def test_a_word_that_begins_few_lines_is_no_host(line):
    assert split_prefix(line) == (line, {})


def place(*lines: str, reports: tuple[str, ...] = ()) -> LogLine:
    """The last of these lines of one log, with its node and rank."""
    text = "\n".join(lines).encode()
    told = find_in_both(text, b"", LogLine(file="log", number=0, text=""))
    return name_nodes(told, reports=reports)[-1]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("2026-11-26T10:00:00.1Z stdout F error", {"at": "2026-11-26T10:00:00.1Z"}),
        ("2026-11-26T10:00:00Z error", {"at": "2026-11-26T10:00:00Z"}),
        ("2026-11-26T10:00:00Z cn3 kernel: error", {"host": "cn3"}),
        ("Mar  2 01:02:03 cn3.lab.org kernel[7]: error", {"host": "cn3"}),
        ("cn3:9:99 [0] transport NCCL WARN error", {"host": "cn3"}),
        ("[cn3:1234] error", {"host": "cn3"}),
        ("[E x.cpp] [Rank 3] error", {"rank": 3}),
        ("[PG 0 Rank 3/8] error", {"rank": 3}),
        ("error of process rank 5 with PID 9", {"rank": 5}),
        ("[rank3]: [Rank 4] error", {"rank": 3}),
        (f"{'x' * 300}[Rank 3]", {}),
        ("error", {}),
    ],
)
def test_what_stands_in_a_line_tells_who_wrote_it(line, named):
    text, found = split_prefix(line)
    assert found == named
    assert line.endswith(text)


def test_names_of_one_form_that_begin_three_lines_are_hosts():
    lines = [b"gpu1: a", b"gpu22: b", b"gpu3: c", b"cn1: d", b"cn2: e", b"python3: f"]
    pods = [b"web-0 trainer a", b"web-1 trainer b", b"2026-11-26T10:00:00Z web-2 trainer c"]
    assert find_hosts([*lines, *pods]) == {"gpu1", "gpu22", "gpu3", "web-0", "web-1", "web-2"}
    assert [form_of(name) for name in ("gpu22", "a-1-b03", "x")] == ["gpu#", "a-#-b#", "x"]


@pytest.mark.parametrize(
    ("file", "node"),
    [
        ("slurm/node-1.log", 1),
        ("node12", 12),
        ("node_3.out", 3),
        ("anode-1", None),
        ("node-1a", None),
    ],
)
def test_a_files_name_gives_its_node(file, node):
    assert node_in(file) == node


@pytest.mark.parametrize(
    ("lines", "node", "rank"),
    [
        (["nproc_per_node=4", f"[default1]: {SAID}"], None, 1),
        ([f"3: {SAID}"], 3, None),
        (["SLURM_NODELIST=cn[1-2]", f"3: {SAID}"], 1, 3),
        (["SLURM_NODELIST=cn[1-2]", f"1: {SAID}"], 1, None),
        (["ntasks_per_node=2", "SLURM_NODELIST=cn[1-4]", f"3: {SAID}"], 1, 3),
        (["ntasks_per_node=1", f"3: {SAID}"], 3, None),
        (["0: [rank0]: error", "1: [rank1]: error", f"1: {SAID}"], None, 1),
        (["0: [rank0]: error", "1: [rank2]: error", f"1: {SAID}"], 1, None),
        (["0: torch/distributed/ error", "0: [rank0]: error", "1: [rank1]: error", f"1: {SAID}"],
         1, None),
        (["NODELIST=cn[09-11,14]", "error on cn14 of it"], 3, None),
        (["NODELIST=a,b7,c", "error on c of it"], 2, None),
        (["NODELIST=cn[1-2]x", "error on cn2x of it"], 1, None),
        (["Data for node: gpu-b", "Data for node: gpu-a", "error on gpu-a of it"], 1, None),
        (["WORLD INFO: {'b': [0, 1], 'a': [0]}", "error on a of it"], 1, None),
        (["srun: error: cn7: task 3: Exited", "error on cn7 of it"], 3, None),
        (["srun: error: cn7: tasks 4-7: Exited", "error on cn7 of it"], None, None),
        (["[cn7:12] node_rank: 2 error", "[cn7:12] error"], 2, None),
        (["Node: cn7", "error on cn7 of it"], None, None),
        (["error: pod a-worker-0 failed", f"[pod/a-worker-1/x] {SAID}"], 2, None),
        (["[pod/a-worker-0/x] [rank0]: error", f"[pod/a-worker-1/x] {SAID}"], 1, None),
        ([f"[pod/a-master-0/x] {SAID}"], 0, None),
        ([f"[pod/a-3-x1y2z/x] {SAID}"], 3, None),
        (["Name: a-2", "Node: cn7/10.0.0.1", "error on cn7 of it"], 2, None),
        (["a-1 0/1 Error 0 1m 10.0.0.1 cn7", "error on cn7 of it"], 1, None),
        (["[1/4] error", "[0/3] error", f"[rank4]: {SAID}"], 1, 4),
        (["[1/4] error", "[0/4] error", f"[rank4]: {SAID}"], None, 4),
        (["localRanks 8 a failure", f"[rank17]: {SAID}"], 2, 17),
        (["Data for node: x Num procs: 4", f"[rank5]: {SAID}"], 1, 5),
    ],
)  # fmt: skip
def test_nodes_and_ranks_are_learned_from_other_lines(lines, node, rank):
    told = place(*lines)
    assert (told.node, told.rank) == (node, rank)


def test_known_hosts_place_files_and_lines_and_are_never_inferred():
    lines = [
        LogLine(file="logs/cn-b.out", text="error"),
        LogLine(file="x", text="error on cn-a.lab.org"),
        LogLine(file="x", text="error on cn-a and cn-b"),
        LogLine(file="x", text="error on xcn-a"),
        LogLine(file="x", text="error", host="cn-b"),
        LogLine(file="x", text="error", node=0, local_rank=1),
    ]
    placed = name_nodes(lines, {"cn-a.lab.org": 4, "cn-b": 5})
    assert [(one.node, one.is_inferred) for one in placed] == [
        (5, False), (4, False), (None, False), (None, False), (5, False), (0, False),
    ]  # fmt: skip
    assert placed[-1].rank == 1


def test_where_each_file_is_of_one_node_the_numbers_of_all_hosts_are_nodes():
    def nodes(*numbers: int, by_file: bool = True) -> list[int | None]:
        lines = [LogLine(file=f"{n}", text="error", host=f"gpu{n}a7") for n in numbers]
        return [one.node for one in name_nodes(lines, by_file=by_file)]

    assert nodes(12, 10, 11) == [2, 0, 1]
    assert nodes(12, 10, 14) == [None] * 3
    assert nodes(12, 10, 11, by_file=False) == [None] * 3
    assert nodes(1, 3, by_file=False) == [0, 2]
    assert nodes(0, 3, by_file=False) == [0, 3]
    assert nodes(2, 3, by_file=False) == [None] * 2
    assert nodes(1) == [None]


def test_reports_of_several_nodes_give_the_number_of_workers_on_each():
    def report(host: str, rank: int, local: int) -> str:
        return f"  host      : {host}\n  rank      : {rank} (local_rank: {local})\n"

    for both, node in (
        ((("a", 0, 0), ("b", 12, 3)), 1),
        ((("a", 7, 7), ("b", 13, 5)), 1),
        ((("b", 13, 5), ("c", 23, 7)), 2),
        ((("b", 12, 3),), 1),
        ((("b", 12, 0),), None),
        ((("a", 0, 0), ("b", 9, 0), ("c", 18, 0)), 2),
    ):
        reports = tuple(report(*one) for one in both)
        host = both[-1][0]
        assert place(f"[{host}:12] {SAID}", reports=reports).node == node, both


def test_hosts_have_the_nodes_of_their_ranks_and_not_of_their_names():
    said = "NCCL INFO comm 0x5 rank {} nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
    ranks = [f"n17:9:9 [0] {said.format(0)}", f"n03:9:9 [0] {said.format(8)}"]
    assert place(*ranks, "Mar  2 01:02:03 n03 kernel: NVRM: Xid 79, lost").node == 1


def test_a_local_rank_is_a_rank_where_torchruns_report_tells_of_both():
    report = "  host      : gpu-b\n  rank      : 6 (local_rank: 2)\n"
    told = place(f"[default2]:{SAID}", reports=(report,))
    assert (told.node, told.rank) == (1, 6)


def test_hosts_that_nothing_places_have_the_nodes_of_their_numbers():
    begun = [f"gpu{number}: exit of a step" for number in (1, 2, 3)]
    told = place(*begun, f"gpu3: {SAID}")
    assert (told.node, told.is_inferred) == (2, True)
    assert place(*(line.replace("gpu", "cn4") for line in begun), f"cn43: {SAID}").node is None


def test_a_host_is_the_same_with_and_without_its_domain():
    report = "  host      : gpu-b.lab.org\n  rank      : 6 (local_rank: 2)\n"
    said = "Mar  2 01:02:03 gpu-b kernel: NVRM: Xid 79, lost"
    assert place(said, reports=(report,)).node == 1
