from __future__ import annotations

import pytest

from fabric_train.durable import (
    remove_staging,
    staging_path,
    write_file,
    write_folder,
    write_synced,
)


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


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with write_folder(tmp_path / "step-1") as staging:
        write_synced(staging / "state", lambda file: file.write(b"all"))
        assert "step-1" not in names(tmp_path)
    assert (tmp_path / "step-1" / "state").read_bytes() == b"all"
    assert names(tmp_path) == ["step-1"]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path):
    with write_folder(tmp_path / "step-1") as staging:
        write_synced(staging / "state", lambda file: file.write(b"old"))
    with pytest.raises(OSError, match="disk full"), write_folder(tmp_path / "step-1"):
        raise OSError("disk full")
    assert (tmp_path / "step-1" / "state").read_bytes() == b"old"
    assert names(tmp_path) == ["step-1"]


def test_leftovers_of_killed_writers_are_removed_and_only_those(tmp_path):
    staging_path(tmp_path / "step-1").mkdir()
    staging_path(tmp_path / "metrics.json").write_text("ne")
    (tmp_path / "step-0").mkdir()
    remove_staging(tmp_path)
    assert names(tmp_path) == ["step-0"]
