"""Whole diagnoses of hosts that answer as they are told to: each row, and what is run."""

import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import TargetError
from launcher.doctor.judge import AllReduce, MessageRate
from launcher.doctor.run import PROGRAM, ProbeAnswers
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.hosts.doctor import diagnose_hosts
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program import facts, reach, requests
from launcher.targets.hosts.program.messages import Address, HostReport
from launcher.targets.hosts.program.session import leave_token, read_clock
from launcher.targets.hosts.settings import Host, HostsSettings

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
            "launcher.targets.hosts.nodes.inspect_image", lambda name: ("sha256:aa", "2.9.0")
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


DOES_NOT_START = TargetError("gpu2: /opt/python: does not start", "")
OTHER_PYTHON = "--set hosts.python=PATH, or python: of that host in hosts.yaml"
NO_PROBE = f"failed | python, torch | gpu2 | /opt/python: does not start | {OTHER_PYTHON}"
LOAD = "docker save a:1 | ssh {} docker load, or leave it to launcher run"
NO_IMAGES = of_each(f"warning | image | {{}} | a:1 is not there | {LOAD}")
IS_GONE = TargetError("gpu2: is gone", "look")


@pytest.mark.parametrize(
    ("own", "report", "rows"),
    [
        ({"away": True}, {}, ["failed | reachable | gpu2 | it does not answer | is it on?"]),
        ({facts.run_probe: DOES_NOT_START}, {}, [NO_PROBE, UNSHARED]),
        ({reach.listen: IS_GONE}, {}, ["failed | pairs | 2 hosts | gpu2: is gone | look"]),
        ({}, {"image_id": ""}, [*NO_IMAGES, UNSHARED]),
    ],
    ids=["away", "no probe", "no pairs", "no image"],
)
def test_what_is_wrong_is_told_and_no_run_is_tried(site, make_job, own, report, rows):
    site.own["gpu2"], site.report = own, site.report.having(**report)
    job = make_job(nnodes=2, nproc_per_node=1, image="a:1") if report else bare(make_job)
    told = [row for row in site.diagnose(job) if not row.startswith("ok")]
    why = "bring the image to all hosts" if report else "correct what failed above"
    last = f"warning | all-reduce | 2 hosts | not tried | {why}, then call doctor again"
    assert (told, site.runs) == ([*rows, last], [])


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
    told = "failed | start | 2 hosts | gpu1: held by bob | look"
    assert site.diagnose(bare(make_job))[-1] == told
