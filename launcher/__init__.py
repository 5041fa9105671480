"""Launches multi-node PyTorch training. Importing this imports nothing heavy.

``from launcher import Job, run`` starts a job from Python: docs/python.md.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # a Ctrl-C while typing is imported would show a traceback
    from launcher.api.python import Job, Nodes, RunHandle, find, hold, list_runs, run
    from launcher.contract.errors import InputError, LauncherError, TargetError
    from launcher.runs.outcome import Outcome

__version__ = "0.2.0"
__all__ = (
    "InputError",
    "Job",
    "LauncherError",
    "Nodes",
    "Outcome",
    "RunHandle",
    "TargetError",
    "find",
    "hold",
    "list_runs",
    "run",
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher.api import python

    return getattr(python, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
