"""What a target offers before it is opened: options, finding runs, a diagnosis.

A target's room holds one ``Room``, and the table in ``api/choose_target`` leads to it. It is
imported for each command, so what takes time to import is imported where it is used.
"""

from __future__ import annotations

import contextlib
import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from launcher.contract.errors import InputError
    from launcher.doctor.finding import Finding
    from launcher.follow.target import ListedRun, Target
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder

AddCommand = Callable[
    [str, Callable[[Namespace], int], str, Callable[[ArgumentParser], None]], None
]
"""Adds a command of that name with its handler, its help, and what adds its arguments."""
Note = Callable[[str], None]


class Room:
    """One target's room. ``arguments`` are always those of a command that has its options."""

    name: ClassVar[str]
    opens: ClassVar[str]
    """The class of the target, ``MODULE:CLASS``; called with the folder of the run folders."""
    is_tried_unasked: ClassVar[bool] = False
    """Whether a job may run there that names no target."""
    takes_jobs: ClassVar[bool] = True
    """Whether ``--on`` of a job may name it; elsewhere a command of its own starts runs."""
    commands: ClassVar[tuple[str, ...]] = ()
    """Commands that are about this target alone."""
    plugin: ClassVar[str] = ""
    """What people type in place of ``launcher`` for this target alone."""
    plugin_options: ClassVar[tuple[str, ...]] = ()
    """Options that the plugin takes also before its command."""

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        """The target, with what the command line says of it."""
        module, _, name = self.opens.partition(":")
        target: Target = getattr(importlib.import_module(module), name)(run_root)
        return target

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        """Whether the target can run the job. ``folder`` holds the probe's run of ``limit_s``.

        Leaves nothing behind.
        """
        from launcher.targets.diagnosis import diagnose_nodes

        return diagnose_nodes(job, self.open(folder, arguments), limit_s)

    # -- the command line -------------------------------------------------------------------------

    def add_options(self, parser: ArgumentParser) -> None:
        """Options by which the target, or what is on it, is found."""

    def add_job_options(self, parser: ArgumentParser) -> None:
        """Options that set keys of the job file."""

    def add_doctor_options(self, parser: ArgumentParser) -> None:
        """Options that a diagnosis alone has."""

    def add_commands(self, add: AddCommand) -> None:
        """The commands of ``commands``."""

    def take_plugin(self, arguments: Namespace) -> None:
        """For the plugin: names this target where no other one is named."""

    def within(self, arguments: Namespace) -> AbstractContextManager[None]:
        """What holds while a command runs."""
        return contextlib.nullcontext()

    def is_named(self, arguments: Namespace) -> bool:
        """Whether the options name the target of a job without ``--on``."""
        return False

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is inside of what the target gave it, such as an allocation of
        nodes: a job whose target nobody names then runs there.

        Raises ``InputError`` where a job must be started in another way there.
        """
        return False

    def read_settings(self, arguments: Namespace) -> dict[str, str]:
        """The options that set a key of the target's section of the job file, and their values.

        Raises ``InputError`` for this target's options if the job runs on another one.
        """
        return {}

    def sample_job(self, arguments: Namespace) -> str:
        """A job file for a diagnosis of all that the options name; empty where one is needed."""
        return ""

    def words_of_place(self, arguments: Namespace, *, of_run: bool) -> list[str]:
        """The options, as typed, by which another command finds the same target.

        ``of_run``: both commands are about a run.
        """
        return []

    def words_of_job(self, arguments: Namespace) -> list[str]:
        """The options, as typed, that were given with a job file."""
        return []

    def words_of_target(self, arguments: Namespace) -> list[str]:
        """The options, as typed, that name the target's machines."""
        return []

    def spell(self, line: str, arguments: Namespace) -> str:
        """A line with the commands of the target's own tool as they are typed here."""
        return line

    # -- runs that are found there ----------------------------------------------------------------

    finds_runs: ClassVar[bool] = False
    """Whether runs without a folder here can be found there (``--on`` of a command about a run)."""
    lists_alone: ClassVar[bool] = False
    """Whether its list of runs replaces the list of run folders here."""

    def has_runs_named(self, arguments: Namespace) -> bool:
        """Whether the options say that runs are to be looked for there."""
        return False

    def find_run(self, arguments: Namespace, run_root: Path) -> RunFolder:
        """The run that was named, in a folder here or there. Raises ``InputError``."""
        raise NotImplementedError

    def look_for_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError
    ) -> RunFolder | None:
        """A run that has no folder here and may be there; looks only for a short time."""
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
