"""Asks every host of an inventory what it is and has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.contract.errors import TargetError
from launcher.doctor.judge import NodeAnswer
from launcher.doctor.run import PROGRAM
from launcher.job.spec import JobSpec
from launcher.plan.records import parse_record
from launcher.targets.hosts.plan import CHECKPOINTS_DIR, shared_folder
from launcher.targets.hosts.program.messages import EngineFacts, HostReport, ReadEngine, RunProbe
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.hosts.survey import read_host

PROBE_LIMIT_S = 40.0
"""The probe waits up to 5 s for names and 10 s for nvidia-smi."""


@dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """One host's answer; ``error`` says why there is none.

    ``found`` is what a start needs to know, ``node`` what the probe says of its Python and
    machine, ``node_error`` why it says nothing, ``engine`` its Docker engine.
    ``has_folder``: the checkpoint folder was there before anything was asked.
    """

    host: Host
    error: TargetError | None = None
    found: HostReport = field(default_factory=HostReport)
    node: NodeAnswer | None = None
    node_error: str = ""
    engine: EngineFacts | None = None
    has_folder: bool = True


def read_answers(
    ssh: Ssh, hosts: Sequence[Host], job: JobSpec, ports: list[int]
) -> list[HostAnswer]:
    """An answer of each host, in their order; blocks for the limits of its requests at most."""

    def ask(
        answer: HostAnswer, question: Callable[[HostAnswer, Session], HostAnswer]
    ) -> HostAnswer:
        if answer.error is not None:
            return answer
        try:
            with ssh.open(answer.host) as session:
                return question(answer, session)
        except TargetError as error:
            return replace(answer, error=error)

    def look(answer: HostAnswer, session: Session) -> HostAnswer:
        return replace(answer, found=read_host(session, job, ports))

    looked = ssh.each(lambda host: ask(HostAnswer(host=host), look), hosts)
    names = [answer.found.host_name for answer in looked if answer.error is None]
    return ssh.each(lambda a: ask(a, lambda a, session: _examine(a, session, job, names)), looked)


def _examine(answer: HostAnswer, session: Session, job: JobSpec, names: list[str]) -> HostAnswer:
    bare = job.hosts.runtime == "python"
    if not bare:
        engine = session.call(ReadEngine(image=answer.found.image or ""))
        answer = replace(answer, engine=engine)
    own = answer.found.host_name
    env = dict(job.env) if bare else {}
    folder = shared_folder(job, str(Path.cwd()))
    try:
        asked = RunProbe(
            python=(answer.found.python if bare else "") or "python3",
            arguments=["node"],
            env={**env, "DOCTOR_NAMES": " ".join(name for name in names if name != own)},
            checkpoint_dir=folder or f"{answer.found.state_dir}/{CHECKPOINTS_DIR}",
            wait_s=PROBE_LIMIT_S,
        )
        told = session.call(asked, PROGRAM.read_bytes())
    except TargetError as error:
        return replace(answer, node_error=error.what.partition(": ")[2] or error.what)
    node = parse_record(NodeAnswer, told.answer)
    return replace(answer, node=node, has_folder=told.has_folder)
