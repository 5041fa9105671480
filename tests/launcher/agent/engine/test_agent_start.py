"""What the agent finds before it starts workers: GPUs, torch, the code, and whether it may fork."""

import ctypes
import os
import resource
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from launcher.agent.engine import preload, run
from launcher.agent.engine.gpu_memory import (
    GpuBusyError,
    GpuGate,
    find_busy,
    open_devices,
    open_gauges,
)
from launcher.agent.engine.monitoring import vitals
from launcher.agent.engine.run import (
    plan_preload,
    read_installed,
    read_token,
    refuse_limit,
    refuse_torch,
    warm_up,
)
from launcher.contract.node_plan import AgentSettings, NodeTask
from launcher.contract.reports.vitals import GpuVitals
from tests.launcher.node_plans import node_plan
from tests.waiting import StoppedClock


class Nvml:
    """The driver's library, with two devices; the first one's UUID is GPU-1."""

    def __init__(self, answer: int = 0) -> None:
        self.nvmlInit_v2 = lambda: answer

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = 2

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        handle._obj.value = index + 1
        return index > 1

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):  # noqa: N802
        handle._obj.value = 1
        return uuid != b"GPU-1"

    def nvmlDeviceGetMemoryInfo(self, handle, memory):  # noqa: N802
        memory._obj.total, memory._obj.used = 80 << 30, handle.value

    def nvmlDeviceGetName(self, handle, model, size):  # noqa: N802
        model.value = b"NVIDIA H200"

    def nvmlDeviceGetUtilizationRates(self, handle, busy):  # noqa: N802
        busy._obj.gpu = 50

    def nvmlDeviceGetTemperature(self, handle, sensor, temperature):  # noqa: N802
        temperature._obj.value = 60 + sensor


@pytest.mark.parametrize(
    ("answer", "visible", "used"),
    [
        (0, None, {"0": 1, "1": 2}),
        (0, "1", {"1": 2}),
        (0, "GPU-1, 1,", {"GPU-1": 1, "1": 2}),
        (0, "7,GPU-9", None),
        (0, "", None),
        (999, "0", None),
        (-1, "0", None),
        (None, "0", None),
    ],
)
def test_the_devices_are_those_that_the_node_may_see(answer, visible, used, monkeypatch):
    def load(name: str) -> Nvml:
        if answer is None:
            raise OSError(name)
        return Nvml(answer)

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(vitals, "read_memory", lambda: (1, 3 << 30))
    read = open_devices(visible)
    assert (read and read()) == used
    gauge = {"model": "NVIDIA H200", "share": 0.5, "memory_limit_bytes": 80 << 30}
    assert open_gauges(visible)() == tuple(
        GpuVitals(name=name, memory_bytes=bytes_, temperature_c=60, **gauge)
        for name, bytes_ in (used or {}).items()
    )
    told = f"{len(used)} x NVIDIA H200" if used else "none"
    cpus = str(len(os.sched_getaffinity(0)))
    assert vitals.read_hardware(visible) == {"CPUs": cpus, "memory": "3 GiB", "GPUs": told}


def test_a_restart_waits_until_the_dead_workers_memory_is_free():
    used = iter([{"0": 1 << 30}, {"0": 5 << 30}, {"0": 4 << 30}, {"0": 1 << 30}])
    gate = GpuGate(lambda: next(used), 10, StoppedClock(now=7.0))
    assert gate.wait() == pytest.approx(0.2)
    assert GpuGate(None, 10, StoppedClock()).wait() == 0.0
    most = {"0": (1 << 30) + (256 << 20), "1": (256 << 20) + 1}
    assert find_busy({"0": 1 << 30}, most) == {"1": (256 << 20) + 1}


def test_memory_that_stays_in_use_is_a_clear_error():
    used, clock = iter([{"0": 0}]), StoppedClock(now=7.0)
    gate = GpuGate(lambda: next(used, {"0": 3 << 30}), 2, clock)
    with pytest.raises(GpuBusyError, match=r"2 s after the workers ended \(device 0: 3072 MiB\)"):
        gate.wait()
    assert clock.now == pytest.approx(9.1)


def test_a_torch_that_is_too_old_or_missing_is_refused_in_the_node(monkeypatch):
    assert refuse_torch() == ""
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    assert refuse_torch() == ""
    monkeypatch.setattr(torch, "__version__", "2.3.1+cu121")
    assert refuse_torch() == "torch 2.3.1+cu121 is too old: 2.4 or newer is needed"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refuse_torch().startswith(f"{sys.executable}: import of torch halted")


def test_a_torch_for_which_there_is_no_memory_is_refused_by_the_errors_name(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise MemoryError\n")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.syspath_prepend(tmp_path)
    assert refuse_torch() == f"{sys.executable}: MemoryError"


def test_an_address_space_with_no_room_for_threads_is_refused(monkeypatch):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for left_mib, is_refused in ((-9, True), (10, True), (100, False)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, mib=left_mib: (used + (mib << 20), 0))
        assert refuse_limit().startswith("MemoryError: ulimit -v leaves ") == is_refused
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert refuse_limit() == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda patch: None, ""),
        # ``torch.cuda.is_available`` of an imported module is enough for that.
        (lambda patch: patch(torch.cuda, "_is_in_bad_fork", lambda: True),
         "an imported module has initialised CUDA, or asked for its devices"),
        (lambda patch: patch(os, "listdir", lambda _: ["1", "2", "3"]),
         "an imported module has started threads (2)"),
        (lambda patch: patch(forkserver, "main", lambda listener_fd, alive_r, preload: None),
         "Python 3.{} has an unknown fork server"),
        (lambda patch: patch(forkserver, "_forkserver", object()),
         "Python 3.{} has an unknown fork server"),
    ],
)  # fmt: skip
def test_a_process_is_not_forked_where_its_forks_would_fail(change, why, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    change(monkeypatch.setattr)
    assert preload.find_refusal({"other": "gone"}) == why.format(sys.version_info.minor)
    assert preload.find_refusal({"torch": "gone"}) == "torch cannot be imported: gone"


def test_a_server_of_forks_that_has_ended_is_named():
    with subprocess.Popen(("cat",), stdin=subprocess.PIPE) as server:
        preload._check_running(server.pid)
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(2):  # the second time, it is no child any more
            with pytest.raises(preload.ServerGoneError, match=f"pid {server.pid}"):
                preload._check_running(server.pid)


@pytest.mark.parametrize(
    ("named", "source", "modules"),
    [
        ((), "import torch", ()),
        ((), "import lightning", ("lightning.fabric",)),
        (("sklearn",), "from lightning.fabric import Fabric", ("lightning.fabric", "sklearn")),
        (("lightning.fabric",), "lightning", ("lightning.fabric",)),
    ],
)
def test_fabric_is_preloaded_where_the_script_mentions_it(named, source, modules):
    settings = AgentSettings(preload=named)
    assert plan_preload(settings, [b"import os", source.encode()]) == modules


@pytest.mark.parametrize(
    ("refused", "too_long", "said"),
    [
        ("", False, ""),
        ("it has threads", False, "it has threads"),
        ("", True, "{}/scratch: AF_UNIX path too long"),
    ],
)
@pytest.mark.parametrize("command", [("t.py",), ("-m", "t"), ("-m", "pack.t")])
def test_what_workers_need_is_imported_once_where_forks_are_possible(
    command, refused, too_long, said, monkeypatch, tmp_path, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack/t/deep").mkdir(parents=True)
    for name in ("t.py", "pack/t/deep/one.py"):
        (tmp_path / name).write_text("import lightning")
    asked: list[object] = []

    def serve(address: Path) -> None:
        asked.append(address)
        if too_long:
            raise OSError("AF_UNIX path too long")

    problems = {"sklearn": "ImportError: no", "lightning.fabric": "ImportError: no"}
    monkeypatch.setattr(preload, "import_all", lambda modules: asked.append(modules) or problems)
    monkeypatch.setattr(preload, "find_refusal", lambda told: refused if told is problems else "?")
    monkeypatch.setattr(preload, "start_server", serve)
    task = NodeTask(node=node_plan(command=command), settings=AgentSettings(preload=("sklearn",)))
    assert warm_up(task, tmp_path / "scratch") is (not said)
    modules = ("lightning.fabric", "sklearn")
    assert asked == [modules, *([] if refused else [tmp_path / "scratch/fork"])]
    why = f"start: fork is not possible here ({said.format(tmp_path)})"
    assert capfd.readouterr().err == (
        "[agent] preload: sklearn cannot be imported (ImportError: no); going on without it\n"
        + (f"[agent] {why}; starting fresh interpreters\n" if said else "")
    )


@pytest.mark.parametrize(
    ("command", "counts"),
    [
        (("t.py", "--conf=c.yaml", "x.bin"), {"t.py", "a.py", "deep.py", "c.yaml"}),
        (("-m", "t"), {"t.py", "a.py", "deep.py"}),
        (("-m", "pack"), {"pack/__init__.py", "pack/sub/one.py"}),
        (("-m", "pack.sub"), {"pack/sub/one.py"}),
        (("-m", "nowhere"), set()),
    ],
)
def test_the_code_of_a_node_is_what_starts_and_what_lies_beside_it(
    command, counts, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    texts = {
        "t.py": "import os\nfrom a import b\nimport gone\n  import deep\n", "a.py": "import t",
        "deep.py": "", "other.py": "", "c.yaml": "", "x.bin": "", "pack/__init__.py": "",
        "pack/sub/one.py": "", "gone/x.py": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def code(told: tuple[str, ...]) -> str:
        return read_installed(told)["code"]

    before, changed = code(command), set()
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n# changed")
        changed |= {name} if code(command) != before else set()
        (tmp_path / name).write_text(text)
    assert changed == counts
    assert len(before) == 12
    found = read_installed(command)
    assert found["torch"] == torch.__version__
    assert found["Python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_token_is_the_run_s_or_the_pod_s(tmp_path):
    assert read_token(tmp_path / "run", tmp_path / "pod") == ""
    for name in ("pod", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / run.protocol.TOKEN_FILE).write_text(f"of-{name}\n")
        assert read_token(tmp_path / "run", tmp_path / "pod") == f"of-{name}"
    (tmp_path / "run" / run.protocol.TOKEN_FILE).unlink()
    (tmp_path / "run" / run.protocol.TOKEN_FILE).mkdir()
    with pytest.raises(IsADirectoryError):
        read_token(tmp_path / "run")
