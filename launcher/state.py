"""States of a node and of a run, their allowed transitions, and what each ending means.

All tables are total over their enum; a test iterates the members. The agent in the node,
the command line and the renderers read the same tables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from launcher.errors import ExitCode, Fault


class NodeState(enum.Enum):
    """One node at an instant, as its target reports it."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    MISSING = "missing"
    """The target knows nothing of it: never started, or removed behind our back."""


class RunState(enum.Enum):
    """A run from submission to its end."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
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


TERMINAL_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})

RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        RunState.SUBMITTED: frozenset(
            {RunState.RUNNING, RunState.RESTARTING, RunState.STOPPING, *TERMINAL_STATES}
        ),
        RunState.RUNNING: frozenset({RunState.RESTARTING, RunState.STOPPING, *TERMINAL_STATES}),
        RunState.RESTARTING: frozenset({RunState.RUNNING, RunState.STOPPING, *TERMINAL_STATES}),
        RunState.STOPPING: TERMINAL_STATES,
        RunState.SUCCEEDED: frozenset(),
        RunState.FAILED: frozenset(),
        RunState.STOPPED: frozenset(),
    }
)

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
    }
)
