"""Hosts that are not there: facts and plans of them, and what they answer; or hosts that are this
machine, reached by a stand-in for the ssh client."""

import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.code.place import CodePlace
from launcher.contract.errors import TargetError
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.targets.docker_options import plan_containers
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.plan import plan_facts
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from launcher.targets.hosts.ssh.client import Ssh

Answers = Mapping[Callable[..., Any], Any]


def host(name: str, address: str, **fields: Any) -> HostFacts:
    return HostFacts(
        **{
            "host": Host(name=name),
            "address": address,
            "interface": "ib0",
            "cpu_count": 8,
            "python": "/opt/venv/bin/python",
            "torch_version": "2.13.0",
            "state_dir": f"/home/{name}/.launcher",
            **fields,
        }
    )


TWO = (host("gpu1", "10.1.0.1"), host("gpu2", "10.1.0.2", interface="ib1"))


@pytest.fixture
def make_host_plan(make_job: Callable[..., JobSpec]) -> Callable[..., LaunchPlan]:
    def make(
        found: tuple[HostFacts, ...] = TWO,
        *,
        image: str | None = None,
        inner: str | None = None,
        run_root: str = "/home/me/runs",
        hold: str = "",
        detached: bool = False,
        **fields: Any,
    ) -> LaunchPlan:
        inner = inner if image or inner else "examples"
        given = {"nnodes": 2, "nproc_per_node": 1, "hosts": {"runtime": "python"}, **fields}
        job = make_job(**given)
        own = HostsSettings(
            hosts=found,
            ssh_config=None,
            containers=plan_containers(job, None),
            hold=hold,
        )
        facts = plan_facts(
            job,
            own,
            image=image,
            torch_version="2.13.0",
            port=23456,
            run_root=run_root,
            cwd="/home/me",
            inner=inner,
            names=[f"{hold}-{index}" for index in range(len(found))] if hold else (),
        )
        place = CodePlace(root=Path("/home/me"), inner=inner or "", command=job.command)
        return plan_run(
            job,
            facts,
            run_id="digits-0a1b2c",
            detached=detached,
            place=None if inner is None else place,
            code_hash="" if inner is None else "c0de",
        )

    return make


class FakeSession:
    """A session to a host, which answers by the function that is called; ``heard`` are all calls.

    An answer may be a function of the call's arguments, or an error.
    """

    def __init__(self, host: Host, answers: Answers) -> None:
        self.host, self._answers = host, answers
        self.heard: list[tuple[Callable[..., Any], Namespace]] = []

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        given = Namespace(**arguments)
        self.heard.append((function, given))
        answer = self._answers[function]
        if isinstance(answer, TargetError):
            raise answer
        return answer(given) if callable(answer) else answer

    def call_within(self, _limit_s: float, function: Callable[..., Any], **arguments: Any) -> Any:
        return self.call(function, **arguments)

    def close(self) -> None: ...

    def __enter__(self) -> "FakeSession":
        return self

    def __exit__(self, *exception: object) -> None: ...


@pytest.fixture
def hosts_say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What hosts answer, by their names; all others are away."""

    def say(**answers: Answers) -> None:
        def open_session(self: Ssh, host: Host) -> FakeSession:
            if host.name not in answers:
                raise TargetError(f"{host.name}: it does not answer", "is it on?")
            return FakeSession(host, answers[host.name])

        monkeypatch.setattr(Ssh, "open", open_session)

    return say


CLIENT = """#!/bin/sh
for word; do :; done
{before}
exec sh -c "$word"
"""


@pytest.fixture
def ssh_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ssh]:
    """Makes an ssh client that runs the host's part here, after the shell words ``before``."""

    def make(before: str = "") -> Ssh:
        client = tmp_path / "bin/ssh"
        client.parent.mkdir(exist_ok=True)
        # An earlier one may just be starting.
        new = client.with_suffix(".new")
        new.write_text(CLIENT.format(before=before))
        new.chmod(0o755)
        new.replace(client)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
        return Ssh(Inventory(hosts=()))

    return make


@pytest.fixture
def ssh(ssh_here: Callable[..., Ssh]) -> Ssh:
    return ssh_here()
