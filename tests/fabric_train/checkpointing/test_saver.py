import errno
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from fabric_train.checkpointing import commit, snapshot
from fabric_train.checkpointing.lineage import FencedError
from fabric_train.checkpointing.retention import Interval, Keep
from fabric_train.checkpointing.saver import Saver
from fabric_train.errors import InputError
from fabric_train.loop.ledger import Ledger
from fabric_train.loop.watch import StepWatch
from fabric_train.worker_env import parse_worker_env
from fabric_train.worlds import Worlds
from tests.fabric_train.forked import run_forked


def build(width: int = 4) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(width, 2)
    return model, torch.optim.AdamW(model.parameters())


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, model.in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


class Training:
    """A saver, and the model that it saves; ``said`` is what it told people."""

    def __init__(self, folder: Path, width: int = 4, **options) -> None:
        self.said: list[str] = []
        self.saver = Saver(folder, say=self.said.append, **options)
        self.model, self.optimizer = build(width)
        self.resumed = self.saver.resume(self.model, self.optimizer)
        self.step = self.resumed.step if self.resumed else 0

    def train(self) -> None:
        step(self.model, self.optimizer)
        self.step += 1

    def save(self, **options):
        return self.saver.save(self.step, self.model, self.optimizer, **options)


@pytest.fixture
def training(tmp_path) -> Training:
    started = Training(tmp_path, keep=Keep(last=2))
    started.train()
    return started


def test_a_save_does_not_wait_for_the_disk_and_what_it_wrote_is_of_its_step(
    training, tmp_path, monkeypatch
):
    go = threading.Event()
    write = commit.write_tensors

    def write_late(*arguments):
        assert go.wait(60)
        return write(*arguments)

    monkeypatch.setattr(commit, "write_tensors", write_late)
    saved = training.model.weight.detach().clone()
    training.save()
    training.train()
    assert training.saver.poll() is None
    go.set()
    assert training.saver.wait().path.name == "step-0000000001-g1-a0"
    assert torch.equal(Training(tmp_path).model.weight, saved)


def test_at_most_one_save_is_in_flight(training, monkeypatch):
    running, most = [], []
    write = commit.write_tensors

    def count(*arguments):
        running.append(1)
        most.append(len(running))
        write(*arguments)
        running.pop()

    monkeypatch.setattr(commit, "write_tensors", count)
    for _ in range(4):
        training.save()
        training.train()
    training.saver.wait()
    assert most == [1] * 4


def test_the_trainers_own_values_and_the_score_come_back(training, tmp_path):
    training.save(trainer={"loss": 0.5}, score=0.5, block=True)
    resumed = Training(tmp_path).resumed
    assert (resumed.step, resumed.trainer["loss"], resumed.score) == (1, 0.5, 0.5)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full disk", "read-only"])
def test_a_disk_that_refuses_is_told_and_the_last_good_checkpoint_stays(
    training, tmp_path, monkeypatch, number
):
    training.save(block=True)

    def refuse(tensors, folder, group):
        (folder / "half").write_bytes(b"x")
        raise OSError(number, "the disk refuses")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "write_tensors", refuse)
        training.train()
        result = training.save(block=True)
    assert (result.path, result.step) == (None, 2)
    assert "the disk refuses" in training.said[-1]
    assert "step-0000000001-g1-a0" in training.said[-1]
    assert not list(tmp_path.glob(".*"))
    # And the next one is written again.
    training.train()
    assert training.save(block=True).path
    assert Training(tmp_path).step == 3


def test_a_training_whose_final_state_cannot_be_written_ends_with_the_error(training, monkeypatch):
    def refuse(tensors, folder, group):
        raise OSError(errno.ENOSPC, "No space left on device")

    watch = StepWatch(parse_worker_env({}), training.saver, Ledger(None))
    training.save(block=True)
    training.train()
    with monkeypatch.context() as patch:
        patch.setattr(commit, "write_tensors", refuse)
        with pytest.raises(OSError, match=r"last checkpoint was not written: .*No space left"):
            watch.finish(lambda block: training.save(block=block))
    assert watch.finish(lambda block: training.save(block=block)).name == "step-0000000002-g1-a0"


def test_an_error_behind_a_commit_is_told_and_the_save_counts(training, monkeypatch):
    def refuse(manifest):
        raise OSError(errno.EIO, "the disk refuses")

    monkeypatch.setattr(training.saver.store, "_remove_old", refuse)
    result = training.save(block=True)
    assert result.path == training.saver.newest
    assert training.said == [
        "the checkpoint of step 1 was written, but old checkpoints were not deleted: "
        "[Errno 5] the disk refuses"
    ]


def test_a_disk_that_is_really_full_is_told_by_its_reason(training):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    stage = training.saver.store.stage

    def stage_on_full_disk(step):
        folder = stage(step)
        (folder / "__0_0.distcp").symlink_to(full)
        return folder

    training.saver.store.stage = stage_on_full_disk
    result = training.save(block=True)
    assert result.path is None
    assert "space" in result.error.lower() or "write" in result.error.lower()


def test_a_group_that_was_followed_stops_with_a_message(training, tmp_path):
    training.save(block=True)
    later = Training(tmp_path)
    later.train()
    later.save(block=True)
    training.train()
    with pytest.raises(FencedError, match="generation 2 has taken over"):
        training.save(block=True)
    assert (Training(tmp_path).step, len(list(tmp_path.glob("step-*")))) == (2, 2)


def test_a_save_that_this_groups_own_next_generation_overtakes_is_made_again(training, tmp_path):
    Training(tmp_path)  # takes generation 2
    told = iter([1])
    training.saver.newest_generation = lambda: next(told, 2)
    assert training.save(block=True).step == 1
    assert Training(tmp_path).step == 1


def test_one_made_before_the_group_is_all_ranks_and_takes_each_worlds_generation(tmp_path):
    taken = tmp_path / "generations"
    taken.mkdir()
    (taken / "00000001.json").touch()

    def train() -> None:
        one, (model, optimizer) = Saver(tmp_path, asynchronous=False), build()
        for world in Worlds(backend="gloo"):
            with world:
                assert one.resume(model, optimizer) is None
                one.save(1, model, optimizer)
                if world.rank == 0:  # whose save has ended
                    (taken / "00000002.json").touch()
                os.environ["LAUNCHER_GENERATION"] = "2"
                one.take_over()
                one.save(2, model, optimizer)

    environ = {"LAUNCHER_GENERATION": "1", "CHECKPOINT_DIR": str(tmp_path)}
    run_forked(train, 2, group=False, environ=environ)
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-0000000001-g1-a0", "step-0000000002-g2-a0"]
    assert len(list(taken.iterdir())) == 2


def test_a_saver_that_a_newcomer_makes_in_its_first_world_takes_over_with_those_of_the_others(
    tmp_path,
):
    def train() -> int:
        one = Saver(tmp_path, asynchronous=False) if os.environ["RANK"] == "0" else None
        for world in Worlds(backend="gloo"):
            with world:
                one = one or Saver(tmp_path, asynchronous=False)
                one.take_over()
        return one.ranks.size

    assert run_forked(train, 2, group=False) == [2, 2]


def test_rank_0_alone_may_ask_for_the_time_though_nothing_was_resumed(tmp_path):
    def train() -> None:
        one = Saver(tmp_path, interval=Interval(seconds=60))
        if torch.distributed.get_rank() == 0:
            assert not one.is_time_due()
        torch.distributed.barrier()

    run_forked(train, 2)


def test_a_checkpoint_of_another_config_is_refused_with_the_differing_keys(training, tmp_path):
    training.save(block=True)
    with pytest.raises(InputError, match=r"differs from .*: lr is 0.1, but absent in the"):
        Training(tmp_path, config={"lr": 0.1})
    # The refused start has fenced nobody.
    training.train()
    assert training.save(block=True).path


def test_a_checkpoint_of_another_model_is_refused_with_the_differing_shapes(training, tmp_path):
    training.save(block=True)
    with pytest.raises(InputError, match=r"model.weight is \[2, 6\], but \[2, 4\]"):
        Training(tmp_path, width=6)


def test_a_skipped_checkpoint_is_named_with_the_reason(training, tmp_path):
    training.save(block=True)
    training.train()
    path = training.save(block=True).path
    (path / "__0_0.distcp").write_bytes(b"")
    again = Training(tmp_path)
    assert again.step == 1
    assert str(path) in again.said[0]
    assert "has 0 bytes" in again.said[0]


def test_a_synchronous_saver_has_committed_when_save_returns(tmp_path):
    training = Training(tmp_path, asynchronous=False, interval=Interval(steps=1))
    training.train()
    assert training.saver.is_due(1)
    assert training.save().path.is_dir()


def test_a_training_on_the_cpu_pins_no_memory_beside_a_gpu(training, monkeypatch):
    pins = []
    open_stager = snapshot.open_stager
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        snapshot,
        "open_stager",
        lambda *, pinned: pins.append(pinned) or open_stager(pinned=pinned),
    )
    assert training.save(block=True).path
    assert pins == [False]


def test_memory_that_cannot_be_pinned_is_used_as_it_is(training, monkeypatch, tmp_path):
    class Refuses:
        def stage(self, tensors):
            raise RuntimeError("Registering memory failed with cudaError: 801")

    monkeypatch.setattr(snapshot, "clear_cuda_error", lambda: None)
    copy = training.saver._staged_copy
    copy._stager, copy.is_pinned = Refuses(), True
    for _ in range(2):
        assert training.save(block=True).path
        training.train()
    assert Training(tmp_path).step == 2
