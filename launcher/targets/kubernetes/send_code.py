"""Sends code that is too much for ConfigMaps into a pod that waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.code.record import read_kept_code
from launcher.contract.errors import TargetError
from launcher.contract.reasons import NodeState
from launcher.targets.kubernetes.code import CONTAINER, kept_archive, tell_code
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pod_states import PodView

if TYPE_CHECKING:
    from launcher.follow.console import Console
    from launcher.plan.launch_plan import LaunchPlan
    from launcher.targets.kubernetes.target import KubernetesTarget

RECEIVE = 'mkdir -p "${0%/*}" && head -c "$1" >"$0.$$" && mv "$0.$$" "$0"'
"""What is started beside the waiting program. It knows the size, as its input has no end."""


class CodeSender:
    """Sends the code to one pod. The others get it from there, as ``unpack_code`` does."""

    def __init__(self, target: KubernetesTarget, plan: LaunchPlan, console: Console) -> None:
        self._target, self._plan, self._console = target, plan, console
        self._sent: set[str] = set()
        """Uids of the pods that have got it from here."""
        self._told: set[str] = set()

    def turn(self, pods: tuple[PodView, ...]) -> None:
        """Sends it where no pod that is there has it and can give it. Blocks until it is sent."""
        there = [pod for pod in pods if pod.state is not NodeState.EXITED]
        waiting = [p for p in there if p.preparing == CONTAINER and p.uid not in self._sent]
        has_code = any(pod.state is NodeState.RUNNING or pod.uid in self._sent for pod in there)
        settings = PodSettings.of(self._plan)
        has_code = has_code and bool(settings.run or settings.probe_port)
        code = read_kept_code(Path(self._plan.run_dir)) if waiting and not has_code else None
        if code is None:
            return
        pod = waiting[0]
        self._tell(f"sending the code to {pod.name}: {tell_code(code)}")
        argv = ("sh", "-c", RECEIVE, kept_archive(self._plan), str(len(code.data)))
        # From now on Ctrl-C does not wait for a turn of the loop.
        self._target.is_sending = True
        try:
            self._target.job(self._plan).cluster.send(pod.name, CONTAINER, argv, code.data)
            self._sent.add(pod.uid)
        except TargetError as error:
            self._tell(f"{error.what}; trying again")
        finally:
            self._target.is_sending = False

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._console.note(line)
