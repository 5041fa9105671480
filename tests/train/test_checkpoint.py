from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from train import checkpoint, durable
from train.checkpoint import MANIFEST_FILE, STATE_FILE, CheckpointStore
from train.errors import InputError


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    store.open()
    return store


def payload(step: int) -> dict:
    return {"step": step, "weights": torch.full((64,), float(step))}


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def newest_step(store: CheckpointStore) -> int | None:
    found, _ = store.read_newest()
    return found.payload["step"] if found else None


def test_an_empty_folder_has_no_newest(store):
    assert store.read_newest() == (None, [])


def test_the_newest_is_read_back(store):
    store.write(payload(1))
    path = store.write(payload(2))
    found, skipped = store.read_newest()
    assert (found.path, skipped) == (path, [])
    assert torch.equal(found.payload["weights"], payload(2)["weights"])


def test_steps_are_ordered_as_numbers(store):
    for step in (9, 10):
        store.write(payload(step))
    assert newest_step(store) == 10


def test_only_the_newest_are_kept(store):
    for step in range(5):
        store.write(payload(step))
    assert names(store) == ["step-0000000003", "step-0000000004"]


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / STATE_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (path / STATE_FILE).write_bytes(content)


def cut_short(path: Path) -> None:
    content = (path / STATE_FILE).read_bytes()
    (path / STATE_FILE).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        cut_short,
        lambda path: (path / STATE_FILE).unlink(),
        lambda path: (path / MANIFEST_FILE).unlink(),
        lambda path: (path / MANIFEST_FILE).write_text("{"),
        lambda path: (path / MANIFEST_FILE).write_text("[]"),
    ],
    ids=["bit flipped", "cut short", "no state", "no manifest", "half a manifest", "no mapping"],
)
def test_a_damaged_newest_is_skipped_by_name(store, damage):
    store.write(payload(1))
    path = store.write(payload(2))
    damage(path)
    found, skipped = store.read_newest()
    assert found.payload["step"] == 1
    assert len(skipped) == 1
    assert str(path) in skipped[0]


def test_a_damaged_later_checkpoint_does_not_push_out_good_ones(store):
    for step in (1, 5):
        store.write(payload(step))
    flip_a_bit(store.folder / "step-0000000005")
    store.write(payload(2))
    assert newest_step(store) == 2
    store.write(payload(5))
    assert store.read_newest()[1] == []


def test_a_checkpoint_of_a_newer_program_is_refused_and_not_skipped(store):
    path = store.write(payload(1)) / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(InputError, match="format 2"):
        store.read_newest()


def test_names_that_are_no_checkpoints_are_not_read(store):
    (store.folder / "step-12").mkdir()
    (store.folder / "step-0000000012").write_text("a file")
    (store.folder / "notes.txt").write_text("")
    assert store.read_newest() == (None, [])


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--checkpoint_dir"):
        CheckpointStore(tmp_path / "file" / "checkpoints", keep=1).open()


# -- killed at every moment ------------------------------------------------------------------

SYSTEM_CALLS = ((os, "fsync"), (os, "rename"), (os, "close"), (shutil, "rmtree"), (torch, "save"))


def save_and_be_killed(store: CheckpointStore, fatal_call: int) -> None:
    """Writes step 3 and is killed, for ever and at once, before the n-th call to the system."""
    calls = iter(range(1000))

    def deadly(real):
        def call(*arguments, **options):
            if next(calls) == fatal_call:
                if real is torch_save:
                    arguments[1].write(b"half of it")
                    arguments[1].flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    torch_save = torch.save
    for module, name in SYSTEM_CALLS:
        setattr(module, name, deadly(getattr(module, name)))
    store.write(payload(3))
    os._exit(0)


def test_a_kill_at_any_moment_of_a_write_leaves_a_good_newest_checkpoint(tmp_path):
    # Modules are patched in the forked child alone.
    assert checkpoint.torch is torch
    assert durable.os is os
    outcomes = []
    for fatal_call in range(100):
        store = CheckpointStore(tmp_path / str(fatal_call), keep=1)
        store.open()
        store.write(payload(2))
        child = multiprocessing.get_context("fork").Process(
            target=save_and_be_killed, args=(store, fatal_call)
        )
        child.start()
        child.join(60)

        found, skipped = store.read_newest()
        assert skipped == []
        outcomes.append((child.exitcode, found.payload["step"]))
        assert torch.equal(found.payload["weights"], payload(found.payload["step"])["weights"])
        store.open()
        assert all(name.startswith("step-") for name in names(store))
        if child.exitcode == 0:
            break

    # Killed before the commit, killed after it, and at last not killed at all.
    assert {(-signal.SIGKILL, 2), (-signal.SIGKILL, 3)} <= set(outcomes)
    assert outcomes[-1] == (0, 3)
    assert len(outcomes) > 8
