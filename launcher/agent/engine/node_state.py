"""What the agent knows about its node, and reports to the ledger and the health server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.endings import AttemptJudge
from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.gpu_memory import GpuGate
from launcher.agent.engine.heal import Healer
from launcher.agent.engine.monitoring.look import Looker
from launcher.agent.ledger import AgentLedger
from launcher.agent.stopping import StopFiles
from launcher.agent.streams import say
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock
from launcher.contract.ending import Ending, WorkerEnd, describe

if TYPE_CHECKING:
    from launcher.agent.membership.client import Client
    from launcher.agent.membership.group import Membership

RECORDED_WAIT_S = 0.5
"""A longer wait for GPU memory gets a line in the ledger."""


class Node:
    """The state of one start of the agent. Its main thread writes it, other threads read it."""

    def __init__(
        self,
        attempts: Attempts,
        judge: AttemptJudge,
        ledger: AgentLedger,
        gate: GpuGate,
        clock: Clock,
        scratch: Path,
    ) -> None:
        self.attempts, self.judge, self.ledger = attempts, judge, ledger
        self.phase, self._phase_at = "start", clock.monotonic()
        self._spent_s: dict[str, float] = {}
        self.num_nodes = 0
        self.ending: Ending | None = None
        """Why this node ends, once that is decided; torch's agent is then ended."""
        self._recorded_attempt = -1
        self._restart_recorded_after = attempts.number
        self.had_group = False
        """Whether this node has been in a group around the present store, or the store answered
        before torch's agent was started."""
        self.token = ""
        """The secret that each connection of this run proves to know; see ``run.read_token``."""
        self.roster: Client | None = None
        """This node's part in the group; None in a static group, and before the first store."""
        self.on_first_round: Callable[[], None] = lambda: None
        self.looker = Looker(attempts, clock)
        self.healer = Healer(self, scratch / "agent", clock)
        self._gate, self._clock = gate, clock

    def enter(self, phase: str) -> None:
        """The agent's main thread enters another phase."""
        now = self._clock.monotonic()
        self._spent_s = self.seconds_by_phase(now)
        self.phase, self._phase_at = phase, now
        if phase == "rendezvous":
            self.ledger.write("rendezvous-began", attempt=self.attempts.number)

    def seconds_by_phase(self, now: float) -> dict[str, float]:
        """All phases so far, the open one included."""
        spent_s = self._spent_s.get(self.phase, 0.0) + now - self._phase_at
        return {**self._spent_s, self.phase: spent_s}

    def on_rendezvous(self, node_rank: int, num_nodes: int) -> None:
        """A round is complete; both numbers count nodes, not workers."""
        self.num_nodes, self.had_group = num_nodes, True
        self.healer.start()
        on_first_round, self.on_first_round = self.on_first_round, lambda: None
        on_first_round()
        self.enter("run")
        self.ledger.write(
            "rendezvous-ended",
            attempt=self.attempts.number + 1,
            rank=node_rank,
            world_size=num_nodes,
        )

    def on_met_again(self, membership: Membership) -> None:
        """The group has formed again, and the workers go on in it."""
        self.num_nodes = membership.size
        self.ledger.write(
            "met-again",
            attempt=self.attempts.number,
            cause=membership.cause,
            generation=membership.generation,
            rank=membership.rank,
            world_size=membership.size,
        )

    def on_healed(self, generation: int, step: int, paused_s: float) -> None:
        """The workers have made their first step in another world."""
        self.ledger.write(
            "healed",
            attempt=self.attempts.number,
            generation=generation,
            step=step,
            paused_s=paused_s,
        )
        say(f"healed in {paused_s:.2f} s: step {step}, {self.num_nodes} nodes")

    def record_ends(self, failed: tuple[WorkerEnd, ...]) -> None:
        """Writes into the ledger, once, when each worker of the present attempt ended."""
        if self._recorded_attempt == self.attempts.number:
            return
        self._recorded_attempt = self.attempts.number
        for end in (*self.attempts.ended_well, *failed):
            self.ledger.write(
                "worker-ended",
                attempt=end.attempt,
                rank=end.rank,
                exit_code=end.exit_code,
                cause=end.cause,
                at=end.failed_at,
            )

    def on_restart(self, cause: Cause, failed: tuple[WorkerEnd, ...]) -> None:
        """Counts and records a restart; ``failed`` are the workers to blame, causes first."""
        self._restart_recorded_after = self.attempts.number
        self.judge.restarts[cause] += 1
        counted = self._count(cause, failed)
        text = f"restart{counted} ({cause})" + (f": {describe(failed[0])}" if failed else "")
        told = {"detail": text} if counted else {}
        self.ledger.write("restart", attempt=self.attempts.number, cause=cause, **told)
        say(text)

    def _count(self, cause: Cause, failed: tuple[WorkerEnd, ...]) -> str:
        """Which of ``max_restarts`` it is; empty where no worker of this node is to blame."""
        is_fault = cause in (Cause.WORKER_FAULT, Cause.HANG)
        if not is_fault or not failed or failed[0].is_collateral:
            return ""
        number = self.roster.last.faults + 1 if self.roster else self.judge.faults
        most = self.judge.max_restarts
        # One more than that is refused by the coordinator: then the run ends.
        return f" {number} of {most}" if number <= most else ""

    def on_store_lost(self, end: Ending, times: int) -> None:
        """A store is gone, and the next one will be tried."""
        self.ending = None
        self.enter("restart")
        if self.attempts.number > self._restart_recorded_after:
            self.on_restart(Cause.MEMBERSHIP, ())
        # The workers that were asked have ended: nobody is left to answer.
        self.attempts.forget_speaker()
        StopFiles(self.attempts.node_dir).forget_resize()
        self.ledger.write("store-lost", detail=end.detail)
        say(f"{end.cause}; starting again ({times})")

    def wait_for_gpus(self) -> None:
        """Blocks until the dead workers' GPU memory is free. Raises GpuBusyError."""
        # Ended by the gate's limit, gpu_free_limit_s.
        waited_s = self._gate.wait()
        if waited_s > RECORDED_WAIT_S:
            self.ledger.write("gpu-wait", attempt=self.attempts.number, waited_s=waited_s)
