"""A job that is made from the name of a script or module."""

import os
import re
from pathlib import Path

import pytest

from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.job.script import check_script, is_script, name_of, write_job


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("train.py",), "train"),
        (("src/My script.py",), "my-script"),
        (("träin_ü.py",), "train-u"),
        (("训练.py",), "job"),
        (("обучение.py",), "job"),
        (("2024.py",), "job-2024"),
        (("2stage.py",), "job-2stage"),
        (("-m", "pkg.train"), "pkg-train"),
        (("-m", "pkg.__main__"), "pkg"),
        (("a" * 60 + ".py",), "a" * 40),
        (("__.py",), "job"),
    ],
)
def test_the_name_comes_from_the_script(command, name):
    assert name_of(command) == name
    job = parse_job(write_job(command), "here")
    assert (job.name, job.command) == (name, command)


def test_a_folder_is_called_as_such(tmp_path, monkeypatch):
    (tmp_path / "my app").mkdir()
    monkeypatch.chdir(tmp_path / "my app")
    assert name_of((".",)) == "my-app"


def test_what_is_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_script("train.py")
    assert is_script(str(tmp_path))
    assert not is_script("job.yaml")
    assert not is_script("train")


def test_a_script_that_is_not_there(tmp_path):
    (tmp_path / "train.py").touch()
    with pytest.raises(InputError, match="no such file") as caught:
        check_script(str(tmp_path / "tran.py"))
    assert caught.value.hint == f"did you mean {tmp_path}/train.py?"
    with pytest.raises(InputError) as caught:
        check_script(str(tmp_path / "none.py"), "; or another way")
    assert caught.value.hint == "check the path; or another way"
    with pytest.raises(InputError, match="without __main__"):
        check_script(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(InputError, match="no file, but a pipe or a device"):
        check_script(str(tmp_path / "pipe.py"))
    (tmp_path / "__main__.py").touch()
    for there in (tmp_path, tmp_path / "train.py"):
        check_script(str(there))
    (tmp_path / "gone.py").symlink_to("moved.py")
    with pytest.raises(InputError, match=r"gone.py: a link to moved.py, which is not there"):
        check_script(str(tmp_path / "gone.py"))


def test_the_job_file_that_the_guide_shows_is_one():
    guide = (Path(__file__).parents[3] / "docs" / "own-script.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)
    job = parse_job(shown, "own-script.md")
    assert job.name == name_of(("train.py",))
    assert job.command == ("train.py", "--lr", "0.1")
