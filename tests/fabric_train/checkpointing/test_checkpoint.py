import errno
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from fabric_train.checkpointing import checkpoint, durable, lineage
from fabric_train.checkpointing.checkpoint import Checkpoint, CheckpointStore
from fabric_train.checkpointing.durable import write_synced
from fabric_train.checkpointing.manifest import MANIFEST_FILE, CheckpointManifest, describe_files
from fabric_train.checkpointing.retention import Keep
from fabric_train.errors import InputError

WEIGHTS = "weights"


def reopen(folder: Path, **keep: int) -> tuple[CheckpointStore, Checkpoint | None, list[str]]:
    """What a start of the training does: open, choose, begin."""
    store = CheckpointStore(folder, keep=Keep(**keep))
    store.open()
    newest, skipped = store.read_newest()
    store.begin(None, newest)
    return store, newest, skipped


def save(store: CheckpointStore, step: int) -> Path:
    staging = store.stage(step)
    write_synced(staging / WEIGHTS, lambda file: file.write(b"weights of %10d" % step * 9))
    path, error = store.commit(
        staging,
        CheckpointManifest(
            step=step,
            generation=store.writer.generation,
            attempt=store.writer.attempt,
            world_size=1,
            files=describe_files(staging, [WEIGHTS]),
        ),
    )
    assert not error, error
    return path


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return reopen(tmp_path / "checkpoints", last=2)[0]


def steps(store: CheckpointStore) -> list[int]:
    return sorted(int(path.name[5:15]) for path in store.folder.glob("step-*"))


def newest_step(store: CheckpointStore) -> int | None:
    newest, _ = store.read_newest()
    return newest.manifest.step if newest else None


def test_the_newest_are_kept_and_latest_points_at_the_last(store):
    assert store.read_newest() == (None, [])
    for step in (0, 3, 9, 10):
        path = save(store, step)
    newest, skipped = store.read_newest()
    assert (newest.path, newest.manifest.step, skipped) == (path, 10, [])
    assert (store.folder / "latest").resolve() == path.resolve()
    assert (path.name, steps(store)) == ("step-0000000010-g1-a0", [9, 10])


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / WEIGHTS).read_bytes())
    content[len(content) // 2] ^= 1
    (path / WEIGHTS).write_bytes(content)


def cut_short(path: Path) -> None:
    os.truncate(path / WEIGHTS, 10)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        cut_short,
        lambda path: (path / WEIGHTS).unlink(),
        lambda path: (path / MANIFEST_FILE).unlink(),
        lambda path: (path / MANIFEST_FILE).write_text("{"),
    ],
    ids=["bit flipped", "cut short", "no file", "no manifest", "half a manifest"],
)
def test_a_damaged_newest_is_skipped_by_name(store, damage):
    save(store, 1)
    path = save(store, 2)
    damage(path)
    _, newest, skipped = reopen(store.folder)
    assert newest.manifest.step == 1
    assert len(skipped) == 1
    assert str(path) in skipped[0]


@pytest.fixture
def refuse_to_sync(monkeypatch):
    """Lets fsync of a folder, or of this one, fail with an error number."""

    def refuse(number: int, folder: Path | None = None) -> None:
        fsync = os.fsync

        def fsync_or_fail(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir() and folder in (None, path):
                raise OSError(number, os.strerror(number))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync_or_fail)

    return refuse


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_keeps_checkpoints(tmp_path, refuse_to_sync, number):
    refuse_to_sync(number)
    store, _, _ = reopen(tmp_path, last=1)
    for step in (1, 2):
        save(store, step)
    assert (steps(store), newest_step(store)) == ([2], 2)


def test_an_error_after_the_rename_keeps_the_commit_and_the_old_checkpoints(store, refuse_to_sync):
    for step in (1, 2):
        save(store, step)
    refuse_to_sync(errno.EIO, store.folder)
    with pytest.raises(AssertionError, match=r"old checkpoints were not deleted:.*output error"):
        save(store, 3)
    assert (steps(store), newest_step(store)) == ([1, 2, 3], 3)


def fail_to_read(patch: pytest.MonkeyPatch, name: str) -> None:
    """Lets the storage fail where a file of this name is read, as NFS does for a while."""
    opened = Path.open

    def open_or_fail(self: Path, *arguments, **options):
        if self.name == name:
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(self, *arguments, **options)

    patch.setattr(Path, "open", open_or_fail)


@pytest.mark.parametrize("name", [MANIFEST_FILE, WEIGHTS, "00000001-0000.json"])
def test_a_storage_that_fails_for_a_moment_costs_no_checkpoint(store, monkeypatch, name):
    save(store, 1)
    with monkeypatch.context() as patch:
        fail_to_read(patch, name)
        with pytest.raises(OSError, match=rf"{store.folder}.*Stale file handle; start again"):
            reopen(store.folder)
    _, newest, skipped = reopen(store.folder)
    assert (newest.manifest.step, skipped) == (1, [])


def test_a_damaged_later_checkpoint_neither_pushes_out_good_ones_nor_comes_back(store):
    for step in (1, 5):
        save(store, step)
    flip_a_bit(store.folder / "step-0000000005-g1-a0")
    again, _, _ = reopen(store.folder, last=2)
    save(again, 2)
    assert newest_step(again) == 2
    save(again, 5)
    assert newest_step(again) == 5


def test_a_checkpoint_of_a_newer_program_is_refused_and_not_skipped(store):
    path = save(store, 1) / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    with pytest.raises(InputError, match="format 3"):
        store.read_newest()


def test_names_that_are_no_checkpoints_are_not_read(store):
    (store.folder / "step-12").mkdir()
    (store.folder / "step-0000000012-g1-a0").write_text("a file")
    assert store.read_newest() == (None, [])


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--checkpoint_dir"):
        CheckpointStore(tmp_path / "file" / "checkpoints").open()


# -- two writers -----------------------------------------------------------------------------


def test_a_commit_that_slips_past_the_fence_is_skipped_as_stale(store, monkeypatch):
    save(store, 1)
    later, _, _ = reopen(store.folder)
    save(later, 2)
    # As if the group had been frozen between its last look and the rename.
    monkeypatch.setattr(store, "check", lambda: None)
    path = save(store, 9)
    _, newest, skipped = reopen(store.folder)
    assert newest.manifest.step == 2
    assert skipped == [
        f"skips the stale checkpoint {path}: "
        "the group that followed generation 1, attempt 0 continued from step 1"
    ]


def test_a_stale_checkpoint_never_pushes_out_a_good_one(store, monkeypatch):
    save(store, 1)
    later, _, _ = reopen(store.folder, last=1)
    monkeypatch.setattr(store, "check", lambda: None)
    save(store, 9)
    save(later, 2)
    save(later, 3)
    assert newest_step(later) == 3


def test_leftovers_of_earlier_groups_are_removed_and_those_of_later_ones_kept(store):
    old = store.stage(4)
    later, _, _ = reopen(store.folder)
    assert not old.exists()
    new = later.stage(5)
    store._remove_leftovers()
    assert new.exists()


# -- killed at every moment ------------------------------------------------------------------

SYSTEM_CALLS = (
    (os, "fsync"),
    (os, "rename"),
    (os, "replace"),
    (os, "symlink"),
    (os, "close"),
    (shutil, "rmtree"),
)


def save_and_be_killed(store: CheckpointStore, fatal_call: int) -> None:
    """Writes step 3 and is killed, for ever and at once, before the n-th call to the system."""
    calls = iter(range(1000))

    def deadly(real):
        def call(*arguments, **options):
            if next(calls) == fatal_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for module, name in SYSTEM_CALLS:
        setattr(module, name, deadly(getattr(module, name)))
    save(store, 3)
    os._exit(0)


def test_a_kill_at_any_moment_of_a_save_leaves_a_good_newest_checkpoint(tmp_path):
    # Modules are patched in the forked child alone.
    assert checkpoint.os is durable.os is lineage.os is os
    outcomes = []
    for fatal_call in range(100):
        store, _, _ = reopen(tmp_path / str(fatal_call), last=1)
        save(store, 2)
        child = multiprocessing.get_context("fork").Process(
            target=save_and_be_killed, args=(store, fatal_call)
        )
        child.start()
        child.join(60)

        again, newest, skipped = reopen(store.folder)
        assert skipped == []
        outcomes.append((child.exitcode, newest.manifest.step))
        assert not list(again.folder.glob(".*"))
        if child.exitcode == 0:
            break

    # Killed before the commit, killed after it, and at last not killed at all.
    assert {(-signal.SIGKILL, 2), (-signal.SIGKILL, 3)} <= set(outcomes)
    assert outcomes[-1] == (0, 3)
    assert len(outcomes) > 8
