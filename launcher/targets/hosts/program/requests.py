"""What a launcher may ask of this host: one function for each request."""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.targets.hosts.program import facts, keeper, messages, processes, reach
from launcher.targets.hosts.program.leases import HeldError, LeaseBook
from launcher.targets.hosts.program.messages import Completed, RunOnHost, YesOrNo
from launcher.targets.hosts.program.records import Record
from launcher.targets.hosts.program.watch import CODE_DIR, is_followed, split_outputs

KEPT_ARCHIVES = 4
ENGINE_LIMIT_S = 10.0
"""Within which an engine must list its containers while a run is ended."""
TAKE_UP_LIMIT_S = 30.0
"""Within which a launcher must take up a request."""
RUNS_DIR = "runs"


class RequestError(Exception):
    """The request cannot be done; the launcher shows this after the host's name."""


def take_lease(asked: messages.TakeLease) -> messages.LeaseTaken:
    try:
        LeaseBook(asked.lease_dir).take(asked.lease, asked.ttl_s, asked.slots_limit)
    except HeldError as error:
        return messages.LeaseTaken(held=error.leases)
    return messages.LeaseTaken()


def _archive(asked: messages.HasCode | messages.StoreCode) -> Path:
    return Path(asked.state_dir, "code", f"{asked.hash}.tar.gz")


def has_code(asked: messages.HasCode) -> YesOrNo:
    """Whether the archive is there; it then counts as new, so that none that is used is removed."""
    try:
        os.utime(_archive(asked))
    except OSError:
        return YesOrNo(yes=False)
    return YesOrNo(yes=True)


def store_code(asked: messages.StoreCode, archive: bytes) -> Completed:
    """Keeps an archive of code by its hash, and removes the oldest ones."""
    path = _archive(asked)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, archive)
    kept = sorted(path.parent.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for old in kept[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)
    return Completed()


def prepare_run(asked: messages.PrepareRun, agent: bytes) -> Completed:
    run_dir = Path(asked.run_dir)
    for folder in (run_dir, *map(Path, asked.folders)):
        folder.mkdir(parents=True, exist_ok=True)
    if asked.agent and not Path(asked.agent).exists():
        _write(Path(asked.agent), agent)
    code = run_dir / CODE_DIR
    if asked.code and not code.exists():
        archive = Path(asked.state_dir, "code", f"{asked.code}.tar.gz")
        temporary = run_dir / f".code.{os.getpid()}"
        unpack(archive.read_bytes(), temporary)
        with suppress(OSError):
            temporary.rename(code)
        shutil.rmtree(temporary, ignore_errors=True)
    for path, text in asked.files:
        _write(Path(path), text.encode("utf-8", "surrogateescape"))
    missing = [path for path in asked.needed if not os.path.exists(path)]
    if missing:
        raise RequestError(f"{missing[0]} is not there")
    return Completed()


def stop_nodes(asked: messages.StopNodes) -> Completed:
    nodes = None if asked.nodes is None else tuple(asked.nodes)
    if asked.tell_launcher:
        with suppress(OSError):
            _write(Path(asked.run_dir, protocol.STOP_RUN_FILE), b"stopped from elsewhere\n")
    end_nodes(asked.run_id, nodes, asked.grace_s, in_containers=asked.containers)
    LeaseBook(asked.lease_dir).release(asked.run_id, nodes)
    return Completed()


def remove_run(asked: messages.RemoveRun) -> int:
    run_dir, outputs = Path(asked.run_dir), Path(asked.outputs_dir)
    kept = split_outputs(run_dir / CODE_DIR, asked.brought_bytes)[1] if asked.outputs_dir else []
    for path in kept:
        target = outputs / path.relative_to(run_dir / CODE_DIR)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    shutil.rmtree(run_dir, ignore_errors=True)
    if asked.checkpoint_dir:
        with suppress(OSError):
            Path(asked.checkpoint_dir).rmdir()
    return len(kept)


def find_image(asked: messages.FindImage) -> str:
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", asked.image)
    id = (processes.read_output(argv) or "").strip()
    if asked.pull and not id:
        if told := processes.feed(("docker", "pull", "--quiet", asked.image), ()):
            raise RequestError(f"image {asked.image} could not be pulled: {told.splitlines()[-1]}")
        id = (processes.read_output(argv) or "").strip()
    return id


def load_image(chunks: Iterator[bytes]) -> Completed:
    """Takes an image as ``docker save`` wrote it."""
    if told := processes.feed(("docker", "load", "--quiet"), chunks):
        raise RequestError(told.splitlines()[-1])
    return Completed()


def ask_launcher(asked: messages.AskLauncher) -> bool:
    path = Path(asked.run_dir, asked.name)
    if asked.name not in protocol.RUN_REQUESTS or not is_followed(path.parent):
        raise RequestError(f"no launcher follows {path.parent.name}")
    _write(path, asked.text.encode())
    deadline = time.monotonic() + TAKE_UP_LIMIT_S
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not path.exists()


def list_runs(asked: messages.ListRuns) -> messages.RunsFound:
    folder = Path(os.path.expanduser(asked.state_dir)) / RUNS_DIR
    paths = sorted(folder.glob(f"*/{protocol.PLAN_FILE}"))
    found = [_read_run(path) for path in paths if path.parent.name.startswith(asked.run_id)]
    return messages.RunsFound(runs=found)


def _read_run(plan: Path) -> RunOnHost:
    nodes = list((plan.parent / protocol.NODES_DIR).glob("[0-9]*/[0-9]*"))
    states = [keeper.read_state(node).state for node in nodes]
    return RunOnHost(
        run_id=plan.parent.name,
        plan=plan.read_text(),
        nodes=sorted({int(node.parent.name) for node in nodes}),
        lives="running" in states or "pending" in states or is_followed(plan.parent),
        # The oldest change in the folder of any node.
        began_at=min(
            (path.stat().st_mtime for node in nodes for path in node.iterdir()), default=time.time()
        ),
    )


Handlers = dict[type[Record], Callable[[Any], object]]
HANDLERS: Handlers = {
    messages.ReadHost: facts.read_host,
    messages.ReadClock: lambda asked: time.time(),
    messages.ReadEngine: facts.read_engine,
    messages.FindTokens: reach.find_tokens,
    messages.TakeLease: take_lease,
    messages.HasCode: has_code,
    messages.StopNodes: stop_nodes,
    messages.RemoveRun: remove_run,
    messages.FindImage: find_image,
    messages.AskLauncher: ask_launcher,
    messages.ListRuns: list_runs,
}
HANDLERS_OF_BYTES: dict[type[Record], Callable[[Any, bytes], object]] = {
    messages.RunProbe: lambda asked, program: facts.run_program(asked, program.decode()),
    messages.StoreCode: store_code,
    messages.PrepareRun: prepare_run,
}
"""Requests that bring bytes along."""


def end_nodes(
    run_id: str, nodes: tuple[int, ...] | None, grace_s: float, *, in_containers: bool
) -> None:
    """Ends a run's nodes: asks their keepers, and kills what is left after the grace."""
    keepers = processes.find(run_id, nodes, keepers=True)
    answers = _remove_containers(run_id, nodes) if in_containers and not keepers else True
    for pid in keepers:
        with suppress(OSError):
            folder = Path(os.readlink(f"/proc/{pid}/fd/1")).parent
            (folder / keeper.GRACE_FILE).write_text(str(grace_s))
    processes.send(keepers, signal.SIGTERM)
    deadline = time.monotonic() + grace_s + 5.0
    orphans = () if keepers else processes.roots(processes.find(run_id, nodes))
    processes.send(orphans, signal.SIGTERM)
    # Without a grace orphans, which no keeper ends, are killed at once.
    while (grace_s > 0 or not orphans) and time.monotonic() < deadline:
        if not processes.find(run_id, nodes, keepers=not orphans):
            break
        time.sleep(0.03)
    was_killed = False
    while left := processes.find(run_id, nodes, keepers=None):
        processes.send(left, signal.SIGKILL)
        if time.monotonic() > deadline + 5.0:
            raise RequestError(f"processes {left} of {run_id} cannot be ended")
        time.sleep(0.02)
        was_killed = True
    if in_containers and was_killed and keepers:
        # A killed keeper could not remove its container.
        answers = _remove_containers(run_id, nodes)
    if not answers:
        raise RequestError(f"the Docker engine does not answer: {run_id} may still run there")


def _remove_containers(run_id: str, nodes: tuple[int, ...] | None) -> bool:
    """Removes containers whose keeper is gone; False if the engine does not answer."""
    label = f"label={protocol.LABEL_RUN_ID}={run_id}"
    fields = '{{.ID}} {{.Label "' + protocol.LABEL_NODE_INDEX + '"}}'
    argv = ("docker", "ps", "--all", "--no-trunc", "--filter", label, "--format", fields)
    if (listed := processes.read_output(argv, ENGINE_LIMIT_S)) is None:
        return False
    for id, _, index in (line.partition(" ") for line in listed.splitlines()):
        if nodes is None or int(index) in nodes:
            keeper.remove_container(id)
    return True


def unpack(data: bytes, folder: Path) -> None:
    """Unpacks an archive of code; refuses members outside of ``folder``."""
    import tarfile  # here, as its import would delay each session

    folder.mkdir(parents=True)
    root = os.path.realpath(folder)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive.getmembers():
            target = os.path.realpath(folder / member.name)
            if not target.startswith(root + os.sep):
                raise RequestError(f"{member.name} lies outside of the code's folder")
        archive.extractall(folder)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
