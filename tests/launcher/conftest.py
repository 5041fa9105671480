"""Builders for jobs, facts and plans, and the comparison with whole rendered outputs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.targets.docker_options import ContainerSettings, plan_containers
from launcher.targets.kubernetes.pods.logs import LogFollower
from launcher.targets.kubernetes.pods.watch import PodWatch
from launcher.targets.processes import ProcessSettings
from tests.launcher.docker_runs import remove_left
from tests.launcher.runner import Runner

if TYPE_CHECKING:
    from tests.launcher.docker_place import Place
    from tests.launcher.fake_cluster import FakeCluster
    from tests.launcher.fake_docker import FakeDocker

GOLDEN = Path(__file__).parent.parent / "golden"
LOCAL = TargetFacts(
    target="local",
    accelerator="cpu",
    machine=MachineFacts(cpu_count=8),
    torch_version="2.13.0",
    run_root="/work space/runs",
    cwd="/work space",
    ports=(23456,),
    own=ProcessSettings(python="/opt/venv/bin/python"),
)
DOCKER = TargetFacts(
    target="docker",
    place="local Docker, image fabric-train:cpu",
    accelerator="cpu",
    machine=MachineFacts(cpu_count=8),
    image="fabric-train:cpu",
    torch_version="2.13.0",
    run_root="/home/me/runs",
    cwd="/home/me",
    own=ContainerSettings(user="1000:1000"),
)


@pytest.fixture
def make_job() -> Callable[..., JobSpec]:
    def make(**fields: Any) -> JobSpec:
        return JobSpec.model_validate({"name": "digits", "command": ["-m", "train"], **fields})

    return make


@pytest.fixture
def make_plan(make_job: Callable[..., JobSpec]) -> Callable[..., LaunchPlan]:
    """A plan with a fixed run id; ``facts`` are those of ``local`` unless given."""

    def make(facts: TargetFacts = LOCAL, **fields: Any) -> LaunchPlan:
        job = make_job(**fields)
        if isinstance(facts.own, ContainerSettings):
            facts = replace(facts, own=plan_containers(job, facts.own.user))
        return plan_run(job, facts, run_id="digits-0a1b2c")

    return make


@pytest.fixture
def local_facts() -> TargetFacts:
    return LOCAL


@pytest.fixture
def docker_facts() -> TargetFacts:
    return DOCKER


@pytest.fixture
def cuda_facts() -> TargetFacts:
    devices = tuple(str(index) for index in range(8))
    machine = MachineFacts(cpu_count=8, device_ids=devices)
    return replace(DOCKER, accelerator="cuda", machine=machine, image="fabric-train:cuda")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A Docker target of this test's own; what it started is gone afterwards."""
    from tests.launcher.docker_place import Place

    place = Place(tmp_path)
    yield place
    for run_id in place.run_ids:
        place.target.stop(run_id, 0)
        assert place.held(run_id) == []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster's API server, to which kubectl's configuration leads."""
    from tests.launcher.fake_cluster import FakeCluster

    fake = FakeCluster()
    monkeypatch.setenv("KUBECONFIG", str(fake.write_kubeconfig(tmp_path / "kubeconfig")))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield fake
    fake.close()


@pytest.fixture
def dockerd(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    """A Docker engine that holds what a test puts there, to which DOCKER_HOST leads."""
    from tests.launcher.fake_docker import FakeDocker

    with FakeDocker() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        Thread(target=engine.serve_forever, args=(0.02,), daemon=True).start()
        yield engine
        engine.containers.clear()  # Nobody follows them any more.
        engine.shutdown()


@pytest.fixture
def expect_golden() -> Callable[[str, str], None]:
    """Compares a whole output with ``tests/golden/NAME``; UPDATE_GOLDEN=1 writes it anew."""

    def expect(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{name} differs; if meant: UPDATE_GOLDEN=1 make test"

    return expect


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """The Docker engine, as its SDK shows it."""
    import docker

    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    """``launcher`` typed in a folder of the test's own, which may leave nothing behind."""
    runner = Runner(tmp_path)
    uses_docker = request.node.get_closest_marker("docker")
    engine = request.getfixturevalue("engine") if uses_docker else None
    yield runner
    if engine is not None:
        left = remove_left(engine, runner.run_ids())
        assert left == [], "a test left containers or networks behind"
    processes = runner.processes()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    assert processes == [], "a test left processes behind"


@pytest.fixture(autouse=True)
def no_follower_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They ask a cluster that is gone until their process ends: here, all other tests long."""
    started: list[PodWatch | LogFollower] = []

    def noting(start: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(follower: PodWatch | LogFollower) -> None:
            started.append(follower)
            start(follower)

        return note

    for kind in (PodWatch, LogFollower):
        monkeypatch.setattr(kind, "start", noting(kind.start))
    yield
    for follower in started:
        follower._stopped.set()
