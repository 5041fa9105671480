"""Copies of checkpoints and logs at a URL of fsspec (S3, GCS, a folder): when they are sent,
retried, fetched and deleted.

Rank 0 uploads each committed checkpoint, beside the training: its manifest last, and then the file
``latest``, which names the checkpoint. A start fetches it if it is newer than those in its folder.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fabric_train.checkpointing.checkpoint import Checkpoint, CheckpointStore, name_of, parse_name
from fabric_train.checkpointing.commit import describe
from fabric_train.checkpointing.durable import (
    STAGING_PREFIX,
    remove_folder,
    staging_path,
    sync_folder,
    write_synced,
)
from fabric_train.checkpointing.lineage import Commit, Writer
from fabric_train.checkpointing.manifest import (
    MANIFEST_FILE,
    check_files,
    read_manifest,
    render_manifest,
)
from fabric_train.errors import InputError
from fabric_train.loop.preemption import finish_before_exit

LATEST_FILE = "latest"
PROBE_FILE = ".probe"
LOGS_DIR = "logs"
"""Beside the checkpoints: logs outlive a run, as checkpoints do."""
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs"}
"""URL schemes whose files appear only once they are whole; elsewhere a whole file is renamed."""
RETRY_S, LONGEST_RETRY_S = 2.0, 60.0
CLOSE_LIMIT_S = 600.0
"""How long the end of a training waits for a URL that does not answer."""


class Storage:
    """The copies of one training; for rank 0 only."""

    def __init__(self, url: str, folder: Path, say: Callable[[str], None] = print) -> None:
        self.url, self._folder, self._say = url.rstrip("/"), folder, say
        self._fs, self._root = open_url(self.url)
        self._pending: dict[str, Path] = {}
        self._sent_logs: dict[str, tuple[int, int]] = {}
        self._wake, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        finish_before_exit(self.join)

    # -- the start -----------------------------------------------------------------------------

    def fetch(self, store: CheckpointStore, local: Checkpoint | None) -> bool:
        """Brings the checkpoint at the URL into the folder if it is newer than ``local``; blocks.

        Returns whether it did. Raises InputError if the URL cannot be written to. If the URL does
        not answer, prints that, or raises OSError without a ``local`` checkpoint.
        """
        try:
            self._put_bytes(b"", PROBE_FILE)
            self._fs.rm_file(f"{self._root}/{PROBE_FILE}")
            return self._fetch(store, local)
        except Exception as error:
            if is_refused(error):
                raise InputError(
                    f"--storage {self.url} cannot be written to: {describe(error)}",
                    "make the bucket, or give these credentials the right to list, read, write and "
                    "delete in it",
                ) from error
            if local is None:
                raise OSError(f"{self.url} cannot be read: {describe(error)}") from error
            self._say(f"{self.url} cannot be read ({describe(error)}); continues from {local.path}")
            return False

    def _fetch(self, store: CheckpointStore, local: Checkpoint | None) -> bool:
        try:
            name = self._fs.cat_file(f"{self._root}/{LATEST_FILE}").decode().strip()
        except FileNotFoundError:
            return False
        commit = parse_name(name)
        if commit is None or (local and local.manifest.step >= commit.step):
            return False
        # Named as a commit of the folder's last start, so that the next start continues from it.
        starts = store.read_starts()
        writer = starts[-1].writer if starts else Writer(0, 0)
        path = store.folder / name_of(Commit(step=commit.step, writer=writer))
        staging = staging_path(path)
        self._get_folder(f"{self._root}/{name}", staging)
        manifest = read_manifest(staging)
        check_files(staging, manifest)
        content = render_manifest(
            replace(manifest, generation=writer.generation, attempt=writer.attempt)
        )
        write_synced(staging / MANIFEST_FILE, lambda file: file.write(content))
        remove_folder(path)  # a damaged copy
        os.rename(staging, path)
        sync_folder(store.folder)
        # Another machine may have logged more since this one was left.
        self._get_folder(f"{self._root}/{LOGS_DIR}", logs := staging_path(store.folder / LOGS_DIR))
        if logs.exists():
            remove_folder(store.folder / LOGS_DIR)
            os.rename(logs, store.folder / LOGS_DIR)
        self._say(f"fetched {self.url}/{name}")
        return True

    def _get_folder(self, remote: str, local: Path) -> None:
        for path in self._fs.find(remote):
            target = local / path[len(remote) :].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(path, str(target))

    # -- while training ------------------------------------------------------------------------

    def offer(self, path: Path) -> None:
        """Sends a committed checkpoint, and the logs, in a thread."""
        self._pending[path.name] = path
        self._idle.clear()
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
            self._thread.start()

    def join(self, limit_s: float | None) -> None:
        """Waits up to ``limit_s`` until all is sent; from any thread."""
        self._idle.wait(limit_s)

    def close(self) -> None:
        """After a successful training: sends the last log rows, and waits until all is sent."""
        if self._thread is None:
            return
        self._idle.clear()
        self._wake.set()
        if not self._idle.wait(CLOSE_LIMIT_S):
            self._say(f"{self.url} did not take all files; the newest are only in {self._folder}")

    def _run(self) -> None:
        wait_s = RETRY_S
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                self._send()
            except Exception as error:
                if wait_s == RETRY_S:
                    self._say(f"upload to {self.url} failed ({describe(error)}); retrying")
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_RETRY_S)
                self._wake.set()
                continue
            if wait_s > RETRY_S:
                self._say(f"{self.url} takes files again")
            wait_s = RETRY_S
            if not self._wake.is_set():
                self._idle.set()

    def _send(self) -> None:
        # Logs first: the URL's logs must hold every row that its checkpoints do not carry.
        self._send_logs()
        is_first = True
        for name, path in sorted(self._pending.items(), reverse=True):
            if self._send_checkpoint(name, path) and is_first:
                self._put_bytes(f"{name}\n".encode(), LATEST_FILE)
                is_first = False
            del self._pending[name]
        if not is_first:
            self._remove_old()

    def _send_checkpoint(self, name: str, path: Path) -> bool:
        """Sends one checkpoint; False if the folder no longer keeps it."""
        try:
            files = [file for file in path.rglob("*") if file.is_file()]
            for file in sorted(files, key=lambda file: file.name == MANIFEST_FILE):
                self._put(file, f"{name}/{file.relative_to(path)}")
        except FileNotFoundError:
            if path.exists():
                raise
        return path.exists()

    def _send_logs(self) -> None:
        logs = self._folder / LOGS_DIR
        for file in sorted(logs.rglob("*")):
            if file.name.startswith(STAGING_PREFIX) or file.is_symlink() or not file.is_file():
                continue
            status, name = file.stat(), str(file.relative_to(self._folder))
            state = status.st_size, status.st_mtime_ns
            if self._sent_logs.get(name) != state:
                self._put(file, name)
                self._sent_logs[name] = state

    def _remove_old(self) -> None:
        """Deletes the checkpoints that the folder no longer keeps."""
        for path in self._fs.ls(self._root, detail=False):
            name = path.rstrip("/").rpartition("/")[2]
            if parse_name(name) and not (self._folder / name).exists():
                self._fs.rm(path, recursive=True)

    def _put(self, file: Path, name: str) -> None:
        self._write(name, lambda target: self._fs.put_file(str(file), target))

    def _put_bytes(self, content: bytes, name: str) -> None:
        self._write(name, lambda target: self._fs.pipe_file(target, content))

    def _write(self, name: str, write: Callable[[str], object]) -> None:
        target = f"{self._root}/{name}"
        if self.url.partition(":")[0] in OBJECT_STORES:
            write(target)
            return
        parent, _, last = target.rpartition("/")
        self._fs.makedirs(parent, exist_ok=True)
        staged = f"{parent}/{STAGING_PREFIX}{last}"
        write(staged)
        self._fs.mv(staged, target)


def is_refused(error: Exception) -> bool:
    """Whether the server answered and refused; gcsfs raises errors of its own for that."""
    is_known = isinstance(error, PermissionError | FileNotFoundError)
    return is_known or str(error).startswith("Forbidden: ") or getattr(error, "code", 0) == 401


def open_url(url: str) -> tuple[Any, str]:
    """fsspec's file system, and the path in it. Raises InputError if it cannot open the URL."""
    import fsspec

    try:
        fs, root = fsspec.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        package = "gcsfs" if url.startswith(("gs:", "gcs:")) else f"{url.partition(':')[0]}fs"
        raise InputError(f"--storage {url}: {error}", f"pip install {package}") from error
    except ValueError as error:
        raise InputError(f"--storage {url}: {error}", "--storage s3://bucket/folder") from error
    return fs, root
