"""What a training goes on from: state, commits on disk, the launcher's requests."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fabric_train.horovod as hvd
from fabric_train.checkpointing.lineage import FencedError, Lineage
from fabric_train.errors import InputError
from fabric_train.horovod.elastic import keeper
from fabric_train.horovod.elastic import state as elastic_state
from fabric_train.horovod.elastic.state import copy_to_cpu
from fabric_train.loop.preemption import EXIT_PREEMPTED
from tests.fabric_train.forked import ForkedError, run_forked
from tests.fabric_train.horovod.test_operations import run


def build(rank_seed: bool = False) -> hvd.elastic.TorchState:
    torch.manual_seed(hvd.rank() if rank_seed else 0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    return hvd.elastic.TorchState(
        model, optimizer, scheduler=scheduler, sampler=sampler, step=0, history=[]
    )


def take_step(state: hvd.elastic.TorchState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(1, 2) * (state.step + 1)).sum().backward()
    state.optimizer.step()
    state.sampler.record_batch(state.step, 1)
    state.step += 1
    state.history.append(state.step)


def show(state: hvd.elastic.TorchState) -> Any:
    return [
        state.model.weight.tolist(),
        [each["momentum_buffer"].tolist() for each in state.optimizer.state.values()],
        state.optimizer.param_groups[0]["lr"],
        state.scheduler.last_epoch,
        state.sampler.state_dict(),
        state.step,
        list(state.history),
    ]


@pytest.mark.parametrize(("processed", "expected"), [(0, [0, 2, 4, 6]), (4, [4, 6]), (7, [])])
def test_the_sampler_splits_what_is_left_over_the_ranks_that_are_there(processed, expected):
    def split() -> list[int]:
        sampler = hvd.elastic.ElasticSampler(range(7), shuffle=False)
        sampler.load_state_dict({"epoch": 3, "processed_num": processed})
        assert len(sampler) == len(list(sampler))
        return list(sampler)

    first, second = run(split)
    assert first == expected
    assert len(second) == len(first)
    # The last one is missing, so the first one is repeated.
    assert sorted({*first, *second}) == list(range(processed, 7))


def test_each_epoch_has_an_order_of_its_own_and_all_samples():
    def walk() -> list[list[int]]:
        sampler = hvd.elastic.ElasticSampler(range(100), seed=5)
        orders = [list(sampler)]
        sampler.record_batch(0, 10)
        assert sampler.processed_num == 20
        sampler.reset()
        assert list(sampler) == orders[0][10:]
        sampler.set_epoch(1)
        return [*orders, list(sampler)]

    first, second = run(walk)
    assert first[0] != first[1]
    assert sorted(first[0] + second[0]) == sorted(first[1] + second[1]) == list(range(100))


def test_sync_gives_all_ranks_what_rank_0_has():
    def sync() -> Any:
        state = build(rank_seed=True)
        if hvd.rank() == 0:
            state.step, state.sampler.processed_num = 7, 4
        state.sync()
        assert state.sampler.remaining_indices == [4, 5, 6, 7, 8, 9]
        return show(state)

    first, second = run(sync)
    assert first == second
    assert first[5] == 7


def train_until(stop: int, fail: bool = False) -> tuple[Any, list[str]]:
    """One start of an elastic training; it ends after step ``stop``."""
    state, told = build(), []

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.step < stop:
            take_step(state)
            state.commit()
        if fail:
            raise KeyError("as a script may")

    def on_reset() -> None:
        told.append(f"reset at size {hvd.size()}")
        for group in state.optimizer.param_groups:
            group["lr"] = 0.1 * hvd.size()

    state.register_reset_callbacks([on_reset])
    try:
        train(state)
    except KeyError:
        assert fail
    return show(state), told


def test_another_start_goes_on_from_the_commit_at_another_size(tmp_path):
    environ = {"CHECKPOINT_DIR": str(tmp_path)}
    (first, told), _ = run(lambda: train_until(3, fail=True), 2, environ=environ)
    assert told == []
    (second, told), other = run(lambda: train_until(3), 2, environ=environ)
    assert (second, told) == (first, ["reset at size 2"]) == other
    ((third, told),) = run(lambda: train_until(4), 1, environ=environ)
    assert told == ["reset at size 1"]
    assert third[5:] == [4, [1, 2, 3, 4]]
    assert third[2] == 0.1
    assert third[4] == {"epoch": 0, "processed_num": 7}
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert [name[:15] for name in kept] == ["step-0000000003", "step-0000000004"]
    assert (tmp_path / "latest").resolve().name == kept[-1]


def test_a_second_call_with_the_same_state_goes_on_from_what_is_in_memory(tmp_path):
    def train_twice() -> Any:
        state = build()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState, stop: int) -> None:
            while state.step < stop:
                state.commit()
                take_step(state)

        train(state, 2)
        train(state, 3)
        return state.history

    first, second = run(train_twice, 2, environ={"CHECKPOINT_DIR": str(tmp_path)})
    assert first == second == [1, 2, 3]


def test_another_state_of_the_process_does_not_get_the_first_ones_commit(tmp_path, capfd):
    def train_two() -> list[Any]:
        first, _ = train_until(2)
        torch.manual_seed(1)
        other = hvd.elastic.TorchState(nn.Linear(2, 1), step=0)
        weight = other.model.weight.tolist()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            state.commit()
            assert state.step == 0
            assert state.model.weight.tolist() == weight

        train(other)
        return first

    (first, _) = run(train_two, 2, environ={"CHECKPOINT_DIR": str(tmp_path)})
    assert "another state of this process" in capfd.readouterr().out
    ((again, _),) = run(lambda: train_until(2), 1, environ={"CHECKPOINT_DIR": str(tmp_path)})
    assert again[0] == first[0], "CHECKPOINT_DIR still holds the first one's"


def test_without_a_folder_commits_stay_in_memory_and_that_is_said_once(capfd):
    run(lambda: train_until(3), 2)
    assert capfd.readouterr().out.count("CHECKPOINT_DIR is not set") == 1


def test_a_checkpoint_of_another_kind_is_refused_on_all_ranks(tmp_path):
    from fabric_train import Saver

    def refuse() -> None:
        with pytest.raises(InputError, match=r"(?s)not written by.*set CHECKPOINT_DIR"):
            train_until(1)

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Saver(tmp_path)
    saver.resume(model, optimizer)
    saver.save(1, model, optimizer, block=True)
    run(refuse, 2, environ={"CHECKPOINT_DIR": str(tmp_path)})


def test_a_group_that_was_replaced_commits_no_more(tmp_path):
    def commit_late() -> None:
        state = build()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            state.commit()
            state._keeper._folder.flush()
            Lineage(tmp_path).begin(None, None)
            state.commit()
            state._keeper._folder.flush()
            with pytest.raises(FencedError, match="has taken over"):
                state.commit()

        train(state)

    run(commit_late, 1, environ={"CHECKPOINT_DIR": str(tmp_path)})
    assert len(list(tmp_path.glob("step-*"))) == 1


def test_a_disk_that_refuses_does_not_end_the_training(tmp_path, capfd):
    def fill() -> None:
        keeper.write_synced = refuse
        train_until(2)

    def refuse(path: Path, write: object) -> None:
        raise OSError(28, "No space left on device")

    run(fill, 1, environ={"CHECKPOINT_DIR": str(tmp_path)})
    assert "no commit 2 was written: [Errno 28] No space left" in capfd.readouterr().out


@pytest.fixture
def node_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


@pytest.fixture
def asked(tmp_path: Path, node_dir: Path) -> dict[str, str]:
    """The variables of a training that an agent may ask."""
    return {"CHECKPOINT_DIR": str(tmp_path / "kept"), "LAUNCHER_NODE_DIR": str(node_dir)}


def ask(node_dir: Path, reason: str, *, limit_s: float = 60.0) -> None:
    now = time.time()
    content = {"reason": reason, "at": now, "deadline": now + limit_s}
    (node_dir / "stop-request").write_text(json.dumps(content))


@pytest.mark.parametrize("check", ["commit", "check_host_updates"])
def test_nodes_that_wait_to_join_get_a_commit_and_the_training_goes_on(node_dir, asked, check):
    def train_on() -> int:
        state = build()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> int:
            while state.step < 1000 and not (node_dir / "stop-ack").exists():
                take_step(state)
                if state.step == 2 and hvd.rank() == 0:
                    ask(node_dir, "resize")
                time.sleep(0.05)
                getattr(state, check)()
                state.step = hvd.broadcast_object(state.step)
                hvd.barrier()
            return state.step

        return train(state)

    steps = run(train_on, 2, environ=asked)
    answer = json.loads((node_dir / "stop-ack").read_text())
    assert (node_dir / "stop-ready").exists()
    found = torch.load(Path(answer["checkpoint"]) / keeper.STATE_FILE, weights_only=False)
    assert found["values"]["step"] <= steps[0]
    assert found["values"]["step"] >= 2


def test_a_stop_commits_and_ends_with_the_code_that_schedulers_retry(node_dir, asked):
    def train_on() -> None:
        from fabric_train.loop import preemption

        # Rank 1 ends last, because the test kills the others soon after the first end.
        preemption.WAIT_FOR_SIGTERM_S = 30.0 * hvd.rank()
        train_until(10**6)

    ask(node_dir, "preempted", limit_s=0.0)
    with pytest.raises(ForkedError, match=f"rank 0 died: exit code {EXIT_PREEMPTED}"):
        run(train_on, 2, environ=asked)
    answer = json.loads((node_dir / "stop-ack").read_text())
    assert Path(answer["checkpoint"]).exists()


def test_a_lost_peer_ends_the_function_after_the_last_commit_is_on_disk(tmp_path):
    def lose() -> None:
        elastic_state.WAIT_FOR_THE_END_S = 0.1
        state = build()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            while True:
                take_step(state)
                state.commit()
                if state.step == 3 and hvd.rank() == 1:
                    os._exit(1)

        with pytest.raises(hvd.HorovodInternalError):
            train(state)
        raise KeyError(f"after step {state.step}")

    with pytest.raises(ForkedError, match=r"after step 3"):
        run(lose, 2, environ={"CHECKPOINT_DIR": str(tmp_path)})
    (newest,) = (tmp_path / "latest").resolve().glob(keeper.STATE_FILE)
    assert torch.load(newest, weights_only=False)["values"]["step"] == 3


def test_a_mistake_of_the_script_is_raised_at_once():
    def differ() -> None:
        state = build()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            hvd.allreduce(torch.ones(1 + hvd.rank()), name="x")

        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            train(state)

    began_at = time.monotonic()
    run(differ)
    assert time.monotonic() - began_at < 30


def test_importing_horovod_starts_nothing():
    def look() -> list[str]:
        import threading

        return [thread.name for thread in threading.enumerate()]

    assert "horovod" not in run_forked(look, 1, group=False)[0]


def test_a_copy_of_a_schedulers_state_is_equal():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    state = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 60]).state_dict()
    assert copy_to_cpu(state) == state
