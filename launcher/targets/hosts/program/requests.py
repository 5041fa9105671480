"""What a launcher may ask of this host. Each function takes plain data and returns plain data."""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.targets.hosts.program import commands, examine, keeper, processes, revive
from launcher.targets.hosts.program.facts import read_facts
from launcher.targets.hosts.program.leases import HeldError, LeaseBook
from launcher.targets.hosts.program.watch import is_followed

Asked = dict[str, Any]

KEPT_ARCHIVES = 4
ENGINE_LIMIT_S = 10.0
"""Within which an engine lists containers; whoever asks waits for a run's end."""
RUNS_DIR = "runs"
PLAN_FILE = protocol.PLAN_FILE
CODE_DIR = "code"


class RequestError(Exception):
    """What was asked cannot be done; the launcher tells it with this host's name in front."""


def facts(asked: Asked, blob: bytes) -> Asked:
    return read_facts(asked)


def clock(asked: Asked, blob: bytes) -> Asked:
    return examine.read_clock(asked)


def probe(asked: Asked, blob: bytes) -> Asked:
    """Runs the program in ``blob`` and brings what it says."""
    return examine.run_program(asked, blob.decode())


def engine(asked: Asked, blob: bytes) -> Asked:
    return examine.read_engine(asked)


def tokens(asked: Asked, blob: bytes) -> Asked:
    return examine.read_tokens(asked)


def take(asked: Asked, blob: bytes) -> Asked:
    """Takes leases, all or none: ``leases``, ``ttl_s``, ``slots_limit``, ``lease_dir``."""
    book = LeaseBook(asked["lease_dir"])
    taken = []
    try:
        for lease in asked["leases"]:
            book.take(lease, asked["ttl_s"], asked["slots_limit"])
            taken.append(lease)
    except HeldError as error:
        for lease in taken:
            book.release(lease["run_id"], (lease["node_index"],))
        return {"held": error.leases}
    return {}


def release(asked: Asked, blob: bytes) -> Asked:
    nodes = asked.get("nodes")
    LeaseBook(asked["lease_dir"]).release(asked["run_id"], None if nodes is None else tuple(nodes))
    return {}


def leases(asked: Asked, blob: bytes) -> Asked:
    found = LeaseBook(asked["lease_dir"]).read()
    return {"leases": found, "facts": read_facts(asked)}


def has(asked: Asked, blob: bytes) -> Asked:
    """Which archives of code are here, of ``hashes``."""
    folder = Path(asked["state_dir"]) / "code"
    return {"have": [name for name in asked["hashes"] if (folder / f"{name}.tar.gz").exists()]}


def store(asked: Asked, blob: bytes) -> Asked:
    """Keeps an archive of code by its hash; the oldest go."""
    folder = Path(asked["state_dir"]) / "code"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{asked['hash']}.tar.gz", blob)
    kept = sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for path in kept[:-KEPT_ARCHIVES]:
        path.unlink(missing_ok=True)
    return {}


def prepare(asked: Asked, blob: bytes) -> Asked:
    """Makes a run's folder: ``folders``, ``files`` (path, text), the agent (blob), the code."""
    run_dir = Path(asked["run_dir"])
    for folder in (run_dir, *map(Path, asked["folders"])):
        folder.mkdir(parents=True, exist_ok=True)
    if asked["agent"] and not Path(asked["agent"]).exists():
        _write(Path(asked["agent"]), blob)
    code = run_dir / CODE_DIR
    if asked["code"] and not code.exists():
        archive = Path(asked["state_dir"]) / "code" / f"{asked['code']}.tar.gz"
        temporary = run_dir / f".code.{os.getpid()}"
        unpack(archive.read_bytes(), temporary)
        with suppress(OSError):
            temporary.rename(code)
        shutil.rmtree(temporary, ignore_errors=True)
    for path, text in asked["files"]:
        _write(Path(path), text.encode("utf-8", "surrogateescape"))
    missing = [path for path in asked["needed"] if not os.path.exists(path)]
    if missing:
        raise RequestError(f"{missing[0]} is not there")
    return {}


def start(asked: Asked, blob: bytes) -> Asked:
    """Starts the keepers of ``nodes``; an earlier incarnation of the same node is ended first."""
    for spec in asked["nodes"]:
        in_containers = bool(spec.get("container"))
        end_nodes(spec["run_id"], (spec["node_index"],), 0.0, in_containers=in_containers)
        revive.start(spec, asked["program"])
    return {}


def stop(asked: Asked, blob: bytes) -> Asked:
    """Ends a run's nodes, or ``nodes`` of them; ``tell_launcher`` lets one that follows end too."""
    nodes = None if asked["nodes"] is None else tuple(asked["nodes"])
    if asked["tell_launcher"]:
        with suppress(OSError):
            _write(Path(asked["run_dir"], protocol.STOP_RUN_FILE), b"stopped from elsewhere\n")
    end_nodes(asked["run_id"], nodes, asked["grace_s"], in_containers=asked["containers"])
    LeaseBook(asked["lease_dir"]).release(asked["run_id"], nodes)
    return {}


def remove(asked: Asked, blob: bytes) -> Asked:
    """Removes what a run wrote here, and its checkpoint folder where that is empty.

    What it wrote among its code goes to ``outputs_dir``, if one is named; ``kept`` is how many
    files.
    """
    run_dir, outputs = Path(asked["run_dir"]), Path(asked["outputs_dir"])
    written = list(outputs_among(run_dir / CODE_DIR)) if asked["outputs_dir"] else []
    for path in written:
        target = outputs / path.relative_to(run_dir / CODE_DIR)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    shutil.rmtree(run_dir, ignore_errors=True)
    if asked["checkpoint_dir"]:
        with suppress(OSError):
            Path(asked["checkpoint_dir"]).rmdir()
    return {"kept": len(written), "folder": str(outputs)}


def outputs_among(code: Path) -> Iterator[Path]:
    """Files that were made or changed since the code was unpacked, whose own have no time."""
    for folder, folders, names in os.walk(code):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (Path(folder, name) for name in names):
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime > 0:
                yield path


def image(asked: Asked, blob: bytes) -> Asked:
    """The id of an image in this host's engine; empty where it has none by that name."""
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", asked["image"])
    return {"id": (commands.read_output(argv) or "").strip()}


def pull(asked: Asked, blob: bytes) -> Asked:
    """Pulls an image."""
    if told := commands.feed(("docker", "pull", "--quiet", asked["image"]), ()):
        raise RequestError(f"image {asked['image']} could not be pulled: {told.splitlines()[-1]}")
    return {}


def load(asked: Asked, blob: bytes) -> Asked:
    """Takes an image as ``docker save`` wrote it."""
    if told := commands.feed(("docker", "load", "--quiet"), asked["chunks"]):
        raise RequestError(told.splitlines()[-1])
    return {}


def ask(asked: Asked, blob: bytes) -> Asked:
    """Leaves a request for the launcher that follows a run. Refused where none does."""
    run_dir = Path(asked["run_dir"])
    if asked["name"] not in protocol.RUN_REQUESTS or not is_followed(run_dir):
        raise RequestError(f"nobody follows {run_dir.name}")
    _write(run_dir / asked["name"], asked["text"].encode())
    return {}


def is_asked(asked: Asked, blob: bytes) -> Asked:
    """Whether a request still waits to be taken up."""
    return {"waits": Path(asked["run_dir"], asked["name"]).exists()}


def runs(asked: Asked, blob: bytes) -> Asked:
    """Runs that this host knows, with their plans and which of their nodes are here."""
    found = []
    folder = Path(os.path.expanduser(asked["state_dir"])) / RUNS_DIR
    for path in sorted(folder.glob(f"*/{PLAN_FILE}")):
        run_id = path.parent.name
        if run_id.startswith(asked["run_id"]):
            nodes = list((path.parent / protocol.NODES_DIR).glob("[0-9]*/[0-9]*"))
            states = [keeper.read_state(node)["state"] for node in nodes]
            told = {
                "run_id": run_id,
                "plan": path.read_text(),
                "nodes": sorted({int(node.parent.name) for node in nodes}),
                "lives": "running" in states or "pending" in states or is_followed(path.parent),
                "began_at": min((_first_change(node) for node in nodes), default=0.0),
            }
            found.append(told)
    return {"runs": found}


def _first_change(folder: Path) -> float:
    """Of what lies in a folder, seconds since the epoch."""
    return min((path.stat().st_mtime for path in folder.iterdir()), default=time.time())


def end_nodes(
    run_id: str, nodes: tuple[int, ...] | None, grace_s: float, *, in_containers: bool
) -> None:
    """Asks the keepers, which ask their agents; kills what is left after the grace."""
    keepers = processes.find(run_id, nodes, keepers=True)
    answers = _remove_containers(run_id, nodes) if in_containers and not keepers else True
    for pid in keepers:
        _write_grace(pid, grace_s)
    processes.send(keepers, signal.SIGTERM)
    deadline = time.monotonic() + grace_s + 5.0
    orphans = () if keepers else processes.roots(processes.find(run_id, nodes))
    processes.send(orphans, signal.SIGTERM)
    while time.monotonic() < deadline:
        if not (orphans or processes.find(run_id, nodes, keepers=True)):
            break
        if orphans and (grace_s == 0 or not processes.find(run_id, nodes)):
            break
        time.sleep(0.03)
    was_killed = False
    while left := (
        *processes.find(run_id, nodes, keepers=True),
        *processes.find(run_id, nodes),
    ):
        processes.end(left)
        if time.monotonic() > deadline + 5.0:
            raise RequestError(f"processes {left} of {run_id} cannot be ended")
        time.sleep(0.02)
        was_killed = True
    if in_containers and was_killed and keepers:
        # They could not remove their containers themselves.
        answers = _remove_containers(run_id, nodes)
    if not answers:
        raise RequestError(f"the Docker engine does not answer: containers of {run_id} may go on")


def _remove_containers(run_id: str, nodes: tuple[int, ...] | None) -> bool:
    """Those whose keeper is gone, of a run in containers; False where the engine is silent."""
    label = f"label={protocol.LABEL_RUN_ID}={run_id}"
    fields = '{{.ID}} {{.Label "' + protocol.LABEL_NODE_INDEX + '"}}'
    listed = commands.read_output(
        ("docker", "ps", "--all", "--no-trunc", "--filter", label, "--format", fields),
        ENGINE_LIMIT_S,
    )
    if listed is None:
        return False
    for id, _, index in (line.partition(" ") for line in listed.splitlines()):
        if nodes is None or int(index) in nodes:
            commands.read_output(("docker", "rm", "--force", "--volumes", id))
    return True


def _write_grace(pid: int, grace_s: float) -> None:
    with suppress(OSError):
        folder = os.readlink(f"/proc/{pid}/fd/1")
        (Path(folder).parent / keeper.GRACE_FILE).write_text(str(grace_s))


def unpack(data: bytes, folder: Path) -> None:
    """Unpacks an archive of this project's own; nothing may leave the folder."""
    import tarfile  # here, as each session would wait for it, and one in a run needs it

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
