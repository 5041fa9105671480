from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fabric_train.errors import InputError
from fabric_train.manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    DamagedError,
    check_files,
    describe_files,
    find_differences,
    read_manifest,
    render_manifest,
)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "weights").write_bytes(b"0123456789")
    manifest = CheckpointManifest(
        step=7,
        generation=3,
        attempt=1,
        world_size=2,
        files=describe_files(tmp_path, ["weights"]),
        tensors={"model.w": [2, 3]},
        config={"lr": 0.1},
        score=0.25,
    )
    (tmp_path / MANIFEST_FILE).write_bytes(render_manifest(manifest))
    return tmp_path


def edit(folder: Path, **values: object) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_manifest_is_read_back(folder):
    manifest = read_manifest(folder)
    assert (manifest.step, manifest.generation, manifest.score) == (7, 3, 0.25)
    assert manifest.total_bytes == 10
    check_files(folder, manifest)


def test_equal_configs_have_equal_digests(folder):
    found = read_manifest(folder)
    one, other = (
        json.loads(render_manifest(dataclasses.replace(found, config=config)))["config_sha256"]
        for config in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )
    assert one == other


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_manifest_that_cannot_be_read_is_damage(folder, text):
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(DamagedError):
        read_manifest(folder)


def test_a_manifest_without_its_fields_is_damage(folder):
    (folder / MANIFEST_FILE).write_text('{"format": 2, "config_sha256": ""}')
    with pytest.raises(DamagedError, match="lacks"):
        read_manifest(folder)


def test_a_newer_programs_manifest_is_refused_and_not_skipped(folder):
    edit(folder, format=3)
    with pytest.raises(InputError, match="format 3"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"01234", "5 bytes, not 10"), (b"0123456788", "does not match"), (None, "No such file")],
    ids=["cut short", "a bit flipped", "gone"],
)
def test_a_file_that_differs_is_named(folder, content, says):
    path = folder / "weights"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(DamagedError, match=f"weights.*{says}"):
        check_files(folder, read_manifest(folder))


def test_differences_name_every_key_that_is_not_equal():
    assert find_differences({"a": 1, "b": [2], "c": 3}, {"a": 1, "b": (2,), "d": 4}) == [
        "c is absent, but 3 in the checkpoint",
        "d is 4, but absent in the checkpoint",
    ]
