"""Requirements: which are found, which files they take along, and what no image can have."""

import pytest

from launcher.contract.errors import InputError
from launcher.targets.docker.requirements import find_requirements, read_requirements


def test_the_nearest_requirements_count_and_a_list_before_a_project(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    assert find_requirements([inner, tmp_path]) is None
    (tmp_path / "requirements.txt").write_text("")
    assert find_requirements([inner, tmp_path]) == tmp_path / "requirements.txt"
    (inner / "pyproject.toml").write_text("")
    assert find_requirements([inner, tmp_path]) == inner / "pyproject.toml"
    (inner / "requirements.txt").write_text("")
    assert find_requirements([inner, tmp_path]) == inner / "requirements.txt"


def test_included_files_come_along_wherever_they_are(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "requirements.txt"
    path.write_text("-r ../more.txt  # with a word\nnumpy>=2\n-c https://example.com/held.txt\n")
    (tmp_path / "more.txt").write_text("--constraint=folder/held.txt\nrich\n-r more.txt\n")
    (folder / "held.txt").write_text("rich==14.0\n")
    assert read_requirements(path) == {
        "requirements.txt": "-r included-1.txt\nnumpy>=2\n-c https://example.com/held.txt\n",
        "included-1.txt": "--constraint included-2.txt\nrich\n-r included-1.txt\n",
        "included-2.txt": "rich==14.0\n",
    }


def test_a_project_gives_its_dependencies_and_nothing_else(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\ndependencies = ["rich>=14", "tqdm"]\n')
    assert read_requirements(path) == {"requirements.txt": "rich>=14\ntqdm\n"}
    path.write_text("[tool.ruff]\nline-length = 100\n")
    assert read_requirements(path) == {}


@pytest.mark.parametrize(
    "line",
    [
        *("-e .", "--editable=.", ".", "./pkg", "../pkg", "/srv/pkg", "x @ file:///srv/x.whl"),
        *("--find-links ./wheels", "-f wheels", "file:x"),
    ],
)
def test_what_is_on_this_machine_alone_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "requirements.txt"
    path.write_text(f"rich\n{line}\n")
    with pytest.raises(InputError, match=r"requirements.txt:2: .*: is on this machine") as refused:
        read_requirements(path)
    assert "--wheelhouse DIR" in refused.value.hint


@pytest.mark.parametrize(
    "line", ["x @ https://example.com/x.whl", "-f https://example.com", "rich[a]==1.*  # ./b", ""]
)
def test_what_pip_gets_from_elsewhere_stays_as_it_is(tmp_path, line):
    path = tmp_path / "requirements.txt"
    path.write_text(f"{line}\n")
    assert read_requirements(path) == {"requirements.txt": f"{line}\n"}


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("pyproject.toml", b"[project\n", "pyproject.toml: Expected"),
        ("pyproject.toml", b'[project]\ndynamic = ["dependencies"]\n', "are dynamic"),
        ("requirements.txt", b"\xff\xfe\x00", "is no UTF-8 text"),
        ("absent.txt", None, "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_option(tmp_path, name, data, what):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=what) as refused:
        read_requirements(path)
    assert "--requirements FILE" in refused.value.hint or "UTF-8" in refused.value.hint
