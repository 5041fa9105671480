"""The archive of the training code: what git knows and does not ignore, by its content."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from launcher.contract.errors import InputError
from launcher.targets import code_archive as code_module
from launcher.targets.code_archive import read_code


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "train.py").write_text("print(1)\n")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_new_and_changed_files_travel_and_ignored_ones_do_not(repository: Path) -> None:
    before = read_code(repository)
    (repository / "new file.py").write_text("x = 1\n")
    (repository / "data.bin").write_text("much")
    after = read_code(repository)
    assert names(after.data) == [".gitignore", "examples/train.py", "new file.py"]
    assert after.hash != before.hash


def test_equal_files_give_an_equal_hash_whenever_they_were_written(repository: Path) -> None:
    before = read_code(repository)
    path = repository / "examples" / "train.py"
    path.write_text(path.read_text())
    assert read_code(repository).hash == before.hash


def test_the_callers_folder_is_known_inside_the_archive(repository: Path) -> None:
    assert read_code(repository / "examples").inner == "examples"
    assert read_code(repository).inner == ""


def test_a_deleted_file_does_not_travel(repository: Path) -> None:
    (repository / "examples" / "train.py").unlink()
    assert names(read_code(repository).data) == [".gitignore"]


def test_without_git_the_folder_travels_but_not_its_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "plan.json").write_text("{}")
    (tmp_path / "train.py").write_text("")
    assert names(read_code(tmp_path).data) == ["train.py"]


def test_too_much_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "MAX_BYTES", 1 << 20)
    (tmp_path / "weights.pt").write_bytes(bytes(2 << 20))
    with pytest.raises(InputError, match=r"more than 1 MB, at weights.pt"):
        read_code(tmp_path)
