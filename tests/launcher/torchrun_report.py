"""The report that torchrun prints at its end."""

REPORT = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{failures}
------------------------------------------------------------
Root Cause (first observed failure):
{root}
============================================================
"""
WORKER = """\
[0]:
  time      : 2026-11-25_01:44:09
  host      : n1
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: 31700)
  error_file: <N/A>
  traceback : To enable traceback see: ...
"""


def worker(rank: int, code: int, local: int | None = None) -> str:
    return WORKER.format(rank=rank, local=rank if local is None else local, code=code)


def report(root: str, *others: str) -> str:
    return REPORT.format(root=root, failures="\n".join(others) or "  <NO_OTHER_FAILURES>")
