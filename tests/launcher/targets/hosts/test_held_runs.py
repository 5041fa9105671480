"""Runs in a hold on hosts or in pods: what they are planned with, asked for and taken for."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.causes import NodeState
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.hold import Ready, StartRun
from launcher.contract.records import dump_record
from launcher.follow.target import Door, NodeObservation, Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.held.hold import Hold
from launcher.targets.hosts import held as room
from launcher.targets.hosts.held import HeldHostsTarget, HeldPodsTarget
from launcher.targets.hosts.program import reach, requests
from launcher.targets.hosts.program.messages import HeldNode, NodeSeen
from launcher.targets.hosts.program.session import leave_token
from launcher.targets.hosts.render import render_hosts
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from tests.launcher.targets.hosts.conftest import TWO, FakeSession
from tests.waiting import StoppedClock

RUNNING, PENDING, MISSING = NodeState.RUNNING, NodeState.PENDING, NodeState.MISSING


class Pods:
    """The target of a hold, whose pods are in these states."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.states, self.detail, self.looks = [RUNNING, RUNNING], "", 0

    def door(self, plan: LaunchPlan, index: int) -> Door:
        words = ("kubectl", "exec", f"pod-{index}", "--")
        return Door(words=words, at_terminal=words, python="python3", archive="/agent.pyz")

    def observe(self, plan: LaunchPlan) -> Observation:
        self.looks += 1
        nodes = (
            NodeObservation(node_index=n, incarnation=0, state=state, detail=self.detail)
            for n, state in enumerate(self.states)
        )
        return Observation(run_id=plan.run_id, nodes=tuple(nodes))

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        return plan


@pytest.fixture
def hold(make_host_plan: Any, tmp_path: Path) -> Callable[..., Hold]:
    """Makes the run folder of a hold whose nodes are ready, with a plan of two hosts."""

    def make(found: Any = TWO, **fields: Any) -> Hold:
        plan = make_host_plan(found, **fields)
        plan = replace(plan, run_id="dev-1", job_name="dev", run_dir=str(tmp_path / "runs/dev-1"))
        run = RunFolder(Path(plan.run_dir))
        run.create(plan, "", 0.0)
        for index in (0, 1):
            folder = run.path / f"nodes/{index}/0"
            folder.mkdir(parents=True)
            ready = Ready(address=f"10.0.0.{index}", cpu_count=4)
            (folder / "ready").write_text(dump_record(ready))
        return Hold(run, fresh=True)

    return make


def test_a_run_in_a_hold_on_hosts_is_planned_with_the_hosts_as_they_were(
    hold, make_job, hosts_say, tmp_path
):
    gpus = tuple(replace(one, device_ids=("0", "1")) for one in TWO)
    target = HeldHostsTarget(hold(gpus, nproc_per_node=1), Pods())
    job = make_job(nnodes=2, nproc_per_node=1, hosts={"runtime": "python"})
    facts = target.facts(job)
    assert (facts.target, facts.place) == ("kubernetes", "the hold dev on hosts")
    assert (facts.machine.loopback, facts.accelerator, facts.image) == (None, "cuda", None)
    assert facts.run_root == str(tmp_path / "runs")
    assert [node.name for node in facts.nodes] == [node.name for node in target.hold.plan.nodes]
    own = HostsSettings.of(facts)
    assert own.hosts == tuple(replace(one, device_ids=("0",)) for one in TWO)
    assert (own.hold, target.has_image(job)) == ("dev-1", False)
    for fields, told in (
        ({"nnodes": 1}, "nnodes is 1: a run in dev takes all of its 2 nodes"),
        ({"hosts": {"runtime": "docker"}}, "docker, but the nodes of dev are python"),
    ):
        with pytest.raises(InputError) as error:
            target.facts(make_job(**{"nnodes": 2, "nproc_per_node": 1, **fields}))
        assert error.value.what.endswith(told)
    # They share the job's folder, or not.
    answers = {reach.listen: 7, reach.call_hosts: {}, leave_token: None}
    for seen, is_shared in ((slice(None), True), (slice(0), False)):
        finds = {reach.find_tokens: lambda asked, seen=seen: asked.names[seen]}
        hosts_say(gpu1={**answers, **finds}, gpu2={**answers, **finds})
        shared = make_job(nnodes=2, nproc_per_node=1, checkpoint_dir="/mnt/c")
        if is_shared:
            assert target.facts(shared).shares_storage
        else:
            with pytest.raises(TargetError, match="checkpoint_dir /mnt/c is not the folder"):
                target.facts(shared)
    finds[leave_token] = TargetError("gpu2: Permission denied")
    hosts_say(gpu1={**answers, **finds}, gpu2={**answers, **finds})
    with pytest.raises(TargetError, match="Permission denied"):
        target.facts(shared)


def test_a_run_in_held_containers_has_their_image_and_a_folder_that_they_have_mounted(
    hold, make_job
):
    docker = tuple(replace(one, runtime="docker", state_dir="/state") for one in TWO)
    mounts = [{"source": "/state", "target": "/state"}]
    held = hold(docker, image="a:1", inner="examples", hosts={}, mounts=mounts)
    target = HeldHostsTarget(held, Pods())
    facts = target.facts(make_job(nnodes=2, nproc_per_node=1))
    assert (facts.image, target.has_image(make_job())) == ("a:1", True)
    with pytest.raises(KeyInputError, match="dev has not mounted /mnt/c"):
        target.facts(make_job(nnodes=2, nproc_per_node=1, checkpoint_dir="/mnt/c"))


def test_a_keeper_has_the_held_node_fork_the_run_s_node(hold, make_host_plan):
    target = HeldHostsTarget(hold(), Pods())
    plan = make_host_plan(hold="dev-1", engine="agent")
    node = render_hosts(plan).nodes[1]
    target.check(plan)
    run_dir = "/home/gpu2/.launcher/runs"
    node_dir = f"{run_dir}/digits-0a1b2c/nodes/1/0"
    asked = StartRun(
        task=f"{node_dir}/node-plan.json",
        node_dir=node_dir,
        record_dir=f"{node_dir}/.held",
        cwd=f"{run_dir}/digits-0a1b2c/code/examples",
        env=(),
        adds_env=False,
        fresh=True,
    )
    user = (target.hold.run.path / ".in-use").read_text()
    held = HeldNode(run_dir=f"{run_dir}/dev-1", request=dump_record(asked), user=user)
    assert target._spec(plan, node) == node.spec.having(held=held)
    assert json.loads(user)["run_id"] == plan.run_id
    contained = replace(plan, image="a:1")
    request = json.loads(target._spec(contained, node).held.request)
    assert (request["adds_env"], request["cwd"]) == (True, node.node.workdir)
    with pytest.raises(InputError, match="dev is in use: digits-0a1b2c of "):
        HeldHostsTarget(Hold(target.hold.run), Pods()).check(plan)
    target.stop("unknown", 0.0, only=(0,))
    assert target.hold.read_user()
    target.stop("unknown", 0.0)
    assert target.hold.read_user() is None


def test_an_earlier_incarnation_is_ended_before_the_next_is_forked(hold, make_host_plan):
    target, plan = HeldHostsTarget(hold(), Pods()), make_host_plan(hold="dev-1", engine="agent")
    node, session = (
        render_hosts(plan).nodes[1],
        FakeSession(TWO[1].host, {requests.end_nodes: None}),
    )
    target._acquire_lease(plan, node, session)
    assert session.heard == []
    target._acquire_lease(plan, replace(node, node=replace(node.node, incarnation=1)), session)
    asked = {"run_id": plan.run_id, "node": 1, "grace_s": 0.0, "in_containers": False}
    assert [(function, vars(given)) for function, given in session.heard] == [
        (requests.end_nodes, asked)
    ]


# -- pods -----------------------------------------------------------------------------------------


@pytest.fixture
def pods(hold: Any, monkeypatch: pytest.MonkeyPatch) -> HeldPodsTarget:
    target = HeldPodsTarget(hold(image="a:1", inner="examples", hosts={}), Pods())
    monkeypatch.setattr(room, "time", StoppedClock())
    return target


def test_a_hold_s_nodes_are_entered_by_its_target_s_doors(pods, monkeypatch):
    plan = pods.hold.plan
    doors, second = pods._connect(plan), Host(name=plan.nodes[1].name)
    enter = "launcher exec dev-1 --node 1"
    assert doors.argv(second) == ("kubectl", "exec", "pod-1", "--", "sh", "-c")
    assert doors.entering(second) == enter
    assert doors.fetching(second, "/a b") == "kubectl exec pod-1 -- tar -cC '/a b' . | tar -x"
    assert doors.disconnect(second) is False
    assert pods.door(plan, 1).words == ("kubectl", "exec", "pod-1", "--")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TargetError) as error:
        doors.open(second)
    told = "there is no kubectl on this machine"
    assert (error.value.what, error.value.hint) == (told, f"to try: {enter}")


def test_a_run_in_pods_is_planned_with_what_they_say_of_themselves(pods, make_job):
    job = make_job(nnodes=2, nproc_per_node=1)
    facts = pods.facts(job)
    plan = pods.hold.plan
    assert HostsSettings.of(facts).hosts == tuple(
        HostFacts(
            host=Host(name=node.name),
            cpu_count=4,
            device_ids=(),
            address=f"10.0.0.{node.node_index}",
            loopback=None,
            state_dir="/launcher/run/held",
            torch_version="2.13.0",
        )
        for node in plan.nodes
    )
    assert (HostsSettings.of(facts).followed_s, HostsSettings.of(facts).hold) == (150.0, "dev-1")
    assert [node.name for node in facts.nodes] == [node.name for node in plan.nodes]
    # One folder for all runs of a job, in that of the hold.
    folders = {node.folders.checkpoints for node in facts.nodes}
    assert (facts.image, folders, facts.shares_storage) == (
        None,
        {"/launcher/checkpoints/digits"},
        True,
    )
    assert pods.has_image(job) is True
    for fields, told in (
        ({"checkpoint_dir": "/mnt/c"}, "/mnt/c: nodes of dev see no folders of this machine"),
        ({"image": "b:1"}, "b:1, but dev holds a:1"),
    ):
        with pytest.raises(KeyInputError) as error:
            pods.facts(make_job(nnodes=2, nproc_per_node=1, **fields))
        assert error.value.what.endswith(told)


def test_a_pod_that_is_being_replaced_is_waited_for(pods, make_job):
    job, site = make_job(nnodes=2, nproc_per_node=1), pods._target
    site.states = [RUNNING, PENDING]

    def replaced(now: float) -> None:
        if now >= 3.0:
            site.states = [RUNNING, RUNNING]

    room.time.on_sleep = replaced
    pods.facts(job)
    assert room.time.now == 3.0
    site.states, site.detail, room.time.on_sleep = [RUNNING, MISSING], "no room", None
    with pytest.raises(TargetError) as error:
        pods.facts(job)
    assert error.value.what == "node 1 of dev does not run: no room"
    assert room.time.now == 124.0


def test_a_run_moves_to_where_the_pods_are_now(pods, make_host_plan):
    named = (
        replace(one, host=Host(name=node.name))
        for one, node in zip(TWO, pods.hold.plan.nodes, strict=True)
    )
    plan = make_host_plan(tuple(named), hold="dev-1", engine="agent")
    nodes = list(render_hosts(plan).nodes)
    later = [""] * 3

    def read(asked: Any) -> str:
        assert (asked.folder, asked.name) == (f"/launcher/run/nodes/{asked.folder[-1]}", "ready")
        return (
            later.pop()
            if later
            else dump_record(Ready(address=f"10.9.0.{asked.folder[-1]}", cpu_count=1))
        )

    sessions = {
        one.host.name: FakeSession(one.host.host, {requests.read_newest: read}) for one in nodes
    }
    moved, chosen = pods._place(plan, nodes, sessions)
    assert [node.local_addr for node in moved.nodes] == ["10.9.0.0", "10.9.0.1"]
    assert chosen == list(render_hosts(moved).nodes)
    one = pods._place(plan, nodes[1:], sessions)[1]
    assert [node.node.node_index for node in one] == [1]
    sessions = {
        one.host.name: FakeSession(one.host.host, {requests.read_newest: ""}) for one in nodes
    }
    with pytest.raises(TargetError) as error:
        pods._place(plan, nodes[1:], sessions)
    told = f"{nodes[1].host.name}: the hold's agent there does not come up"
    assert (error.value.what, error.value.hint) == (told, "launcher exec dev-1 --node 1")
    assert 120.0 < room.time.now < 121.0


GONE = "its node of the hold is gone: no room; waiting for the next one"


@pytest.mark.parametrize(
    ("held", "state", "refused", "told"),
    [
        (RUNNING, "running", "", (RUNNING, "")),
        (RUNNING, "running", "away", (RUNNING, "away")),
        (RUNNING, "missing", "", (MISSING, "")),
        (PENDING, "missing", "", (PENDING, GONE)),
        (PENDING, "running", "away", (PENDING, GONE)),
        (PENDING, "exited", "", (NodeState.EXITED, "")),
    ],
)
def test_a_node_in_a_pod_is_lost_only_once_the_hold_has_another_in_its_place(
    pods, make_host_plan, held, state, refused, told
):
    plan, site = make_host_plan(hold="dev-1", engine="agent"), pods._target
    plan = replace(plan, run_dir=str(pods.hold.run.path.parent / plan.run_id))
    site.states, site.detail = [RUNNING, held], "no room"

    class Line:
        def state(self, key: str) -> NodeSeen:
            return NodeSeen(state=state if key == "1.0" else "running")

        def silent_s(self) -> float:
            return 0.0

    pods._lines = {0: Line(), 1: Line()}
    pods._refused = {1: refused} if refused else {}
    for _ in range(2):
        first, second = pods.observe(plan).nodes
        assert (first.state, (second.state, second.detail)) == (RUNNING, told)
    is_asked = bool(refused) or state == "missing"
    assert site.looks == int(is_asked), "not more often than once in a second"
    room.time.now = 1.1
    pods.observe(plan)
    assert site.looks == 2 * int(is_asked)
