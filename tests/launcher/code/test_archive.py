"""Archives of the code: their bytes, and what two of them have in common."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.code.archive import (
    LARGE_BYTES,
    common_ends,
    hash_of,
    leads_out,
    names_in,
    pack,
    unpack,
)
from launcher.code.files import CodeFile
from launcher.contract.errors import InputError

Tree = dict[str, bytes]
PART = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
"""The header of gzip, without a time."""


def pack_tree(root: Path, tree: Tree) -> bytes:
    for name, content in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return pack(
        root, [CodeFile(name, len(tree[name]), None, name == "tool") for name in sorted(tree)]
    )


@given(
    st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30)
)
def test_common_ends_are_as_long_as_they_can_be(a, b, c, d):
    for old, new in ((a + b + c, a + d + c), (a, a + b), (a + b, b)):
        start, end = common_ends(old, new)
        assert old[:start] == new[:start]
        assert old[len(old) - end :] == new[len(new) - end :]
        assert start + end <= min(len(old), len(new))
        rest = old[start:], new[start:]
        assert not all(rest) or rest[0][0] != rest[1][0]
        left = old[start : len(old) - end], new[start : len(new) - end]
        assert not all(left) or left[0][-1] != left[1][-1]


def test_a_changed_file_changes_the_bytes_of_its_own_part_alone(tmp_path):
    tree = {f"f{number:03}.py": os.urandom(200) for number in range(200)}
    tree |= {"large": os.urandom(LARGE_BYTES), "larger": os.urandom(LARGE_BYTES)}
    whole = pack_tree(tmp_path / "a", tree)
    for name, least in (("f100.py", 0.95), ("large", 0.5), ("larger", 0.5)):
        changed = pack_tree(tmp_path / "b", tree | {name: tree[name][:-1] + b"!"})
        assert len(changed) == pytest.approx(len(whole), abs=99)
        assert sum(common_ends(whole, changed)) > least * len(whole), name
    small = {name: tree[name] for name in tree if name[0] == "f"}
    parts = pack_tree(tmp_path / "a", small).count(PART)
    assert 7 <= parts <= 24, "16 files share a part, on average"
    around = pack_tree(tmp_path / "a", {"a": b"", "large": tree["large"], "m": b""})
    assert around.count(PART) >= 3, "a large file is a part by itself"
    small_one = {"a": b"", "large": tree["large"][:-1], "m": b""}
    assert pack_tree(tmp_path / "a", small_one).count(PART) < 3


def test_an_archive_is_a_tar_of_its_files_without_times_and_owners(tmp_path):
    tree = {"tool": b"x" * 513, "sub/ü.py": b"", "z": b"y" * 512}
    data = pack_tree(tmp_path / "a", tree)
    assert hash_of(data) == hash_of(pack_tree(tmp_path / "b", tree))
    assert len(hash_of(data)) == 64
    assert names_in(data) == {"tool", "sub/ü.py", "z"}
    unpack(data, tmp_path / "new/copy")
    unpack(data, tmp_path / "new/copy")
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as archive:
        members = archive.getmembers()
    assert [(one.name, one.size, one.mode, one.mtime, one.uid) for one in members] == [
        ("sub/ü.py", 0, 0o644, 0, 0),
        ("tool", 513, 0o755, 0, 0),
        ("z", 512, 0o644, 0, 0),
    ]
    for name, content in (("tool", b"x" * 513), ("z", b"y" * 512)):
        assert (tmp_path / "new/copy" / name).read_bytes() == content
    assert len(gzip.decompress(data)) == 512 * (1 + 1 + 2 + 1 + 1 + 2) + 2 * 512


def test_files_that_are_gone_or_lead_out_are_left_out(tmp_path):
    files = [CodeFile("gone", 3, None, False), CodeFile("link", 0, "to", False)]
    assert names_in(pack(tmp_path, [*files, CodeFile("out", 0, "/etc", False)])) == {"link"}
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="/folder is part of the code and cannot be read"):
        pack(tmp_path, [CodeFile("folder", 3, None, False)])


@pytest.mark.parametrize(
    ("name", "link", "leads"),
    [
        ("a", None, False),
        ("a", "b", False),
        ("a", "..", True),
        ("a", "../b", True),
        ("a", "..b", False),
        ("a/b", "..", False),
        ("a/b", "../..", True),
        ("a/b", "../c/../..", True),
        ("a/b", "/etc", True),
    ],
)
def test_a_link_leads_out_by_where_it_lies(name, link, leads):
    assert leads_out(CodeFile(name, 0, link, False)) == leads
