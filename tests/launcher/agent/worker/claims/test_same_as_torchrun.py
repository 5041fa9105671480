"""What a script observes under the agent, fresh and forked, is what it observes under torchrun."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.agent.place import LIMIT_S, Place
from tests.programs import run_program

OBSERVER = """
import atexit, json, multiprocessing, os, pathlib, random, signal, sys, threading
def double(n): return 2 * n
def main():
    seen = {"imported before": [n for n in ("launcher", "train") if n in sys.modules]}
    seen["argv"] = sys.argv[1:]
    seen["script folder first"] = sys.path[0] == os.path.dirname(os.path.realpath(__file__))
    seen["search path"] = sys.path[1:]
    seen["name"] = __name__, __package__, __spec__ is None, os.path.basename(__file__)
    seen["stdin"] = sys.stdin.read(), os.readlink("/proc/self/fd/0")[:5]
    seen["streams"] = [
        (s.encoding, s.errors, s.write_through, s.line_buffering, s.fileno())
        for s in (sys.stdout, sys.stderr)
    ]
    seen["descriptors"] = sorted(
        os.readlink(f"/proc/self/fd/{n}").split(":")[0]
        for n in os.listdir("/proc/self/fd")
        if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")
        and "heartbeat-" not in os.readlink(f"/proc/self/fd/{n}")
    )
    seen["session"] = os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()
    seen["signals"] = [str(signal.getsignal(n)) for n in (2, 13, 15, 17)]
    seen["mask"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    seen["cwd"] = os.path.basename(os.getcwd())
    seen["threads"] = len(os.listdir("/proc/self/task")), threading.current_thread().name
    seen["multiprocessing"] = (
        multiprocessing.current_process().name,
        multiprocessing.parent_process() is None,
        multiprocessing.get_start_method(allow_none=True),
        type(multiprocessing.current_process()).__name__,
    )
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            seen["pool " + method] = pool.map(double, [21])
    seen["flags"] = sys.flags.hash_randomization, sys.flags.no_user_site, sys.flags.optimize
    seen["hash"] = hash("text")
    import torch
    seen["torch seed"] = torch.initial_seed(), torch.rand(1).item()
    seen["threads of torch"] = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    seen["cuda"] = torch.cuda.is_initialized()
    seen["random"] = random.random()
    try:
        import numpy
        seen["numpy"] = float(numpy.random.rand())
    except ImportError:
        seen["numpy"] = random.random()
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    seen["sum"] = total.item()
    folder = pathlib.Path("seen")
    folder.mkdir(exist_ok=True)
    atexit.register(lambda: folder.joinpath("atexit-" + os.environ["RANK"]).touch())
    folder.joinpath(os.environ["RANK"] + ".json").write_text(json.dumps(seen))
    sys.stdout.buffer.write(b"\\xff\\xfe no text\\n")
    print("caf\\u00e9")
    os.write(2, b"straight to the descriptor\\n")
    if os.environ["RANK"] == "0":
        os._exit(0)
    sys.exit(None)
if __name__ == "__main__":
    main()
"""
MODES = ("torchrun", "fresh", "fork")
Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> dict[str, Path]:
    """One run of two workers under each of the three."""
    found = {}
    for mode in MODES:
        place = Place(tmp_path_factory.mktemp(mode) / "work", archive)
        place.write(OBSERVER)
        place.env["PYTHONHASHSEED"] = "7"
        env = (("PYTHONHASHSEED", "7"), ("PYTHONUNBUFFERED", "1"))
        if mode == "torchrun":
            place.plan(nproc=2)
            run_torchrun(place, env)
        else:
            place.plan("script.py", "-x", "a b", nproc=2, start=mode, env=env, max_restarts=0)
            process = place.start(stdin=subprocess.PIPE)
            process.communicate(b"", timeout=LIMIT_S)
            assert process.returncode == 0, place.console()
        found[mode] = place.folder
    return found


def run_torchrun(place: Place, env: tuple[tuple[str, str], ...]) -> None:
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    argv += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    argv += ["--log-dir=logs", "--redirects=3", "script.py", "-x", "a b"]
    fixed = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    fixed |= {**dict(env), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = run_program(argv, cwd=place.folder, env={**place.env, **fixed}, input="")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def seen(folders: dict[str, Path]) -> Seen:
    return {
        mode: [json.loads((folder / f"seen/{rank}.json").read_text()) for rank in (0, 1)]
        for mode, folder in folders.items()
    }


@pytest.mark.parametrize("mode", ["fresh", "fork"])
@pytest.mark.parametrize(
    "what",
    [
        "imported before",
        "argv",
        "script folder first",
        "search path",
        "name",
        "stdin",
        "streams",
        "descriptors",
        "session",
        "signals",
        "mask",
        "cwd",
        "threads",
        "multiprocessing",
        "pool fork",
        "pool spawn",
        "pool forkserver",
        "flags",
        "hash",
        "threads of torch",
        "cuda",
        "sum",
    ],
)
def test_a_script_observes_the_same(seen, mode, what):
    if what == "cwd":
        assert [one[what] for one in seen[mode]] == ["work", "work"]
    else:
        assert [one[what] for one in seen[mode]] == [one[what] for one in seen["torchrun"]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["random", "numpy", "torch seed"])
def test_random_numbers_differ_by_rank(seen, mode, source):
    assert seen[mode][0][source] != seen[mode][1][source]


@pytest.mark.parametrize("mode", MODES)
def test_atexit_runs_unless_the_script_left_by_os_exit(folders, mode):
    assert sorted(p.name for p in folders[mode].glob("seen/atexit-*")) == ["atexit-1"]


@pytest.mark.parametrize("mode", ["fresh", "fork"])
@pytest.mark.parametrize("rank", [0, 1])
def test_logs_hold_the_very_bytes(folders, mode, rank):
    folder = folders[mode] / f"run/nodes/0/0/attempt-0/rank-{rank}"
    assert (folder / "stdout").read_bytes() == b"\xff\xfe no text\n" + "café\n".encode()
    assert (folder / "stderr").read_bytes().startswith(b"straight to the descriptor\n")


def test_torchrun_s_logs_hold_the_same(folders):
    (path,) = folders["torchrun"].glob("logs/*/attempt_0/0/stdout.log")
    assert path.read_bytes() == b"\xff\xfe no text\n" + "café\n".encode()
