"""What agents leave in a run folder, as the launcher follows it: no line lost, none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent.engine.attempts import Attempts
from launcher.follow import tails as tails_module
from launcher.follow.tails import RunTails, raise_file_limit
from launcher.plan.torchrun import WorkerLog, parse_worker_folder
from launcher.runs.folder import RunFolder


@pytest.mark.parametrize(
    "path",
    ["nodes/1/2/console.log", "nodes/1/2/attempt-3", "nodes/1/2/x/attempt_3", "attempt-3/rank-7"],
)
def test_only_a_ranks_folder_is_one(path: str) -> None:
    assert parse_worker_folder(path) is None


def test_a_ranks_folder_tells_the_global_rank() -> None:
    path = "nodes/1/2/attempt-3/rank-70"
    log = parse_worker_folder(path)
    assert log == WorkerLog(node_index=1, incarnation=2, attempt=3, rank=70, folder=path)
    assert log.rank_on(0, 8) == 70


def test_a_local_rank_becomes_global_by_its_nodes_place() -> None:
    log = WorkerLog(node_index=1, incarnation=0, attempt=0, local_rank=2, folder="")
    assert log.rank_on(1, 4) == 6


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def attempts_of(run: RunFolder, tmp_path: Path, node_index: int, incarnation: int) -> Attempts:
    """The agent's own maker of folders."""
    node_dir = run.node_dir(node_index, incarnation)
    node_dir.mkdir(parents=True)
    scratch = tmp_path / f"scratch-{node_index}-{incarnation}"
    scratch.mkdir()
    return Attempts(node_dir, run.path, scratch)


def shown(tails: RunTails) -> list[str]:
    return [
        f"{out.node_index}/{'agent' if out.worker is None else out.worker.rank_on(0, 1)} {line}"
        for out in tails.poll()
        for line in out.block.data.decode().splitlines()
    ]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_are_followed_over_attempts_and_incarnations(run: RunFolder, tmp_path: Path) -> None:
    tails = RunTails(run)
    assert shown(tails) == []
    first = attempts_of(run, tmp_path, 1, 0)
    (worker,) = first.begin({0: 3})
    append(worker.folder / "stdout", "one\ntw")
    assert shown(tails) == ["1/3 one"]
    append(worker.folder / "stdout", "o\n")
    append(worker.folder / "stderr", "err\n")
    assert sorted(shown(tails)) == ["1/3 err", "1/3 two"]
    # The group shrank: the same process of the same node is another rank now.
    (worker,) = first.begin({0: 0})
    append(worker.folder / "stdout", "again\n")
    assert shown(tails) == ["1/0 again"]
    (worker,) = attempts_of(run, tmp_path, 1, 1).begin({0: 1})
    append(worker.folder / "stdout", "replaced\n")
    assert shown(tails) == ["1/1 replaced"]
    append(worker.folder / "stdout", "unfinished")
    assert [out.block.data for out in tails.close()] == [b"unfinished\n"]


@pytest.mark.parametrize("copied", ["", "[0/0] hello\n"])
def test_what_an_agent_copies_to_its_console_is_not_shown_twice(
    run: RunFolder, tmp_path: Path, copied: str
) -> None:
    (worker,) = attempts_of(run, tmp_path, 0, 0).begin({0: 0})
    append(worker.folder / "stdout", "hello\n")
    append(run.console(0, 0), f"[supervisor] up\n{copied}[agent] restart (hang)\n")
    assert sorted(shown(RunTails(run))) == [
        "0/0 hello",
        "0/agent [agent] restart (hang)",
        "0/agent [supervisor] up",
    ]


def test_logs_come_in_the_order_of_incarnations_attempts_nodes_and_ranks(
    run: RunFolder, tmp_path: Path
) -> None:
    for node_index, incarnation in ((0, 1), (1, 0), (0, 0)):
        attempts = attempts_of(run, tmp_path, node_index, incarnation)
        attempts.begin({0: 2 * node_index, 1: 2 * node_index + 1})
    attempts.begin({0: 10, 1: 9})
    found = [(w.incarnation, w.attempt, w.node_index, w.rank) for w in run.worker_logs()]
    assert found == sorted(found)
    assert len(found) == 8


def test_every_incarnation_is_known_by_its_folder(run: RunFolder, tmp_path: Path) -> None:
    for node_index, incarnation in ((10, 0), (2, 1), (2, 0)):
        attempts_of(run, tmp_path, node_index, incarnation)
    assert run.incarnations() == ((2, 0), (2, 1), (10, 0))


def test_of_a_cluster_the_consoles_hold_the_workers_lines_each_with_its_rank(
    run: RunFolder, tmp_path: Path
) -> None:
    attempts_of(run, tmp_path, 0, 0)
    append(run.console(0, 0), "[supervisor] up\n[0/0] one\n[0/0] two\n[0/1] one\n[1/1] no\n[0/0] e")
    tails = RunTails(run, workers_in_consoles=True)
    told = [(o.worker and o.worker.rank, o.stream, o.block.data) for o in tails.poll()]
    assert told == [
        (None, "stderr", b"[supervisor] up\n"),
        (0, "stdout", b"one\ntwo\n"),
        (1, "stdout", b"one\n"),
        (None, "stderr", b"[1/1] no\n"),
    ]
    assert [(o.worker and o.worker.rank, o.block.data) for o in tails.close()] == [(0, b"e\n")]
    quiet = RunTails(run, workers_in_consoles=True, agents=False)
    assert {o.worker and o.worker.rank for o in quiet.poll()} == {0, 1}


def test_on_a_console_all_pieces_of_a_long_line_belong_to_who_began_it(
    run: RunFolder, tmp_path: Path
) -> None:
    attempts_of(run, tmp_path, 0, 0)
    long = "x" * 200_000
    append(run.console(0, 0), f"[0/1] {long}\n[agent] up\n[0/0] {long}\n[0/0] end\n")
    text: dict[int | None, bytes] = {}
    for out in RunTails(run, workers_in_consoles=True).poll():
        data = out.block.data[:-1] if out.block.is_cut else out.block.data
        rank = out.worker and out.worker.rank
        text[rank] = text.get(rank, b"") + data
    whole = long.encode() + b"\n"
    assert text == {1: whole, None: b"[agent] up\n", 0: whole + b"end\n"}


def test_more_files_than_may_be_open_are_read_one_after_the_other(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails_module, "SPARE_FILES", raise_file_limit() - 4)
    first = attempts_of(run, tmp_path, 0, 0)
    for index, worker in enumerate(first.begin({index: index for index in range(4)})):
        append(worker.folder / "stdout", f"first {index}\n")
    tails = RunTails(run)
    assert shown(tails) == ["0/0 first 0", "0/1 first 1"]
    assert [out.block.data for out in tails.close()] == [b"first 2\n", b"first 3\n"]


def test_what_there_is_no_room_for_stays_in_its_file(run: RunFolder, tmp_path: Path) -> None:
    (worker,) = attempts_of(run, tmp_path, 0, 0).begin({0: 0})
    append(worker.folder / "stdout", "out\n")
    append(worker.folder / "stderr", "err\n")
    tails = RunTails(run)
    has_room = {"stdout": False, "stderr": True}
    assert [o.block.data for o in tails.poll(has_room.__getitem__)] == [b"err\n"]
    has_room["stdout"] = True
    assert [o.block.data for o in tails.poll(has_room.__getitem__)] == [b"out\n"]
