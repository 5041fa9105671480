"""What hosts are asked and answer: what is free, a node's lease and code, others' runs."""

import getpass
import json
import re
import socket
import tempfile
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.code.record import Change
from launcher.contract.errors import InputError, TargetError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets import hosts
from launcher.targets.hosts import nodes
from launcher.targets.hosts.adopt import find_left, find_named, list_on_hosts, localise
from launcher.targets.hosts.inventory.inventory import Inventory, parse_host_list
from launcher.targets.hosts.program import code_store, facts, reach, requests
from launcher.targets.hosts.program.messages import (
    Address,
    HostReport,
    Lease,
    LeftOnHost,
    RunOnHost,
)
from launcher.targets.hosts.program.session import leave_token, read_clock, take_lease
from launcher.targets.hosts.render import render_hosts
from launcher.targets.hosts.room import HostsRoom
from launcher.targets.hosts.settings import Host, HostsSettings
from launcher.targets.hosts.ssh.client import Ssh, make_control_dir
from launcher.targets.hosts.survey import find_twins, meet, survey_hosts
from launcher.targets.hosts.table import show_hosts
from launcher.targets.hosts.target import HostsTarget
from tests.launcher.targets.hosts.conftest import TWO, Answers, FakeSession
from tests.launcher.values import by_place, changeable

RUN_ID = "digits-0a1b2c"
ON_GPUS = Lease(run_id="digits-1", node_index=1, owner="anna@desk", gpus=["0"], slots=0, age_s=61.4)
ON_SLOTS = Lease(
    run_id="b-2", node_index=0, owner="bob@desk", gpus=[], slots=3, detached=True, age_s=5.0
)


def inventory(names: str, **more: Any) -> Inventory:
    return Inventory(hosts=parse_host_list(names), **more)


def typed(hosts: str | None, **more: Any) -> Namespace:
    given = {"include": "", "exclude": "", "accept_new_host_keys": False, "json": False}
    return Namespace(**{"hosts": hosts, **given, **more})


def test_the_table_shows_what_is_free_who_holds_the_rest_and_which_host_is_away(
    hosts_say, tmp_path
):
    hostfile = tmp_path / "hostfile"
    more = ON_SLOTS.having(node_index=2, slots=7, age_s=0.0)
    hosts_say(
        gpu1={facts.read_host: HostReport(gpus=["0", "1"], cpu_count=64, leases=[ON_GPUS])},
        cpu1={facts.read_host: HostReport(cpu_count=8, leases=[ON_SLOTS, more])},
        cpu2={facts.read_host: HostReport(cpu_count=4)},
        cpu4={facts.read_host: HostReport(cpu_count=4, leases=[ON_SLOTS])},
    )
    hostfile.write_text("gpu1\ncpu1\ncpu2 slots=4\ncpu3\ncpu4 slots=4\n")
    text, code = show_hosts(typed(str(hostfile)))
    assert (text, code) == (
        """\
HOST  FREE             RUN                 OWNER      HOLDS    SINCE  LEASE
gpu1  1 of 2 GPUs      digits-1 node 1     anna@desk  GPUs 0   61 s   followed
cpu1  slots: no limit  b-2 node 0          bob@desk   3 slots  5 s    detached
                       b-2 node 2          bob@desk   7 slots  0 s    detached
cpu2  4 of 4 slots     -
cpu3  ?                it does not answer
cpu4  1 of 4 slots     b-2 node 0          bob@desk   3 slots  5 s    detached
  fix: is it on?
""",
        3,
    )
    rows = json.loads(show_hosts(typed("gpu1,cpu2", json=True))[0])
    assert [(row["host"], row["free_gpus"], row["free_slots"]) for row in rows] == [
        ("gpu1", ["1"], 0),
        ("cpu2", [], None),
    ]
    with pytest.raises(InputError, match="no hosts are named"):
        show_hosts(typed(None))


# -- hosts for a job -------------------------------------------------------------------------------
ADDRESSES = {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2"}


def survey(hosts_say: Any, job: Any, names: str = "gpu[1-4]", **free: slice) -> Any:
    """Of gpu1 to gpu4 the third is away and the fourth has no torch; gpu2's clock is ahead."""
    proposed: list[int] = []

    def answers(name: str) -> Answers:
        def report(asked: Namespace) -> HostReport:
            proposed[:] = asked.ports
            return HostReport(
                cpu_count=8,
                gpus=["0", "1"],
                python="/opt/python",
                torch_version="" if name == "gpu4" else "2.9.0",
                state_dir=f"/home/{name}",
                leases=[ON_GPUS] if name == "gpu2" else [],
                free_ports=asked.ports[free.get(name, slice(None))],
                interfaces=[Address(interface="ib0", address=ADDRESSES.get(name, "-"))],
            )

        own = {str(n): ADDRESSES[name] for n in range(name == "gpu2")}
        return {
            read_clock: lambda _: time.time() + 30.0 * (name == "gpu2"),
            facts.read_host: report,
            reach.listen: 7,
            reach.call_hosts: lambda asked: own if asked.calls else {},
        }

    hosts_say(**{name: answers(name) for name in ("gpu1", "gpu2", "gpu4")})
    given = inventory(names)
    return proposed, survey_hosts(Ssh(given), given, job)


def test_a_job_gets_the_hosts_that_can_take_it_and_a_port_that_is_free_on_all(hosts_say, make_job):
    job = make_job(nnodes="1:4", nproc_per_node=1, hosts={"runtime": "python"})
    proposed, (chosen, port, notes) = survey(hosts_say, job, gpu1=slice(2, None), gpu2=slice(3))
    assert port == proposed[2]
    assert notes == ["gpu3: it does not answer; the run begins without it"]
    facts = [(one.name, one.address, one.interface, one.device_ids, one.python) for one in chosen]
    assert facts == [
        ("gpu1", "10.0.0.1", "ib0", ("0", "1"), "/opt/python"),
        ("gpu2", "10.0.0.2", "ib0", ("1",), "/opt/python"),
    ]
    assert [round(one.clock_offset_s) for one in chosen] == [0, 30]


def test_a_machine_under_two_names_is_one_host_and_copies_of_a_machine_are_two():
    def report(machine: str, *addresses: str) -> HostReport:
        known = [Address(interface="ib0", address=address) for address in addresses]
        return HostReport(machine=machine, interfaces=known)

    found = {
        "gpu1": report("gpu 1", "10.0.0.1", "fd00::1"),
        "copy": report("gpu 1", "10.0.0.2"),
        "alias": report("gpu 1", "fd00::1", "10.0.0.1"),
        "old": report("", "10.0.0.3"),
        "older": report("", "10.0.0.3"),
    }
    assert find_twins(found) == {"alias": "is the machine of gpu1 too"}


@pytest.mark.parametrize(
    ("fields", "names", "free", "why"),
    [
        ({"nnodes": 1}, "gpu1", slice(0), "none of 16 tried ports is free on all hosts"),
        ({"nnodes": 2}, "gpu[1,3]", slice(None), "gpu3: it does not answer"),
        (
            {"nnodes": 2},
            "gpu[1,4]",
            slice(None),
            "nnodes is 2, but 1 of 2 hosts can be used\n  gpu4",
        ),
        ({"nnodes": 3}, "gpu[1,3-4]", slice(None), "nnodes is 3, but 1 of 3 hosts can be used"),
        (
            {"nnodes": "1:2", "engine": "torchrun"},
            "gpu[1-2]",
            slice(None),
            "gpu2: its clock is 30 s ahead of gpu1's, and the rendezvous c10d allows 5 s",
        ),
    ],
)
def test_a_job_for_which_too_few_hosts_are_left_is_refused(
    hosts_say, make_job, fields, names, free, why
):
    job = make_job(nproc_per_node=1, hosts={"runtime": "python"}, **fields)
    with pytest.raises(TargetError, match=f"^{re.escape(why)}"):
        survey(hosts_say, job, names, gpu1=free)
    if free == slice(0):
        job = make_job(nproc_per_node=1, rdzv={"port": 7777}, hosts={"runtime": "python"})
        assert survey(hosts_say, job, names, gpu1=free)[1][1] is None


def test_a_host_that_cannot_write_to_the_shared_folder_is_told_and_the_others_are_compared():
    left: list[str] = []

    def refuse(asked: Namespace) -> None:
        raise TargetError("gpu2: Permission denied")

    def session(name: str, leave: Any) -> FakeSession:
        answers = {reach.listen: 7, reach.call_hosts: {}, leave_token: leave}
        answers[reach.find_tokens] = lambda asked: asked.names
        return FakeSession(Host(name=name), answers)

    sessions = [session("gpu1", lambda asked: left.append(asked.name)), session("gpu2", refuse)]
    met = meet(Ssh(inventory("gpu[1-2]")), sessions, [(), ()], "/mnt/c")
    assert (met.sees, [*met.unwritten]) == ((frozenset({0}),) * 2, [1])
    assert met.unwritten[1].what == "gpu2: Permission denied"
    assert left[0].startswith(".launcher-token-")


def test_connections_are_shared_in_a_folder_that_is_the_users_alone(monkeypatch):
    # Short, as a socket's path has to be.
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        folder = make_control_dir()
        assert folder.parent == Path(base)
        for mode in (0o750, 0o701):
            folder.chmod(mode)
            with pytest.raises(TargetError, match=f"rm -r {folder}, or set XDG_RUNTIME_DIR"):
                make_control_dir()
        folder.chmod(0o700)
        assert make_control_dir() == folder


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"on": "hosts"}, (False, True)),
        ({"on": None, "hosts": "gpu1"}, (False, True)),
        ({"on": None}, (False, False)),
        ({"on": "hosts", "set": []}, (False, False)),
        ({"on": "hosts", "set": [], "hosts": "gpu[1-3]"}, (True, False)),
        ({"on": None, "set": [], "hosts": "gpu[1-3]"}, (True, False)),
        ({"on": "docker", "set": []}, (False, False)),
        ({"on": "docker", "set": [], "hosts": "gpu1"}, "--hosts gpu1 with --on docker"),
        ({"on": None, "set": [], "include": "gpu1"}, "--include gpu1 without --on hosts"),
    ],
)
def test_options_that_name_hosts_choose_the_target_or_are_refused(monkeypatch, given, told):
    monkeypatch.delenv("LAUNCHER_HOSTS", raising=False)
    options = typed(**{"hosts": None, **given})
    if isinstance(told, str):
        with pytest.raises(InputError, match=told):
            HostsRoom().read_options(options)
        return
    read = HostsRoom().read_options(options)
    assert (read.is_named, read.names_runs) == told
    sample = read.sample_job and read.sample_job()
    assert sample == ("name: doctor\ncommand: [doctor]\nnnodes: 3\n" if read.is_named else None)


# -- runs that others started ----------------------------------------------------------------------
@pytest.fixture
def found(hosts_say: Any, make_host_plan: Any, tmp_path: Path) -> Any:
    """Two runs on gpu1 and gpu2, gpu3 is away; of one the second host has the newer plan."""
    plan = make_host_plan()
    newer = replace(plan, nodes=tuple(replace(node, incarnation=1) for node in plan.nodes))

    def on_host(run_id: str, of: Any, node: int, *, lives: bool = False) -> RunOnHost:
        text = replace(of, run_id=run_id).to_json()
        began_at = time.time() - 100.0 * (node + 1)
        return RunOnHost(run_id=run_id, plan=text, nodes=[node], lives=lives, began_at=began_at)

    runs = {
        "gpu1": [on_host(RUN_ID, plan, 0), on_host("moons-1", plan, 0)],
        "gpu2": [on_host(RUN_ID, newer, 1, lives=True)],
    }

    def listed(name: str) -> Any:
        return lambda asked: [run for run in runs[name] if run.run_id.startswith(asked.run_id)]

    hosts_say(**{name: {requests.list_runs: listed(name)} for name in runs})
    return inventory("gpu[1-3]", ssh_config="my.cfg")


def test_no_run_is_looked_for_where_no_hosts_are_named(found, tmp_path):
    room, notes = HostsRoom(), list[str]()
    assert room.list_runs(typed(None), tmp_path, notes.append, everything=True) == []
    rows = room.list_runs(typed("gpu1"), tmp_path, notes.append, everything=True)
    assert [row.run_id for row in rows] == [RUN_ID, "moons-1"]
    assert room.find_left(typed(None), notes.append) == []
    assert room.find_left(typed("gpu3"), notes.append) == []
    assert notes == ["gpu3: it does not answer"]


def test_a_record_of_hosts_is_a_value_and_is_built_by_name():
    assert (changeable(hosts), by_place(hosts)) == (set(), set())


def test_runs_on_hosts_that_have_no_folder_here_are_listed(found, tmp_path):
    rows = [vars(row) for row in list_on_hosts(found, tmp_path)]
    told = [(row["run_id"], row["state"], row["nnodes"], row["target"]) for row in rows]
    assert told == [(RUN_ID, "running", 2, "hosts"), ("moons-1", "ended", 2, "hosts")]
    assert [round(row["age_s"], -2) for row in rows] == [200.0, 100.0]
    (tmp_path / "moons-1").mkdir()
    (tmp_path / "moons-1" / "plan.json").write_text("{}")
    assert [row.run_id for row in list_on_hosts(found, tmp_path)] == [RUN_ID]
    with pytest.raises(TargetError, match="it does not answer"):
        list_on_hosts(inventory("gpu3"), tmp_path)


def test_a_run_is_found_by_its_beginning_and_gets_a_folder_here(found, tmp_path, monkeypatch):
    copied: list[str] = []

    def ask(self: HostsTarget, plan: LaunchPlan) -> Any:
        copied.append(plan.run_id)
        return {}, False, None

    monkeypatch.setattr(HostsTarget, "_copy", ask)
    for name, why in [
        ("latest", "'latest' may be any of digits-0a1b2c, moons-1"),
        ("x", "no run 'x'"),
    ]:
        with pytest.raises(InputError, match=f"^{why}, on these hosts"):
            find_named(found, tmp_path, name)
    with pytest.raises(InputError, match="digits"):
        find_named(None, tmp_path, "digits")
    run = find_named(found, tmp_path, "digits")
    assert (run.path, copied) == (tmp_path / RUN_ID, [RUN_ID])
    plan = run.read_plan()
    assert [node.incarnation for node in plan.nodes] == [1, 1], "the newest plan counts"
    assert HostsSettings.of(plan).ssh_config == "my.cfg"
    # Where nobody here has started it, the hosts are asked again.
    assert find_named(found, tmp_path, RUN_ID).path == run.path
    assert copied == [RUN_ID] * 2
    assert find_named(None, tmp_path, RUN_ID).path == run.path
    assert copied == [RUN_ID] * 2


def test_hosts_of_a_run_get_the_names_that_are_used_here(make_host_plan):
    plan = make_host_plan()
    text = plan.to_json()

    def copy(nodes: list[int]) -> RunOnHost:
        return RunOnHost(run_id="r", plan=text, nodes=nodes, lives=True, began_at=0.0)

    here = Host(name="a"), Host(name="gpu1"), Host(name="c")
    copies = [(here[0], copy([0, 1])), (here[1], copy([0])), (here[2], copy([]))]
    local = localise(copies, "/here", inventory("a"))
    assert [one.host.name for one in HostsSettings.of(local).hosts] == ["gpu1", "a"]
    assert (local.run_dir, HostsSettings.of(local).ssh_config) == ("/here", None)


def test_what_runs_have_left_is_told_and_removed_by_host(hosts_say):
    removed: list[str] = []
    left = LeftOnHost(run_id="old-1", age_s=7.0, size_bytes=9, is_cut=True)

    def find(asked: Namespace) -> list[LeftOnHost]:
        removed.extend(filter(None, [asked.remove]))
        return [left]

    hosts_say(gpu1={requests.find_left: find})
    notes: list[str] = []
    (one,) = find_left(inventory("gpu[1-2]"), notes.append)
    assert (one.run_id, one.place, one.age_s, one.size_bytes, one.is_cut) == (
        *("old-1", "gpu1"),
        *(7.0, 9, True),
    )
    assert (notes, removed) == (["gpu2: it does not answer"], [])
    one.remove()
    assert removed == ["old-1"]


# -- what is asked of a host for a node ------------------------------------------------------------
HERE = f"{getpass.getuser()}@{socket.gethostname()}"


def test_a_lease_names_who_takes_what_and_a_refusal_who_holds_it(make_host_plan):
    for gpus, detached in (((), False), (("0", "1"), True)):
        facts = tuple(replace(one, device_ids=gpus) for one in TWO)
        plan = make_host_plan(facts, nproc_per_node=2, detached=detached, engine="agent")
        node = render_hosts(plan).nodes[1]
        session = FakeSession(TWO[1].host, {take_lease: []})
        nodes.acquire_lease(plan, node, session)
        ((_, asked),) = session.heard
        wanted = {"gpus": gpus, "slots": 0 if gpus else 2, "detached": detached}
        assert asked.lease == Lease(run_id=RUN_ID, node_index=1, owner=HERE, **wanted)
        assert (asked.run_dir, asked.slots_limit) == (node.run_dir, None)
        assert asked.containers is False
    held = [ON_GPUS, ON_SLOTS]
    told = "gpu2: held by anna@desk with digits-1 (GPUs 0), bob@desk with b-2 (3 slots)"
    with pytest.raises(TargetError, match=f"^{re.escape(told)}"):
        nodes.acquire_lease(plan, node, FakeSession(TWO[1].host, {take_lease: held}))


CHANGE = Change(base="earlier", start=1, end=2, data=b"part")


@pytest.mark.parametrize(
    ("is_there", "hash", "change", "stored"),
    [
        (True, "c0de", None, []),
        (False, "c0de", None, [b"all"]),
        (False, "c0de", CHANGE, [b"part", b"all"]),
        (False, "other", None, None),
        (False, None, None, None),
    ],
)
def test_a_host_gets_the_code_unless_it_has_it_and_what_differs_first(
    make_host_plan, is_there, hash, change, stored
):
    command = ["train.py"] if stored else ["-m", "train"]
    plan = make_host_plan(engine="agent", command=command)
    node, code = render_hosts(plan).nodes[1], Namespace(hash=hash, data=b"all", change=change)
    answers = {code_store.has_code: is_there, code_store.prepare_run: None}
    answers[code_store.store_code] = lambda asked: not hasattr(asked, "base")
    session = FakeSession(TWO[1].host, answers)

    def prepare() -> None:
        nodes.prepare(plan, node, b"agent", code if hash else None, "token", session)

    if stored is None:
        with pytest.raises(TargetError, match="gpu2: neither it nor the run folder has"):
            prepare()
        return
    prepare()
    sent = [asked for called, asked in session.heard if called is code_store.store_code]
    assert [one.archive for one in sent] == stored
    bases = [getattr(one, "base", "") for one in sent]
    assert bases == ["earlier", ""][-len(stored) :] * bool(stored)
    _, asked = session.heard[-1]
    assert [path for path, _ in asked.files] == [f"{node.run_dir}/plan.json", node.task.path]
    script = [f"{node.run_dir}/code/examples/train.py"] if stored else []
    assert asked.needed == [node.spec.cwd, *script]
    assert (asked.agent, asked.code, asked.token) == (b"agent", "c0de", "token")
