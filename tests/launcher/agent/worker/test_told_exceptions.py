"""What is told of exceptions that are wrapped, silent, huge, or not fit for a terminal."""

import json

import pytest

from launcher.agent.worker_exit import judge_end, read_error, read_oom_kills
from launcher.contract.ending import WorkerExit


def test_of_an_exception_of_another_process_the_inner_one_is_told(tmp_path):
    message = (
        "KeyError: Caught KeyError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "t.py", line 8, in __getitem__\n'
        "    raise KeyError('sample 13 corrupt')\n"
        "KeyError: 'sample 13 corrupt'\n"
    )
    (tmp_path / "error.json").write_text(json.dumps({"message": {"message": message}}))
    assert read_error(tmp_path) == "KeyError: 'sample 13 corrupt'"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("AssertionError: ", "AssertionError"),
        ("AssertionError: \nnot close", "AssertionError"),
        ("RuntimeError: these failed:\na", "RuntimeError: these failed:"),
    ],
)
def test_an_exception_without_words_is_told_by_its_name(tmp_path, message, told):
    (tmp_path / "error.json").write_text(json.dumps({"message": {"message": message}}))
    assert read_error(tmp_path) == told


TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: boom\n'


@pytest.mark.parametrize(
    ("code", "stderr", "told"),
    [
        (1, f"{TRACE}INFO: bye\n", "ValueError: boom"),
        # What a script handled, or what only a thread of it ended by.
        (3, TRACE, ""),
        (-9, TRACE, ""),
        (1, f"Exception in thread Thread-1 (f):\n{TRACE}", ""),
        (1, f"Exception ignored in: <f>\n{TRACE}", ""),
        (1, "", ""),
    ],
)
def test_where_the_worker_left_no_error_file_its_last_traceback_is_told(
    tmp_path, code, stderr, told
):
    (tmp_path / "stderr").write_text(stderr)
    seen = WorkerExit(
        attempt=0, rank=0, local_rank=0, exit_code=code, failed_at=1.0, was_asked=False
    )
    assert judge_end(tmp_path, seen).exception == told


@pytest.mark.parametrize("path", ["", "user.slice/job 7"], ids=["container", "process"])
@pytest.mark.parametrize(
    ("file", "told"), [("{}memory.events", "0::"), ("memory/{}memory.oom_control", "9:memory:")]
)
def test_kills_for_memory_are_counted_by_either_version_of_cgroups(tmp_path, file, told, path):
    own = tmp_path / "own"
    # A container is told a path that it does not see.
    own.write_text(f"4:cpu,cpuacct:/x\n{told}/{path or 'docker/0a1b'}\n")
    assert read_oom_kills(tmp_path, own) == 0
    counts = tmp_path / file.format(f"{path}/" if path else "")
    counts.parent.mkdir(parents=True, exist_ok=True)
    counts.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert read_oom_kills(tmp_path, own) == 3
