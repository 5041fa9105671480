"""What a host tells a diagnosis, asked in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.targets.hosts.program.facts import read_engine, run_probe
from launcher.targets.hosts.program.messages import (
    EngineFacts,
    FindTokens,
    ProbeResult,
    ReadEngine,
    RunProbe,
)
from launcher.targets.hosts.program.reach import Token, find_tokens

ASKED = RunProbe(python=sys.executable, arguments=[], env={}, wait_s=20.0, checkpoint_dir="")


def run(source: str, folder: Path, **asked: object) -> ProbeResult:
    return run_probe(ASKED.having(checkpoint_dir=str(folder), **asked), source.encode())


def test_a_program_is_told_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    source = "import json, os; print('hello'); print(json.dumps(os.environ['CHECKPOINT_DIR']))"
    assert run(source, tmp_path) == ProbeResult(answer=str(tmp_path), has_folder=True)
    missing = tmp_path / "not" / "there"
    assert run(source, missing) == ProbeResult(answer=str(tmp_path), has_folder=False)


def test_a_program_has_the_jobs_variables_and_its_arguments(tmp_path: Path) -> None:
    source = "import json, os, sys; print(json.dumps([os.environ['A'], sys.argv[1:]]))"
    told = run(source, tmp_path, env={"A": "1 2"}, arguments=["node"])
    assert told.answer == ["1 2", ["node"]]


@pytest.mark.parametrize(
    ("source", "asked", "words"),
    [
        ("raise SystemExit(1)", {}, "does not start"),
        ("print('welcome')", {}, "says 'welcome"),
        ("", {}, "says ''"),
        ("import time; time.sleep(60)", {"wait_s": 0.2}, "takes longer than 0.2 s"),
        ("", {"python": "/nowhere/python"}, "/nowhere/python does not start"),
    ],
)
def test_a_program_that_tells_nothing_is_an_error(
    source: str, asked: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match=words):
        run(source, tmp_path, **asked)


def test_tokens_are_seen_and_go_with_the_folders_that_were_made_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    token = Token(str(folder), "one")
    found = find_tokens(FindTokens(folder=str(folder), names=["one", "two"], wait_s=0.2))
    assert found == ["one"]
    assert [path.name for path in folder.iterdir()] == ["one"]
    token.remove(folders=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_or_is_in_use_stays(tmp_path: Path) -> None:
    own, made = Token(str(tmp_path), "one"), Token(str(tmp_path / "new"), "one")
    (tmp_path / "new" / "theirs").touch()
    own.remove(folders=True)
    made.remove(folders=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "theirs"]


def test_a_folder_that_is_not_there_shows_no_tokens(tmp_path: Path) -> None:
    asked = FindTokens(folder=str(tmp_path / "none"), names=["one"], wait_s=0.0)
    assert find_tokens(asked) == []


def test_an_engine_that_is_not_there_is_told_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    told = read_engine(ReadEngine(image="a:1"))
    assert told == EngineFacts(runtimes=[], hook=False, digests=[])
