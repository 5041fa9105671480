"""Saves of real ranks into one folder."""

import errno

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from fabric_train.checkpointing import commit
from fabric_train.checkpointing.checkpoint import CheckpointStore
from fabric_train.checkpointing.commit import Save, tensor_files
from fabric_train.checkpointing.lineage import FencedError, Lineage
from fabric_train.checkpointing.manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    check_files,
    read_manifest,
)
from fabric_train.ranks import Ranks
from tests.fabric_train.forked import run_forked


def save(folder, step: int, **options) -> commit.SaveResult | FencedError:
    """Of two ranks, each with a parameter that the other does not have; or of one alone."""
    ranks = Ranks(30.0)
    store = CheckpointStore(folder)
    if ranks.leads:
        store.open()
        store.begin(None, None)
    name_here = f"of {dist.get_rank()}" if ranks.group else "of all"
    manifest = CheckpointManifest(
        step=step,
        generation=1,
        attempt=0,
        world_size=ranks.size,
        files={},
        tensors={name_here: [1]},
        trainer={"optimizer": {name_here: 0.5}, "loss": 1.0},
    )
    tensors = {f"model.{name}": torch.ones(4) for name in "abcd"}
    write = options.get("write") or tensor_files(tensors, ranks)
    return Save(store, ranks, manifest, write).run(blocked_s=0.25)


def test_a_save_of_two_ranks_holds_the_files_and_the_names_of_both(tmp_path):
    one, other = run_forked(lambda: save(tmp_path, 7), 2)
    assert (one.path, one.step, one.error, one.blocked_s) == (other.path, 7, "", 0.25)
    assert 0.0 < one.write_s < 60.0
    manifest = read_manifest(one.path)
    check_files(one.path, manifest)
    names = {path.name for path in one.path.iterdir()}
    assert set(manifest.files) == names - {MANIFEST_FILE}
    assert one.total_bytes == sum((one.path / name).stat().st_size for name in manifest.files)
    assert manifest.tensors == {"of 0": [1], "of 1": [1]}
    assert manifest.trainer == {"optimizer": {"of 0": 0.5, "of 1": 0.5}, "loss": 1.0}
    assert (manifest.step, manifest.world_size) == (7, 2)


def test_a_folder_that_one_rank_cannot_list_fails_the_save_on_all_and_none_waits(tmp_path):
    def save_twice() -> tuple[str, bool]:
        real = commit.list_own_files
        if dist.get_rank() == 1:

            def fail(*arguments):
                raise OSError(errno.ESTALE, "Stale file handle")

            commit.list_own_files = fail
        failed = save(tmp_path, 1)
        commit.list_own_files = real
        assert (failed.path, failed.blocked_s) == (None, 0.25)
        dist.barrier()  # rank 0 removes what was begun
        assert not list(tmp_path.glob(".*"))
        return failed.error, save(tmp_path, 2).path is not None

    assert run_forked(save_twice, 2) == [("[Errno 116] Stale file handle", True)] * 2


def told_by_dcp(*causes: Exception) -> CheckpointException:
    return CheckpointException("failed", {rank: (one, None) for rank, one in enumerate(causes, 2)})


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "full"), "[Errno 28] full"),
        (ValueError("one line\nand another"), "one line"),
        (KeyError(), "KeyError"),
        (told_by_dcp(OSError(28, "full")), "[Errno 28] full"),
        (told_by_dcp(RuntimeError("first"), OSError(28, "full")), "rank 2: first"),
        (told_by_dcp(), "CheckpointException ranks:dict_keys([])"),
    ],
)
def test_a_save_that_fails_says_why_in_one_line_and_leaves_nothing(tmp_path, error, says):
    def fail(folder):
        (folder / "half").touch()
        raise error

    failed = save(tmp_path, 3, write=fail)
    assert (failed.step, failed.path, failed.error) == (3, None, says)
    assert (failed.blocked_s, failed.write_s, failed.total_bytes) == (0.25, 0.0, 0)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("generations", "lineage")]


def test_a_save_that_was_fenced_off_says_so(tmp_path):
    assert isinstance(
        save(tmp_path, 1, write=lambda _: Lineage(tmp_path).begin(None, None) and []), FencedError
    )
