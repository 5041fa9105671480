"""What a target offers before it is opened: options, finding runs, a diagnosis.

A target's room holds one ``Room``, and the table in ``api/choose_target`` leads to it. It is
imported for each command, so what takes time to import is imported where it is used.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from launcher.contract.errors import InputError
    from launcher.doctor.finding import Finding
    from launcher.follow.target import ListedRun, Target
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder

AddCommand = Callable[[str, str, str, Callable[[ArgumentParser], None]], None]
"""Adds a command of that name with its handler (``MODULE:FUNCTION``), its help, and what adds its
arguments. The handler takes the arguments, and gives what is printed and the exit code."""
Note = Callable[[str], None]


class GivenOptions(NamedTuple):
    """What the command line says of one target."""

    is_named: bool = False
    """Whether its options name it for a job without ``--on``."""
    settings: Mapping[str, str] = {}
    """Keys of the target's section of the job file, and the values that options give them."""
    names_runs: bool = False
    """Whether runs are to be looked for there."""
    finds_runs_by: Sequence[str] = ()
    """Its options, as typed, by which a later command finds the same runs."""
    sample_job: Callable[[], str] | None = None
    """Makes a job file for a diagnosis of all that the options name; None where one is needed."""


class Plugin(NamedTuple):
    """Another program by which people call the launcher for one target alone."""

    typed: str
    """What they type in place of ``launcher``."""
    options: tuple[str, ...]
    """Options that it takes also before its command."""


class Room:
    """One target's room. ``arguments`` are always those of a command that has its options."""

    name: ClassVar[str]
    plugin: ClassVar[Plugin | None] = None
    finds_runs: ClassVar[Literal["", "beside", "alone"]] = ""
    """Whether runs without a folder here can be found there: listed beside those of the run
    folders, or in their place."""

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        """The target, with what the command line says of it."""
        raise NotImplementedError

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        """Whether the target can run the job. ``folder`` holds the probe's run of ``limit_s``.

        Leaves nothing behind.
        """
        from launcher.targets.diagnosis import diagnose_nodes

        return diagnose_nodes(job, self.open(folder, arguments), limit_s)

    # -- the command line -------------------------------------------------------------------------

    def add_options(self, parser: ArgumentParser, of: Literal["run", "job", "doctor"]) -> None:
        """What a command about a run, about a job, or a diagnosis of a job takes besides."""

    def add_commands(self, add: AddCommand) -> None:
        """Commands that are about this target alone."""

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is inside of what the target gave it, such as an allocation of
        nodes: a job whose target nobody names then runs there.

        Raises ``InputError`` where a job must be started in another way there.
        """
        return False

    def read_options(self, arguments: Namespace) -> GivenOptions:
        """What the options say of this target; what they change holds while the command runs.

        Raises ``InputError`` for options of this target if the job runs on another one.
        """
        return GivenOptions()

    # -- runs that are found there ----------------------------------------------------------------

    def find_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError | None = None
    ) -> RunFolder | None:
        """The run that the options lead to, in a folder here or there. Raises ``InputError``.

        ``otherwise`` is the error of a run that has no folder here, where nobody said that it is
        there: looks only for a short time, and returns None where it is not.
        """
        return None

    def list_runs(
        self, arguments: Namespace, run_root: Path, note: Note, *, everything: bool
    ) -> list[ListedRun]:
        """Runs that are found there; ``note`` takes lines about what is left out."""
        return []


def words_given(arguments: Namespace, names: Iterable[str]) -> list[str]:
    """Those of the options that were given, as typed."""
    words: list[str] = []
    for name in names:
        if value := getattr(arguments, name, None):
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, value]
    return words
