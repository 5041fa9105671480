import dataclasses
from pathlib import Path

import pytest

from fabric_train.checkpointing.manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    DamagedError,
    check_files,
    describe_files,
    find_differences,
    read_manifest,
    refuse_another,
    render_manifest,
)

WRITTEN = """\
{
 "format": 2,
 "step": 7,
 "generation": 3,
 "attempt": 1,
 "world_size": 2,
 "files": {
  "weights": {
   "bytes": 10,
   "sha256": "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
  },
  "more": {
   "bytes": 1,
   "sha256": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
  }
 },
 "tensors": {
  "model.w": [
   2,
   3
  ]
 },
 "trainer": {},
 "config": {
  "lr": 0.1,
  "data": "here"
 },
 "versions": {},
 "score": 0.25,
 "config_sha256": "ab3c4a9489b2248c388e66724bcff289f0c7d9bd4de902087bfc1ea90edea210"
}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "weights").write_bytes(b"0123456789")
    (tmp_path / "more").write_bytes(b"1")
    (tmp_path / MANIFEST_FILE).write_text(WRITTEN)
    return tmp_path


def test_a_manifest_is_written_and_read_back(folder):
    manifest = CheckpointManifest(
        step=7,
        generation=3,
        attempt=1,
        world_size=2,
        files=describe_files(folder, ["weights", "more"]),
        tensors={"model.w": [2, 3]},
        config={"lr": 0.1, "data": Path("here")},
        score=0.25,
    )
    assert render_manifest(manifest).decode() == WRITTEN
    read_back = read_manifest(folder)
    assert read_back == dataclasses.replace(manifest, config={"lr": 0.1, "data": "here"})
    assert read_back.total_bytes == 11
    check_files(folder, read_back)
    # Equal configs have equal digests.
    turned = dataclasses.replace(manifest, config={"data": "here", "lr": 0.1})
    assert render_manifest(turned).splitlines()[-2] == render_manifest(manifest).splitlines()[-2]


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", "1", "[1]", '{"format": 2}',
    '{"format": 2, "config_sha256": ""}'])  # fmt: skip
def test_a_manifest_that_cannot_be_read_or_lacks_fields_is_damage(folder, text):
    (folder / MANIFEST_FILE).unlink()
    if text is not None:
        (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(DamagedError, match="lacks" if text and "2" in text else None):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["more", MANIFEST_FILE])
def test_a_storage_that_fails_is_no_damage(folder, name):
    """Whose checkpoint would be skipped; the bytes may be good. Here by a link to itself."""
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    with pytest.raises(OSError, match="symbolic links"):
        check_files(folder, read_manifest(folder))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"0123456789a", "11 bytes, not 10"),
        (b"0123456788", "does not match"),
        (None, "No such file"),
    ],
    ids=["too long", "a bit flipped", "gone"],
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
    saved, current = {"a": 1, "b": [2], "c": 3}, {"a": 1, "b": (2,), "d": 4}
    assert find_differences({**saved, "e": "x"}, {**current, "e": Path("x")}) == [
        "c is absent, but 3 in the checkpoint",
        "d is 4, but absent in the checkpoint",
    ]


@pytest.mark.parametrize(("number", "end"), [(5, "; d4"), (43, "; d4; and in 38 more")])
def test_a_checkpoint_of_another_training_is_refused_with_the_first_differences(number, end):
    refused = refuse_another(Path("/c/step-3"), [f"d{n}" for n in range(number)], "folder")
    assert refused.what == (
        "this training differs from the one that wrote the checkpoint /c/step-3: d0; d1; d2; d3"
        + end
    )
    assert refused.fix == "give the earlier values, or start anew with another folder"
