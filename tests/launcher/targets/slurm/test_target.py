"""What the target asks of Slurm's commands, which are stand-ins here."""

import re
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.contract import protocol
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.job.spec import JobSpec
from launcher.targets.slurm import target as target_module
from launcher.targets.slurm.client import SlurmError
from launcher.targets.slurm.job_starts import read_jobs
from launcher.targets.slurm.settings import SlurmSettings
from launcher.targets.slurm.target import SlurmTarget
from launcher.targets.slurm_process import SlurmProcess
from tests.launcher.targets.slurm.conftest import Commands, Folder
from tests.waiting import wait_until

AWAY = "Unable to contact slurm controller (connect failure)"
BUSY = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
STARTED = {"j7_0_started": "n1 n2"}
LAST, RUNS = "7|7|2|RUNNING|None|", "7|7|N/A|RUNNING|None|"
ELEMENTS = {f"e7_{index}_0_started": "n1" for index in range(3)}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmTarget:
    monkeypatch.setattr(target_module, "END_LIMIT_S", 0.2)
    return SlurmTarget(tmp_path)


def hold(commands: Commands, queue: Path, *lines: str) -> None:
    """Has squeue tell these jobs until scancel is called."""
    queue.write_text("".join(f"{line}\n" for line in lines))
    commands.does("squeue", f"cat '{queue}' 2>&- || true")
    commands.does("scancel", f"rm -f '{queue}'")


# -- before a run ----------------------------------------------------------------------------------


def make_job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "digits", "command": ["train.py"], **keys})


def test_nodes_get_this_python_or_that_of_the_path(target, commands, monkeypatch):
    own = SlurmSettings.of(target.facts(make_job()))
    assert (own.python, own.inside) == (sys.executable, 0)
    assert SlurmSettings.of(target.facts(make_job(slurm={"python": "/p"}))).python == "/p"

    def read_torch_version(python: str) -> str:
        raise TargetError(f"{python} has no torch")

    monkeypatch.setattr(target_module, "read_torch_version", read_torch_version)
    (commands.bin / "python3").symlink_to(sys.executable)
    facts = target.facts(make_job())
    assert SlurmSettings.of(facts).python == f"{commands.bin}/python3"
    assert facts.torch_version is None
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KeyInputError, match="there is no python3 on PATH"):
        target.facts(make_job())


def test_a_run_inside_of_an_allocation_has_its_nodes_and_asks_slurm_for_nothing(tmp_path, commands):
    target = SlurmTarget(tmp_path, allocation=SlurmProcess(job=5, nodes=3))
    assert target.there is not None
    assert target.there.count == 3
    facts = target.facts(make_job(nnodes="1:2", slurm={"time": "9:00", "setup": ["true"]}))
    own = SlurmSettings.of(facts)
    assert facts.place == "Slurm, job 5, 2 of its 3 nodes"
    # Nobody waits for a node that no job of its own brings back.
    assert (own.kind, facts.agent and facts.agent.awaits_nodes) == ("allocation", False)
    assert (own.inside, own.requeue, own.notice_s, own.options) == (5, False, 0, ())
    assert target.notes[0].startswith("slurm.time: not asked of Slurm")


@pytest.mark.parametrize(
    ("keys", "sbatch", "raised", "words"),
    [
        ({}, "", None, ""),
        # sbatch would wait for nodes that are drained.
        ({}, "error: Requested node configuration is not available", None, ""),
        ({}, "error: invalid qos", InputError, "--set slurm.qos=NAME .*; launcher doctor JOB --on"),
        # A cluster that is out of reach is no wrong input.
        ({}, "fatal: Could not establish a configuration source", SlurmError, "export SLURM_CONF="),
        ({}, "failure: Protocol authentication error", SlurmError, r"munge -n \| unmunge"),
        ({}, "error: Unable to contact slurm controller", SlurmError, "fix: scontrol ping"),
        # Without code of its own a node finds its script in the run's folder.
        ({"command": ["gone.py"]}, "", InputError, "no such file"),
        ({"command": ["gone.py"], "image": "a:1", "slurm": {"container": "pyxis"}}, "", None, ""),
        ({"secrets": ["NOT_THERE"]}, "", InputError, "NOT_THERE not set"),
        ({"checkpoint_dir": "/proc/c"}, "", InputError, "/proc/c"),
    ],
)
def test_a_job_is_checked_here_and_then_by_slurm(
    tmp_path, commands, monkeypatch, target, keys, sbatch, raised, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    if sbatch:
        commands.prints("sbatch", sbatch, code=1)
    made = Folder(tmp_path, **keys).plan
    made = replace(made, nodes=tuple(replace(node, workdir=None) for node in made.nodes))
    if raised is None:
        target.check(made)
        (call,) = commands.calls()
        assert call.startswith("sbatch --test-only ")
        return
    with pytest.raises(raised) as caught:
        target.check(made)
    assert re.search(words, str(caught.value), re.DOTALL)


def test_what_needs_no_question_to_slurm_is_not_asked(folder, commands, target):
    # The code that is sent has the script, which need not be here.
    record = SimpleNamespace(start=("gone.py",), inner=".")
    target.code = SimpleNamespace(names={"train.py"}, record=record)  # type: ignore[assignment]
    with pytest.raises(KeyInputError, match="in the code that nodes get"):
        target.check(folder.plan)
    record.start = ("train.py",)
    own = replace(SlurmSettings.of(folder.plan), inside=5, container="pyxis")
    made = replace(folder.plan, own=own)
    target.check(made)
    held = replace(made, agent=replace(made.agent, hold_idle_s=9))
    with pytest.raises(InputError, match="containers of pyxis are not held"):
        target.check(held)
    target.check(replace(held, own=replace(own, container=None)))
    assert commands.calls() == []


# -- start -----------------------------------------------------------------------------------------


def test_a_job_is_submitted_and_recorded_with_its_cluster(folder, commands, target):
    commands.prints("sbatch", "sbatch: a site's own words", "9;here")
    commands.prints("scontrol", "ClusterName             = here")
    target.submit(folder.plan)
    assert commands.calls("sbatch") == [f"sbatch --parsable {folder.run.path}/artifact.sh"]
    assert (folder.files / "9.job").exists()
    assert (folder.files / "cluster").read_text() == "here\n"
    assert zipfile.is_zipfile(folder.run.path / "agent.pyz")
    # Gone is a job only where its own controller says so.
    assert [node.is_alive for node in target.observe(folder.plan).nodes] == [False, False]
    (folder.files / "cluster").write_text("there\n")
    with pytest.raises(TargetError, match="is on the cluster there, and here answers") as caught:
        target.observe(folder.plan)
    assert caught.value.hint.startswith("a login node of there, or export SLURM_CONF=FILE")


@pytest.mark.parametrize(
    ("said", "queue", "raised", "words"),
    [
        (BUSY, ["7|launcher:digits-0a1b2c", "11|launcher:digits-0a1b2c"], None, (7, 11)),
        (BUSY, ["7|launcher:digits-0a1b2c"], TargetError, "shows the job later: launcher stop dig"),
        ("sbatch: error: invalid account", [], InputError, "--set slurm.account=NAME"),
        ("sbatch: error: Protocol authentication error", [], TargetError, "munge -n | unmunge"),
    ],
)
def test_a_job_that_slurm_took_although_sbatch_failed_is_not_lost(
    folder, commands, target, said, queue, raised, words
):
    (folder.files / "7.job").write_text("\n")
    commands.prints("sbatch", said, code=1)
    commands.prints("squeue", *queue)
    if raised is None:
        target.submit(folder.plan)
        assert read_jobs(folder.run) == words
        assert target.notes == [f"{said}; but Slurm has taken the job"]
    else:
        with pytest.raises(raised) as caught:
            target.submit(folder.plan)
        assert (words in caught.value.hint, read_jobs(folder.run)) == (True, (7,))
        assert isinstance(caught.value, InputError) == (raised is InputError)


@pytest.mark.parametrize("step", ["", "0"])
def test_the_script_runs_here_inside_of_an_allocation(folder, commands, monkeypatch, step):
    monkeypatch.setenv("MINE", "1")
    allocation = SlurmProcess(job=5, nodes=4, step=step)
    target = SlurmTarget(folder.run.path.parent, allocation)
    (folder.run.path / "artifact.sh").write_text("env; echo the end\n")
    target.submit(folder.plan)
    log = folder.files / "5.log"
    wait_until(lambda: "the end" in log.read_text())
    env = dict(line.partition("=")[::2] for line in log.read_text().splitlines())
    names = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", protocol.RUN_ID, "MINE", "SLURM_OVERLAP")
    overlaps = "1" if step else None
    assert [env.get(n) for n in names] == ["2", "2", "digits-0a1b2c", "1", overlaps]
    assert read_jobs(folder.run) == (5,)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TargetError, match="bash: No such file") as caught:
        target.submit(folder.plan)
    assert caught.value.hint == "the script needs bash on PATH"


@pytest.mark.parametrize(
    ("nnodes", "files", "queue", "place"),
    [
        (2, STARTED, RUNS, ("--jobid=7", "--relative=1")),
        ("1:2", ELEMENTS, "8|7|1|RUNNING|None|", ("--jobid=8", "--relative=0")),
        ("1:2", ELEMENTS, "7|7|2|RUNNING|None|", None),
        (2, STARTED, "", None),
        (2, {**STARTED, "j7_0_ended": "0 over"}, RUNS, None),
        (2, {}, RUNS, None),
    ],
)
def test_a_program_is_started_beside_a_node_that_runs(
    tmp_path, commands, target, nnodes, files, queue, place
):
    folder = Folder(tmp_path, nnodes, files=files)
    commands.prints("squeue", *filter(None, [queue]))
    if place is None:
        with pytest.raises(TargetError, match="node 1 of digits-0a1b2c does not run"):
            target.door(folder.plan, 1)
        return
    door, (job, relative) = target.door(folder.plan, 1), place
    assert door.words == (
        *("srun", job, "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none"),
        *("--unbuffered", "--quiet", relative),
    )
    assert door.at_terminal == (*door.words, "--pty")
    assert (door.python, door.archive) == (sys.executable, f"{folder.run.path}/agent.pyz")
    own = replace(SlurmSettings.of(folder.plan), container="pyxis")
    with pytest.raises(InputError, match="no program can be started in a container of pyxis"):
        target.door(replace(folder.plan, own=own), 1)


# -- end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "queue", "only", "cancelled", "asked"),
    [
        (STARTED, [RUNS], None, ["scancel 7"], ["7.0"]),
        ({}, ["7|7|N/A|PENDING|Priority|"], None, ["scancel 7"], []),
        ({**STARTED, "j7_0_ended": "0 over"}, ["7|7|N/A|COMPLETED|None|"], None, [], []),
        # Another run's job has got the number since.
        ({}, [f"{RUNS}launcher:other-1"], None, [], []),
        (ELEMENTS, ["8|7|0|RUNNING|None|", LAST], (2,), ["scancel 7_2"], ["7_2.0"]),
        ({}, ["8|7|0|PENDING|None|", "7|7|1|PENDING|None|"], (1,), ["scancel 7_1"], []),
    ],
)
def test_a_stop_asks_the_agents_and_cancels_what_is_left(
    tmp_path, commands, target, files, queue, only, cancelled, asked
):
    folder = Folder(tmp_path, "1:3" if only else 2, files=files)
    (folder.files / "7.job").write_text("\n")
    hold(commands, tmp_path / "queue", *queue)
    target.stop(folder.run.run_id, 0, only)
    assert (commands.calls("scancel"), target.notes) == (cancelled, [])
    stops = {path.stem: path.read_text() for path in folder.files.glob("*.stop")}
    assert stops == dict.fromkeys(asked, "stop-requested\n")


def test_agents_have_the_grace_to_end_before_their_job_is_cancelled(folder, commands, target):
    folder.write(**STARTED)
    stop = folder.files / "7.0.stop"

    def end() -> None:
        wait_until(stop.exists)
        folder.write(j7_0_ended="143 over")

    agent = threading.Thread(target=end)
    agent.start()
    target.stop(folder.run.run_id, 30)
    agent.join()
    assert commands.calls("scancel") == []


@pytest.mark.parametrize(
    ("inside", "only", "squeue", "raised", "told"),
    [
        (0, None, (AWAY, 1), "scancel 7", None),
        (0, (1, 2), (AWAY, 1), "scancel 7_1 7_2", None),
        (0, None, ("slurm_load_jobs error: no right", 1), "scancel 7", None),
        (0, None, (RUNS, 0), None, "it is cancelled, but not gone yet: squeue --me; scancel 7"),
        (
            5,
            None,
            ("5.1|digits-0a1b2c", 0),
            None,
            "it is cancelled, but not gone yet: squeue --me; squeue --st",
        ),
        (5, None, (AWAY, 1), "squeue --steps --jobs=5 names its step", None),
    ],
)
def test_a_stop_that_fails_says_what_to_type(
    tmp_path, commands, target, inside, only, squeue, raised, told
):
    folder = Folder(tmp_path, inside=inside, files=STARTED)
    commands.prints("squeue", squeue[0], code=squeue[1])
    if raised:
        with pytest.raises(TargetError, match="STILL RUNNING: digits-0a1b2c") as caught:
            target.stop(folder.run.run_id, 0, only)
        assert caught.value.hint.startswith(raised)
    else:
        target.stop(folder.run.run_id, 0, only)
    assert [note[: len(told)] for note in target.notes] == ([told] if told else [])
    assert (folder.files / "7.0.stop").exists() == (only is None)


def test_a_stop_inside_of_an_allocation_ends_the_runs_step_alone(tmp_path, commands, target):
    folder = Folder(tmp_path, inside=5)
    folder.write(j5_0_started="n1 n2")
    commands.prints("squeue", "5.batch|batch", "5.0|other", "5.1|digits-0a1b2c")
    commands.does("scancel", f"echo 143 over >'{folder.files}/5.0.ended'")
    target.stop(folder.run.run_id, 0)
    asked = ["squeue --noheader --steps --jobs=5 --format=%i|%j", "scancel 5.1"]
    assert commands.calls() == asked
    # Once its program has told its end, the job around it may have ended too.
    target.stop(folder.run.run_id, 0)
    assert commands.calls() == []


def test_a_resize_ends_the_highest_elements_and_adds_those_that_are_missing(
    tmp_path, commands, target
):
    folder = Folder(tmp_path, "1:4")
    (folder.files / "7.job").write_text("\n")
    commands.prints("sbatch", "9")
    hold(commands, tmp_path / "queue", *(f"8|7|{index}|PENDING|None|" for index in range(3)))
    assert target.scale(folder.run, folder.plan, 2)
    assert commands.calls("scancel") == ["scancel 7_2"]
    # Element 1 has ended, and 2 comes back by itself.
    folder.write(e7_1_0_started="n1", e7_1_0_ended="0 over")
    folder.write(e7_2_0_started="n1", e7_2_0_ended="143 requeued")
    rest = ("8|7|1|COMPLETED|None|", "7|7|2|PENDING|BeginTime|")
    hold(commands, tmp_path / "queue", "8|7|0|RUNNING|None|", *rest)
    target.scale(folder.run, folder.plan, 4)
    script = folder.run.path / "artifact.sh"
    assert commands.calls("sbatch") == [f"sbatch --parsable --array=1,3 {script}"]
    assert read_jobs(folder.run) == (7, 9)


@pytest.mark.parametrize(
    ("ended", "says"),
    [({}, False), ({0: "1 over"}, False), ({0: "1 over", 1: "143 over"}, True)],
)
def test_the_folder_alone_says_that_all_have_ended(tmp_path, commands, target, ended, says):
    folder = Folder(tmp_path, "1:2")
    folder.write(e7_0_0_started="n1", e7_1_0_started="n2")
    folder.write(**{f"e7_{index}_0_ended": words for index, words in ended.items()})
    assert target.says_end(folder.run, folder.plan) == says
    assert commands.calls() == []
    # Who asks for the end of a run whose training has failed ends what still runs of it.
    hold(commands, tmp_path / "queue", "7|7|1|RUNNING|None|")
    assert (target.find_end(folder.run, folder.plan) is not None) == bool(ended)
    assert commands.calls("scancel") == (["scancel 7"] if ended and not says else [])
