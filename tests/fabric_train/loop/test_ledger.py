import json
from dataclasses import replace

import pytest

from fabric_train.loop.ledger import KEPT_EVENTS, Ledger, Loaded, open_ledger
from fabric_train.worker_env import WorkerEnv
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import read_train_ledger
from tests.fabric_train.forked import world_of
from tests.waiting import StoppedClock


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(100.0)


@pytest.fixture
def ledger(tmp_path, clock) -> Ledger:
    return Ledger(tmp_path / "ledger" / "train", clock=clock, wall_clock=clock)


def test_an_event_says_who_what_and_when(ledger, tmp_path):
    ledger.write(Loaded(step=3))
    (event,) = read(tmp_path / "ledger" / "train")
    assert event == {
        "schema": 1,
        "source": "train",
        "node_index": 0,
        "incarnation": 0,
        "attempt": 0,
        "rank": 0,
        "event": "loaded",
        "at": 100.0,
        "monotonic_s": 100.0,
        "step": 3,
    }


def test_progress_is_told_seldom_and_the_loss_read_only_then(ledger, clock, tmp_path):
    reads = []
    for step in range(11):
        clock.now += 0.11
        ledger.on_step(step, 32, lambda: reads.append(1) or 0.5)
    first, *events = read(tmp_path / "ledger" / "train")
    assert (first["event"], first["step"]) == ("first-step", 0)
    assert [(event["step"], event["samples"]) for event in events] == [(4, 128), (9, 160)]
    assert len(reads) == 2


def test_a_stall_is_told_once_with_the_next_progress(ledger, clock, tmp_path):
    ledger.on_stall(0.25)
    ledger.on_stall(0.5)
    for step in (1, 2, 3):
        clock.now += 1
        ledger.on_step(step, 1, lambda: 0.0)
    _, *events = read(tmp_path / "ledger" / "train")
    assert [event["save_stall_s"] for event in events] == [0.75, 0.0]


def test_a_long_training_writes_no_more_than_a_screenful_of_thousands(ledger, clock, tmp_path):
    for step in range(1, 40_001):
        clock.now += 30
        ledger.on_step(step, 1, lambda: 0.0)
    assert len(read(tmp_path / "ledger" / "train")) < 8 * KEPT_EVENTS


def test_a_loss_that_is_no_number_is_left_out(ledger, tmp_path):
    ledger.on_trained(1, float("nan"))
    assert read(tmp_path / "ledger" / "train")[0]["loss"] is None


def test_a_disk_that_refuses_does_not_stop_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    Ledger(tmp_path / "file" / "train").write(Loaded(step=0))


def test_only_rank_0_writes_and_where_the_launcher_reads(tmp_path):
    for rank in (0, 1):
        world = replace(world_of(2, rank=rank), restart_count=4)
        env = WorkerEnv(run_dir=tmp_path, world=world, node_index=1, incarnation=2)
        open_ledger(env).write(Loaded(step=0))
    assert [path.name for path in (tmp_path / "ledger").iterdir()] == ["train-1-2-4-0.jsonl"]
    assert [event.name for event in read_train_ledger(RunFolder(tmp_path))] == ["loaded"]
