"""What a target offers before it is opened: options, finding runs, a diagnosis.

A target's room holds one ``Room``, and the table in ``api/choose_target`` leads to it. It is
imported for each command, so what takes time to import is imported where it is used.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from launcher.contract.errors import InputError
    from launcher.doctor.finding import Finding
    from launcher.follow.target import ListedRun, Target
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder

AddCommand = Callable[[str, str, str, Callable[[ArgumentParser], None]], None]
"""Adds a command: name, handler (``MODULE:FUNCTION``), help, and a function that adds arguments.
The handler takes the arguments, and returns what to print and the exit code."""
Note = Callable[[str], None]


class GivenOptions(NamedTuple):
    """What the command line says of one target."""

    is_named: bool = False
    """Whether the options choose the target for a job if ``--on`` is left out."""
    settings: Mapping[str, str] = {}
    """Keys of the target's section of the job file, and the values that options give them."""
    names_runs: bool = False
    """Whether the options say to look for runs on it."""
    finds_runs_by: Sequence[str] = ()
    """Its options, as typed, by which a later command finds the same runs."""
    sample_job: Callable[[], str] | None = None
    """Makes a job file for ``doctor``; None if the person must name one."""


class Left(NamedTuple):
    """What a run that does not live has left in a place.

    ``is_cut``: its launcher could not end it there. ``remove`` removes all of it.
    """

    run_id: str
    place: str
    age_s: float
    size_bytes: int
    remove: Callable[[], object]
    is_cut: bool = False
    state: str = ""


class Plugin(NamedTuple):
    """Another program by which people call the launcher for one target alone."""

    typed: str
    """What they type in place of ``launcher``."""
    options: tuple[str, ...]
    """Options that it takes also before its command."""


def load(named: str) -> Any:
    """A class or function, named as ``MODULE:NAME``; imports its module.

    Commands and rooms are imported only by this, later than the command line itself.
    """
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)


class Room:
    """One target's room. ``arguments`` come from a command that takes the target's options."""

    name: str
    opens: str = ""
    """The target's class as ``MODULE:CLASS``, if it needs only the runs' folder."""
    plugin: ClassVar[Plugin | None] = None
    finds_runs: ClassVar[Literal["", "beside", "alone"]] = ""
    """Whether the target can find runs that have no folder on this machine. A list shows them
    ``beside`` those that have one, or ``alone``."""

    def __init__(self, name: str = "", opens: str = "") -> None:
        """A target that only has to be opened needs no subclass."""
        self.name, self.opens = name or self.name, opens or self.opens

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        """The target, with what the command line says of it."""
        target: Target = load(self.opens)(run_root)
        return target

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        """Finds out whether the target can run the job, and leaves nothing behind.

        The probe runs in ``folder``, for ``limit_s`` seconds at most.
        """
        from launcher.doctor.diagnosis import diagnose_nodes

        return diagnose_nodes(job, self.open(folder, arguments), limit_s)

    # -- the command line -------------------------------------------------------------------------

    def add_options(self, parser: ArgumentParser, of: Literal["run", "job", "doctor"]) -> None:
        """Adds the target's options to a command about a run, about a job, or to ``doctor``."""

    def add_commands(self, add: AddCommand) -> None:
        """Adds the commands that are about this target alone."""

    def is_here(self, environ: Mapping[str, str], note: Note) -> bool:
        """Whether the target has given this process its nodes already, as an allocation does.

        A job for which nobody names a target then runs on these nodes. ``note`` takes a line about
        nodes that were given once, and are no longer there.
        Raises ``InputError`` if a job must be started in another way there.
        """
        return False

    def read_options(self, arguments: Namespace) -> GivenOptions:
        """What the options say of this target; may change ``arguments`` for the whole command.

        Raises ``InputError`` for options of this target if the job runs on another one.
        """
        return GivenOptions()

    # -- runs that are found there ----------------------------------------------------------------

    def find_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError | None = None
    ) -> RunFolder | None:
        """The folder of the run that the options name. Raises ``InputError``.

        ``otherwise`` is None if the options say that the run is on this target. Else it is the
        error for a run without a folder on this machine: the target then looks for a short time
        only, and returns None if it does not know the run.
        """
        return None

    def list_runs(
        self, arguments: Namespace, run_root: Path, note: Note, *, everything: bool
    ) -> list[ListedRun]:
        """Runs that are found there; ``note`` takes lines about what is left out."""
        return []

    def find_left(self, arguments: Namespace, note: Note) -> list[Left]:
        """What runs that do not live have left on the machines that the options name."""
        return []


def words_given(arguments: Namespace, names: Iterable[str]) -> list[str]:
    """Those of the options that were given, as typed."""
    words: list[str] = []
    for name in names:
        if value := getattr(arguments, name, None):
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, value]
    return words
