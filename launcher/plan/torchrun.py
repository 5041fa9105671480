"""torchrun's flags, which differ with torch's version, and the check for a torch that is too old;
its failure report; where workers' logs lie.

A flag that is newer than the torch in the image would end the run with a usage error, so flags
depend on torch's version.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import InputError, KeyInputError
from launcher.contract.node_plan import Elastic, Env, NodePlan, Static
from launcher.plan.rendezvous import backend_of, format_endpoint

if TYPE_CHECKING:
    from launcher.plan.launch_plan import LaunchPlan


def parse_torch_version(text: str | None) -> tuple[int, int]:
    """``2.13.0+cpu`` -> ``(2, 13)``; the oldest supported version if there is nothing to read."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else protocol.OLDEST_TORCH


def check_torch_version(installed: str | None, given: str | None) -> None:
    """Raises ``InputError`` if torch (``found`` on the nodes, else ``given``) is too old."""
    if parse_torch_version(installed or given) >= protocol.OLDEST_TORCH:
        return
    oldest = ".".join(map(str, protocol.OLDEST_TORCH))
    if installed in (None, given):  # on a cluster, what the job says is all that is known
        fix = f"an image with torch {oldest} or newer; torch_version says which one it holds"
        raise KeyInputError(("torch_version",), f"{given} is older than {oldest}", fix)
    raise InputError(
        f"the nodes have torch {installed}, and the oldest that is supported is {oldest}",
        f"pip install 'torch>={oldest}' there, or name another image or Python",
    )


def as_flags(options: Env) -> tuple[str, ...]:
    """``--rdzv-backend=c10d`` and so on."""
    return tuple(f"--{dest.replace('_', '-')}={value}" for dest, value in options)


def plan_options(node: NodePlan, torch_version: tuple[int, int], stop_grace_s: int) -> Env:
    """torchrun's options for one node, by torchrun's names."""
    several = node.max_nodes > 1
    nnodes = (
        str(node.max_nodes)
        if node.min_nodes == node.max_nodes
        else f"{node.min_nodes}:{node.max_nodes}"
    )
    options: list[tuple[str, str]] = [
        ("nnodes", nnodes),
        ("nproc_per_node", str(node.nproc_per_node)),
        ("rdzv_backend", backend_of(node.rendezvous)),
    ]
    match node.rendezvous:
        case Static(master_addr=host, master_port=port):
            # The static backend ignores TORCH_DISABLE_SHARE_RDZV_TCP_STORE: a restart inside
            # torchrun would meet the old store, so the launcher restarts the nodes.
            options += [
                ("master_addr", host),
                ("master_port", str(port)),
                ("node_rank", str(node.node_index)),
                ("rdzv_id", node.rendezvous.id),
                ("max_restarts", "0"),
            ]
        case Elastic() as elastic:
            conf = elastic.conf
            if elastic.backend == "c10d":
                # torch's own guess is wrong for Services, CNAMEs and second interfaces, and raises
                # if a node cannot resolve its own name. Only c10d knows the key.
                conf = (*conf, ("is_host", "1" if elastic.is_host else "0"))
            options += [
                ("rdzv_endpoint", format_endpoint(elastic.endpoint_host, elastic.endpoint_port)),
                ("rdzv_id", elastic.id),
                ("max_restarts", str(node.max_restarts)),
            ]
            if conf:
                options.append(("rdzv_conf", ",".join(f"{key}={value}" for key, value in conf)))
    if several or isinstance(node.rendezvous, Elastic):
        options.append(("local_addr", node.local_addr))
    options += [("log_dir", node.log_dir), ("redirects", "3"), ("tee", "3")]
    if torch_version >= (2, 12):
        options.append(("shutdown_timeout", str(stop_grace_s)))
    return tuple(options)


def describe_loss(plan: LaunchPlan) -> str:
    """What "a lost node" does to a run under plain torchrun, in the words of the documentation."""
    if not plan.max_restarts:
        return "ends the run, as max_restarts is 0"
    if plan.is_elastic:
        return "starts all again if it is node 0, else it is replaced; each uses up a restart"
    return "starts all again, which uses up a restart"


# -- what torchrun leaves behind -------------------------------------------------------------


_FAILURE = re.compile(
    r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)\s*\n"
    r"\s*exitcode\s*: (?P<exit_code>-?\d+) ",
    re.MULTILINE,
)


def parse_failures(console: str) -> tuple[tuple[int, int, int], ...]:
    """Rank, local rank and exit code of the workers in torchrun's last failure report.

    The root cause comes first. An exit code is negative for a signal. Empty if there is no report:
    torchrun was killed, or failed before it started workers.
    """
    report = console.rpartition(" FAILED\n")[2] if " FAILED\n" in console else ""
    root = report.find("Root Cause")
    # Torch lists the root cause last.
    failures = sorted(
        _FAILURE.finditer(report), key=lambda failure: not 0 <= root < failure.start()
    )
    return tuple(
        (int(failure["rank"]), int(failure["local_rank"]), int(failure["exit_code"]))
        for failure in failures
    )


def split_console(data: bytes, node_index: int) -> Iterator[tuple[int | None, bytes]]:
    """The lines of a node's console in their order, with the rank of the worker that wrote them.

    ``data`` are whole lines. A worker's lines lose their prefix. The agent's own have no rank.
    """
    for match in _console_lines(node_index).finditer(data):
        if match["rank"] is None:
            yield None, match[0]
        else:
            rank = int(match["rank"])
            yield rank, _worker_prefix(node_index, rank).sub(b"", match[0])


@functools.cache
def _console_lines(node_index: int) -> re.Pattern[bytes]:
    """Matches consecutive lines of one writer at once, which is faster than line by line."""
    prefix = rf"\[{node_index}/"
    worker = rf"{prefix}(?P<rank>\d+)\][^\n]*\n(?:{prefix}(?P=rank)\][^\n]*\n)*"
    return re.compile(rf"{worker}|(?:(?!{prefix}\d+\])[^\n]*\n)+".encode())


@functools.cache
def _worker_prefix(node_index: int, rank: int) -> re.Pattern[bytes]:
    return re.compile(rf"^\[{node_index}/{rank}\] ?".encode(), re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class WorkerLog:
    """Where one worker's output lies, relative to the run folder.

    torchrun's folders name the local rank, the node agent's the global one; the other is None.
    """

    node_index: int
    incarnation: int
    attempt: int
    """Restarts by this agent before this worker group."""
    folder: str
    local_rank: int | None = None
    rank: int | None = None

    @property
    def streams(self) -> tuple[str, str]:
        """Names of the two files in the folder, stdout's first."""
        if self.rank is None:
            return "stdout.log", "stderr.log"
        return protocol.STDOUT_FILE, protocol.STDERR_FILE

    def rank_on(self, node_rank: int, nproc_per_node: int) -> int:
        """The global rank, from the folder or else from the node's rank: ranks go node by node."""
        if self.rank is not None:
            return self.rank
        return node_rank * nproc_per_node + (self.local_rank or 0)


WORKER_FOLDERS = (
    "*/*/*/attempt_*/*",
    f"*/*/{protocol.ATTEMPT_FOLDER}/{protocol.RANK_FOLDER}".format(attempt="*", rank="*"),
)
"""Globs for workers' folders beneath the folder of all nodes: torchrun's, the node agent's."""
_NODE = rf"{protocol.NODES_DIR}/(?P<node_index>\d+)/(?P<incarnation>\d+)/"
_NUMBERS = {"attempt": r"(?P<attempt>\d+)", "rank": r"(?P<rank>\d+)"}
_LAYOUTS = (
    re.compile(rf"{_NODE}[^/]+/attempt_(?P<attempt>\d+)/(?P<local_rank>\d+)"),
    re.compile(_NODE + f"{protocol.ATTEMPT_FOLDER}/{protocol.RANK_FOLDER}".format(**_NUMBERS)),
)


def parse_worker_folder(path: str) -> WorkerLog | None:
    """Reads the path of a worker's log folder; None for any other path."""
    for layout in _LAYOUTS:
        if match := layout.fullmatch(path):
            numbers = {name: int(text) for name, text in match.groupdict().items()}
            return WorkerLog(folder=path, **numbers)
    return None
