"""Where workers write: the run folder's layout, by torch's public ``LogsSpecs``."""

from __future__ import annotations

import os

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std

from launcher.agent import guard
from launcher.agent.attempts import WorkerPlace
from launcher.agent.node import Node
from launcher.contract import protocol

_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


class RunFolderLogs(LogsSpecs):
    """Makes a folder for each attempt and rank, and sets the agent's variables of each worker.

    torch calls ``reify`` once for each start of the worker group.
    """

    def __init__(
        self,
        node: Node,
        *,
        endpoint: str,
        exit_grace_s: float,
        max_restarts: int,
        tee: bool = True,
    ) -> None:
        super().__init__(
            str(node.attempts.node_dir), redirects=Std.ALL, tee=Std.ALL if tee else Std.NONE
        )
        self._node, self._copies, self._endpoint = node, tee, endpoint
        self._attempts, self._ledger = node.attempts, node.ledger
        self._exit_grace_s, self._max_restarts = exit_grace_s, max_restarts

    @property
    def root_log_dir(self) -> str:
        return str(self._attempts.node_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the folders, and adds to each worker's environment what the guard needs."""
        ranks = {local_rank: int(env["RANK"]) for local_rank, env in envs.items()}
        workers = self._node.begin_attempt(ranks)
        self._ledger.write(
            "workers-started", attempt=self._attempts.number, ranks=[*ranks.values()]
        )
        for worker in workers:
            self._add_variables(envs[worker.local_rank], worker)
        stdouts = {w.local_rank: str(w.folder / protocol.STDOUT_FILE) for w in workers}
        stderrs = {w.local_rank: str(w.folder / protocol.STDERR_FILE) for w in workers}
        return LogsDest(
            stdouts=stdouts,
            stderrs=stderrs,
            tee_stdouts=dict(stdouts) if self._copies else {},
            tee_stderrs=dict(stderrs) if self._copies else {},
            error_files={w.local_rank: str(w.folder / protocol.ERROR_FILE) for w in workers},
        )

    def _add_variables(self, env: dict[str, str], worker: WorkerPlace) -> None:
        generation = self._node.link.generation() if self._node.link else None
        if generation is not None:
            env[protocol.GENERATION] = str(generation)
        # torch sets it in the agent, after the warm process was forked.
        if signals := os.environ.get(_SIGNALS):
            env[_SIGNALS] = signals
        env.update(
            {
                "TORCHELASTIC_ERROR_FILE": str(worker.folder / protocol.ERROR_FILE),
                # torch is given a number that never runs out; scripts see the user's.
                "TORCHELASTIC_MAX_RESTARTS": str(self._max_restarts),
                # Another store may have taken over since the node's plan was made.
                protocol.RDZV_ENDPOINT: self._endpoint,
                protocol.NODE_DIR: str(self._attempts.node_dir),
                protocol.NODE_ATTEMPT: str(self._attempts.number),
                protocol.HEARTBEAT: str(worker.heartbeat),
                guard.WORKER_DIR: str(worker.folder),
                guard.EXIT_GRACE_S: str(self._exit_grace_s),
                guard.PARENT_PID: str(os.getpid()),
            }
        )
