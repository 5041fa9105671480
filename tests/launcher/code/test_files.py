"""Which files are code, what is packed of them, and what a run's folder keeps."""

import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.code.archive import unpack
from launcher.code.files import LARGEST, MAX_BYTES, CodeFile, list_files
from launcher.code.place import CodePlace
from launcher.code.record import (
    ARCHIVE_FILE,
    DIFF_FILE,
    CodeRecord,
    PackedCode,
    read_code,
    read_kept_code,
    read_record,
    write_code,
)
from launcher.contract.errors import InputError


def git(folder: Path, *words: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(root: Path) -> list[str]:
    return [file.name for file in list_files(root, root / "runs")]


def read(root: Path) -> PackedCode:
    place = CodePlace(root=root, command=("train.py",))
    return read_code(place, root / "runs")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "my räpo"
    root.mkdir()
    git(root, "init", "-q")
    write(root / "train.py")
    return root


NOBODY = 65534


def sparse(path: Path, size: int) -> Path:
    """A file of that size that holds nothing: to read 2 GB would take seconds."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


class TestList:
    def test_git_leaves_out_what_it_ignores_and_takes_what_is_new(self, repository):
        write(repository / ".gitignore", "*.bin\n")
        sparse(repository / "huge.bin", 2 << 30)
        write(repository / "new file.py")
        git(repository, "add", "train.py")
        assert names(repository) == [".gitignore", "new file.py", "train.py"]

    def test_a_deleted_file_is_left_out(self, repository):
        write(repository / "gone.py")
        git(repository, "add", ".")
        (repository / "gone.py").unlink()
        assert names(repository) == ["train.py"]

    def test_submodules_and_repositories_inside_are_taken(self, repository, tmp_path):
        inner = tmp_path / "inner"
        inner.mkdir()
        git(inner, "init", "-q")
        write(inner / "lib.py")
        write(inner / ".gitignore", "*.tmp\n")
        commit(inner)
        git(repository, "submodule", "--quiet", "add", str(inner), "third party")
        git(repository, "init", "-q", "untracked")
        write(repository / "untracked" / "own.py")
        write(repository / "third party" / "left.tmp")
        found = names(repository)
        assert "third party/lib.py" in found
        assert "untracked/own.py" in found
        assert "third party/left.tmp" not in found
        assert not [name for name in found if ".git/" in name]

    def test_without_git_everything_but_runs_caches_and_environments(self, tmp_path):
        for name in ("train.py", ".hidden", "sub/a.py", "runs/x/plan.json", ".venv/bin/python"):
            write(tmp_path / name)
        write(tmp_path / "sub" / "__pycache__" / "a.pyc")
        assert names(tmp_path) == [".hidden", "sub/a.py", "train.py"]

    @pytest.mark.parametrize("in_git", [True, False])
    def test_launcherignore_is_written_as_a_gitignore(self, in_git, tmp_path):
        if in_git:
            git(tmp_path, "init", "-q")
        write(tmp_path / ".launcherignore", "# data\n/data/\n*.csv\n!keep.csv\n")
        for name in ("data/a", "x.csv", "sub/keep.csv", "sub/data/b"):
            write(tmp_path / name)
        assert names(tmp_path) == [".launcherignore", "sub/data/b", "sub/keep.csv"]

    @pytest.mark.parametrize("line", ["data\\", "!", "[z-a]"])
    def test_a_wrong_line_of_launcherignore_is_told(self, line, tmp_path):
        path = write(tmp_path / ".launcherignore", f"data/\n{line}\n")
        with pytest.raises(InputError) as caught:
            names(tmp_path)
        assert caught.value.what.startswith(f"{path}: ")
        assert caught.value.hint == "write it as in a .gitignore; folders end in /"

    def test_an_ignored_folder_is_not_looked_into(self, tmp_path):
        write(tmp_path / ".launcherignore", "secret/\n")
        write(tmp_path / "secret" / "a").parent.chmod(0)
        try:
            assert names(tmp_path) == [".launcherignore"]
        finally:
            (tmp_path / "secret").chmod(0o700)

    @pytest.mark.parametrize("in_git", [True, False])
    def test_too_much_is_refused_with_the_largest_files(self, in_git, tmp_path):
        if in_git:
            git(tmp_path, "init", "-q")
        for number in range(LARGEST + 1):
            sparse(tmp_path / f"w{number}.bin", MAX_BYTES // 5 + (number << 20))
        with pytest.raises(InputError) as caught:
            list_files(tmp_path, tmp_path / "runs")
        assert "135 MiB, more than 100 MiB" in caught.value.what
        assert caught.value.what.splitlines()[1].split() == ["25", "MiB", "w5.bin"]
        assert "w0.bin" not in caught.value.what
        assert ".launcherignore" in caught.value.hint

    def test_the_limits_are_still_accepted(self, tmp_path, monkeypatch):
        sparse(tmp_path / "b", MAX_BYTES - 1)
        write(tmp_path / "a", "x").chmod(0o755)
        (tmp_path / "c").symlink_to("a")
        assert list_files(tmp_path, tmp_path / "runs") == [
            CodeFile("a", 1, None, True),
            CodeFile("b", MAX_BYTES - 1, None, False),
            CodeFile("c", 0, "a", False),
        ]
        write(tmp_path / "a", "xx")
        with pytest.raises(InputError, match="100 MiB, more than 100 MiB"):
            names(tmp_path)
        (tmp_path / "b").unlink()
        monkeypatch.setattr("launcher.code.files.MAX_FILES", 2)
        assert names(tmp_path) == ["a", "c"]
        write(tmp_path / "d")
        with pytest.raises(InputError, match="is more than 2 files"):
            names(tmp_path)

    def test_an_unreadable_file_is_named(self, tmp_path, monkeypatch):
        write(tmp_path / "key").chmod(0)
        tmp_path.chmod(0o755)
        monkeypatch.chdir(tmp_path)
        if (child := os.fork()) == 0:
            told = "nothing was refused"
            try:
                if os.geteuid() == 0:
                    os.setuid(NOBODY)  # root reads everything
                read(Path())
            except InputError as error:
                told = error.what
            finally:
                os._exit(0 if told.startswith("key is part of the code and cannot be read") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_a_pipe_is_no_code(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        write(tmp_path / "train.py")
        assert names(tmp_path) == ["train.py"]


class TestPack:
    def test_equal_files_give_an_equal_hash(self, tmp_path):
        for folder in ("a", "b"):
            write(tmp_path / folder / "train.py")
        os.utime(tmp_path / "a" / "train.py", (0, 0))
        (tmp_path / "b" / "train.py").chmod(0o640)
        assert read(tmp_path / "a").hash == read(tmp_path / "b").hash
        write(tmp_path / "b" / "train.py", "y\n")
        assert read(tmp_path / "a").hash != read(tmp_path / "b").hash

    def test_what_is_unpacked_is_what_was_packed(self, tmp_path):
        root, copy = tmp_path / "root", tmp_path / "copy"
        write(root / "sub" / "ünïcode name.py", "print()\n")
        write(root / "tool").chmod(0o755)
        (root / "link").symlink_to("sub/ünïcode name.py")
        unpack(read(root).data, copy)
        assert (copy / "sub" / "ünïcode name.py").read_text() == "print()\n"
        assert (copy / "link").read_text() == "print()\n"
        assert stat.S_IMODE((copy / "tool").stat().st_mode) & 0o100
        assert read(copy).hash == read(root).hash

    @pytest.mark.parametrize("target", ["/etc", "../outside"])
    def test_a_link_out_of_the_code_stays_behind_and_is_told(self, target, tmp_path):
        root = tmp_path / "root"
        write(root / "train.py")
        (root / "data").symlink_to(target)
        code = read(root)
        assert code.notes == (f"data leads to {target}, which is no part of the code",)
        unpack(code.data, tmp_path / "copy")
        assert os.listdir(tmp_path / "copy") == ["train.py"]


class TestRecord:
    def test_a_commit_and_what_is_not_in_it(self, repository, tmp_path):
        commit(repository)
        clean = read(repository)
        assert clean.record.commit
        assert len(clean.record.commit) == 40
        assert not clean.record.is_dirty
        write(repository / "train.py", "changed\n")
        dirty = read(repository)
        assert dirty.record.is_dirty
        assert b"+changed" in dirty.diff
        write_code(tmp_path, dirty)
        assert read_record(tmp_path) == dirty.record
        assert (tmp_path / DIFF_FILE).read_bytes() == dirty.diff

    def test_a_new_file_makes_it_dirty(self, repository):
        commit(repository)
        write(repository / "new.py")
        assert read(repository).record.is_dirty

    def test_no_program_of_the_repository_is_started(self, repository, tmp_path):
        program = write(tmp_path / "program", f"#!/bin/sh\ntouch {tmp_path}/started\n")
        program.chmod(0o755)
        commit(repository)
        write(repository / ".gitattributes", "* diff=evil\n")
        write(repository / "train.py", "changed\n")
        for key in ("core.fsmonitor", "diff.evil.textconv", "diff.external", "diff.evil.command"):
            git(repository, "config", key, str(program))
        assert read(repository).record.is_dirty
        assert not (tmp_path / "started").exists()

    def test_it_says_what_was_started_and_how_much_it_is(self, tmp_path):
        write(tmp_path / "sub" / "train.py", "12345")
        write(tmp_path / "b", "67")
        place = CodePlace(root=tmp_path, inner="sub", command=("-m", "pkg.train", "--lr"))
        code = read_code(place, tmp_path / "runs")
        assert code.record == CodeRecord(
            root=str(tmp_path), inner="sub", start=("-m", "pkg.train"), hash=code.hash, files=2,
            bytes=7,
        )  # fmt: skip
        assert (code.names, code.diff, code.notes) == ({"b", "sub/train.py"}, b"", ())
        assert read(tmp_path).record.start == ("train.py",)

    def test_before_a_first_commit_all_is_new(self, repository):
        code = read(repository)
        assert (code.record.commit, code.record.is_dirty, code.diff) == (None, True, b"")

    def test_kept_code_is_read_back_only_if_it_fits_its_record(self, repository, tmp_path):
        commit(repository)
        write(repository / "train.py", "changed\n")
        code = read(repository)
        assert read_kept_code(tmp_path) is None
        write_code(tmp_path, code)
        kept = read_kept_code(tmp_path)
        assert kept == replace(code, earlier=tmp_path)
        (tmp_path / DIFF_FILE).unlink()
        kept = read_kept_code(tmp_path)
        assert kept.diff == b""
        (tmp_path / ARCHIVE_FILE).write_bytes(code.data + b"x")
        assert read_kept_code(tmp_path) is None
        for text in ("", '{"start": 3}', '{"start": []}'):
            write(tmp_path / "code.json", text)
            assert read_record(tmp_path) is read_kept_code(tmp_path) is None

    def test_an_equal_archive_of_an_earlier_run_is_linked(self, tmp_path):
        write(tmp_path / "code" / "train.py")
        one, two = tmp_path / "one", tmp_path / "two"
        one.mkdir()
        two.mkdir()
        code = read(tmp_path / "code")
        write_code(one, code)
        write_code(two, replace(code, earlier=one))
        assert (one / ARCHIVE_FILE).samefile(two / ARCHIVE_FILE)


def test_runs_are_no_code_also_where_their_folder_is_named_through_a_link(tmp_path):
    root = tmp_path / "project"
    write(root / "t.py")
    write(root / "runs/a/code.tar.gz")
    (tmp_path / "link").symlink_to(root)
    assert [file.name for file in list_files(root, tmp_path / "link/runs")] == ["t.py"]


@pytest.mark.parametrize("in_git", [True, False])
def test_runs_of_other_calls_are_no_code(in_git, tmp_path):
    if in_git:
        git(tmp_path, "init", "-q")
    kept = ["other/README", "plan.json", "train.py"]
    run = "other/train-0a1b2c"
    left = [f"{run}/{name}" for name in ("plan.json", "artifact.sh", "checkpoints/7/weights")]
    for name in kept + left:
        write(tmp_path / name)
    (tmp_path / "other/latest").symlink_to("train-0a1b2c")
    assert names(tmp_path) == kept


def test_the_code_may_be_in_the_folder_of_the_runs(tmp_path):
    for name in ("train.py", "train-0a1b2c/plan.json", "train-0a1b2c/artifact.sh"):
        write(tmp_path / name)
    assert [file.name for file in list_files(tmp_path, tmp_path)] == ["train.py"]


def test_what_changed_is_told_against_the_run_before(tmp_path):
    place = CodePlace(root=tmp_path / "code", inner="", command=("train.py",))
    runs = tmp_path / "runs"
    write(place.root / "train.py", "1")
    for name in ("one", "two"):
        (runs / name).mkdir(parents=True)
    first = read_code(place, runs)
    assert first.change is None
    write_code(runs / "one", first)
    (runs / "latest").symlink_to("one")
    assert read_code(place, runs).change is None, "nothing changed"
    write(place.root / "train.py", "2")
    second = read_code(place, runs)
    write_code(runs / "two", second)
    change = second.change
    assert change.base == first.hash
    kept = first.data
    whole = kept[: change.start] + change.data + kept[len(kept) - change.end :]
    assert whole == second.data
