"""Wrong input of every kind, typed at the command line: told in a few lines, and nothing is begun.

What is refused is refused before anything is made: the folder is as it was.
"""

from __future__ import annotations

import pytest

from tests.launcher.commands.test_wrong_input import JOB, assert_refused, folder, put, tree, typed

# -- the file itself ------------------------------------------------------------------------------

FILES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("binary", bytes(range(256)), "job.yaml:"),
    ("a gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "is not UTF-8"),
    ("Latin-1", "name: tïny\n".encode("latin-1"), "job.yaml:1: byte 0xef is not UTF-8"),
    ("a tab", JOB.encode() + b"env:\n\tA: 1\n", "replace the tab by spaces"),
    ("a key twice", JOB.encode() + b"name: other\n", "given a second time"),
    ("two documents", JOB.encode() + b"---\n" + JOB.encode(), "drop the --- line"),
    ("a list", b"- name: tiny\n", "found a list at the top"),
    ("JSON that is cut", b'{"name": "tiny", "command": [', "not closed"),
    ("too large", b"# " + b"x" * (1 << 20), "larger than 1 MiB"),
    ("nested deeply", b"env: " + b"[" * 5000, "nested"),
    ("a Python script", b"import torch\nprint(torch)\n", "job.yaml:"),
    ("CRLF and a wrong key", (JOB + "x: 1\n").replace("\n", "\r\n").encode(), "job.yaml:4: x: "),
    ("a BOM and a wrong key", b"\xef\xbb\xbf" + JOB.encode() + b"x: 1\n", "job.yaml:4: x: "),
]


@pytest.mark.parametrize(("text", "words"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_file_that_is_no_job_is_told_with_its_line(folder, typed, command, text, words):
    put(folder, text)
    before = tree(folder)
    assert_refused(typed(command, "job.yaml"), words)
    assert tree(folder) == before
