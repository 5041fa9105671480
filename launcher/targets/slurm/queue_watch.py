"""Asks the queue now and then for a run's jobs, and has requeued ones begin sooner."""

from __future__ import annotations

import contextlib
import threading
import time

from launcher.contract.errors import TargetError
from launcher.runs.folder import RunFolder
from launcher.targets.slurm import client
from launcher.targets.slurm.client import QueuedJob
from launcher.targets.slurm.job_starts import JobStart, read_jobs, read_queue, read_starts

LOOK_S = 10.0
"""Seconds between two questions to the controller: sites ban users who ask more often."""
HELD_BACK_S = 15
"""How long a requeued job is held back; Slurm by itself holds it for about two minutes.

A node refuses a job that begins in the very second in which the node ended it, and Slurm then
fails the job. The node uses its own clock, which may be this far ahead of the controller's.
"""


class QueueWatch:
    """Asks Slurm for the state of a run's jobs every ``LOOK_S``, each time in a thread.

    It also tells Slurm to start requeued jobs sooner than Slurm does by itself. A question to a
    controller that is away takes long to fail, and must not hold up the output.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run, self._question = run, threading.Thread()
        # A job that was just submitted waits in the queue; its files say when it starts.
        self._next_at = time.monotonic() + LOOK_S / 5
        self._tried: set[str] = set()
        self.jobs: tuple[QueuedJob, ...] | None = None
        """The jobs by the last answer; None before the first."""
        self.error: TargetError | None = None
        """Why the last question had no answer."""
        self.hastened: tuple[JobStart, ...] = ()
        """Starts after which Slurm was told to hold their jobs back for ``HELD_BACK_S`` only."""

    def look(self) -> None:
        """Asks if it is time to. Does not wait for the answer, which has a limit."""
        is_early = time.monotonic() < self._next_at
        if not is_early and not self._question.is_alive() and read_jobs(self._run):
            self._question = threading.Thread(target=self._ask, daemon=True, name="queue")
            self._question.start()

    def _ask(self) -> None:
        try:
            self.jobs, self.error = read_queue(self._run), None
            self._hasten(self.jobs)
        except TargetError as error:
            self.error = error
        except OSError as error:
            # Such as a file server that is away.
            self.error = TargetError(f"Slurm cannot be asked: {error}", "it is asked again")
        finally:
            self._next_at = time.monotonic() + LOOK_S

    def _hasten(self, jobs: tuple[QueuedJob, ...]) -> None:
        """Tells Slurm, once for each requeue, when jobs may begin."""
        held = find_held_back(read_starts(self._run), jobs)
        if new := [start for start in held if start.key not in self._tried]:
            self._tried.update(start.key for start in new)
            # An error is ignored: a site may not allow this, or a job may have started meanwhile.
            with contextlib.suppress(client.SlurmError):
                client.start_within([start.name for start in new], HELD_BACK_S)
                self.hastened += tuple(new)


def find_held_back(
    starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]
) -> tuple[JobStart, ...]:
    """The last starts of requeued jobs that Slurm holds back.

    A job that a fault of the platform has ended is left out: Slurm may not know yet that its node
    is lost, and would start the job there again.
    """
    waiting = {job.name for job in jobs if (job.state, job.why) == ("PENDING", "BeginTime")}
    last = {start.name: start for start in starts}
    return tuple(one for name, one in last.items() if name in waiting and not one.is_fault)
