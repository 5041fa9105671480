"""What a launcher may ask of this host about runs and nodes, such as to end nodes or remove runs: a
function for each request."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.targets.hosts.program import messages, processes
from launcher.targets.hosts.program.messages import (
    CHECKPOINTS_DIR,
    OUTPUTS_DIR,
    RUNS_DIR,
    LeftOnHost,
    RequestError,
    RunOnHost,
)
from launcher.targets.hosts.program.node_state import is_followed, read_state
from launcher.targets.hosts.program.watch import split_outputs
from launcher.targets.machine import read_size
from launcher.targets.process_table import send
from launcher.targets.short_command import ask, read_output

ANSWER_LIMIT_S = 30.0
"""How long a launcher here may take to act on a request."""
KEEPER_LIMIT_S = 5.0
"""How long keepers may take to end beyond the grace; then all is killed."""
KILL_LIMIT_S = 5.0
"""How long SIGKILL is repeated."""
ENGINE_LIMIT_S = 10.0
"""How long an engine may take to list its containers while a run is ended."""


def stop_nodes(asked: messages.StopNodes) -> None:
    if asked.tell_launcher:
        with suppress(OSError):
            write_atomically(
                Path(asked.run_dir, protocol.STOP_RUN_FILE), "stopped from elsewhere\n"
            )
    end_nodes(asked.run_id, asked.node, asked.grace_s, in_containers=asked.containers)


def remove_run(asked: messages.RemoveRun) -> int:
    run_dir, outputs = Path(asked.run_dir), Path(asked.outputs_dir)
    code = run_dir / protocol.CODE_DIR
    kept = split_outputs(code, asked.brought_bytes)[1] if asked.outputs_dir else []
    for path in kept:
        target = outputs / path.relative_to(code)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another host of the same home has moved it
            path.replace(target)
    shutil.rmtree(run_dir, ignore_errors=True)
    if asked.checkpoint_dir:
        with suppress(OSError):
            Path(asked.checkpoint_dir).rmdir()
    return len(kept)


def find_image(asked: messages.FindImage) -> str:
    id, _ = processes.inspect_image(asked.image)
    if asked.pull and not id:
        end = ask(("docker", "pull", "--quiet", asked.image), asked.limit_s)
        if end is None or end.code:
            told = end.err.strip().splitlines()[-1:] if end else ["it takes too long"]
            raise RequestError(f"image {asked.image} could not be pulled: {''.join(told)}")
        id, _ = processes.inspect_image(asked.image)
    return id


def ask_launcher(asked: messages.AskLauncher) -> bool:
    path = Path(asked.run_dir, asked.name)
    if asked.name not in protocol.RUN_REQUESTS or not is_followed(path.parent):
        raise RequestError(f"no launcher follows {path.parent.name}")
    write_atomically(path, asked.text)
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not path.exists()


def take_look(asked: messages.TakeLook) -> dict[str, str]:
    newest = _newest(Path(asked.run_dir, protocol.NODES_DIR, str(asked.node)))
    if newest is None:
        return {}
    write_atomically(newest / protocol.LOOK_REQUEST, asked.request)
    found = newest / protocol.LOOKS_DIR / asked.id
    deadline = time.monotonic() + asked.wait_s
    while not (found / protocol.LOOK_FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return {path.name: path.read_text() for path in found.glob("*.json")}


def read_newest(asked: messages.ReadNewest) -> str:
    with suppress(OSError):
        if newest := _newest(Path(asked.folder)):
            return (newest / asked.name).read_text()
    return ""


def _newest(folder: Path) -> Path | None:
    """The folder of a node's newest incarnation."""
    return max(folder.glob("[0-9]*"), key=lambda path: int(path.name), default=None)


def list_runs(asked: messages.ListRuns) -> list[RunOnHost]:
    folder = Path(os.path.expanduser(asked.state_dir)) / RUNS_DIR
    paths = sorted(folder.glob(f"*/{protocol.PLAN_FILE}"))
    return [_read_run(path) for path in paths if path.parent.name.startswith(asked.run_id)]


def find_left(asked: messages.FindLeft) -> list[LeftOnHost]:
    state_dir, found = Path(os.path.expanduser(asked.state_dir)), []
    kinds = [state_dir / name for name in (RUNS_DIR, CHECKPOINTS_DIR, OUTPUTS_DIR)]
    for run_id in sorted({path.name for kind in kinds for path in kind.glob("*")}):
        run, *_ = paths = [kind / run_id for kind in kinds]
        if is_followed(run) or processes.find(run_id, None, keepers=None):
            continue
        if run_id == asked.remove:
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)
            continue
        left = LeftOnHost(
            run_id=run_id,
            age_s=time.time() - max(path.stat().st_mtime for path in paths if path.exists()),
            size_bytes=sum(map(read_size, paths)),
            is_cut=run.exists(),
        )
        found.append(left)
    return found


def _read_run(plan: Path) -> RunOnHost:
    nodes = list((plan.parent / protocol.NODES_DIR).glob("[0-9]*/[0-9]*"))
    states = [read_state(node).state for node in nodes]
    return RunOnHost(
        run_id=plan.parent.name,
        plan=plan.read_text(),
        nodes=sorted({int(node.parent.name) for node in nodes}),
        lives="running" in states or is_followed(plan.parent),
        # The oldest change in the folder of any node.
        began_at=min(
            (path.stat().st_mtime for node in nodes for path in node.iterdir()), default=time.time()
        ),
    )


def end_nodes(run_id: str, node: int | None, grace_s: float, *, in_containers: bool) -> None:
    """Ends a run's nodes here, or one: asks their keepers, and kills what is left after the grace.

    Processes whose keeper is gone are killed at once.
    """
    keepers = processes.find(run_id, node, keepers=True)
    for pid in keepers:
        with suppress(OSError):
            folder = Path(os.readlink(f"/proc/{pid}/fd/1")).parent
            (folder / processes.GRACE_FILE).write_text(str(grace_s))
    send(keepers, signal.SIGTERM)
    deadline = time.monotonic() + grace_s + KEEPER_LIMIT_S
    while processes.find(run_id, node, keepers=True) and time.monotonic() < deadline:
        time.sleep(0.03)
    left = processes.find(run_id, node, keepers=None)
    # Then no keeper is left to remove its container.
    is_alone = bool(left) or not keepers
    while left:
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline + KILL_LIMIT_S:
            raise RequestError(f"processes {left} of {run_id} cannot be ended")
        time.sleep(0.02)
        left = processes.find(run_id, node, keepers=None)
    if in_containers and is_alone:
        _remove_containers(run_id, node)


def _remove_containers(run_id: str, node: int | None) -> None:
    """Removes containers whose keeper is gone."""
    label = f"label={protocol.LABEL_RUN_ID}={run_id}"
    fields = '{{.ID}} {{.Label "' + protocol.LABEL_NODE_INDEX + '"}}'
    argv = ("docker", "ps", "--all", "--no-trunc", "--filter", label, "--format", fields)
    if (listed := read_output(argv, ENGINE_LIMIT_S)) is None:
        raise RequestError(f"the Docker engine does not answer: {run_id} may still run there")
    found = (line.partition(" ") for line in listed.splitlines())
    if ids := [id for id, _, index in found if node in (None, int(index))]:
        processes.remove_containers(*ids)
