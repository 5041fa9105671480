"""The batch script: whole, and run by bash with stand-ins for Slurm's commands."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from launcher.contract.errors import InputError
from launcher.plan.launch_plan import CodePlan, LaunchPlan
from launcher.targets.slurm.script import name_for_apptainer, name_for_pyxis, render_script
from launcher.targets.slurm.settings import SlurmSettings
from tests.launcher.targets.slurm.conftest import Commands
from tests.launcher.targets.slurm.test_plan import plan
from tests.waiting import wait_until

AGENT = f"""\
import sys
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from launcher.agent import __main__, batch_job
for name, value in {{waits}}.items():
    setattr(batch_job, name, value)
sys.exit(__main__.main(sys.argv))
"""
"""In the place of ``agent.pyz``: the sources, with other times to wait."""
NONE: Mapping[str, str] = MappingProxyType({})
OUTCOME = {"schema": 1, "node_index": 0, "incarnation": 0}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "slurm-allocation-2.sh",
            {"nnodes": 2, "slurm": {"partition": "gpu", "time": "8:00:00", "setup": ["module x"]}},
        ),
        ("slurm-array-1-3.sh", {"nnodes": "1:3", "max_restarts": 5}),
        (
            "slurm-pyxis.sh",
            {
                "nnodes": "2:4",
                "image": "registry.example.org/team/train:1",
                "checkpoint_dir": "/scratch/digits",
                "mounts": [{"source": "/data", "target": "/data", "read_only": True}],
                "resources": {"gpus": 8},
                "slurm": {"kind": "allocation", "container": "pyxis", "requeue": False},
            },
        ),
        (
            "slurm-apptainer.sh",
            {
                "nnodes": 2,
                "image": "registry.example.org:5000/team/train:1",
                "workdir": "/work",
                "mounts": [{"source": "/my data", "target": "/in", "read_only": True}],
                "resources": {"gpus": 2},
                "slurm": {"container": "apptainer"},
            },
        ),
    ],
)
def test_the_whole_script_on_slurm(expect_golden, name, keys):
    keys["slurm"] = {"python": "/opt/python", **keys.get("slurm", {})}
    text = render_script(plan(**keys))
    expect_golden(name, text)
    assert len(text.splitlines()) <= 30 or "apptainer" in name  # One screen.


def test_words_with_spaces_reach_sbatch_and_a_percent_is_no_pattern():
    text = render_script(plan("/my runs/50%", slurm={"constraint": "a100&ib"}))
    assert "#SBATCH '--output=/my runs/50%%/digits-0a1b2c/slurm/%j.log'" in text
    assert "#SBATCH --constraint=a100&ib" in text


def test_a_script_inside_of_an_allocation_asks_slurm_for_nothing_and_needs_the_code(expect_golden):
    made = plan(nnodes=2, slurm={"python": "/opt/python"})
    own = replace(SlurmSettings.of(made), inside=7, notice_s=0, requeue=False)
    made = replace(made, own=own, code=CodePlan(root="/shared/my code", hash="1"))
    expect_golden("slurm-inside.sh", render_script(made))


# -- run by bash ---------------------------------------------------------------------------------


class Job:
    """One job's script in a folder of the test's own."""

    def __init__(self, folder: Path, made: LaunchPlan, embed: bool = False, **waits: float) -> None:
        self.folder = folder
        self.run = Path(made.run_dir)
        self.files = self.run / "slurm"
        self.files.mkdir(parents=True)
        (self.run / "agent.pyz").write_text(AGENT.format(waits=waits))
        self.script = folder / "script.sh"
        self.script.write_text(render_script(made, embed=embed))
        self.element: str | None = "3" if "--array" in self.script.read_text() else None
        self.commands, self._called = Commands(folder), list[str]()
        self.does = self.commands.does_also
        self.does("scontrol", '[ "$1" != show ] || [ "$2" != hostnames ] || printf "n1\\nn2\\n"')

    def agents_end(self, *codes: int, srun: int | None = None) -> None:
        """The agents' outcomes, and srun's own code: the greatest of them unless given."""
        for number, code in enumerate(codes):
            index = self.element or number
            folder = self.run / "nodes" / f"{index}/{number}"
            told = {**OUTCOME, "reason": "a-b", "exit_code": code, "first": {"exit_code": 7}}
            # As the agent writes it, and cut as on a full disk.
            text = json.dumps(told, indent=2 if number else None)
            self.does("srun", f"mkdir -p '{folder}'; echo '{text}' >'{folder}/outcome.json'")
        self.does("srun", f"exit {max(codes, default=0) if srun is None else srun}")

    def start(
        self, restarts: int = 0, env: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        # An element of an array; SLURM_JOB_ID is the last element's own, and the array's.
        array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": self.element or ""}
        own = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "DOES": str(self.folder),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "1" if self.element else "2",
            "SLURM_JOB_NODELIST": "n[1-2]",
            **(array if self.element else {}),
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
            **env,
        }
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(["bash", str(self.script)], env=own, stdout=log, stderr=log)

    def run_once(self, restarts: int = 0, env: Mapping[str, str] = NONE) -> str:
        """What the script said of its end."""
        code = self.start(restarts, env).wait(30)
        words = self.ended(restarts)
        assert words.split()[0] == str(code), self.log()
        return words

    def ended(self, restarts: int = 0) -> str:
        job = f"7_{self.element}" if self.element else "7"
        return (self.files / f"{job}.{restarts}.ended").read_text().strip()

    def write(self, name: str, text: str) -> None:
        (self.files / name).write_text(f"{text}\n")

    def calls(self, name: str) -> list[str]:
        self._called += self.commands.calls()
        return [line for line in self._called if line.startswith(name)]

    def requeues(self) -> list[str]:
        return self.calls("scontrol requeue")

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait_for_call(self, name: str) -> None:
        wait_until(lambda: self.calls(name))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, plan(str(tmp_path / "my runs"), str(tmp_path), nnodes=2))


@pytest.fixture
def element(tmp_path: Path) -> Job:
    return Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes="1:4"))


def test_one_agent_is_started_on_each_node_and_told_where_to_look_for_a_stop(job):
    job.does("srun", 'echo "$LAUNCHER_STOP_FILE" >"$DOES/stop"')
    job.agents_end(0, 0)
    assert job.run_once() == "0 over"
    (call,) = job.calls("srun")
    assert call.endswith(f"{sys.executable} {job.run}/agent.pyz {job.files}/node-plan.json")
    assert (job.folder / "stop").read_text().strip() == str(job.files / "7.0.stop")
    assert (job.files / "7.0.started").read_text() == "n1 n2\n"
    assert json.loads((job.files / "node-plan.json").read_text())["settings"]["identity"] == "slurm"
    assert job.log() == ""


@pytest.mark.parametrize(
    ("codes", "srun", "words"),
    [
        ((0, 0), 0, "0 over"),
        # A lost node makes srun fail, though the others have ended the training.
        ((0,), 143, "0 over"),
        ((195, 193), 195, "195 requeued"),
        ((), 127, "127 over"),
    ],
)
def test_faults_of_the_platform_alone_requeue_the_job(job, codes, srun, words):
    job.agents_end(*codes, srun=srun)
    assert job.run_once() == words
    assert job.requeues() == (["scontrol requeue 7"] if "requeued" in words else [])


def test_so_many_faults_of_the_platform_end_the_run(job):
    job.agents_end(195)
    ends = []
    for start in range(4):
        ends.append(job.run_once(start))
        # Each start saves something, as a training does.
        (job.run / "checkpoints" / f"{start}").write_text("")
    assert ends == ["195 requeued"] * 3 + ["195 over"]
    assert "error: 4 faults of the platform" in job.log()


@pytest.mark.parametrize("is_early", [False, True])
def test_near_its_time_limit_a_start_stops_and_is_requeued_also_during_its_setup(
    tmp_path, is_early
):
    wait = f"touch {tmp_path}/at-setup; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    job = Job(tmp_path, plan(str(tmp_path / "runs"), nnodes=2, slurm={"setup": [wait]}))
    job.does("srun", 'until [ -s "$LAUNCHER_STOP_FILE" ]; do sleep 0.1; done')
    job.agents_end(143, 143)
    script = job.start()
    wait_until((tmp_path / "at-setup").exists)
    if not is_early:
        (tmp_path / "go").touch()
        job.wait_for_call("srun")
    script.send_signal(signal.SIGUSR1)
    (tmp_path / "go").touch()
    assert script.wait(30) == 143
    assert (job.files / "7.0.stop").read_text() == "preempted\n"
    assert (job.ended(), job.requeues()) == ("143 requeued", ["scontrol requeue 7"])
    assert not list(job.files.glob("*.fault"))


def test_what_the_setup_asks_of_its_shell_does_not_end_the_script(tmp_path):
    made = plan(str(tmp_path / "runs"), nnodes=2, slurm={"setup": ["set -eo pipefail"]})
    job = Job(tmp_path, made)
    job.agents_end(143, srun=143)
    job.does("srun", 'echo preempted >"$LAUNCHER_STOP_FILE"')
    assert job.run_once() == "143 requeued"


@pytest.mark.parametrize("line", ["exit 3", "kill -TERM $$"])
def test_first_lines_that_end_a_script_inside_of_an_allocation_say_so(tmp_path, line):
    made = plan(str(tmp_path / "runs"), nnodes=2, slurm={"setup": [line]})
    job = Job(tmp_path, replace(made, own=replace(SlurmSettings.of(made), inside=7, notice_s=0)))
    job.start(restarts=1).wait(30)
    assert (job.ended(1), (job.files / "7.1.started").read_text()) == ("1 over", "")


def test_a_time_limit_twice_without_a_checkpoint_between_ends_the_run(job):
    job.does("srun", 'echo preempted >"$LAUNCHER_STOP_FILE"')
    job.agents_end(143)
    (job.run / "checkpoints/generations").mkdir(parents=True)
    assert job.run_once(0) == "143 requeued"
    # Each group takes a generation; that is no progress.
    (job.run / "checkpoints/generations/1.json").write_text("{}")
    assert job.run_once(1) == "1 over"
    assert (
        f"error: 2 starts in a row left nothing new in {job.run}/checkpoints; fix: save"
        in job.log()
    )


def test_starts_that_leave_no_checkpoint_end_and_a_checkpoint_begins_the_count_again(job):
    for start in range(4):
        job.write(f"7.{start}.started", "n1")
    assert job.run_once(4) == "1 over"
    assert job.calls("srun") == []
    (job.run / "checkpoints/step-7").mkdir(parents=True)
    (job.run / "checkpoints/step-7/weights").write_text("")
    job.agents_end(0)
    assert job.run_once(5) == "0 over"


@pytest.mark.parametrize("reason", ["stop-requested", "interrupted"])
def test_a_run_that_was_asked_to_stop_is_not_requeued(job, reason):
    job.does("srun", f'echo {reason} >"$LAUNCHER_STOP_FILE"')
    job.agents_end(143)
    assert (job.run_once(), job.requeues()) == ("143 over", [])
    # Where Slurm itself requeues it all the same, it ends at once.
    assert job.run_once(1) == "143 over"
    assert len(job.calls("srun")) == 1


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        # scancel: a requeue would bring the job back.
        ("echo JobState=COMPLETING Reason=None Restarts=0 ", "143 over stop-requested"),
        ("echo JobState=COMPLETING Reason=TimeLimit Restarts=0 ", "143 requeued"),
        # Its controller is away: only the queue can tell, later.
        ("exit 1", "143 requeued"),
    ],
)
def test_what_slurm_ends_is_requeued_only_after_the_time_limit(job, shown, words):
    job.does("scontrol", f'[ "$1" != show ] || [ "$2" != job ] || {shown}')
    job.does("srun", "until [ -e $DOES/go ]; do sleep 0.1; done")
    job.agents_end(143)
    script = job.start()
    job.wait_for_call("srun")
    script.send_signal(signal.SIGTERM)
    (job.folder / "go").write_text("")
    script.wait(30)
    assert job.ended() == words
    is_limit = "TimeLimit" in shown
    assert (bool(job.requeues()), (job.files / "7.0.stop").read_text()) == (
        is_limit,
        "preempted\n" if is_limit else "",
    )


@pytest.mark.parametrize(("nnodes", "own"), [(2, "7"), ("1:4", "7_3")])
def test_where_a_requeue_is_refused_another_job_follows(tmp_path, nnodes, own):
    """An element is requeued by its index, as its own id may be the array's."""
    job = Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes=nnodes))
    job.agents_end(195)
    job.does("scontrol", '[ "$1" != requeue ] || { echo "is presently disabled" >&2; exit 1; }')
    job.does("sbatch", "echo '9;cluster'")
    assert job.run_once() == "195 requeued"
    array = f" --array={job.element}" if job.element else ""
    assert job.requeues() == [f"scontrol requeue {own}"]
    assert job.calls("sbatch") == [
        f"sbatch --parsable --dependency=afterany:{own}{array} {job.run}/artifact.sh"
    ]
    assert (job.files / "9.job").exists()
    assert (job.run / "artifact.sh").read_text() == job.script.read_text()
    job.does("sbatch", "exit 1")
    assert job.run_once(1) == "195 over"
    assert f"fix: sbatch {job.run}/artifact.sh" in job.log()


def test_a_controller_that_is_away_is_asked_again(tmp_path):
    job = Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2), TRY_S=0.1)
    job.agents_end(195)
    job.does(
        "scontrol",
        '[ "$1" != requeue ] || [ -e "$DOES/once" ] || { touch "$DOES/once"; '
        'echo "Unable to contact slurm controller (connect failure)" >&2; exit 1; }',
    )
    assert job.run_once() == "195 requeued"
    assert len(job.requeues()) == 2
    assert job.calls("sbatch") == []


AWAY = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"


def test_nodes_start_once_a_controller_that_is_away_has_come_back(tmp_path):
    job = Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2), TRY_S=0.1)
    job.does("srun", f'[ -e "$DOES/once" ] || {{ touch "$DOES/once"; echo "{AWAY}" >&2; exit 1; }}')
    job.agents_end(0, 0)
    assert job.run_once() == "0 over"
    assert len(job.calls("srun")) == 2
    assert f"{AWAY}\nlauncher: Slurm's controller is away: no node was started" in job.log()


def test_a_controller_that_stays_away_is_no_failure_of_the_training(tmp_path):
    job = Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2), TRY_S=0, TRIES=2)
    job.does("srun", f'echo "{AWAY}" >&2; exit 1')
    assert job.run_once() == "3 over"
    assert len(job.calls("srun")) == 2
    assert "error: no node could be started" in job.log()


def test_a_start_that_waits_for_the_controller_can_be_ended(tmp_path):
    job = Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2), TRY_S=60)
    job.does("srun", f'echo "{AWAY}" >&2; exit 1')
    script = job.start()
    wait_until(lambda: "no node was started" in job.log())
    job.write("7.0.stop", "stop-requested")
    assert script.wait(30) == 143
    assert job.ended() == "143 over"


@pytest.mark.parametrize("words", ["0 over", "1 over"])
def test_an_element_that_slurm_starts_after_the_runs_end_has_nothing_to_do(element, words):
    element.write("7_0.0.ended", words)
    element.write("7_1.0.ended", "143 over")
    assert element.run_once() == words
    assert element.calls("srun") == []


def test_variables_that_would_bind_or_place_tasks_do_not_reach_srun(job):
    job.does("srun", 'env >"$DOES/env"')
    job.agents_end(0)
    stale = dict.fromkeys(("SLURM_CPU_BIND_TYPE", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK"), "1")
    stale |= {"SLURM_CPU_BIND": "verbose", "PMI_RANK": "3", "OMPI_COMM_WORLD_RANK": "3"}
    job.run_once(env={**stale, "SLURM_GPUS_PER_NODE": "8", "MINE": "1"})
    seen = dict(line.partition("=")[::2] for line in (job.folder / "env").read_text().split())
    assert not stale.keys() & seen.keys()
    assert (seen["SLURM_GPUS_PER_NODE"], seen["MINE"]) == ("8", "1")


def test_code_is_unpacked_once_and_whole(tmp_path):
    made = plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2)
    job = Job(tmp_path, replace(made, code=CodePlan(root="/shared/my code", hash="1")))
    assert job.run_once() == "2 over"
    assert "code.tar.gz, made with: tar -czf code.tar.gz -C '/shared/my code' ." in job.log()
    (tmp_path / "train.py").write_text("")
    archive = ("tar", "-czf", str(job.run / "code.tar.gz"), "-C", str(tmp_path), "train.py")
    subprocess.run(archive, check=True)
    job.agents_end(0)
    assert job.run_once(1) == "0 over"
    assert [path.name for path in (job.run / "code").iterdir()] == ["train.py"]


@pytest.mark.parametrize("embed", [False, True])
def test_without_the_agents_file_the_script_writes_its_own_or_says_where_to_put_it(tmp_path, embed):
    job = Job(tmp_path, plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2), embed=embed)
    (job.run / "agent.pyz").unlink()
    job.agents_end(0)
    assert job.start().wait(30) == (0 if embed else 2)
    missing = f"error: no {job.run}/agent.pyz: copy it there, or render with --embed"
    assert (missing in job.log()) == (not embed)
    assert not embed or (job.run / "agent.pyz").read_bytes()[:2] in (b"PK", b"#!")


# -- containers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "pyxis", "apptainer"),
    [
        ("ubuntu:24.04", "ubuntu:24.04", "docker://ubuntu:24.04"),
        ("team/train", "team/train", "docker://team/train"),
        ("nvcr.io/nvidia/t:1", "nvcr.io#nvidia/t:1", "docker://nvcr.io/nvidia/t:1"),
        ("a:5000/team/t:1", "a:5000#team/t:1", "docker://a:5000/team/t:1"),
        ("nvcr.io#nvidia/t:1", "nvcr.io#nvidia/t:1", None),
        ("localhost/train", "localhost#train", "docker://localhost/train"),
        ("docker://a.org/t", "a.org#t", "docker://a.org/t"),
        ("/shared/train.sqsh", "/shared/train.sqsh", "/shared/train.sqsh"),
        ("./train.sif", "./train.sif", "./train.sif"),
        ("train.img", None, "train.img"),
        ("oras://a.org/t", None, "oras://a.org/t"),
    ],
)
def test_an_image_is_named_as_its_runtime_spells_it(image, pyxis, apptainer):
    assert pyxis is None or name_for_pyxis(image) == pyxis
    assert apptainer is None or name_for_apptainer(image) == apptainer


@pytest.mark.parametrize("folder", ["/da,ta", "/da:ta"])
def test_a_folder_that_a_mount_cannot_name_is_refused(folder):
    keys = {"image": "t:1", "mounts": [{"source": folder, "target": "/in"}]}
    with pytest.raises(InputError, match="cannot be mounted: pyxis takes : and , for separators"):
        render_script(plan(**keys, slurm={"container": "pyxis"}))
