"""Which engines tests need (skipped where absent, or required by ``REQUIRE=docker,...``), and which
tests stay in one process.
"""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest.__main__

from tests.engines import DOCKER_IMAGE, cluster, four_engines, four_hosts, one_cluster

__all__ = ["DOCKER_IMAGE", "cluster", "four_engines", "four_hosts", "one_cluster"]

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

WHY_NOT_BUILT = Path(__file__).parents[1] / ".image/cpu.reason"
"""Left by ``make test``, which builds the image if that is possible."""


@functools.cache
def why_no_docker() -> str:
    """Empty where the engine answers and holds the image that ``make image`` builds."""
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        docker.from_env(timeout=5).images.get(DOCKER_IMAGE)
    except ImageNotFound:
        why = WHY_NOT_BUILT.read_text().strip() if WHY_NOT_BUILT.exists() else "make image"
        return f"no image {DOCKER_IMAGE}: {why}"
    except DockerException as error:
        return f"no Docker engine: {error}"
    return ""


def why_no_etcd() -> str:
    """Empty where the server's program and torch's client library are there."""
    if shutil.which("etcd") is None:
        return "no program etcd: apt-get install etcd-server"
    return "" if importlib.util.find_spec("etcd") else "no python-etcd: make setup"


def why_no_mpi() -> str:
    """Empty where Open MPI's starter is there."""
    return "" if shutil.which("mpirun") else "no program mpirun: apt-get install openmpi-bin"


def why_no_site() -> str:
    """Empty where what builds the site is there."""
    return "" if importlib.util.find_spec("material") else "no mkdocs-material: make setup"


def why_no_slurm() -> str:
    """Empty where a cluster can be made on this machine: see ``tests/slurm/cluster.py``."""
    needed = {"slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge"}
    return _why_no_root("slurmd", needed | {"sbatch": "slurm-client", "srun": "slurm-client"})


def _why_no_root(purpose: str, needed: dict[str, str]) -> str:
    """Empty for root on Linux with these programs, each given with its package."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return f"no root on Linux, for {purpose}"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    for program, package in needed.items():
        if shutil.which(program, path=path) is None:
            return f"no program {program}: apt-get install {package}"
    return ""


def why_no_cc() -> str:
    """Empty where compilers are, for libraries that are preloaded, and for torch.compile."""
    found = shutil.which("cc") and shutil.which("g++")
    return "" if found else "no programs cc and g++: apt-get install gcc g++ libc6-dev"


def why_no_gpu() -> str:
    """Empty where torch sees a CUDA device."""
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device"


def why_no_kubectl() -> str:
    """Empty where the client is there; what it builds needs no cluster."""
    return (
        ""
        if shutil.which("kubectl")
        else "no program kubectl: https://kubernetes.io/docs/tasks/tools"
    )


def why_no_hosts() -> str:
    """Empty where hosts can be made: see ``tests/hosts/places.py``."""
    needed = {"sshd": "openssh-server", "ssh": "openssh-client", "ip": "iproute2"}
    needed |= {"nsenter": "util-linux", "ssh-keygen": "openssh-client"}
    return _why_no_root("network namespaces", needed)


@functools.cache
def why_no_mount() -> str:
    """Empty where a small disk can be mounted, to be filled up."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "no root on Linux, which mounting needs"
    with tempfile.TemporaryDirectory() as folder:
        mount = ("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"no right to mount a tmpfs: {done.stderr.strip()}"
        subprocess.run(("umount", folder), check=True)
    return ""


@functools.cache
def why_no_cluster() -> str:
    """Empty where the current context's cluster answers and may be used for tests.

    It may where ``CLUSTER_IMAGE`` names an image that its nodes hold or can pull.
    """
    if "CLUSTER_IMAGE" not in os.environ:
        return "no CLUSTER_IMAGE=REF, which says that the current context may be used"
    if importlib.util.find_spec("kubernetes") is None:
        return "no Python package kubernetes: make setup"
    from launcher.contract.errors import TargetError
    from launcher.targets.kubernetes.api.cluster import Cluster

    try:
        Cluster().read_version()
    except TargetError as error:
        return error.what
    return ""


def why_no_prometheus() -> str:
    found = shutil.which("prometheus") and shutil.which("promtool")
    return "" if found else "no Prometheus: apt-get install prometheus"


def why_no_chromium() -> str:
    return "" if shutil.which("chromium") else "no chromium: apt-get install chromium"


def why_no_tmux() -> str:
    return "" if shutil.which("tmux") else "no tmux: apt-get install tmux"


ENGINES: dict[str, Callable[[], str]] = {
    "docker": why_no_docker,
    "etcd": why_no_etcd,
    "cc": why_no_cc,
    "chromium": why_no_chromium,
    "cluster": why_no_cluster,
    "gpu": why_no_gpu,
    "kubectl": why_no_kubectl,
    "hosts": why_no_hosts,
    "mount": why_no_mount,
    "mpi": why_no_mpi,
    "prometheus": why_no_prometheus,
    "site": why_no_site,
    "slurm": why_no_slurm,
    "tmux": why_no_tmux,
}
"""Marker -> why its engine cannot be used here, empty where it can."""
SHARED = ("hosts", "slurm", "cluster", "gpu")
"""Engines of which there is one: their tests run one after the other."""


@pytest.fixture(autouse=True)
def _hears_interrupts() -> None:
    """Also where a run has ended in this process, which leaves SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _keeps_its_environment() -> Iterator[None]:
    """What runs in this process writes variables, as Lightning does MASTER_PORT, for the next."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def pytest_configure() -> None:
    # Started in a shell's background, pytest would hand an ignored SIGINT on to all it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Without bytecode each of the programs that tests start would compile this project anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if sys.argv[0] == "-c":
        # A process of pytest-xdist. Messages name the program, as in one that xdist did not start.
        sys.argv[0] = pytest.__main__.__file__


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says what stays in one process where ``make test`` runs several: an engine's tests, those
    with containers of one folder, which find each other's, and those of one file, which share
    fixtures. A test that names a group of its own takes very long: it starts first.
    """

    def group_of(item: pytest.Item) -> str:
        if own := item.get_closest_marker("xdist_group"):
            return str(own.args[0])
        held = [marker for marker in SHARED if item.get_closest_marker(marker)]
        if held:
            return held[-1]
        file = item.location[0]
        return os.path.dirname(file) if item.get_closest_marker("docker") else file

    def start_of(item: pytest.Item) -> int:
        return 0 if item.get_closest_marker("xdist_group") else 1 + group_of(item).endswith(".py")

    items.sort(key=start_of)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))


def required() -> list[str]:
    """The engines without which tests fail."""
    return os.environ.get("REQUIRE", "").replace(",", " ").split()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, why_not in ENGINES.items():
        if item.get_closest_marker(marker) and (reason := why_not()):
            if marker in required():
                pytest.fail(f"{marker} is required, but there is {reason}", pytrace=False)
            pytest.skip(f"{marker}: {reason}")
