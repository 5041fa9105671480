"""Which folder a job's code is, and how its command starts there."""

import subprocess
from pathlib import Path

import pytest

import launcher.code
from launcher.code.place import find_code
from launcher.contract.errors import KeyInputError
from tests.launcher.code.test_files import write
from tests.launcher.values import by_place, changeable


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def tree(root: Path, *paths: str) -> Path:
    """A folder with these files, links (``NAME -> TARGET``) and folders."""
    for path in paths:
        name, _, target = path.partition(" -> ")
        if path.endswith("/"):
            (root / path).mkdir()
        elif target:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).symlink_to(target.replace("ROOT", str(root)))
        else:
            write(root / name)
    return root


HERE = ("train.py",)
FOUND = {
    "outside of git, its own folder": (
        (False, "train.py"), (".", ("train.py", "--lr", "1")), (".", "", ("train.py", "--lr", "1")),
    ),
    "in a repository, the whole, from the working folder": (
        (True, "sub/träin 1.py"), ("sub", ("träin 1.py",)), (".", "sub", ("träin 1.py",)),
    ),
    "in another folder of the repository": (
        (True, "a/train.py", "b/"), ("b", ("../a/train.py",)), (".", "b", ("../a/train.py",)),
    ),
    "an absolute path is found again in the copy": (
        (True, "a/train.py"), (".", ("ROOT/a/train.py",)), (".", "", ("a/train.py",)),
    ),
    "a link inside of the code keeps its name": (
        (True, "src/train.py", "go.py -> src/train.py"), (".", ("go.py",)), (".", "", ("go.py",)),
    ),
    "a link by a full path is one that holds in a copy": (
        (True, "src/train.py", "sub/go.py -> ROOT/src/train.py"), ("sub", ("go.py",)),
        (".", "sub", ("../src/train.py",)),
    ),
    "a module takes the current folder": (
        (False, "pkg/train.py"), (".", ("-m", "pkg.train")), (".", "", ("-m", "pkg.train")),
    ),
    "a folder that is reached by a link": (
        (False, "real/train.py", "link -> ROOT/real"), ("link", HERE), ("real", "", HERE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_the_folder_and_how_the_command_starts_in_it(case, tmp_path):
    (in_git, *paths), (cwd, command), (root, inner, started) = FOUND[case]
    folder = repository(tmp_path / "my repo") if in_git else tmp_path
    tree(folder, *paths)
    given = tuple(word.replace("ROOT", str(folder)) for word in command)
    place = find_code(given, None, None, folder / cwd)
    assert (place.root, place.inner, place.command) == (folder / root, inner, started)


def test_from_a_folder_that_is_no_part_of_the_code_the_script_starts_beside_itself(tmp_path):
    write(tmp_path / "project" / "train.py")
    place = find_code(("project/train.py", "x"), None, None, tmp_path)
    assert (place.root, place.inner) == (tmp_path / "project", "")
    assert place.command == ("train.py", "x")
    assert "--code ." in place.note
    named = find_code(("project/train.py", "x"), ".", None, tmp_path)
    assert (named.root, named.inner, named.note) == (tmp_path, "", "")
    assert named.command == ("project/train.py", "x")


def test_a_script_that_is_a_link_out_of_the_code_is_taken_from_where_it_is(tmp_path):
    tree(tmp_path, "lib/real.py", "here/train.py -> ROOT/lib/real.py")
    place = find_code(("train.py", "x"), None, None, tmp_path / "here")
    assert (place.root, place.command) == (tmp_path / "lib", ("real.py", "x"))
    assert "starts in its own folder" in place.note


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
    assert (place.root, place.inner) == (tmp_path, "sub")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("missing.py",), "where missing.py is looked for, is not in it"),
        (("-m", "missing"), "where -m finds missing, is not in it"),
    ],
)
def test_a_script_that_is_not_here_and_a_folder_elsewhere(command, what, tmp_path):
    tree(tmp_path, "here/", "elsewhere/")
    with pytest.raises(KeyInputError, match=what):
        find_code(command, "../elsewhere", None, tmp_path / "here")


@pytest.mark.parametrize(
    ("code", "what"),
    [("elsewhere", "is not in"), ("missing", "no such folder"), ("train.py", "is not a folder")],
)
def test_a_wrong_folder_is_named(code, what, tmp_path):
    tree(tmp_path, "train.py", "elsewhere/")
    with pytest.raises(KeyInputError, match=what):
        find_code(("train.py",), code, None, tmp_path)


def test_a_folder_that_is_named_takes_the_command_as_it_is(tmp_path):
    write(tmp_path / "sub" / "train.py")
    for command in (("missing.py",), ("-m", "json.tool"), ("-m", "sub.train")):
        place = find_code(command, ".", None, tmp_path)
        assert (place.root, place.inner, place.command) == (tmp_path, "", command)
        assert (place.is_copy, place.note) == (False, "")
    absolute = find_code((str(tmp_path / "sub/train.py"), "x"), ".", "sub", tmp_path)
    assert (absolute.inner, absolute.command) == ("sub", ("train.py", "x"))


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 600"])
def test_a_git_that_fails_or_hangs_leaves_the_scripts_folder(script, tmp_path, monkeypatch):
    write(repository(tmp_path / "repo") / "sub" / "train.py")
    write(tmp_path / "bin" / "git", f"#!/bin/sh\n{script}\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr("launcher.code.git.LIMIT_S", 0.3)
    place = find_code(("sub/train.py",), None, None, tmp_path / "repo")
    assert place.root == tmp_path / "repo" / "sub"


def test_settings_of_git_for_another_repository_do_not_mislead(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(repository(tmp_path / "other") / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    write(repository(tmp_path / "mine") / "train.py")
    place = find_code(("train.py",), None, None, tmp_path / "mine")
    assert place.root == tmp_path / "mine"


def test_what_was_read_cannot_be_changed():
    assert (changeable(launcher.code), by_place(launcher.code)) == (set(), set())
