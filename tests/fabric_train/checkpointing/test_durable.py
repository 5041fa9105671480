import os

import pytest

from fabric_train.checkpointing.durable import remove_folder, write_file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("old")

    def fail_halfway(file):
        file.write(b"ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_file(path, fail_halfway)
    assert (path.read_text(), names(tmp_path)) == ("old", ["metrics.json"])
    write_file(path, lambda file: file.write(b"new"))
    assert (path.read_text(), names(tmp_path)) == ("new", ["metrics.json"])


def test_a_folder_is_removed_as_a_whole_and_may_be_absent(tmp_path):
    (tmp_path / "step-0").mkdir()
    (tmp_path / "step-0" / "state").write_text("old")
    remove_folder(tmp_path / "step-0")
    remove_folder(tmp_path / "step-0")
    assert names(tmp_path) == []


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path, monkeypatch
):
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(handle):
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def note_replace(staged, path):
        done.append("replaced")
        replace(staged, path)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_file(tmp_path / "metrics.json", lambda file: file.write(b"new"))
    staged, *rest = done
    assert staged.startswith(str(tmp_path / ".staging-metrics.json-"))
    assert rest == ["replaced", str(tmp_path)]
