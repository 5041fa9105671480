"""One save of two real ranks into one folder."""

from __future__ import annotations

import errno

import torch
import torch.distributed as dist

from fabric_train import commit
from fabric_train.checkpoint import CheckpointStore
from fabric_train.commit import Save, tensor_files
from fabric_train.manifest import CheckpointManifest
from fabric_train.ranks import Ranks
from tests.fabric_train.forked import run_forked


def save(folder, step: int) -> commit.SaveResult:
    ranks = Ranks(dist.group.WORLD)
    store = CheckpointStore(folder)
    if ranks.leads:
        store.open()
        store.begin(None, None)
    manifest = CheckpointManifest(step=step, generation=1, attempt=0, world_size=2, files={})
    tensors = {f"model.{name}": torch.ones(4) for name in "abcd"}
    return Save(store, ranks, manifest, tensor_files(tensors, ranks)).run(0.0)


def test_a_folder_that_one_rank_cannot_list_fails_the_save_on_all_and_none_waits(tmp_path):
    def save_twice() -> tuple[str, bool]:
        real = commit.list_own_files
        if dist.get_rank() == 1:

            def fail(*arguments):
                raise OSError(errno.ESTALE, "Stale file handle")

            commit.list_own_files = fail
        failed = save(tmp_path, 1)
        commit.list_own_files = real
        assert failed.path is None
        return failed.error, save(tmp_path, 2).path is not None

    assert run_forked(save_twice, 2) == [("[Errno 116] Stale file handle", True)] * 2
