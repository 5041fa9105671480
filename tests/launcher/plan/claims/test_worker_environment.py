"""A worker's environment is that of plain torchrun, but for the list in the documentation."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

import pytest
import yaml

from tests.launcher.runner import ROOT, Runner
from tests.programs import run_program

PAGE = ROOT / "docs" / "worker-environment.md"
SCRIPT = """
import json, os, pathlib
path = pathlib.Path("seen-" + os.environ["RANK"] + ".json")
path.write_text(json.dumps(dict(os.environ)))
"""
MODES = {
    "fresh": {"engine": "agent", "start": "fresh"},
    "fork": {"engine": "agent", "start": "fork"},
    "torchrun": {"engine": "torchrun"},
}
OF_ALL = pytest.mark.parametrize(("mode", "nproc"), [("fresh", 1), *((mode, 2) for mode in MODES)])
Environment = dict[str, str]
Observe = Callable[[str, int], list[Environment]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One line of the list."""

    name: str
    where: str
    theirs: str
    ours: str
    why: str

    def covers(self, name: str) -> bool:
        return fnmatchcase(name, self.name)

    def holds(self, mode: str, nproc: int) -> bool:
        """Whether it must be seen on a machine without GPUs, by local processes."""
        return {
            "always": True,
            "on CPUs, without containers": True,
            "with one process for each node": nproc == 1,
            "with `engine: torchrun`": mode == "torchrun",
            "with the agent": mode != "torchrun",
        }.get(self.where, False)


def read_list() -> list[Difference]:
    row = r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \| ?(.*?) ?\|$"
    rows = re.findall(row, PAGE.read_text(), re.MULTILINE)
    names = ("name", "where", "theirs", "ours", "why")
    return [Difference(**dict(zip(names, row, strict=True))) for row in rows]


DIFFERENCES = read_list()


@pytest.fixture(scope="module")
def observe(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """What each rank has for its environment, in a mode or under plain torchrun; once each."""

    @cache
    def run(mode: str, nproc: int) -> list[Environment]:
        runner = Runner(tmp_path_factory.mktemp(f"{mode}-{nproc}"))
        of_the_tests = ("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTEST_CURRENT_TEST")
        for name in (*of_the_tests, "GLOO_SOCKET_IFNAME"):
            runner.env.pop(name, None)
        # Such as LAUNCHER_SOAK_S of `make soak`.
        for name in [name for name in runner.env if name.startswith("LAUNCHER_")]:
            del runner.env[name]
        runner.env["LT_STRATEGY"] = "ddp"
        (runner.folder / "script.py").write_text(SCRIPT)
        if mode == "plain":
            run_torchrun(runner, nproc, "script.py")
        else:
            job = {"name": "seen", "command": ["script.py"], "nproc_per_node": nproc}
            (runner.folder / "job.yaml").write_text(yaml.safe_dump({**job, **MODES[mode]}))
            runner.well("run", "job.yaml", "--on", "local")
        paths = [runner.folder / f"seen-{rank}.json" for rank in range(nproc)]
        return [json.loads(path.read_text()) for path in paths]

    return run


def run_torchrun(runner: Runner, nproc: int, *command: str) -> None:
    argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={nproc}", *command]
    done = run_program(argv, cwd=runner.folder, env=runner.env, timeout=runner.limit_s)
    assert done.returncode == 0, done.stderr


@OF_ALL
def test_every_difference_from_plain_torchrun_is_on_the_list(observe, mode, nproc):
    for ours, theirs in zip(observe(mode, nproc), observe("plain", nproc), strict=True):
        differing = {n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)}
        expected = [one for one in DIFFERENCES if one.holds(mode, nproc)]
        unlisted = [n for n in differing if not any(one.covers(n) for one in expected)]
        assert {n: (theirs.get(n), ours.get(n)) for n in unlisted} == {}
        gone = [one.name for one in expected if not any(one.covers(n) for n in differing)]
        assert gone == [], "listed, and not there any more"


@OF_ALL
def test_the_list_says_what_the_values_are(observe, mode, nproc):
    for ours, theirs in zip(observe(mode, nproc), observe("plain", nproc), strict=True):
        for one in DIFFERENCES:
            if not one.holds(mode, nproc):
                continue
            for words, found in ((one.theirs, theirs), (one.ours, ours)):
                if words == "not set":
                    assert not [name for name in found if one.covers(name)]
                elif words.startswith("`") and words.endswith("`"):
                    assert found[one.name] == words.strip("`")


def test_every_line_of_the_list_has_a_reason_or_differs_from_run_to_run():
    assert len(DIFFERENCES) == PAGE.read_text().count("\n| `")
    assert [one.name for one in DIFFERENCES if not one.why] == ["MASTER_PORT"]


def test_a_worker_s_role_and_signals_are_torchrun_s(observe):
    for mode in MODES:
        seen, _ = observe(mode, 2)
        assert seen["ROLE_NAME"] == "default"
        assert seen["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def example() -> str:
    """The code of the page, and a process group that shares its store."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    return "import os\n" + "".join(code) + STORE


STORE = """
import pathlib
import torch, torch.distributed as dist
store.set("from-" + os.environ["RANK"], os.environ["RANK"])
found = [store.get(f"from-{rank}").decode() for rank in range(int(os.environ["WORLD_SIZE"]))]
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert found == ["0", "1"] and total.item() == 2
pathlib.Path("served-" + os.environ["RANK"]).write_text(str(served))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["roster", "static"])
def test_a_script_may_connect_to_the_store_as_the_variable_says(tmp_path, backend):
    runner = Runner(tmp_path)
    (tmp_path / "script.py").write_text(example())
    job = {"name": "store", "command": ["script.py"], "nnodes": 2, "engine": "agent"}
    job |= {"nproc_per_node": 1, "rdzv": {"backend": backend}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    runner.well("run", "job.yaml", "--on", "local")
    told = [(tmp_path / f"served-{rank}").read_text() for rank in range(2)]
    assert told == [str(backend == "static")] * 2


def test_the_same_script_works_under_plain_torchrun(tmp_path):
    runner = Runner(tmp_path)
    (tmp_path / "script.py").write_text(example())
    run_torchrun(runner, 2, "script.py")
    assert (tmp_path / "served-1").read_text() == "True"


@pytest.mark.parametrize("section", ["env: {NAME: /data/mine}", "secrets: [NAME]"])
@pytest.mark.parametrize(
    ("name", "fix"), [("RUN_DIR", "remove it"), ("CHECKPOINT_DIR", "use the key checkpoint_dir")]
)
def test_a_job_that_sets_a_folder_of_the_launcher_is_refused(tmp_path, section, name, fix):
    runner = Runner(tmp_path)
    runner.write("raise SystemExit('never started')", f"name: a\n{section}\n".replace("NAME", name))
    told = runner.fails(2, "run", "job.yaml", "--on", "local")
    assert f"found {name}; accepted: names of your own; the launcher sets this one" in told
    assert f"fix: {fix}" in told
