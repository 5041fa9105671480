"""Starts the agent's process while the run is planned, as importing torch takes longer than that.

Only for what the command line says alone, as a script: a job file may choose another interpreter,
variables that torch reads at its import, or plain torchrun. The process gets its plan when that is
made, and is then the agent that the plan asks for; see ``early_program``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.plan.launch_plan import new_run_id
from launcher.plan.torchrun import ENVIRONMENT
from launcher.targets import proc

if TYPE_CHECKING:
    from launcher.contract.node_plan import Env
    from launcher.plan.launch_plan import LaunchPlan
    from launcher.targets.local.early_program import AgentOrder
    from launcher.targets.local.render import Process

PROGRAM = str(Path(__file__).with_name("early_program.py"))
ROOM, ROOM_BYTES = "LAUNCHER_ROOM", 4096
"""More than what a plan adds to the variables of the launcher, and than an agent's arguments."""


class EarlyAgent:
    """The process of a run's first node, from before there is a plan."""

    def __init__(self, run_root: Path, run_id: str) -> None:
        """Starts it. Other commands find it by these variables, as they find every agent."""
        self.run_id = run_id
        own = {
            protocol.RUN_ID: run_id,
            protocol.RUN_DIR: str(run_root.absolute() / run_id),
            protocol.NODE_INDEX: "0",
            protocol.INCARNATION: "0",
        }
        # What Python and torch's libraries read when they are loaded, as the plan will have it.
        self.env = inherited(os.environ) | dict(ENVIRONMENT) | own
        self._pid = start_program(sys.executable, self.env)

    def become(self, process: Process, plan: LaunchPlan) -> int | None:
        """Its pid, now that it goes on as this agent; None where it cannot, and is ended."""
        if pid := self.take(process, plan):
            if proc.tell(pid, json.dumps(render_order(process, process.env)).encode()):
                return pid
            proc.end_early(pid)
        return None

    def take(self, process: Process, plan: LaunchPlan) -> int:
        """Its pid, for whoever ends it from now on; 0 where it does not suit, and is ended."""
        node, settings = process.node, plan.agent
        fits = (
            (plan.run_id, node.node_index, node.incarnation) == (self.run_id, 0, 0)
            and process.argv[0] == sys.executable
            and settings is not None
            and Path(process.cwd).is_dir()
        )
        pid, self._pid = self._pid, 0
        if not fits:
            proc.end_early(pid)
        return pid if fits else 0

    def end(self) -> None:
        """Ends it where no run has taken it over. Idempotent."""
        proc.end_early(self._pid)
        self._pid = 0


def start_program(python: str, env: Mapping[str, str], cwd: str | None = None) -> int:
    """The pid of a process that imports torch and waits for an order. Raises ``OSError``."""
    room = " " * ROOM_BYTES
    return proc.start_early((python, PROGRAM, room), env={**env, ROOM: room}, cwd=cwd)


def render_order(process: Process, env: Env) -> AgentOrder:
    """What the program is told of an agent that it is to become, with these variables. Pure."""
    return {
        "argv": list(process.argv[1:]),
        "env": dict(env),
        "cwd": process.cwd,
        "console": process.console,
    }


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the caller that agents inherit."""
    return {name: text for name, text in environ.items() if name not in protocol.STALE_VARIABLES}


def start_early(run_root: Path, arguments: Namespace) -> EarlyAgent | None:
    """Starts the agent of a script that is to run here; None where it is not known to suit."""
    from launcher.job.script import is_script, name_of

    command = ("-m", arguments.module) if arguments.module is not None else (arguments.job,)
    suits = (
        sys.platform == "linux"
        and command[0] is not None
        and (command[0] == "-m" or is_script(command[0]))
        and not arguments.set
        and not arguments.detach
        and not os.environ.get(protocol.ENGINE)
        and importlib.util.find_spec("torch") is not None
    )
    return EarlyAgent(run_root, new_run_id(name_of(command), os.urandom(3))) if suits else None
