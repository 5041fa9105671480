"""What follows from the answers of hosts, without any host."""

from dataclasses import replace
from typing import Any

import pytest

from launcher.contract.errors import TargetError
from launcher.targets.hosts import doctor
from launcher.targets.hosts.doctor import HostAnswer
from launcher.targets.hosts.nodes import Image
from launcher.targets.hosts.plan import decide_unshared
from launcher.targets.hosts.program.messages import Address, HostReport, Lease
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.survey import Reachability

HOSTS = tuple(Host(name=f"gpu{i}") for i in (1, 2, 3))
CANDIDATES = [[Address(interface="eth0", address=f"10.0.0.{i}")] for i in (1, 2, 3)]
EVERY_WAY = {
    (source, to, f"10.0.0.{to + 1}"): f"10.0.0.{source + 1}"
    for source in range(3)
    for to in range(3)
    if source != to
}
MISSES = "a:1 is not there"
LEASE = Lease(run_id="digits-1", node_index=0, owner="anna@desk", gpus=["0"], slots=0)


def tell(findings: Any) -> list[str]:
    """What a table of them says, but for the names of checks."""
    return [" | ".join(filter(None, (f.status.value, f.where, f.found, f.fix))) for f in findings]


def answer(host: Host, **found: Any) -> HostAnswer:
    usual = HostReport(gpus=["0", "1"], docker="27.1", runtimes=["nvidia", "runc"])
    return HostAnswer(host=host, report=usual.having(**found))


SET_NTP = "sudo timedatectl set-ntp true"


@pytest.mark.parametrize(
    ("offsets_s", "backend", "told"),
    [
        ((0.0004, -0.25), "c10d", ["ok | gpu1 | +0.000 s", "ok | gpu2 | -0.250 s"]),
        # This machine's clock is wrong, and theirs agree: nothing is wrong with them.
        ((60.0, 60.1), "c10d", ["ok | gpu1 | +0.000 s", "ok | gpu2 | +0.100 s"]),
        ((0.0, 5.0, 0.0), "c10d", ["ok | gpu1 | +0.000 s", "ok | gpu2 | +5.000 s"]),
        ((2.5, 5.2, 0.0), "c10d", ["ok | gpu1 | +1.250 s", "failed | gpu2 | +4.0 s, {}"]),
        ((0.0, 60.0, 0.1), "c10d", ["ok | gpu1 | -0.050 s", "failed | gpu2 | +60.0 s, {}"]),
        (
            (0.0, -7.0, 0.1),
            "roster",
            ["ok | gpu1 | +0.000 s", f"warning | gpu2 | -7.0 s | on gpu2: {SET_NTP}"],
        ),
    ],
)
def test_clocks_are_held_against_the_middle_one(offsets_s, backend, told):
    given = {host.name: offset_s for host, offset_s in zip(HOSTS, offsets_s, strict=False)}
    fix = "and the rendezvous c10d allows 5 s | on gpu2: {}, or remove engine: torchrun"
    expected = [row.replace("{}", fix.format(SET_NTP)) for row in told]
    assert tell(doctor.judge_clocks(given, backend))[:2] == expected


def test_a_host_is_reachable_or_what_ssh_says_of_it():
    well = HostAnswer(host=HOSTS[0], report=HostReport(python_version="3.9.2", cpu_count=4))
    away = HostAnswer(host=HOSTS[1], error=TargetError("gpu2: it does not answer", "is it on?"))
    assert tell(doctor.judge_reachable(one) for one in (well, away)) == [
        "ok | gpu1 | ssh, Python 3.9.2, 4 CPU cores",
        "failed | gpu2 | it does not answer | is it on?",
    ]


TOOLKIT = (
    "install nvidia-container-toolkit there, then: sudo nvidia-ctk runtime configure "
    "--runtime=docker && sudo systemctl restart docker"
)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, ["ok | gpu1 | 27.1", "ok | gpu1 | nvidia, runc"]),
        ({"runtimes": ["runc"], "gpus": []}, ["ok | gpu1 | 27.1"]),
        (
            {"runtimes": ["runc"]},
            [
                "ok | gpu1 | 27.1",
                f"failed | gpu1 | not among the engine's runtimes: runc | {TOOLKIT}",
            ],
        ),
        (
            {"docker": ""},
            [
                "failed | gpu1 | no engine answers | on gpu1: docker version; start it, or add "
                "the user to the group docker"
            ],
        ),
    ],
)
def test_an_engine_must_answer_and_give_gpus_to_containers(found, told):
    assert tell(doctor.judge_engine(answer(HOSTS[0], **found))) == told


LOAD = "docker save a:1 | ssh {} docker load, or leave it to launcher run"
PULL = "ssh {} docker pull a:1"


@pytest.mark.parametrize(
    ("own", "ids", "told"),
    [
        (
            "sha256:aa",
            ("sha256:aa", "sha256:bb", ""),
            ["ok", f"warning | a:1: bb, others have aa | {LOAD}", f"warning | {MISSES} | {LOAD}"],
        ),
        # Without one here the hosts must have the same.
        (
            "",
            ("sha256:aa", "sha256:bb", "sha256:aa"),
            ["ok", f"failed | a:1: bb, others have aa | {PULL}", "ok"],
        ),
        ("", ("", "", ""), [f"warning | {MISSES} | {PULL}"] * 3),
        ("", ("sha256:bb", "no engine", "sha256:bb"), ["ok", "", "ok"]),
    ],
)
def test_an_image_is_held_against_the_launchers_own_or_the_usual_one(own, ids, told):
    answers = [
        answer(host, docker="") if id == "no engine" else answer(host, image_id=id)
        for host, id in zip(HOSTS, ids, strict=True)
    ]
    rows = doctor.judge_images(answers, Image(name="a:1", id=own), "ssh {0.name}".format)
    expected = []
    for host, row, id in zip(HOSTS, told, ids, strict=True):
        status, _, rest = (row if row != "ok" else f"ok | a:1: {id[-2:]}").partition(" | ")
        expected += [f"{status} | {host.name} | {rest}".replace("{}", host.name)] if row else []
    assert tell(rows) == expected


def test_held_gpus_are_a_failure_where_the_job_cannot_do_without(make_job):
    answers = [answer(HOSTS[0], leases=[LEASE]), answer(HOSTS[1]), answer(HOSTS[2])]
    held = "gpu1 | 1 of its 2 GPUs are held by anna@desk with digits-1; the job wants 2"
    fix = "wait, or name other hosts, or if it is yours: launcher stop digits-1 --hosts gpu1"
    free = [f"ok | gpu{n} | GPUs 0,1 free" for n in (2, 3)]
    for nnodes, status in (("2", "warning"), ("3", "failed"), ("1:3", "warning")):
        job = make_job(nnodes=nnodes, nproc_per_node=2)
        told = tell(doctor.judge_leases(answers, job))
        assert told == [f"{status} | {held} | {fix}", *free]
    lacking = HostAnswer(host=replace(HOSTS[1], slots=1)), HostAnswer(host=HOSTS[2])
    assert tell(doctor.judge_leases(lacking, job)) == [
        "warning | gpu2 | has 1 slots, and the job wants 2 of each node"
        " | lower --nproc-per-node, or correct gpus: or slots: of the host",
        "ok | gpu3 | free",
    ]


BOTH = [
    [Address(interface="ib0", address=f"10.1.0.{i}", speed=200_000), *CANDIDATES[i - 1]]
    for i in (1, 2, 3)
]
BY_IB = {
    (source, to, f"10.1.0.{to + 1}"): f"10.1.0.{source + 1}"
    for source, to, _ in EVERY_WAY
    if (source, to) != (0, 2)
}
CLOSED = "gpu3 cannot be reached at an ephemeral port | on gpu3, and between: iptables -I INPUT -s"
ACCEPT = "-p tcp --dport 1024:65535 -j ACCEPT"


@pytest.mark.parametrize(
    ("candidates", "reached", "told"),
    [
        (
            CANDIDATES,
            EVERY_WAY,
            [
                "ok | all hosts | 6 ways",
                *(f"ok | gpu{i} | 10.0.0.{i} by eth0" for i in (1, 2, 3)),
            ],
        ),
        (
            CANDIDATES,
            {way: own for way, own in EVERY_WAY.items() if way[1] != 2},
            [f"failed | gpu1, gpu2 -> gpu3 | {CLOSED} 10.0.0.1,10.0.0.2 {ACCEPT}"],
        ),
        # Another network does not help where a run takes this one.
        (
            BOTH,
            {**EVERY_WAY, **BY_IB},
            [f"failed | gpu1 -> gpu3 | {CLOSED} 10.1.0.1 {ACCEPT}"],
        ),
        # All ways are open, but those to the first host lead to several of its addresses.
        (
            BOTH,
            {
                way: own
                for way, own in {**EVERY_WAY, **BY_IB}.items()
                if way[:2] not in ((1, 0), (2, 0)) or way[2].startswith(f"10.{way[0] - 1}.")
            },
            [
                "ok | all hosts | 6 ways",
                "failed | all hosts | gpu1: gpu2, gpu3 cannot reach it at 10.1.0.1 (ib0), "
                "10.0.0.1 (eth0) | open its TCP ports to the other hosts (launcher docs hosts), "
                "or set interface: for it",
            ],
        ),
    ],
    ids=["all", "none to one", "another network", "no common one"],
)
def test_each_way_between_hosts_counts_and_the_addresses_of_a_run_are_told(
    candidates, reached, told
):
    assert tell(doctor.judge_ways(HOSTS, candidates, met(reached=reached))) == told


def test_a_taken_rendezvous_port_is_named():
    answers = [answer(host, free_ports=[29500]) for host in HOSTS[:2]]
    assert tell(doctor.judge_ports(answers, 29500)) == ["ok | all hosts | 29500 is free"]
    assert tell(doctor.judge_ports([*answers, answer(HOSTS[2])], 29500)) == [
        "failed | gpu3 | 29500, of the rendezvous, is taken"
        " | on gpu3: ss -ltnp sport = :29500 shows by whom; or --set rdzv.port=N"
    ]


def met(**fields: Any) -> Reachability:
    given = {"reached": EVERY_WAY, "sees": ({0, 1, 2},) * 3, "unwritten": {}}
    return Reachability(**{**given, **fields})


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
    mount = "on gpu{0}: mount what the others have there: df /c"
    outside = [
        f"failed | gpu{n + 1} | /c there is not the folder of the others | {mount.format(n + 1)}"
        for n in alone
    ]
    told = tell(doctor.judge_folder(HOSTS, met(sees=seen), "/c"))
    assert told == (outside or ["ok | all hosts | /c is one folder"])


def test_a_folder_that_cannot_be_written_is_told_once():
    unwritten = {1: TargetError("gpu2: /c: Permission denied")}
    met_ = met(unwritten=unwritten, sees=({0, 2}, set(), {0, 2}))
    assert tell(doctor.judge_folder(HOSTS, met_, "/c")) == [
        "failed | gpu2 | /c cannot be written: /c: Permission denied"
        " | mount it there, or chown it for the user that you log in as"
    ]


SWITCH = "look at what all of them share: the switch"


@pytest.mark.parametrize(
    ("slow", "told"),
    [
        (
            (False, True, True, False),
            "failed | gpu3 | slow or hanging with each of its neighbours; others are not"
            " | look at its cable, port and MTU: ip -s link; or leave it out: --exclude gpu3",
        ),
        (
            (True, True, True, True),
            "warning | all hosts | slow or hanging: gpu1 - gpu2, gpu2 - gpu3, gpu3 - gpu4, "
            f"gpu4 - gpu1 | {SWITCH}",
        ),
        (
            (False, False, False, False),
            f"warning | all hosts | every pair is fast by itself | {SWITCH}",
        ),
        # One link alone: neither of its ends is slow with its other neighbour.
        (
            (False, True, False, False),
            f"warning | all hosts | slow or hanging: gpu2 - gpu3 | {SWITCH}",
        ),
    ],
)
def test_the_host_that_is_slow_with_both_neighbours_is_named(slow, told):
    names = ["gpu1", "gpu2", "gpu3", "gpu4"]
    ring = dict(zip(zip(names, [*names[1:], names[0]], strict=True), slow, strict=True))
    assert tell(doctor.judge_neighbours(names, ring)) == [told]
