"""Checkpoints on the disk: each is a folder that is committed as a whole, with checksums; the
newest good one is read, damaged and stale ones are skipped.

A checkpoint folder holds ``step-<step>-g<generation>-a<attempt>`` folders, a symbolic link
``latest`` for people and tools, and the notes of ``lineage``. Anything else was left by a killed
writer and is never read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fabric_train.checkpointing.durable import (
    STAGING_PREFIX,
    reading,
    remove_folder,
    staging_path,
    sync_folder,
    write_synced,
)
from fabric_train.checkpointing.lineage import Commit, Lineage, Start, Writer, find_stranger
from fabric_train.checkpointing.manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    DamagedError,
    check_files,
    read_manifest,
    render_manifest,
)
from fabric_train.checkpointing.retention import Keep, Scored, decide_removals
from fabric_train.errors import InputError

LATEST_LINK = "latest"
NAME = re.compile(r"step-(\d{10})-g(\d+)-a(\d+)")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint whose files matched ``manifest`` when it was found."""

    path: Path
    manifest: CheckpointManifest

    @property
    def commit(self) -> Commit:
        """Its place in the history."""
        manifest = self.manifest
        return Commit(step=manifest.step, writer=Writer(manifest.generation, manifest.attempt))


class CheckpointStore:
    """The checkpoints of one training, in one folder that several groups may write into.

    Only rank 0 may use it, in this order: ``open``, ``read_newest``, ``begin``, then ``stage`` and
    ``commit`` for each checkpoint.
    """

    def __init__(self, folder: Path, *, keep: Keep | None = None) -> None:
        self.folder = folder
        self._keep = keep or Keep()
        self._lineage = Lineage(folder)
        self._writer: Writer | None = None

    @property
    def writer(self) -> Writer:
        """The name under which this start commits; only after ``begin``."""
        if self._writer is None:
            raise RuntimeError("call begin() first")
        return self._writer

    def open(self) -> None:
        """Makes the folder; raises InputError if it cannot be written to."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = staging_path(self.folder / "probe")
            probe.mkdir()
            probe.rmdir()

    def read_starts(self) -> tuple[Start, ...]:
        """All starts of the training in this folder, oldest first."""
        return self._lineage.read_starts()

    def read_newest(self, *, thorough: bool = True) -> tuple[Checkpoint | None, list[str]]:
        """The newest undamaged checkpoint of the history, and a note on each skipped checkpoint.

        Reads every byte of it, or its manifest alone if not ``thorough``. Raises InputError for
        another format, and OSError if the storage fails: a start that continued from an older
        checkpoint would lose the newer one for good.
        """
        skipped: list[str] = []
        starts = self.read_starts()
        for commit, path in sorted(self._committed(), key=_age, reverse=True):
            try:
                with reading(path, "start again when the storage answers, or move it away"):
                    manifest = read_manifest(path)
                    if reason := find_stranger(commit, starts):
                        skipped.append(f"skips the stale checkpoint {path}: {reason}")
                        continue
                    if thorough:
                        check_files(path, manifest)
            except DamagedError as error:
                skipped.append(f"skips the damaged checkpoint {path}: {error}")
                continue
            return Checkpoint(path=path, manifest=manifest), skipped
        return None, skipped

    def begin(self, generation: int | None, base: Checkpoint | None) -> Writer:
        """Continues from ``base`` as the group of ``generation``; None takes a new generation.

        Commits of earlier groups no longer count from here on. Raises FencedError if a later group
        has begun, InputError if the folder cannot be written to.
        """
        with self._writing():
            self._writer = self._lineage.begin(generation, base.commit if base else None)
        self._remove_leftovers()
        return self._writer

    def note_of(self, writer: Writer) -> Path:
        """The file with the note of this writer's start; the newest note after ``begin``."""
        return self._lineage.note_of(writer)

    def check(self) -> None:
        """Raises FencedError if a later group has begun; lists two folders."""
        self._lineage.check(self.writer)

    def path_of(self, step: int) -> Path:
        """The path of this start's checkpoint of ``step``, which may not exist yet."""
        return self.folder / name_of(Commit(step=step, writer=self.writer))

    def stage(self, step: int) -> Path:
        """A new folder for the files of ``step``; ``commit`` makes it the checkpoint."""
        staging = staging_path(self.path_of(step))
        staging.mkdir()
        return staging

    def commit(self, staging: Path, manifest: CheckpointManifest) -> tuple[Path, str]:
        """Makes a staged folder the newest checkpoint and deletes checkpoints not kept; blocks.

        Returns its path, and an error that came after the commit, or "". The files must be on the
        disk already. The earlier checkpoint stays readable throughout, even after a power cut. If a
        later group has begun, or the disk fails before the commit, deletes the staged folder and
        raises FencedError or OSError.
        """
        path = self.path_of(manifest.step)
        try:
            content = render_manifest(manifest)
            write_synced(staging / MANIFEST_FILE, lambda file: file.write(content))
            sync_folder(staging)
            self.check()
            os.rename(staging, path)
        except BaseException:
            self.discard(staging)
            raise
        try:
            # Before the old ones are deleted: a power cut could still lose the new checkpoint.
            sync_folder(self.folder)
            self._point_latest_at(path)
            self._remove_old(manifest)
        except OSError as error:
            return path, f"old checkpoints were not deleted: {error}"
        return path, ""

    def discard(self, staging: Path) -> None:
        """Deletes a staged folder; never raises."""
        shutil.rmtree(staging, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"checkpoints cannot be written to {self.folder}: {error.strerror}",
                "choose another folder with --checkpoint_dir or CHECKPOINT_DIR",
            ) from error

    def _committed(self) -> Iterator[tuple[Commit, Path]]:
        for path in self.folder.iterdir():
            commit = parse_name(path.name)
            if commit and path.is_dir():
                yield commit, path

    def _point_latest_at(self, path: Path) -> None:
        link = staging_path(self.folder / LATEST_LINK)
        # Resuming does not need the link, and some file systems have none.
        with contextlib.suppress(OSError):
            link.symlink_to(path.name)
            os.replace(link, self.folder / LATEST_LINK)
            sync_folder(self.folder)

    def _remove_old(self, newest: CheckpointManifest) -> None:
        starts = self.read_starts()
        paths: dict[Commit, Path] = {}
        scored = []
        for commit, path in self._committed():
            # Strangers and damaged ones are kept for people, and do not count as kept checkpoints.
            if commit.step > newest.step or find_stranger(commit, starts):
                continue
            with contextlib.suppress(DamagedError, InputError, OSError):
                paths[commit] = path
                scored.append(Scored(commit=commit, score=read_manifest(path).score))
        for commit in decide_removals(scored, self._keep):
            with contextlib.suppress(OSError):
                remove_folder(paths[commit])

    def _remove_leftovers(self) -> None:
        for path in self.folder.glob(f"{STAGING_PREFIX}*"):
            owner = parse_name(path.name.removeprefix(STAGING_PREFIX).rpartition("-")[0])
            # A group that began after this one may be writing it.
            if owner and owner.writer > self.writer:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def name_of(commit: Commit) -> str:
    """The reverse of ``parse_name``. Pure."""
    writer = commit.writer
    return f"step-{commit.step:010d}-g{writer.generation}-a{writer.attempt}"


def parse_name(name: str) -> Commit | None:
    """The commit that a folder name stands for; None for any other name. Pure."""
    match = NAME.fullmatch(name)
    return (
        Commit(step=int(match[1]), writer=Writer(int(match[2]), int(match[3]))) if match else None
    )


def _age(entry: tuple[Commit, Path]) -> tuple[int, Writer]:
    return entry[0].step, entry[0].writer
