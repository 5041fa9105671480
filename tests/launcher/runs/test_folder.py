import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import launcher.runs
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.errors import DiskFullError, InputError
from launcher.contract.process_stat import start_of
from launcher.plan.launch_plan import LaunchPlan, plan_next_attempt
from launcher.runs.folder import (
    LAUNCHER_FILE,
    RunFolder,
    check_folder,
    find_run,
    full_disk,
    list_runs,
    make_folders,
    process_space,
)
from launcher.runs.outcome import Outcome
from tests.disks import mounted
from tests.launcher.values import by_place, changeable
from tests.waiting import wait_until

MakePlan = Callable[..., LaunchPlan]


@pytest.fixture
def make_run(tmp_path: Path, make_plan: MakePlan) -> Callable[..., RunFolder]:
    def make(run_id: str, at: float = 1.0) -> RunFolder:
        run = RunFolder(tmp_path / run_id)
        run.create(make_plan(), "#!/bin/sh\n", at)
        return run

    return make


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_that_cannot_be_made_leaves_no_folder(tmp_path, make_plan):
    run = RunFolder(tmp_path / "a")
    for fill, error in ((refuse, DiskFullError), (interrupt, KeyboardInterrupt)):
        with pytest.raises(error) as caught:
            run.create(make_plan(), "", 1.0, fill, follows=True)
        assert list(tmp_path.iterdir()) == []
    run.create(make_plan(), "the script", 1.0, lambda path: (path / "own").touch(), follows=True)
    assert (run.launcher_pid(), run.submitted_at()) == (os.getpid(), 1.0)
    assert (run.path / "own").exists()
    assert (run.path / "artifact.sh").read_text() == "the script"
    assert "make room" in full_disk(tmp_path).hint
    assert isinstance(caught.value, KeyboardInterrupt)


@pytest.mark.parametrize("name", ["agent.pyz", "artifact.sh"])
def test_a_full_disk_gives_the_room_of_what_the_plan_can_make_again_for_the_outcome(
    name, make_run, monkeypatch
):
    run = make_run("a")
    archive, told = run.path / name, Outcome(cause=Cause.COMPLETED)
    archive.write_text("x")

    def write(path: Path, text: str) -> None:
        if archive.exists() and archive.stat().st_size:
            raise OSError(number, "no")
        path.write_text(text)

    monkeypatch.setattr("launcher.runs.folder.write_atomically", write)
    number = errno.EACCES
    with pytest.raises(PermissionError):
        run.write_outcome(told)
    assert archive.stat().st_size
    number = errno.ENOSPC
    run.write_outcome(told)
    assert run.read_outcome() == told


def test_logs_and_nodes_are_listed_by_their_numbers(tmp_path):
    run = RunFolder(tmp_path)
    workers = [
        f"nodes/{node}/{life}/attempt-{attempt}/rank-{rank}"
        for life, attempt, node, rank in
        ((0, 0, 2, 9), (0, 0, 10, 3), (0, 0, 10, 20), (0, 2, 0, 1), (0, 10, 0, 1), (1, 0, 2, 0))
    ]  # fmt: skip
    for path in (*workers, "nodes/2/x/attempt-0/rank-0", "nodes/x/0", "nodes/3/0/other"):
        (tmp_path / path).mkdir(parents=True)
    assert [log.folder for log in run.worker_logs()] == workers
    assert run.incarnations() == ((0, 0), (2, 0), (2, 1), (3, 0), (10, 0))
    for node in (10, 2):
        run.console(node, 0).write_text("")
    assert run.consoles() == tuple(
        ((node, 0), tmp_path / f"nodes/{node}/0/console.log") for node in (2, 10)
    )


def test_whose_a_run_is_is_told_by_its_files(make_run):
    run = make_run("a")
    assert run.read_outcome() is None, "it goes on"
    assert (run.is_foreign, run.is_borrowed) == (True, False)
    (run.path / "borrowed").touch()
    run.write_launcher()
    assert (run.is_foreign, run.is_borrowed) == (False, True)
    (run.path / LAUNCHER_FILE).unlink()
    run.write_outcome(Outcome(cause=Cause.COMPLETED))
    assert not run.is_foreign
    assert run.launcher_death() == ""


def test_a_folder_that_cannot_be_made_is_told_with_the_fix(tmp_path):
    make_folders([str(tmp_path / "a/b"), str(tmp_path / "a")])
    assert (tmp_path / "a/b").is_dir()
    check_folder(tmp_path / "x/y")
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").touch()
    for refused in (check_folder, lambda path: make_folders([str(path)])):
        with pytest.raises(InputError, match=r"/file.* cannot be made: Not a dir") as caught:
            refused(tmp_path / "file/x")
        assert "owner" not in caught.value.hint
    with pytest.raises(InputError, match="/proc/none cannot be made: "):
        check_folder(Path("/proc/none"))


@pytest.mark.mount
def test_a_folder_on_a_read_only_disk_is_told_with_the_command_that_mounts_it_to_be_written(
    tmp_path,
):
    with mounted(tmp_path / "disk", "size=1m,ro") as held:
        for path, how in ((held.path, "written"), (held.path / "new", "made")):
            with pytest.raises(InputError, match=f" cannot be {how}: Read-only") as caught:
                check_folder(path)
            assert caught.value.hint.endswith(f", or mount -o remount,rw {held.path}")


def test_a_folder_without_runs_is_told_as_what_it_is(make_run, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for root, name, what in (
        (tmp_path, "latest", f"^no runs in {tmp_path}\n"),
        (tmp_path, "x", f"^no run 'x': no runs in {tmp_path}\n"),
        (tmp_path / "none", "latest", f"^no runs in {tmp_path}/none, which is not there\n"),
        (file, "latest", f"^--runs {file}: not a folder\n"),
    ):
        with pytest.raises(InputError, match=what):
            find_run(root, name)
    assert list_runs(tmp_path / "none") == []
    run = make_run("a")
    (run.path / "submitted.json").write_text('{"at": "1"}')
    assert run.submitted_at() == 0.0


def test_runs_are_found_by_id_beginning_latest_or_path(make_run, tmp_path, monkeypatch):
    for run_id in ("digits-aa11", "digits-ab22"):
        make_run(run_id)
    assert find_run(tmp_path, "digits-aa11").run_id == "digits-aa11"
    assert find_run(tmp_path, "digits-ab").run_id == "digits-ab22"
    assert find_run(tmp_path, "latest").run_id == "digits-ab22"
    assert (tmp_path / "latest").resolve() == tmp_path / "digits-ab22"
    with pytest.raises(InputError, match="may be any of 2 runs, such as digits-aa11, digits-ab22"):
        find_run(tmp_path, "digits-a")
    with pytest.raises(InputError, match="no run 'x'"):
        find_run(tmp_path, "x")
    monkeypatch.chdir(tmp_path.parent)
    for root in (tmp_path, tmp_path / "none"):
        found = find_run(root, f"{tmp_path.name}/digits-aa11")
        assert found.path == tmp_path / "digits-aa11"


def test_the_name_of_a_job_is_its_run_that_goes_on(make_run, tmp_path):
    for run_id in ("digits-aa11", "digits-bb22", "digits-cc33", "digits-large-dd44"):
        make_run(run_id)
    for run_id in ("digits-aa11", "digits-cc33"):
        RunFolder(tmp_path / run_id).write_outcome(Outcome(cause=Cause.COMPLETED))
    assert find_run(tmp_path, "digits", goes_on=True).run_id == "digits-bb22"
    with pytest.raises(InputError, match="'digits' may be any of 3 runs"):
        find_run(tmp_path, "digits")
    assert find_run(tmp_path, "digits-large").run_id == "digits-large-dd44"
    RunFolder(tmp_path / "digits-bb22").write_outcome(Outcome(cause=Cause.COMPLETED))
    with pytest.raises(InputError, match="'digits' may be any of 3 runs"):
        find_run(tmp_path, "digits", goes_on=True)


def test_the_name_of_holds_is_the_one_that_goes_on_or_else_the_newest(
    make_run, make_plan, tmp_path
):
    plan = make_plan(engine="agent")
    assert plan.agent is not None
    plan = replace(plan, agent=replace(plan.agent, hold_idle_s=60.0))
    for at, run_id in enumerate(("dev-cc33", "dev-aa11", "dev-bb22")):
        make_run(run_id, at=float(at)).write_plan(plan, "")
        if run_id != "dev-aa11":
            RunFolder(tmp_path / run_id).write_outcome(Outcome(cause=Cause.COMPLETED))
    assert find_run(tmp_path, "dev", goes_on=True).run_id == "dev-aa11"
    assert find_run(tmp_path, "dev").run_id == "dev-bb22"
    # A run of a script dev.py is another one.
    make_run("dev-dd44", at=9.0)
    assert find_run(tmp_path, "dev").run_id == "dev-bb22"
    with pytest.raises(InputError, match="'de' may be any of 4 runs"):
        find_run(tmp_path, "de")


def test_a_run_has_the_same_folder_however_it_is_named(make_run, tmp_path, monkeypatch):
    make_run("digits-aa11")
    monkeypatch.chdir(tmp_path.parent)
    root = Path(tmp_path.name)
    for name in ("digits", "digits-aa11", "latest"):
        assert find_run(root, name).path == tmp_path / "digits-aa11"


def test_of_many_runs_that_fit_the_newest_few_are_named(make_run, tmp_path):
    for number in range(38):
        make_run(f"train-{number:02}", at=float(number))
    newest = "train-33, train-34, train-35, train-36, train-37"
    with pytest.raises(InputError, match=f"^'train' may be any of 38 runs, such as {newest}\n"):
        find_run(tmp_path, "train")


def test_runs_are_listed_once_and_by_the_time_of_their_submission(make_run, tmp_path):
    make_run("b", at=20.0)
    make_run("a", at=10.0)
    (tmp_path / "not-a-run").mkdir()
    assert [run.run_id for run in list_runs(tmp_path)] == ["a", "b"]


def test_the_newest_plan_is_the_one_in_force(make_run, make_plan):
    run = make_run("a")
    later = plan_next_attempt(make_plan())
    run.write_plan(later, "")
    assert run.read_plan() == later


def test_a_damaged_plan_is_an_error_for_a_person(make_run):
    run = make_run("a")
    (run.path / "plan.json").write_text("{")
    with pytest.raises(InputError, match="is not the plan of a run"):
        run.read_plan()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        pytest.param('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", id="deep"),
    ],
)
def test_unreadable_metrics_count_as_none(make_run, text):
    run = make_run("a")
    (run.path / "metrics.json").write_text(text)
    assert list(run.read_metrics(run.read_plan())) == ["left_out"]


def test_a_scripts_own_files_of_the_launchers_names_are_told_as_no_records(make_run):
    run = make_run("a")
    for text in ('{"lr": 0.1}', "[" * 100_000):
        for name in ("plan.json", "submitted.json", "launcher.json", "outcome.json"):
            (run.path / name).write_text(text)
        with pytest.raises(InputError, match="is not the plan of a run"):
            run.read_plan()
        assert (run.submitted_at(), run.launcher_pid(), run.launcher_death()) == (0.0, None, "")
        assert run.read_outcome() is None


def test_paths_in_metrics_are_told_as_what_they_are_outside_of_the_containers(
    tmp_path, make_plan, docker_facts
):
    run, plan = RunFolder(tmp_path / "digits-1"), make_plan(docker_facts)
    run.create(plan, "", 1.0)
    told = {"checkpoint": f"{protocol.CONTAINER_CHECKPOINT_DIR}/step-4", "steps": 4}
    (run.path / "metrics.json").write_text(json.dumps(told))
    wanted = {"checkpoint": f"{plan.checkpoint_dir}/step-4", "steps": 4}
    assert run.read_metrics(plan) == wanted


def test_a_living_launcher_is_told_from_another_process_with_its_number(make_run):
    run = make_run("a")
    assert run.launcher_pid() is None
    run.write_launcher()
    assert run.launcher_pid() == os.getpid()
    mark = {"pid": os.getpid(), "start": "another"}
    (run.path / LAUNCHER_FILE).write_text(json.dumps(mark))
    assert run.launcher_pid() is None


def test_a_launchers_death_is_proven_only_where_its_process_could_be_seen(make_run):
    run = make_run("a")
    assert run.launcher_death() == "", "no record: it may be anybody's"
    run.write_launcher()
    assert run.launcher_death() == "", "it lives"
    child = subprocess.Popen([sys.executable, "-c", ""])
    dead = {"pid": child.pid, "start": start_of(child.pid), "sees": process_space()}
    wait_until(lambda: start_of(child.pid) is None)
    path = run.path / LAUNCHER_FILE
    path.write_text(json.dumps(dead))
    assert run.launcher_death() == f"its process {child.pid} is not there any more", "a zombie"
    child.wait()
    assert run.launcher_death() == f"its process {child.pid} is not there any more"
    assert run.launcher_pid() is None
    path.write_text(json.dumps({**dead, "pid": os.getpid()}))
    assert run.launcher_death() == f"its process {os.getpid()} is not there any more"
    for elsewhere in ({**dead, "sees": "another container"}, {"pid": child.pid, "start": "x"}):
        path.write_text(json.dumps(elsewhere))
        assert run.launcher_death() == ""


def test_a_launcher_of_another_machine_or_container_is_told_from_one_before_a_reboot(make_run):
    run = make_run("a")
    assert not run.is_elsewhere, "no record"
    run.write_launcher()
    assert not run.is_elsewhere
    path = run.path / LAUNCHER_FILE
    mark = json.loads(path.read_text())
    boot = mark["sees"].partition(":")[0]
    for changed, elsewhere in (
        ({"sees": "another boot:pid:[1]"}, False),
        ({"sees": "another boot:pid:[1]", "machine": "another"}, True),
        ({"sees": f"{boot}:pid:[1]"}, True),
    ):
        path.write_text(json.dumps({**mark, **changed}))
        assert run.is_elsewhere == elsewhere, changed


def test_a_run_in_a_folder_that_is_closed_to_the_caller_is_not_there(make_run):
    run, me = make_run("a"), os.geteuid()
    runs = run.path.parent
    runs.chmod(0)
    if me == 0:
        os.seteuid(65534)
    try:
        assert not run.is_there()
    finally:
        if me == 0:
            os.seteuid(0)
        runs.chmod(0o755)
    assert run.is_there()


def test_what_was_read_cannot_be_changed():
    assert (changeable(launcher.runs), by_place(launcher.runs)) == (set(), set())
