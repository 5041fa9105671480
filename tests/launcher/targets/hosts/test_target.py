"""What the target tells and asks by what it knows of hosts, and what its options are."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.code.place import CodePlace
from launcher.code.record import pack_code
from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.reports.look import LookRequest
from launcher.follow.target import Door
from launcher.runs.folder import RunFolder
from launcher.targets.hosts import doctor, nodes
from launcher.targets.hosts.inventory.inventory import Inventory, parse_host_list
from launcher.targets.hosts.nodes import Image
from launcher.targets.hosts.program import facts, requests
from launcher.targets.hosts.program.messages import HostReport, NodeSeen
from launcher.targets.hosts.program.session import read_clock
from launcher.targets.hosts.room import HostsRoom
from launcher.targets.hosts.settings import HostsSettings
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.target import HostsTarget
from tests.launcher.targets.hosts.conftest import TWO

OFF = {"include": "", "exclude": "", "accept_new_host_keys": False}


def test_options_name_hosts_and_filter_them(monkeypatch, make_job, tmp_path):
    monkeypatch.setenv("LAUNCHER_HOSTS", "gpu[1-3]")
    parser, added = ArgumentParser(), list[Any]()
    HostsRoom().add_commands(lambda *given: added.append(given))
    ((name, handler, _, add_options),) = added
    assert (name, handler) == ("hosts", "launcher.targets.hosts.table:show_hosts")
    add_options(parser)
    assert vars(parser.parse_args([])) == {**OFF, "hosts": "gpu[1-3]", "json": False}
    typed = parser.parse_args(["--exclude", "gpu2", "--accept-new-host-keys", "--json"])
    assert (typed.json, typed.exclude) == (True, "gpu2")
    inventory = Inventory(hosts=parse_host_list("gpu1,gpu3"), accept_new=True)
    target = HostsRoom().open(tmp_path, typed)
    assert (vars(target)["_inventory"], target.is_sending) == (inventory, True)
    diagnosed: list[Any] = []
    monkeypatch.setattr(doctor, "diagnose_hosts", lambda *given: diagnosed.append(given))
    job = make_job(hosts={"inventory": "gpu[1-3]"})
    HostsRoom().diagnose(job, tmp_path, 7.0, typed)
    HostsRoom().diagnose(job, tmp_path, 7.0)
    whole = Inventory(hosts=parse_host_list("gpu[1-3]"))
    assert diagnosed == [(job, inventory, tmp_path, 7.0), (job, whole, tmp_path, 7.0)]
    assert HostsRoom().find_run(typed, tmp_path, InputError("no run", "")) is None


def report(asked: Namespace) -> HostReport:
    return HostReport(
        cpu_count=8,
        gpus=["0"],
        python="/opt/python",
        torch_version="2.9.0",
        docker="27.1",
        image="a:1",
        state_dir="/state",
        free_ports=asked.ports[3:],
    )


@pytest.mark.parametrize(
    ("runtime", "image", "torch"), [("python", None, "2.9.0"), ("docker", "a:1", "2.8.0")]
)
def test_a_plan_is_made_of_what_hosts_have(
    hosts_say, make_job, monkeypatch, tmp_path, runtime, image, torch
):
    ports: list[int] = []

    def read(asked: Namespace) -> HostReport:
        ports[:] = asked.ports
        return report(asked)

    hosts_say(gpu1={read_clock: 0.0, facts.read_host: read})
    inspect = "launcher.targets.hosts.nodes.inspect_image"
    monkeypatch.setattr(inspect, lambda name: ("sha256:aa", "2.8.0"))
    monkeypatch.chdir(tmp_path)
    job = make_job(nnodes="1:2", hosts={"runtime": runtime, "inventory": "gpu[1-3]"})
    target = HostsTarget(tmp_path / "runs", filters={"exclude": "gpu3"})
    target.code = pack_code(CodePlace(root=tmp_path, inner="inner", command=("t.py",)), [])
    found = target.facts(job)
    checked = "ssh, torch, ports, leases, clocks" if image is None else "ssh, Docker, ports, leases"
    assert (found.target, found.place) == ("hosts", f"hosts gpu1 (checked: {checked})")
    assert (found.image, found.torch_version, found.ports) == (image, torch, (ports[3],))
    assert (found.accelerator, found.shares_storage) == ("cuda", False)
    assert (found.run_root, found.cwd) == (str(tmp_path / "runs"), str(tmp_path))
    (node,) = found.nodes
    assert node.folders.cwd == f"{node.folders.run}/code/."
    assert target.notes == ["gpu2: it does not answer; the run begins without it"]
    assert [one.host.name for one in HostsSettings.of(found).hosts] == ["gpu1"]
    assert target.has_image(job) is (image is not None)


def test_programs_are_run_in_a_node_over_ssh(make_host_plan, tmp_path):
    plan, target = make_host_plan(), HostsTarget(tmp_path)
    ssh = Ssh(Inventory(hosts=()))
    hosts = [one.host for one in TWO]
    words, terminal = ssh.argv(hosts[1]), ssh.argv(hosts[1], terminal=True)
    archive = "/home/gpu2/.launcher/runs/digits-0a1b2c/agent.pyz"
    assert (words[-2:], words[1], terminal[1]) == (("--", "gpu2"), "-T", "-t")
    assert target.door(plan, 1) == Door(
        words=words,
        at_terminal=terminal,
        python="/opt/venv/bin/python",
        archive=archive,
        by_shell=True,
    )
    docker = tuple(replace(one, runtime="docker") for one in TWO)
    plan = make_host_plan(docker, image="a:1", inner="examples", hosts={})
    door = target.door(plan, 1)
    enter = ("docker", "exec", "--interactive", "digits-0a1b2c-1")
    assert door.words == (*words, *enter)
    assert door.at_terminal[: len(terminal) + 2] == (*terminal, "docker", "exec")


class Line:
    """A line whose host has been silent, and last said this of its node."""

    def __init__(self, silent_s: float = 0.0, state: str = "running") -> None:
        self._silent_s, self._state, self.is_closed = silent_s, state, False

    def silent_s(self) -> float:
        return self._silent_s

    def state(self, key: str) -> NodeSeen:
        return NodeSeen(state=self._state, exit_code=7 if self._state == "exited" else None)

    def close(self) -> None:
        self.is_closed = True


AWAY = "missing gpu2 does not answer"


@pytest.mark.parametrize(
    ("line", "refused", "told"),
    [
        (Line(), "", "running "),
        (Line(12.0), "", "running "),
        (Line(12.1), "", AWAY),
        (Line(12.1, "exited"), "", "exited "),
        (Line(12.1, "missing"), "", "missing "),
        (Line(), "gpu2: held by bob", "missing gpu2: held by bob"),
    ],
)
def test_a_silent_host_s_node_is_lost_unless_it_has_ended(
    make_host_plan, tmp_path, line, refused, told
):
    target, plan = HostsTarget(tmp_path), replace(make_host_plan(), run_dir=str(tmp_path))
    target._lines, target._refused = {0: Line(), 1: line}, {1: refused} if refused else {}
    first, second = target.observe(plan).nodes
    assert (first.state.value, f"{second.state.value} {second.detail}") == ("running", told)


@pytest.fixture
def target(make_host_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostsTarget:
    """Of a run of two nodes; what is done to hosts is in ``notes``."""
    plan = replace(make_host_plan(), run_dir=str(tmp_path / "digits-0a1b2c"))
    RunFolder(Path(plan.run_dir)).create(plan, "", 0.0)
    target = HostsTarget(tmp_path)

    def end(
        session: Any, plan: Any, host: Any, index: Any, grace_s: float, *, tell_launcher: bool
    ) -> None:
        target.notes.append(f"end {host.name} {index} {grace_s} {tell_launcher}")

    def bring(ssh: Any, session: Any, plan: Any, index: int) -> list[str]:
        return [f"bring {session.host.name} {index}"]

    monkeypatch.setattr(nodes, "end", end)
    monkeypatch.setattr(nodes, "bring_last", bring)
    return target


BOTH = ["bring gpu1 0", "bring gpu2 1"]


def test_the_end_of_a_run_is_asked_of_all_hosts_and_of_a_node_of_those_that_answer(
    target, hosts_say
):
    hosts_say(gpu1={}, gpu2={})
    run_id = "digits-0a1b2c"
    target.stop(run_id, 3.0)
    # No launcher here follows it: perhaps one elsewhere.
    assert sorted(target.notes) == [*BOTH, "end gpu1 None 3.0 True", "end gpu2 None 3.0 True"]
    target.notes.clear()
    target._lines = lines = {0: Line(), 1: Line(6.0)}
    target.stop(run_id, 3.0, only=(0, 1))
    assert (target.notes, lines[0].is_closed) == (["end gpu1 0 3.0 False"], False)
    target.notes.clear()
    target.stop(run_id, 3.0)
    assert sorted(target.notes) == [*BOTH, "end gpu1 None 3.0 False", "end gpu2 None 3.0 False"]
    assert [line.is_closed for line in lines.values()] == [True, True]
    assert target._lines == {}


def test_a_host_that_is_away_at_the_end_is_an_error_unless_its_keeper_ends_the_node(
    target, hosts_say
):
    hosts_say(gpu1={})
    run_id = "digits-0a1b2c"
    with pytest.raises(TargetError) as error:
        target.stop(run_id, 3.0)
    again = f"launcher stop {run_id}, once more"
    assert (error.value.what, error.value.hint) == ("gpu2: it does not answer", again)
    target.notes.clear()
    target._lines = {0: Line(), 1: Line()}
    target.stop(run_id, 3.0)
    assert target.notes == ["end gpu1 None 3.0 False", "bring gpu1 0"]
    plan = replace(RunFolder(target._run_root / run_id).read_plan(), detached=True)
    (target._run_root / run_id / "plan.json").unlink()
    target.stop(run_id, 3.0)
    target._lines, target._submitted = {0: Line(), 1: Line()}, plan
    with pytest.raises(TargetError, match="gpu2: it does not answer"):
        target.stop(run_id, 3.0)


def test_a_host_whose_files_do_not_fit_here_is_told(target, hosts_say, monkeypatch):
    def bring(ssh: Any, session: Any, plan: Any, index: int) -> list[str]:
        if index == 0:
            raise TargetError("gpu1: full")
        return ["brought"]

    hosts_say(gpu1={}, gpu2={})
    monkeypatch.setattr(nodes, "bring_last", bring)
    with pytest.raises(TargetError, match=r"^gpu1: full\n"):
        target.stop("digits-0a1b2c", 3.0)
    assert "brought" in target.notes


def test_hosts_that_do_not_answer_hold_up_neither_a_copy_nor_a_start_nor_a_look(
    target, hosts_say, monkeypatch
):
    run = RunFolder(target._run_root / "digits-0a1b2c")
    plan, copied = run.read_plan(), list[str]()

    def copy(session: Any, plan: Any, index: int) -> Any:
        copied.append(f"{session.host.name} {index}")
        return {f"{index}.0": NodeSeen(state="running")}, False

    monkeypatch.setattr("launcher.targets.hosts.target.copy_once", copy)
    monkeypatch.setattr("launcher.targets.hosts.target._away", {})
    target._lines = {0: Line(), 1: Line(6.0)}
    (away,) = target._find_silent({"gpu1": 0, "gpu2": 1}).items()
    assert (away[0], away[1].what) == ("gpu2", "gpu2: it does not answer")
    target._lines.clear()
    hosts_say(gpu1={requests.take_look: {}, requests.ask_launcher: False})
    for _ in range(2):
        seen, error = target.observe_reachable(plan)
        assert [node.state.value for node in seen.nodes] == ["running", "missing"]
        assert error.what == seen.nodes[1].detail == "gpu2: it does not answer"
    assert copied == ["gpu1 0"] * 2
    told = target.look_at_workers(run, plan, LookRequest(id="x"), 1.0, SystemClock())
    assert told == {0: "its agent does not answer", 1: "gpu2: it does not answer"}
    with pytest.raises(TargetError, match="the launcher of digits-0a1b2c does not answer"):
        target.scale(run, plan, 1)
    assert list(target.bring_output(run, plan, follow=False)) == []


def test_what_a_plan_needs_here_is_checked(target, make_host_plan, monkeypatch):
    plan = make_host_plan(secrets=["KEY"])
    monkeypatch.delenv("KEY", raising=False)
    with pytest.raises(KeyInputError, match="KEY not set in this environment"):
        target.check(plan)
    provided: list[Any] = []
    monkeypatch.setattr(
        "launcher.targets.hosts.target.provide_image", lambda *given: provided.append(given)
    )
    monkeypatch.setattr("launcher.targets.hosts.nodes.inspect_image", lambda name: ("aa", "2"))
    target._provide_image(plan, ["session"])
    assert provided == []
    target._provide_image(replace(plan, image="a:1"), ["session"])
    image = Image(name="a:1", id="aa", torch_version="2")
    assert provided == [(image, target._ssh, "session")]


@pytest.mark.parametrize(
    ("state", "is_followed", "cause"),
    [("running", False, None), ("missing", True, None), ("missing", False, Cause.LAUNCHER_LOST)],
)
def test_a_run_goes_on_while_a_node_runs_or_its_launcher_is_heard(
    target, hosts_say, monkeypatch, state, is_followed, cause
):
    def copy(session: Any, plan: Any, index: int) -> Any:
        return {f"{index}.0": NodeSeen(state=state)}, is_followed and index == 1

    run = RunFolder(target._run_root / "digits-0a1b2c")
    monkeypatch.setattr("launcher.targets.hosts.target.copy_once", copy)
    monkeypatch.setattr("launcher.targets.hosts.target._away", {})
    hosts_say(gpu1={}, gpu2={})
    end = target.find_end(run, run.read_plan())
    assert (end and end.cause) == cause
    hosts_say(gpu1={})
    with pytest.raises(TargetError, match="gpu2: it does not answer"):
        target.find_end(run, run.read_plan())
