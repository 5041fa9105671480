"""States of a node and of a run, and what each ending means.

All tables are total over their enum; a test iterates the members. The agent in the node,
the command line and the renderers read the same tables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from launcher.contract.errors import ExitCode, Fault


class NodeState(enum.Enum):
    """One node at an instant, as its target reports it."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    MISSING = "missing"
    """The target knows nothing of it: never started, or removed behind our back."""


class RunState(enum.Enum):
    """A run, as its outcome and ``launcher status`` tell it."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Reason(enum.Enum):
    """Why a run ended."""

    COMPLETED = "completed"
    TRAINING_FAILED = "training-failed"
    RESTARTS_EXHAUSTED = "restarts-exhausted"
    NODE_LOST = "node-lost"
    OUT_OF_MEMORY = "out-of-memory"
    BAD_INPUT = "bad-input"
    TARGET_UNREACHABLE = "target-unreachable"
    INTERRUPTED = "interrupted"
    """Ctrl-C, a closed terminal or SIGTERM at the launcher that followed the run."""
    STOP_REQUESTED = "stop-requested"
    """``launcher stop`` from another terminal."""
    PREEMPTED = "preempted"
    KILLED = "killed"
    LAUNCHER_LOST = "launcher-lost"
    """The launcher that followed the run died; the ending was found by a later call."""
    RENDEZVOUS_UNREACHABLE = "rendezvous-unreachable"
    """No store answered, or too few nodes came, before the time was over."""
    RENDEZVOUS_CLOSED = "rendezvous-closed"
    """Another node had ended the run's rendezvous; that node knows why."""
    STORE_LOST = "store-lost"
    """The rendezvous' store went away, and no other took over."""
    AGENT_FAILED = "agent-failed"
    """The agent itself broke down: a fault of the image, of the machine or of this project."""
    GPU_BUSY = "gpu-busy"
    """The dead workers' GPU memory did not become free."""
    DISK_FULL = "disk-full"
    """The disk of the run folder, or another that the agent needs, stayed full."""


TERMINAL_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})

STATE_OF_REASON: Mapping[Reason, RunState] = MappingProxyType(
    {
        Reason.COMPLETED: RunState.SUCCEEDED,
        Reason.TRAINING_FAILED: RunState.FAILED,
        Reason.RESTARTS_EXHAUSTED: RunState.FAILED,
        Reason.NODE_LOST: RunState.FAILED,
        Reason.OUT_OF_MEMORY: RunState.FAILED,
        Reason.BAD_INPUT: RunState.FAILED,
        Reason.TARGET_UNREACHABLE: RunState.FAILED,
        Reason.INTERRUPTED: RunState.STOPPED,
        Reason.STOP_REQUESTED: RunState.STOPPED,
        Reason.PREEMPTED: RunState.STOPPED,
        Reason.KILLED: RunState.STOPPED,
        Reason.LAUNCHER_LOST: RunState.STOPPED,
        Reason.RENDEZVOUS_UNREACHABLE: RunState.FAILED,
        Reason.RENDEZVOUS_CLOSED: RunState.FAILED,
        Reason.STORE_LOST: RunState.FAILED,
        Reason.AGENT_FAILED: RunState.FAILED,
        Reason.GPU_BUSY: RunState.FAILED,
        Reason.DISK_FULL: RunState.FAILED,
    }
)

EXIT_CODE_OF_REASON: Mapping[Reason, ExitCode] = MappingProxyType(
    {
        Reason.COMPLETED: ExitCode.OK,
        Reason.TRAINING_FAILED: ExitCode.TRAINING_FAILED,
        Reason.RESTARTS_EXHAUSTED: ExitCode.TRAINING_FAILED,
        Reason.NODE_LOST: ExitCode.KILLED,
        Reason.OUT_OF_MEMORY: ExitCode.TRAINING_FAILED,
        Reason.BAD_INPUT: ExitCode.BAD_INPUT,
        Reason.TARGET_UNREACHABLE: ExitCode.TARGET_UNREACHABLE,
        Reason.INTERRUPTED: ExitCode.INTERRUPTED,
        Reason.STOP_REQUESTED: ExitCode.PREEMPTED,
        Reason.PREEMPTED: ExitCode.PREEMPTED,
        Reason.KILLED: ExitCode.KILLED,
        Reason.LAUNCHER_LOST: ExitCode.KILLED,
        Reason.RENDEZVOUS_UNREACHABLE: ExitCode.RENDEZVOUS_UNREACHABLE,
        Reason.RENDEZVOUS_CLOSED: ExitCode.RENDEZVOUS_CLOSED,
        Reason.STORE_LOST: ExitCode.STORE_LOST,
        Reason.AGENT_FAILED: ExitCode.AGENT_FAILED,
        Reason.GPU_BUSY: ExitCode.GPU_BUSY,
        Reason.DISK_FULL: ExitCode.DISK_FULL,
    }
)

FAULT_OF_REASON: Mapping[Reason, Fault | None] = MappingProxyType(
    {
        Reason.COMPLETED: None,
        Reason.TRAINING_FAILED: Fault.TRAINING,
        Reason.RESTARTS_EXHAUSTED: Fault.TRAINING,
        Reason.NODE_LOST: Fault.PLATFORM,
        Reason.OUT_OF_MEMORY: Fault.TRAINING,
        Reason.BAD_INPUT: Fault.USER,
        Reason.TARGET_UNREACHABLE: Fault.PLATFORM,
        Reason.INTERRUPTED: Fault.USER,
        Reason.STOP_REQUESTED: Fault.USER,
        Reason.PREEMPTED: Fault.PLATFORM,
        Reason.KILLED: Fault.PLATFORM,
        Reason.LAUNCHER_LOST: Fault.PLATFORM,
        Reason.RENDEZVOUS_UNREACHABLE: Fault.PLATFORM,
        Reason.RENDEZVOUS_CLOSED: Fault.PLATFORM,
        Reason.STORE_LOST: Fault.PLATFORM,
        Reason.AGENT_FAILED: Fault.PLATFORM,
        Reason.GPU_BUSY: Fault.PLATFORM,
        Reason.DISK_FULL: Fault.PLATFORM,
    }
)

REASON_OF_EXIT_CODE: Mapping[ExitCode, Reason] = MappingProxyType(
    {
        ExitCode.OK: Reason.COMPLETED,
        ExitCode.TRAINING_FAILED: Reason.TRAINING_FAILED,
        ExitCode.BAD_INPUT: Reason.BAD_INPUT,
        ExitCode.TARGET_UNREACHABLE: Reason.TARGET_UNREACHABLE,
        ExitCode.INTERRUPTED: Reason.INTERRUPTED,
        ExitCode.KILLED: Reason.KILLED,
        ExitCode.PREEMPTED: Reason.PREEMPTED,
        ExitCode.RENDEZVOUS_UNREACHABLE: Reason.RENDEZVOUS_UNREACHABLE,
        ExitCode.RENDEZVOUS_CLOSED: Reason.RENDEZVOUS_CLOSED,
        ExitCode.STORE_LOST: Reason.STORE_LOST,
        ExitCode.AGENT_FAILED: Reason.AGENT_FAILED,
        ExitCode.GPU_BUSY: Reason.GPU_BUSY,
        ExitCode.DISK_FULL: Reason.DISK_FULL,
    }
)
"""What an agent's exit code says where its own report is lost; the reverse is not unique."""

RETRY_FROM = 128
"""The border that Kubernetes' ``ExitCode`` policy draws: from here on a retry is worth it."""


def reason_of_exit_code(code: int) -> Reason:
    """The reason behind any exit code of an agent, shell style: 128 + n for signal n."""
    known = {int(member): reason for member, reason in REASON_OF_EXIT_CODE.items()}
    return known.get(code, Reason.KILLED if code > RETRY_FROM else Reason.TRAINING_FAILED)
