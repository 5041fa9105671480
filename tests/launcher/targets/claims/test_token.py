"""The token of a run on the targets of this machine."""

from tests.launcher.run_token import JOB, LOOKING, check_folder, check_found
from tests.launcher.runner import Runner
from tests.launcher.targets.starter.test_node import finish, starting
from tests.programs import run_program

__all__ = ["starting"]


def test_a_printed_script_makes_one_of_its_own(tmp_path):
    launcher = Runner(tmp_path)
    launcher.write(LOOKING, JOB)
    script = launcher("render", "job.yaml", "--on", "local", "--embed").stdout
    assert "/dev/urandom" in script
    (tmp_path / "run.sh").write_text(script)
    for _ in range(2):
        done = run_program(["sh", "run.sh"], cwd=tmp_path, env=launcher.env, timeout=100)
        assert done.returncode == 0, done.stderr
        check_found(done.stdout)
    assert not [path for path in tmp_path.rglob("token") if path.read_text() in script]


def test_nodes_that_people_start_get_it_from_the_folder_that_all_of_them_see(starting):
    starting.launcher.write(LOOKING, JOB)
    words = ("job.yaml", "--run-id", "tiny-1")
    nodes = [starting.node(*words, LAUNCHER_NODE_INDEX=str(index)) for index in range(2)]
    ended = [finish(node) for node in nodes]
    assert [code for code, _, _ in ended] == [0, 0], ended
    check_found("".join(out for _, out, _ in ended))
    said = [text for _, *both in ended for text in both]
    check_folder(starting.launcher.folder / "runs/tiny-1", *said)
