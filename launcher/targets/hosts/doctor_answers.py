"""Asks every host of an inventory what it is and has; one that does not answer is an answer too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.contract.errors import TargetError
from launcher.job.spec import JobSpec
from launcher.targets.hosts.plan import CHECKPOINTS_DIR, shared_folder
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.hosts.survey import read_host

PROGRAM = Path(__file__).with_name("program.py")
PROBE_LIMIT_S = 40.0
"""For a program that imports nothing heavy, and waits 5 s for names and 10 s for nvidia-smi."""


@dataclass(kw_only=True)
class HostAnswer:
    """One host. ``error`` is why nothing more is known of it; the others are plain data.

    ``found`` is what a start needs to know, ``node`` what the probe says of its Python and
    machine, ``node_error`` why it says nothing, ``engine`` its Docker engine.
    ``has_folder``: the checkpoint folder was there before anything was asked.
    """

    host: Host
    error: TargetError | None = None
    found: dict[str, Any] = field(default_factory=dict)
    node: dict[str, Any] | None = None
    node_error: str = ""
    engine: dict[str, Any] | None = None
    has_folder: bool = True


def read_answers(
    ssh: Ssh, hosts: Sequence[Host], job: JobSpec, ports: list[int]
) -> list[HostAnswer]:
    """An answer of each host, in their order; blocks for the limits of its requests at most."""
    answers = [HostAnswer(host=host) for host in hosts]

    def ask(answer: HostAnswer, question: Callable[[Session], None]) -> None:
        try:
            with ssh.open(answer.host) as session:
                question(session)
        except TargetError as error:
            answer.error = error

    def look(answer: HostAnswer) -> None:
        def question(session: Session) -> None:
            answer.found = read_host(session, job, ports)

        ask(answer, question)

    ssh.each(look, answers)
    names = [a.found["host_name"] for a in answers if a.error is None]
    fit = [answer for answer in answers if answer.error is None]
    ssh.each(lambda a: ask(a, lambda session: _examine(a, session, job, names)), fit)
    return answers


def _examine(answer: HostAnswer, session: Session, job: JobSpec, names: list[str]) -> None:
    bare = job.hosts.runtime == "python"
    if not bare:
        answer.engine = session.call("engine", image=answer.found["image"])
    own = answer.found["host_name"]
    env = dict(job.env) if bare else {}
    folder = shared_folder(job, str(Path.cwd()))
    try:
        told = session.call(
            "probe",
            blob=PROGRAM.read_bytes(),
            python=(answer.found["python"] if bare else "") or "python3",
            arguments=["node"],
            env={**env, "DOCTOR_NAMES": " ".join(name for name in names if name != own)},
            checkpoint_dir=folder or f"{answer.found['state_dir']}/{CHECKPOINTS_DIR}",
            wait_s=PROBE_LIMIT_S,
        )
        answer.node, answer.has_folder = told["answer"], told["has_folder"]
    except TargetError as error:
        answer.node_error = error.what.partition(": ")[2] or error.what
