"""Commits on disk, and the launcher's requests for them.

A commit is a checkpoint of ``fabric_train.checkpointing`` with one file. It is complete or absent,
has a checksum, and is fenced: what a replaced worker group writes late is never read.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fabric_train.checkpointing.checkpoint import Checkpoint, CheckpointStore
from fabric_train.checkpointing.commit import Save, SaveResult
from fabric_train.checkpointing.durable import write_synced
from fabric_train.checkpointing.lineage import FencedError
from fabric_train.checkpointing.manifest import CheckpointManifest
from fabric_train.checkpointing.retention import Keep
from fabric_train.errors import InputError
from fabric_train.horovod import context
from fabric_train.horovod.operations import Max, allreduce, broadcast_object
from fabric_train.loop.preemption import Preemption, Wish, exit_on_sigterm, finish_before_exit
from fabric_train.ranks import Ranks
from fabric_train.worker_env import CHECKPOINT_DIR, GENERATION, NODE_DIR, parse_worker_env

STATE_FILE = "horovod-state.pt"
CONFIG = {"horovod_commit": 1}
KEPT = 2
VARIABLES = (CHECKPOINT_DIR, GENERATION, NODE_DIR)


class CommitFolder:
    """Writes rank 0's commits in the background; a newer commit replaces a waiting one."""

    def __init__(self, folder: Path, generation: int | None) -> None:
        self._store = CheckpointStore(folder, keep=Keep(last=KEPT))
        self._generation = generation
        self._changed = threading.Condition()
        self._waiting: tuple[int, Any] | None = None
        self._writing = False
        self._fenced: FencedError | None = None
        self.number = 0
        """The last commit's number."""
        self.newest: Path | None = None

    def open(self) -> Any:
        """Takes the folder over; returns the newest commit's content, or None. Blocks."""
        self._store.open()
        checkpoint, skipped = self._store.read_newest()
        for note in skipped:
            print(note, flush=True)
        content = None if checkpoint is None else _read_content(checkpoint)
        self._store.begin(self._generation, checkpoint)
        if checkpoint is not None:
            self.number, self.newest = checkpoint.manifest.step, checkpoint.path
        threading.Thread(target=self._write_all, name="commits", daemon=True).start()
        return content

    def put(self, content: Any) -> None:
        """Hands a commit over; raises FencedError if a later group has begun."""
        with self._changed:
            if self._fenced is not None:
                raise self._fenced
            self.number += 1
            self._waiting = self.number, content
            self._changed.notify_all()

    def flush(self, limit_s: float | None = None) -> Path | None:
        """Waits until all commits are written; returns the newest one on disk."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._writing), limit_s)
        return self.newest

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                work, self._waiting, self._writing = self._waiting, None, True
            assert work is not None
            saved = self._write(*work)
            if isinstance(saved, FencedError):
                self._fenced = saved
            else:
                self.newest = saved.path or self.newest
                if saved.error:
                    is_there = f"commit {saved.step} was written, but"
                    what = is_there if saved.path else f"no commit {saved.step} was written:"
                    print(f"{what} {saved.error}", flush=True)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _write(self, number: int, content: Any) -> SaveResult | FencedError:
        def write(folder: Path) -> list[str]:
            write_synced(folder / STATE_FILE, lambda file: torch.save(content, file))
            return [STATE_FILE]

        manifest = CheckpointManifest(
            step=number,
            generation=self._store.writer.generation,
            attempt=self._store.writer.attempt,
            world_size=context.size() if context.is_initialized() else 1,
            files={},
            config=CONFIG,
            versions={"torch": torch.__version__, "python": platform.python_version()},
        )
        return Save(self._store, Ranks(), manifest, write).run(0.0)


def _read_content(checkpoint: Checkpoint) -> Any:
    if checkpoint.manifest.config != CONFIG:
        raise InputError(
            f"the checkpoint {checkpoint.path} was not written by state.commit()",
            "set CHECKPOINT_DIR (checkpoint_dir of the job) to a folder of this training",
        )
    # A state may hold values of any class, so loading it runs code of its pickle.
    return torch.load(checkpoint.path / STATE_FILE, map_location="cpu", weights_only=False)


def _is_left_to_us(signum: signal.Signals) -> bool:
    """Whether the script has no handler of its own, and this thread may set one."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signum) is signal.SIG_DFL


class Keeper:
    """Writes one state's commits, and answers the launcher's requests; ``run`` makes it.

    Only a process' first Keeper writes to CHECKPOINT_DIR, which cannot hold two states' commits.
    """

    is_taken = False

    def __init__(self) -> None:
        # Of the launcher's part alone: another starter may have set the rest.
        env = parse_worker_env({name: os.environ[name] for name in VARIABLES if name in os.environ})
        self._leads = context.rank() == 0
        is_taken, Keeper.is_taken = Keeper.is_taken, True
        self._folder = (
            CommitFolder(env.checkpoint_dir, env.generation)
            if env.checkpoint_dir is not None and self._leads and not is_taken
            else None
        )
        self._is_asked = env.node_dir is not None
        self._preemption = Preemption(env.node_dir if context.local_rank() == 0 else None)
        if env.node_dir is not None and _is_left_to_us(signal.SIGTERM):
            # Slurm sends SIGTERM to all processes of a node before the agent asks for a commit.
            exit_on_sigterm(env.node_dir)
        if self._folder is not None:
            finish_before_exit(self._folder.flush)
        elif self._leads:
            is_second = "another state of this process has its commits in CHECKPOINT_DIR"
            why = is_second if env.checkpoint_dir else "CHECKPOINT_DIR is not set"
            print(
                f"horovod: {why}, so state.commit() keeps the state in memory alone, and a restart "
                "begins anew",
                flush=True,
            )

    def open(self, load: Callable[[Any], object]) -> bool:
        """Loads the newest commit on rank 0; returns on all ranks whether there is one."""
        problem: Exception | None = None
        content = None
        try:
            content = self._folder.open() if self._folder is not None else None
        except (InputError, FencedError, OSError) as error:
            problem = error
        problem, has_content = broadcast_object((problem, content is not None))
        if problem is not None:
            raise problem
        if content is not None:
            load(content)
        self._preemption.announce()
        return bool(has_content)

    def keep(self, content: Any) -> None:
        """Hands a commit over to be written."""
        if self._folder is not None:
            self._folder.put(content)

    def answer(self, copy_state: Callable[[], Any]) -> None:
        """If a node asks for a commit, commits what ``copy_state`` returns and waits for the disk.

        Raises PreemptedError if the run is to stop.
        """
        if not self._is_asked:
            return
        wish = Wish(int(allreduce(torch.tensor([int(self._preemption.look())]), op=Max)))
        if wish is Wish.NOTHING:
            return
        self.keep(copy_state())
        done = None
        if self._folder is not None:
            done = self._folder.number, self._folder.flush()
        done = broadcast_object(done)
        if done is not None:
            self._preemption.answer(*done)
        if wish is Wish.STOP:
            self._preemption.wait_for_sigterm()

    def close(self) -> None:
        """Waits until the last commit is on disk."""
        if self._folder is not None:
            self._folder.flush()
