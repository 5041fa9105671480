"""How workers ended, for tests that care for a part of it."""

from typing import Any

from launcher.contract.causes import Cause
from launcher.contract.ending import WorkerEnd


def worker_end(rank: int = 0, exception: str = "", **fields: Any) -> WorkerEnd:
    """A worker that failed with exit code 1, unless ``fields`` say otherwise."""
    given = {"attempt": 0, "local_rank": 0, "exit_code": 1, "failed_at": 1.0, "cause": "exit"}
    values = {**given, "log": "", **fields}
    return WorkerEnd(rank=rank, exception=exception, **{**values, "cause": Cause(values["cause"])})
