"""Which folder a job's code is, and how its command starts there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import launcher.code
from launcher.code.place import find_code
from launcher.contract.errors import KeyInputError
from tests.launcher.values import by_place, changeable


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_a_script_outside_of_git_takes_its_own_folder(tmp_path):
    write(tmp_path / "train.py")
    place = find_code(("train.py", "--lr", "1"), None, None, tmp_path)
    assert place
    assert (place.root, place.inner, place.command) == (tmp_path, "", ("train.py", "--lr", "1"))


def test_a_script_in_a_repository_takes_it_and_keeps_the_working_folder(tmp_path):
    write(repository(tmp_path / "my repo") / "sub" / "träin 1.py")
    place = find_code(("träin 1.py",), None, None, tmp_path / "my repo" / "sub")
    assert place
    assert (place.root, place.inner) == (tmp_path / "my repo", "sub")
    assert place.command == ("träin 1.py",)


def test_a_script_of_another_folder_of_the_repository(tmp_path):
    write(repository(tmp_path) / "a" / "train.py")
    (tmp_path / "b").mkdir()
    place = find_code(("../a/train.py",), None, None, tmp_path / "b")
    assert place
    assert (place.root, place.inner, place.command) == (tmp_path, "b", ("../a/train.py",))


def test_an_absolute_path_is_found_again_in_the_copy(tmp_path):
    script = write(repository(tmp_path) / "a" / "train.py")
    place = find_code((str(script),), None, None, tmp_path)
    assert place
    assert place.command == ("a/train.py",)


def test_from_a_folder_that_is_no_part_of_the_code_the_script_starts_beside_itself(tmp_path):
    write(tmp_path / "project" / "train.py")
    place = find_code(("project/train.py", "x"), None, None, tmp_path)
    assert place
    assert (place.root, place.inner) == (tmp_path / "project", "")
    assert place.command == ("train.py", "x")
    assert "--code ." in place.note
    named = find_code(("project/train.py", "x"), ".", None, tmp_path)
    assert named
    assert (named.root, named.inner, named.note) == (tmp_path, "", "")
    assert named.command == ("project/train.py", "x")


def test_a_script_that_is_a_link_inside_of_the_code_keeps_its_name(tmp_path):
    write(repository(tmp_path) / "src" / "train.py")
    (tmp_path / "go.py").symlink_to("src/train.py")
    place = find_code(("go.py",), None, None, tmp_path)
    assert place
    assert (place.root, place.command) == (tmp_path, ("go.py",))


def test_a_script_that_is_a_link_out_of_the_code_is_taken_from_where_it_is(tmp_path):
    real = write(tmp_path / "lib" / "real.py")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").symlink_to(real)
    place = find_code(("train.py", "x"), None, None, tmp_path / "here")
    assert place
    assert (place.root, place.command) == (tmp_path / "lib", ("real.py", "x"))
    assert "starts in its own folder" in place.note


def test_a_link_by_a_full_path_is_written_as_one_that_holds_in_a_copy(tmp_path):
    real = write(repository(tmp_path) / "src" / "train.py")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "go.py").symlink_to(real)
    place = find_code(("go.py",), None, None, tmp_path / "sub")
    assert place
    assert (place.root, place.inner, place.command) == (tmp_path, "sub", ("../src/train.py",))


def test_a_module_takes_the_current_folder(tmp_path):
    write(tmp_path / "pkg" / "train.py")
    place = find_code(("-m", "pkg.train"), None, None, tmp_path)
    assert place
    assert (place.root, place.inner) == (tmp_path, "")


@pytest.mark.parametrize(
    ("command", "code", "workdir"),
    [
        (("-m", "json.tool"), None, None),
        (("missing.py",), None, None),
        (("train.py",), "image", None),
        (("train.py",), None, "/workspace"),
    ],
)
def test_what_is_not_here_is_in_the_image(command, code, workdir, tmp_path):
    write(tmp_path / "train.py")
    assert find_code(command, code, workdir, tmp_path) is None


def test_a_working_folder_below_the_current_one(tmp_path):
    write(repository(tmp_path) / "sub" / "train.py")
    place = find_code(("train.py",), None, "sub", tmp_path)
    assert place
    assert (place.root, place.inner) == (tmp_path, "sub")


def test_a_folder_reached_by_a_link(tmp_path):
    write(tmp_path / "real" / "train.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    place = find_code(("train.py",), None, None, tmp_path / "link")
    assert place
    assert (place.root, place.inner) == (tmp_path / "real", "")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("missing.py",), "where missing.py is looked for, is not in it"),
        (("-m", "missing"), "where -m finds missing, is not in it"),
    ],
)
def test_a_script_that_is_not_here_and_a_folder_elsewhere(command, what, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(KeyInputError, match=what):
        find_code(command, "../elsewhere", None, tmp_path / "here")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("elsewhere", "is not in"),
        ("missing", "no such folder"),
        ("train.py", "is not a folder"),
    ],
)
def test_a_wrong_folder_is_named(code, what, tmp_path):
    write(tmp_path / "train.py")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(KeyInputError, match=what):
        find_code(("train.py",), code, None, tmp_path)


def test_a_folder_that_is_named_takes_the_command_as_it_is(tmp_path):
    write(tmp_path / "sub" / "train.py")
    for command in (("missing.py",), ("-m", "json.tool"), ("-m", "sub.train")):
        place = find_code(command, ".", None, tmp_path)
        assert place
        assert (place.root, place.inner, place.command) == (tmp_path, "", command)
        assert (place.is_copy, place.note) == (False, "")
    absolute = find_code((str(tmp_path / "sub/train.py"), "x"), ".", "sub", tmp_path)
    assert absolute
    assert (absolute.inner, absolute.command) == ("sub", ("train.py", "x"))


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 600"])
def test_a_git_that_fails_or_hangs_leaves_the_scripts_folder(script, tmp_path, monkeypatch):
    write(repository(tmp_path / "repo") / "sub" / "train.py")
    write(tmp_path / "bin" / "git", f"#!/bin/sh\n{script}\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr("launcher.code.git.LIMIT_S", 0.3)
    place = find_code(("sub/train.py",), None, None, tmp_path / "repo")
    assert place
    assert place.root == tmp_path / "repo" / "sub"


def test_settings_of_git_for_another_repository_do_not_mislead(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(repository(tmp_path / "other") / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    write(repository(tmp_path / "mine") / "train.py")
    place = find_code(("train.py",), None, None, tmp_path / "mine")
    assert place
    assert place.root == tmp_path / "mine"


def test_what_was_read_cannot_be_changed():
    assert (changeable(launcher.code), by_place(launcher.code)) == (set(), set())
