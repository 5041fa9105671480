from __future__ import annotations

import pytest

from fabric_train.durable import remove_folder, write_file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("old")
    write_file(path, lambda file: file.write(b"new"))
    assert path.read_text() == "new"
    assert names(tmp_path) == ["metrics.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("old")

    def fail_halfway(file):
        file.write(b"ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_file(path, fail_halfway)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["metrics.json"]


def test_a_folder_is_removed_as_a_whole_and_may_be_absent(tmp_path):
    (tmp_path / "step-0").mkdir()
    (tmp_path / "step-0" / "state").write_text("old")
    remove_folder(tmp_path / "step-0")
    remove_folder(tmp_path / "step-0")
    assert names(tmp_path) == []
