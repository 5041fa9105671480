"""States of a node and of a run, and what each reason of an ending means.

Agent, command line and renderers read the same table, which has a row for each reason.
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from launcher.contract.errors import ExitCode, Fault


class NodeState(enum.Enum):
    """One node at an instant, as its target reports it."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    MISSING = "missing"
    """The target does not know it: never started, or removed by someone else."""


class RunState(enum.Enum):
    """A run, as ``launcher status`` shows it; a run whose launcher is gone is called orphaned."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Reason(enum.StrEnum):
    """Why a run or a node ended; records and messages have its value."""

    COMPLETED = "completed"
    TRAINING_FAILED = "training-failed"
    RESTARTS_EXHAUSTED = "restarts-exhausted"
    NODE_LOST = "node-lost"
    OUT_OF_MEMORY = "out-of-memory"
    BAD_INPUT = "bad-input"
    TARGET_UNREACHABLE = "target-unreachable"
    INTERRUPTED = "interrupted"
    """Ctrl-C or a closed terminal at the launcher that followed the run."""
    STOP_REQUESTED = "stop-requested"
    """``launcher stop`` from another terminal, or SIGTERM at the launcher."""
    PREEMPTED = "preempted"
    KILLED = "killed"
    LAUNCHER_LOST = "launcher-lost"
    """The launcher that followed the run died; the ending was found by a later call."""
    RENDEZVOUS_UNREACHABLE = "rendezvous-unreachable"
    """No store answered, or too few nodes came, before the time was over."""
    RENDEZVOUS_CLOSED = "rendezvous-closed"
    """Another node ended the run; its own outcome says why."""
    STORE_LOST = "store-lost"
    """The rendezvous' store went away, and no other took over."""
    AGENT_FAILED = "agent-failed"
    """The agent itself broke down: a fault of the image, of the machine or of this project."""
    GPU_BUSY = "gpu-busy"
    """The dead workers' GPU memory did not become free."""
    DISK_FULL = "disk-full"
    """The disk of the run folder, or another that the agent needs, stayed full."""

    def __repr__(self) -> str:
        return repr(self.value)


_TABLE: dict[Reason, tuple[RunState, ExitCode, Fault | None]] = {
    Reason.COMPLETED: (RunState.SUCCEEDED, ExitCode.OK, None),
    Reason.TRAINING_FAILED: (RunState.FAILED, ExitCode.TRAINING_FAILED, Fault.TRAINING),
    Reason.RESTARTS_EXHAUSTED: (RunState.FAILED, ExitCode.TRAINING_FAILED, Fault.TRAINING),
    Reason.NODE_LOST: (RunState.FAILED, ExitCode.KILLED, Fault.PLATFORM),
    Reason.OUT_OF_MEMORY: (RunState.FAILED, ExitCode.TRAINING_FAILED, Fault.TRAINING),
    Reason.BAD_INPUT: (RunState.FAILED, ExitCode.BAD_INPUT, Fault.USER),
    Reason.TARGET_UNREACHABLE: (RunState.FAILED, ExitCode.TARGET_UNREACHABLE, Fault.PLATFORM),
    Reason.INTERRUPTED: (RunState.STOPPED, ExitCode.INTERRUPTED, Fault.USER),
    Reason.STOP_REQUESTED: (RunState.STOPPED, ExitCode.PREEMPTED, Fault.USER),
    Reason.PREEMPTED: (RunState.STOPPED, ExitCode.PREEMPTED, Fault.PLATFORM),
    Reason.KILLED: (RunState.STOPPED, ExitCode.KILLED, Fault.PLATFORM),
    Reason.LAUNCHER_LOST: (RunState.STOPPED, ExitCode.KILLED, Fault.PLATFORM),
    Reason.RENDEZVOUS_UNREACHABLE: (
        RunState.FAILED,
        ExitCode.RENDEZVOUS_UNREACHABLE,
        Fault.PLATFORM,
    ),
    Reason.RENDEZVOUS_CLOSED: (RunState.FAILED, ExitCode.RENDEZVOUS_CLOSED, Fault.PLATFORM),
    Reason.STORE_LOST: (RunState.FAILED, ExitCode.STORE_LOST, Fault.PLATFORM),
    Reason.AGENT_FAILED: (RunState.FAILED, ExitCode.AGENT_FAILED, Fault.PLATFORM),
    Reason.GPU_BUSY: (RunState.FAILED, ExitCode.GPU_BUSY, Fault.PLATFORM),
    Reason.DISK_FULL: (RunState.FAILED, ExitCode.DISK_FULL, Fault.PLATFORM),
}
STATE_OF_REASON = MappingProxyType({reason: row[0] for reason, row in _TABLE.items()})
EXIT_CODE_OF_REASON = MappingProxyType({reason: row[1] for reason, row in _TABLE.items()})
FAULT_OF_REASON = MappingProxyType({reason: row[2] for reason, row in _TABLE.items()})
TERMINAL_STATES = frozenset(STATE_OF_REASON.values())

REASON_OF_EXIT_CODE = MappingProxyType(
    # Several reasons share a code: the one that stands first in the table is taken, ...
    {row[1]: reason for reason, row in reversed(_TABLE.items())}
    # ... but a signal's code does not say that a node was lost or a stop was requested.
    | {ExitCode.KILLED: Reason.KILLED, ExitCode.PREEMPTED: Reason.PREEMPTED}
)
"""What an agent's exit code means if its report is lost; several reasons share a code."""

RETRY_FROM = 128
"""The border that Kubernetes' ``ExitCode`` policy draws: from here on a retry is worth it."""


def reason_of_exit_code(code: int) -> Reason:
    """The reason behind any exit code of an agent, shell style: 128 + n for signal n."""
    if code in set(ExitCode):
        return REASON_OF_EXIT_CODE[ExitCode(code)]
    return Reason.KILLED if code > RETRY_FROM else Reason.TRAINING_FAILED
