"""What follows from the answers of hosts, without any host."""

import threading
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import TargetError
from launcher.doctor.finding import Finding, Status
from launcher.doctor.judge import AllReduce, MessageRate
from launcher.doctor.run import PROGRAM, ProbeAnswers
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.hosts import doctor_judge
from launcher.targets.hosts.doctor import diagnose_hosts
from launcher.targets.hosts.doctor_judge import HostAnswer
from launcher.targets.hosts.images import Image
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.plan import decide_unshared
from launcher.targets.hosts.program import facts, reach, requests
from launcher.targets.hosts.program.messages import Address, HostReport, Lease
from launcher.targets.hosts.program.session import leave_token, read_clock
from launcher.targets.hosts.reach import Reachability
from launcher.targets.hosts.settings import Host, HostsSettings

HOSTS = tuple(Host(name=f"gpu{i}") for i in (1, 2, 3))
CANDIDATES = [[Address(interface="eth0", address=f"10.0.0.{i}")] for i in (1, 2, 3)]
EVERY_WAY = {
    (source, to, f"10.0.0.{to + 1}"): f"10.0.0.{source + 1}"
    for source in range(3)
    for to in range(3)
    if source != to
}
LEASE = Lease(run_id="digits-1", node_index=0, owner="anna@desk", gpus=["0"], slots=0)


def rows(findings: Any) -> list[tuple[str, str, str]]:
    assert all(f.fix for f in findings if f.status is not Status.OK)
    return [(f.status.value, f.where, f.found) for f in findings]


def met(**fields: Any) -> Reachability:
    given = {"reached": EVERY_WAY, "seen": ({0, 1, 2},) * 3, "unwritten": {}}
    return Reachability(**{**given, **fields})


def answer(host: Host, **found: Any) -> HostAnswer:
    usual = HostReport(gpus=["0", "1"], docker="27.1", runtimes=["nvidia", "runc"])
    return HostAnswer(host=host, found=usual.having(**found))


@pytest.mark.parametrize(
    ("offsets_s", "backend", "not_ok"),
    [
        ((0.1, -0.2, 0.0), "c10d", []),
        # This machine's clock is wrong, and theirs agree: nothing is wrong with them.
        ((60.0, 60.1, 59.9), "c10d", []),
        ((0.0, 60.0, 0.1), "c10d", [("failed", "gpu2")]),
        ((0.0, -7.0, 0.1), "roster", [("warning", "gpu2")]),
        ((0.0, 4.9, 0.0), "c10d", []),
    ],
)
def test_clocks_are_held_against_the_middle_one(offsets_s, backend, not_ok):
    given = {host.name: offset_s for host, offset_s in zip(HOSTS, offsets_s, strict=True)}
    found = list(doctor_judge.judge_clocks(given, backend))
    assert [(f.status.value, f.where) for f in found if f.status is not Status.OK] == not_ok


def test_a_clock_is_told_with_its_distance_from_the_middle_and_a_fix():
    given = {"gpu1": 0.0004, "gpu2": -0.25, "gpu3": 61.0}
    for backend, more in (("c10d", ", or remove engine: torchrun"), ("roster", "")):
        told = [(f.found, f.fix) for f in doctor_judge.judge_clocks(given, backend)]
        found = "+61.0 s" + ", and the rendezvous c10d allows 5 s" * bool(more)
        fix = f"on gpu3: sudo timedatectl set-ntp true{more}"
        assert told == [("+0.000 s", ""), ("-0.250 s", ""), (found, fix)]


def test_a_host_is_reachable_or_what_ssh_says_of_it():
    well = HostAnswer(host=HOSTS[0], found=HostReport(python_version="3.9.2", cpu_count=4))
    away = HostAnswer(host=HOSTS[1], error=TargetError("gpu2: it does not answer", "is it on?"))
    told = [doctor_judge.judge_reachable(one) for one in (well, away)]
    assert rows(told) == [
        ("ok", "gpu1", "ssh, Python 3.9.2, 4 CPU cores"),
        ("failed", "gpu2", "it does not answer"),
    ]
    assert told[1].fix == "is it on?"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, [("ok", "27.1"), ("ok", "nvidia, runc")]),
        ({"runtimes": ["runc"], "gpus": []}, [("ok", "27.1")]),
        (
            {"runtimes": ["runc"]},
            [("ok", "27.1"), ("failed", "not among the engine's runtimes: runc")],
        ),
        ({"docker": ""}, [("failed", "no engine answers")]),
    ],
)
def test_an_engine_must_answer_and_give_gpus_to_containers(found, expected):
    judged = doctor_judge.judge_engine(answer(HOSTS[0], **found))
    assert [(status, text) for status, _, text in rows(list(judged))] == expected


def images(own: str, *ids: str) -> list[tuple[str, str]]:
    answers = [answer(host, image_id=id) for host, id in zip(HOSTS, ids, strict=True)]
    own_image = Image(name="a:1", id=own)
    found = list(doctor_judge.judge_images(answers, own_image, lambda host: f"ssh {host.name}"))
    return [(status, text) for status, _, text in rows(found)]


def test_an_image_is_held_against_the_launchers_own():
    assert images("sha256:aa", "sha256:aa", "sha256:bb", "") == [
        ("ok", "a:1: aa"),
        ("warning", "a:1: bb, others have aa"),
        ("warning", "a:1 is not there"),
    ]


def test_without_one_here_the_hosts_must_have_the_same():
    assert images("", "sha256:aa", "sha256:bb", "sha256:aa")[1] == (
        "failed",
        "a:1: bb, others have aa",
    )
    assert images("", "", "", "") == [("warning", "a:1 is not there")] * 3
    here = answer(HOSTS[0], image_id="sha256:bb"), answer(HOSTS[1], image_id="", docker="")
    for own, fix in (("", ""), ("sha256:aa", "docker save a:1 | ssh gpu1 docker load, or")):
        told = doctor_judge.judge_images(here, Image(name="a:1", id=own), "ssh {0.name}".format)
        (one,) = [finding.fix for finding in told]
        assert one.startswith(fix)


@pytest.mark.parametrize(
    ("nnodes", "status"), [("2", "warning"), ("3", "failed"), ("1:3", "warning")]
)
def test_held_gpus_are_a_failure_where_the_job_cannot_do_without(make_job, nnodes, status):
    job = make_job(nnodes=nnodes, nproc_per_node=2)
    answers = [answer(HOSTS[0], leases=[LEASE]), answer(HOSTS[1]), answer(HOSTS[2])]
    found = rows(list(doctor_judge.judge_leases(answers, job)))
    held = "1 of its 2 GPUs are held by anna@desk with digits-1; the job wants 2"
    assert found == [
        (status, "gpu1", held),
        ("ok", "gpu2", "GPUs 0,1 free"),
        ("ok", "gpu3", "GPUs 0,1 free"),
    ]
    answers[0] = answer(HOSTS[0], leases=[LEASE])
    lacking = HostAnswer(host=replace(HOSTS[1], slots=1)), HostAnswer(host=HOSTS[2])
    told = list(doctor_judge.judge_leases([answers[0], *lacking], job))
    assert [one.found for one in told[1:]] == [
        "has 1 slots, and the job wants 2 of each node",
        "free",
    ]
    assert told[0].fix.startswith("wait, or name other hosts, or if it is yours: launcher stop ")
    assert told[0].fix.endswith("stop digits-1 --hosts gpu1")
    assert told[1].fix == "lower --nproc-per-node, or correct gpus: or slots: of the host"


def ways(reached: dict[tuple[int, int, str], str], candidates: Any = CANDIDATES) -> list[Finding]:
    return list(doctor_judge.judge_ways(HOSTS, candidates, met(reached=reached)))


def test_each_way_between_hosts_counts_and_the_addresses_of_a_run_are_told():
    assert rows(ways(EVERY_WAY)) == [
        ("ok", "all hosts", "6 ways"),
        *(("ok", f"gpu{i}", f"10.0.0.{i} by eth0") for i in (1, 2, 3)),
    ]


def test_a_way_that_is_closed_is_named_with_both_ends():
    (row,) = ways({way: own for way, own in EVERY_WAY.items() if way[:2] != (0, 2)})
    assert (row.where, row.found) == (
        "gpu1 -> gpu3",
        "gpu3 cannot be reached at an ephemeral port",
    )
    assert row.fix == (
        "on gpu3, and between: iptables -I INPUT -s 10.0.0.1 -p tcp --dport 1024:65535 -j ACCEPT"
    )


def test_another_network_does_not_help_where_a_run_takes_this_one():
    both = [
        [Address(interface="ib0", address=f"10.1.0.{i}", speed=200_000), *CANDIDATES[i - 1]]
        for i in (1, 2, 3)
    ]
    by_ib = {
        (source, to, f"10.1.0.{to + 1}"): f"10.1.0.{source + 1}"
        for source, to, _ in EVERY_WAY
        if (source, to) != (0, 2)
    }
    (row,) = ways({**EVERY_WAY, **by_ib}, both)
    assert (row.status, row.where) == (Status.FAILED, "gpu1 -> gpu3")


def test_a_taken_rendezvous_port_is_named():
    answers = [answer(host, free_ports=[29500]) for host in HOSTS[:2]]
    assert [f.status for f in doctor_judge.judge_ports(answers, 29500)] == [Status.OK]
    taken = [*answers, answer(HOSTS[2])]
    assert rows(list(doctor_judge.judge_ports(taken, 29500))) == [
        ("failed", "gpu3", "29500, of the rendezvous, is taken")
    ]


@pytest.mark.parametrize(
    ("seen", "alone"),
    [
        (({0, 1, 2},) * 3, ()),
        (({0, 1}, {0, 1}, {2}), (2,)),
        (({0}, {1, 2}, {1, 2}), (0,)),
        (({0}, {1}), (1,)),
        # Sees the others' files, which do not see its own: read from a copy.
        (({0, 1}, {0, 1}, {0, 1, 2}), (2,)),
        ((), ()),
    ],
)
def test_the_largest_group_that_sees_one_folder_is_right(seen, alone):
    assert decide_unshared(seen) == alone


def test_a_folder_that_cannot_be_written_is_told_once():
    unwritten = {1: TargetError("gpu2: /mnt/c: Permission denied")}
    seen = ({0, 2}, set(), {0, 2})
    found = list(doctor_judge.judge_folder(HOSTS, met(unwritten=unwritten, seen=seen), "/mnt/c"))
    assert rows(found) == [
        ("failed", "gpu2", "/mnt/c cannot be written: /mnt/c: Permission denied")
    ]


@pytest.mark.parametrize(
    ("folder", "seen", "told"),
    [
        (None, ({0, 1, 2},) * 3, ("warning", "job", "checkpoint_dir is not set: ")),
        ("/mnt/c", ({0, 1, 2},) * 3, ("ok", "all hosts", "/mnt/c is one folder")),
        (
            "/mnt/c",
            ({0, 1}, {0, 1}, {2}),
            ("failed", "gpu3", "/mnt/c there is not the folder of the others"),
        ),
    ],
)
def test_one_checkpoint_folder_is_seen_by_all_or_who_is_outside_is_named(folder, seen, told):
    ((status, where, found),) = rows(list(doctor_judge.judge_folder(HOSTS, met(seen=seen), folder)))
    assert (status, where) == told[:2]
    assert found.startswith(told[2])


NAMES = ["gpu1", "gpu2", "gpu3", "gpu4"]


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ((False, True, True, False), [("failed", "gpu3")]),
        ((True, True, True, True), [("warning", "all hosts")]),
        ((False, False, False, False), [("warning", "all hosts")]),
        # One link alone: neither of its ends is slow with its other neighbour.
        ((False, True, False, False), [("warning", "all hosts")]),
    ],
)
def test_the_host_that_is_slow_with_both_neighbours_is_named(slow, expected):
    ring = dict(zip(zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True), slow, strict=True))
    found = rows(doctor_judge.judge_neighbours(NAMES, ring))
    assert [(status, where) for status, where, _ in found] == expected
    pairs = ", ".join(f"{one} - {other}" for (one, other), is_slow in ring.items() if is_slow)
    if expected[0][0] == "warning":
        assert found[0][2] == (
            f"slow or hanging: {pairs}" if pairs else "every pair is fast by itself"
        )


# -- a whole diagnosis ----------------------------------------------------------------------------

NODE = {
    **dict.fromkeys(("cuda", "nccl", "memlock_bytes")),
    **dict.fromkeys(("gpus", "xids"), ()),
    "infiniband": {},
    "nccl_env": {},
    **dict.fromkeys(("verbs_devices", "verbs_library"), True),
    "python": "3.11",
    "torch": "2.9.0",
    "shm_bytes": 2 << 30,
    "checkpoint_free_bytes": 11 << 30,
    "checkpoint_error": "",
}
FAST, SLOW = 2e9, 1e6


class Site:
    """Hosts that answer, and a probe that is slow on all runs with the hosts ``slow``."""

    def __init__(self, hosts_say: Any, monkeypatch: Any, folder: Path, count: int = 2) -> None:
        self.names = [f"gpu{n + 1}" for n in range(count)]
        self.folder, self.say = folder, hosts_say
        self.slow, self.silent, self.failure = set[str](), list[str](), ""
        self.runs: list[tuple[str, ...]] = []
        self.plans: list[LaunchPlan] = []
        self.removed: list[str] = []
        self.asked: list[Namespace] = []
        self.report = HostReport(
            python_version="3.11.2",
            cpu_count=8,
            python="/opt/python",
            torch_version="2.9.0",
            docker="27.1",
            image="a:1",
            image_id="sha256:aa",
        )
        self.own: dict[str, dict[Any, Any]] = {name: {} for name in self.names}
        self._running, self._lock = set[str](), threading.Lock()
        monkeypatch.setattr("launcher.doctor.run.run_probe", self._probe)
        monkeypatch.setattr(
            "launcher.targets.hosts.images.inspect_image", lambda name: ("sha256:aa", "2.9.0")
        )

    def _probe(self, plan: LaunchPlan, target: Any, limit_s: float) -> ProbeAnswers:
        names = tuple(one.host.name for one in HostsSettings.of(plan).hosts)
        with self._lock:
            assert not self._running & {*names}, "a pair slows another one down"
            self._running |= {*names}
            self.runs.append((*names, str(limit_s)))
            self.plans.append(plan)
        time.sleep(0.03)
        with self._lock:
            self._running -= {*names}
        if self.failure and len(names) == 2:
            raise TargetError(self.failure, "look")
        rate = MessageRate(
            bytes=1000, took_s=0.001, bytes_per_s=SLOW if self.slow & {*names} else FAST
        )
        return ProbeAnswers(
            nodes={name: Namespace(**NODE) for name in names},
            silent=self.silent,
            all_reduce=AllReduce(backend="gloo", rates=(rate,)),
            failure="",
            world=f"{len(names)} x 1",
        )

    def _answers(self, place: int) -> dict[Any, Any]:
        def read(asked: Namespace) -> HostReport:
            own = [Address(interface="ib0", address=f"10.0.0.{place}", speed=100)]
            return self.report.having(free_ports=asked.ports, interfaces=own, state_dir="/state")

        def probe(asked: Namespace) -> dict[str, object]:
            self.asked.append(asked)
            return NODE

        return {
            read_clock: lambda _: time.time(),
            facts.read_host: read,
            facts.run_probe: probe,
            reach.listen: 7,
            reach.call_hosts: lambda asked: {
                str(n): f"10.0.0.{place}" for n in range(len(asked.calls))
            },
            leave_token: None,
            reach.find_tokens: lambda asked: asked.names,
            requests.remove_run: lambda asked: self.removed.append(asked.run_dir),
            **self.own[self.names[place]],
        }

    def diagnose(self, job: Any, limit_s: float = 90.0) -> list[str]:
        away = [name for name, own in self.own.items() if own.get("away")]
        places = {name: self._answers(n) for n, name in enumerate(self.names) if name not in away}
        self.say(**places)
        inventory = Inventory(hosts=tuple(Host(name=name) for name in self.names))
        found = diagnose_hosts(job, inventory, self.folder, limit_s)
        return [
            " | ".join(filter(None, (f.status.value, f.check, f.where, f.found, f.fix)))
            for f in found
        ]


@pytest.fixture
def site(hosts_say: Any, monkeypatch: Any, tmp_path: Path) -> Site:
    return Site(hosts_say, monkeypatch, tmp_path)


def of_each(*rows: str) -> list[str]:
    return [row.replace("{}", name) for name in ("gpu1", "gpu2") for row in rows]


WELL = [
    *of_each("ok | reachable | {} | ssh, Python 3.11.2, 8 CPU cores"),
    *of_each("ok | clock | {} | +0.000 s"),
]
ENVIRONMENT = (
    "ok | python, torch | {} | Python 3.11, torch 2.9.0",
    "ok | checkpoint folder | {} | can be written, 11.0 GiB free",
    "ok | /dev/shm | {} | 2.0 GiB",
)
TOGETHER = [
    *of_each("ok | leases | {} | free"),
    "ok | port | all hosts | 7777 is free",
    "ok | pairs | all hosts | 2 ways",
    "ok | interface | gpu1 | 10.0.0.0 by ib0, 100 Mbit/s",
    "ok | interface | gpu2 | 10.0.0.1 by ib0, 100 Mbit/s",
]
UNSHARED = (
    "warning | shared checkpoints | job | checkpoint_dir is not set: each host has a folder of its"
    " own | set checkpoint_dir to a folder that all hosts mount"
)
SPEED = "gloo: 2000 MB/s per node at 0.0 MB, 1000 us for 1000 B"


def near_zero(rows: list[str]) -> list[str]:
    """Their clocks are this machine's, but for the time that an answer takes."""
    return [row.replace("-0.000", "+0.000") for row in rows]


def bare(make_job: Any, **fields: Any) -> Any:
    given = {"nnodes": 2, "nproc_per_node": 1, "rdzv": {"port": 7777}, "env": {"A": "1"}}
    return make_job(**{**given, "hosts": {"runtime": "python"}, **fields})


def test_hosts_that_are_well_are_told_alone_then_together_then_in_a_run(site, make_job):
    rows = near_zero(site.diagnose(bare(make_job)))
    speed = f"ok | all-reduce | 2 x 1 | {SPEED}"
    assert rows == [*WELL, *of_each(*ENVIRONMENT), *TOGETHER, UNSHARED, speed]
    assert [vars(asked) for asked in site.asked] == [
        {
            "program": PROGRAM.read_bytes(),
            "python": "/opt/python",
            "arguments": ["node"],
            "env": {"A": "1"},
            "checkpoint_dir": "/state/checkpoints",
            "wait_s": 40.0,
        }
    ] * 2
    assert site.runs == [("gpu1", "gpu2", "90.0")]
    (plan,) = site.plans
    assert (plan.job_name, plan.run_dir.startswith(f"{site.folder}/doctor-")) == ("doctor", True)
    assert (plan.code.root, plan.code.inner) == (str(PROGRAM.parent), "")
    assert (plan.nodes[0].command, site.removed) == (("program.py",), [])


def test_containers_are_told_from_a_run_alone_and_a_named_folder_is_left_as_it_was(site, make_job):
    job = make_job(
        nnodes=2, nproc_per_node=1, rdzv={"port": 7777}, checkpoint_dir="/mnt/c", image="a:1"
    )
    rows = near_zero(site.diagnose(job))
    assert rows == [
        *WELL,
        *of_each("ok | Docker | {} | 27.1"),
        *of_each("ok | image | {} | a:1: aa"),
        *TOGETHER,
        "ok | shared checkpoints | all hosts | /mnt/c is one folder",
        *of_each(*ENVIRONMENT),
        f"ok | all-reduce | 2 x 1 | {SPEED}",
    ]
    told = {(one.python, one.checkpoint_dir, str(one.env)) for one in site.asked}
    assert told == {("python3", "/mnt/c", "{}")}
    assert site.removed == ["/mnt/c/.doctor"] * 2


@pytest.mark.parametrize(
    ("own", "report", "rows"),
    [
        (
            {"away": True},
            {},
            [
                "failed | reachable | gpu2 | it does not answer | is it on?",
                "warning | all-reduce | 2 hosts | not tried"
                " | correct what failed above, then call doctor again",
            ],
        ),
        (
            {facts.run_probe: TargetError("gpu2: /opt/python: does not start", "")},
            {},
            [
                "failed | python, torch | gpu2 | /opt/python: does not start"
                " | --set hosts.python=PATH, or python: of that host in hosts.yaml",
                UNSHARED,
                "warning | all-reduce | 2 hosts | not tried"
                " | correct what failed above, then call doctor again",
            ],
        ),
        (
            {reach.listen: TargetError("gpu2: is gone", "look")},
            {},
            [
                "failed | pairs | 2 hosts | gpu2: is gone | look",
                "warning | all-reduce | 2 hosts | not tried"
                " | correct what failed above, then call doctor again",
            ],
        ),
        (
            {},
            {"image_id": ""},
            [
                *of_each(
                    "warning | image | {} | a:1 is not there | docker save a:1 | ssh {} docker load"
                    ", or leave it to launcher run"
                ),
                UNSHARED,
                "warning | all-reduce | 2 hosts | not tried"
                " | bring the image to all hosts, then call doctor again",
            ],
        ),
    ],
    ids=["away", "no probe", "no pairs", "no image"],
)
def test_what_is_wrong_is_told_and_no_run_is_tried(site, make_job, own, report, rows):
    site.own["gpu2"], site.report = own, site.report.having(**report)
    job = make_job(nnodes=2, nproc_per_node=1, image="a:1") if report else bare(make_job)
    assert [row for row in site.diagnose(job) if not row.startswith("ok")] == rows
    assert site.runs == []


def test_a_slow_run_is_tried_again_by_pairs_of_neighbours(
    hosts_say, monkeypatch, tmp_path, make_job
):
    site = Site(hosts_say, monkeypatch, tmp_path, 5)
    site.slow, site.silent = {"gpu2"}, ["gpu4"]
    rows = [row for row in site.diagnose(bare(make_job, nnodes="2:5")) if not row.startswith("ok")]
    assert rows[1:] == [
        "failed | start | gpu4 | no answer within 90 s | see the last row",
        "warning | all-reduce | 5 x 1 | gloo: 1 MB/s per node at 0.0 MB, 1000 us for 1000 B"
        " | set NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME in env",
        "failed | all-reduce of two | gpu2 | slow or hanging with each of its neighbours; others"
        " are not | look at its cable, port and MTU: ip -s link; or leave it out: --exclude gpu2",
    ]
    ring = [(f"gpu{n}", f"gpu{n % 5 + 1}", "60.0") for n in range(1, 6)]
    assert site.runs[0] == (*site.names, "90.0")
    assert sorted(site.runs[1:]) == ring
    # A pair whose run cannot start counts as slow; a run that cannot start at all is told.
    site.failure = "no run"
    assert site.diagnose(bare(make_job, nnodes="2:5"))[-1] == (
        "warning | all-reduce of two | all hosts | slow or hanging: gpu1 - gpu2, gpu3 - gpu4, "
        "gpu2 - gpu3, gpu4 - gpu5, gpu5 - gpu1 | look at what all of them share: the switch"
    )


def test_a_run_of_the_probe_that_cannot_start_is_told_with_its_fix(site, make_job):
    site.failure = "gpu1: held by bob"
    assert (
        site.diagnose(bare(make_job))[-1] == "failed | start | 2 hosts | gpu1: held by bob | look"
    )
