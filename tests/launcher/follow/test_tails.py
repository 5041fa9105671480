"""What agents leave in a run folder, as the launcher follows it: no line lost, none twice."""

import resource
from pathlib import Path

import pytest

from launcher.agent.engine.attempts import Attempts
from launcher.follow import tails as tails_module
from launcher.follow.tails import RunTails, file_limit, raise_file_limit
from launcher.runs.folder import RunFolder


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


def test_lines_are_followed_over_attempts_and_incarnations(run, tmp_path):
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
def test_what_an_agent_copies_to_its_console_is_not_shown_twice(run, tmp_path, copied):
    (worker,) = attempts_of(run, tmp_path, 0, 0).begin({0: 0})
    append(worker.folder / "stdout", "hello\n")
    append(run.console(0, 0), f"[supervisor] up\n{copied}[agent] restart (hang)\n")
    assert sorted(shown(RunTails(run))) == [
        "0/0 hello",
        "0/agent [agent] restart (hang)",
        "0/agent [supervisor] up",
    ]


def test_of_a_cluster_the_consoles_hold_the_workers_lines_each_with_its_rank(run, tmp_path):
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


@pytest.mark.parametrize("length", [200_000, 200_001])
def test_on_a_console_all_pieces_of_a_long_line_belong_to_who_began_it(
    run, tmp_path, monkeypatch, length
):
    monkeypatch.setattr(tails_module, "CHUNK_BYTES", 90_000)
    attempts_of(run, tmp_path, 0, 0)
    long = "x" * length
    append(run.console(0, 0), f"[0/1] {long}\n[agent] up\n[0/0] {long}\n[0/0] end\n")
    text: dict[int | None, bytes] = {}
    for out in RunTails(run, workers_in_consoles=True).poll():
        data = out.block.data[:-1] if out.block.is_cut else out.block.data
        rank = out.worker and out.worker.rank
        text[rank] = text.get(rank, b"") + data
    whole = long.encode() + b"\n"
    assert text == {1: whole, None: b"[agent] up\n", 0: whole + b"end\n"}


def test_more_files_than_may_be_open_are_read_one_after_the_other(run, tmp_path, monkeypatch):
    limits = {resource.RLIMIT_NOFILE: (130, 133)}  # 128 are for what else a launcher opens
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    first, tails = attempts_of(run, tmp_path, 0, 0), RunTails(run)
    append(run.console(0, 0), "[agent] up\n")
    assert shown(tails) == ["0/agent [agent] up"]
    assert limits[resource.RLIMIT_NOFILE] == (130, 133), "what this process starts inherits more"
    for index, worker in enumerate(first.begin({index: index for index in range(4)})):
        append(worker.folder / "stdout", f"first {index}\n")
        append(worker.folder / "stderr", "err\n")
    assert shown(tails) == ["0/0 first 0", "0/0 err", "0/1 first 1", "0/1 err"]
    rest = [out.block.data for out in tails.close()]
    assert rest == [b"first 2\n", b"err\n", b"first 3\n", b"err\n"]


@pytest.mark.parametrize(
    ("soft", "hard", "now", "raised"),
    [(1024, 4096, 1024, 4096), (1024, -1, 1024, 65536), (-1, -1, 65536, 65536), (9, 9, 9, 9)],
)
def test_a_process_opens_as_many_files_as_its_machine_allows_and_no_endless_number(
    monkeypatch, soft, hard, now, raised
):
    limits = {resource.RLIMIT_NOFILE: (soft, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert (file_limit(), raise_file_limit(), file_limit()) == (now, raised, raised)
    assert limits[resource.RLIMIT_NOFILE][1] == hard


def test_what_there_is_no_room_for_stays_in_its_file(run, tmp_path):
    (worker,) = attempts_of(run, tmp_path, 0, 0).begin({0: 0})
    append(worker.folder / "stdout", "out\n")
    append(worker.folder / "stderr", "err\n")
    append(run.console(0, 0), "[agent] up\n")
    tails, quiet = RunTails(run), RunTails(run, workers_in_consoles=True)
    has_room = {"stdout": False, "stderr": True}
    assert [o.block.data for o in tails.poll(has_room.__getitem__)] == [b"[agent] up\n", b"err\n"]
    assert [o.block.data for o in quiet.poll(has_room.__getitem__)] == [b"err\n"]
    has_room["stdout"] = True
    assert [o.block.data for o in tails.poll(has_room.__getitem__)] == [b"out\n"]


def test_a_file_that_replaces_another_is_read_too_and_what_torchrun_deletes_to_its_end(run):
    folder = run.path / "nodes/2/0/id_x/attempt_0/1"
    folder.mkdir(parents=True)
    tails = RunTails(run, agents=False, keeps_returns=True)
    append(run.console(2, 0), "of the agent\n")
    for text in ("first\r\n", "second\n"):
        append(folder / "stdout.log", text)
        append(folder / "stderr.log", f"10%\r{text}")
        told = [(out.stream, out.block.data) for out in tails.poll()]
        assert told == [
            ("stdout", text.encode()),
            ("stderr", b"10%"),
            ("stderr", text.replace("\r", "").encode()),
        ]
        append(folder / "stdout.log", "the end")
        (folder / "stdout.log").rename(folder / f"old {len(text)}")
        (folder / "stderr.log").rename(folder / f"older {len(text)}")
    assert [out.block.data for out in tails.close()] == [b"the end\n", b"the end\n"]
    append(folder / "old 8", "more")
    assert list(tails.poll()) == []


def test_a_stream_is_closed_with_what_it_had_and_not_with_what_comes_meanwhile(run, monkeypatch):
    monkeypatch.setattr(tails_module, "CHUNK_BYTES", 4)
    monkeypatch.setattr(tails_module, "CHUNKS_A_TURN", 2)
    (run.path / "nodes/0/0/attempt-0/rank-0").mkdir(parents=True)
    file = run.path / "nodes/0/0/attempt-0/rank-0/stdout"
    append(file, "abc\ndef\nghi\njkl\nm")
    tails = RunTails(run)
    assert [out.block.data for out in tails.poll()] == [b"abc\n", b"def\n"]
    told = []
    for out in tails.close():
        told.append(out.block.data)
        append(file, "later\n")
    assert told == [b"ghi\n", b"jkl\n", b"m\n"]
    full = RunTails(run)
    assert [out.block.data for out in full.close(lambda stream: False)] == []


def test_a_worker_that_writes_much_does_not_keep_the_launcher_from_the_run(run):
    (run.path / "nodes/0/0/attempt-0/rank-0").mkdir(parents=True)
    with (run.path / "nodes/0/0/attempt-0/rank-0/stdout").open("wb") as file:
        file.truncate(17 << 20)
    tails = RunTails(run, copies=True)
    assert [sum(len(out.block.data) for out in tails.poll()) >> 20 for _ in range(2)] == [16, 1]


def test_the_agents_lines_come_first_and_only_where_they_are_wanted(run):
    (run.path / "nodes/0/0/attempt-0/rank-0").mkdir(parents=True)
    append(run.path / "nodes/0/0/attempt-0/rank-0/stdout", "90%\rof a worker\n")
    append(run.console(0, 0), "[agent] up\r50%\r60%")
    own = ["0/0 90%", "0/0 of a worker"]
    assert shown(RunTails(run)) == ["0/agent [agent] up", "0/agent 50%", *own]
    assert shown(RunTails(run, agents=False)) == own
    assert [o.block.is_progress for o in RunTails(run, agents=False).poll()] == [True, False]
    quiet = RunTails(run, workers_in_consoles=True)
    assert shown(quiet) == own, "returns do not end a line there"
    assert [out.block.data for out in quiet.close()] == [b"[agent] up\r50%\r60%\n"]
