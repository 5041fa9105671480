"""The corpus is whole: each fault lies in its part, has a known cause and what it left."""

import json
import re
from pathlib import Path

import pytest

from launcher.contract.causes import with_cause
from tests.faults import corpus, making, trim

PARTS = ("open", "held_out")
FAULTS = [fault for part in PARTS for fault in corpus.read_faults(part)]
OF_A_MACHINE = re.compile(
    rf"/tmp/(?:fault-|pytest)[\w/-]*|\.pyenv|{re.escape(str(trim.ROOT))}(?![\w-])"
)
MAX_BYTES = 70_000
MAX_ALL_BYTES = 4_000_000


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]


@pytest.mark.parametrize("part", PARTS)
def test_a_fault_lies_in_the_part_that_its_name_says(part):
    found = {fault.name for fault in corpus.read_faults(part)}
    assert {name for name in found if corpus.part_of(name).name != part} == set()


def test_the_split_never_changes():
    names = ("raise-in-rank-1", "port-taken", "xid-79", "dns-off", "nan-loss", "uneven-batches")
    assert [name for name in names if corpus.held_out(name)] == ["port-taken", "xid-79"]


def test_about_a_third_of_names_is_held_out():
    held = sum(corpus.held_out(f"name-{number}") for number in range(3000))
    assert 900 < held < 1100


def test_each_cause_is_a_known_word():
    known = corpus.read_causes()
    used = {(fault.name, word) for fault in FAULTS for word in (fault.cause, *fault.also)}
    assert {(name, word) for name, word in used if word not in known} == set()


def test_each_fault_has_its_recording_and_each_recording_its_fault():
    there = {path for part in PARTS for path in corpus.unpack(corpus.HERE / part).glob("[!.]*")}
    told = {fault.recording for fault in FAULTS} | {fault.summary for fault in FAULTS}
    assert {fault.name for fault in FAULTS if not files_of(fault.recording)} == set()
    assert there - told == set()


def test_a_documented_fault_names_its_source_and_a_real_one_is_made_here():
    for fault in FAULTS:
        assert fault.made in (*corpus.MADE_ON, corpus.DOCUMENTED), fault.name
        assert bool(fault.source) != fault.is_real, fault.name


def test_recordings_are_small():
    sizes = {f.name: sum(one.stat().st_size for one in files_of(f.recording)) for f in FAULTS}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}
    assert sum(sizes.values()) < MAX_ALL_BYTES


def test_recordings_name_nothing_of_this_machine():
    files = [one for fault in FAULTS for one in files_of(fault.recording)]
    left = {str(path): OF_A_MACHINE.findall(path.read_text()) for path in files}
    assert {path: names for path, names in left.items() if names} == {}


def test_packing_changes_nothing_where_nothing_changed(tmp_path, monkeypatch):
    part = corpus.HERE / "open"
    before = corpus.unpack(part)
    monkeypatch.setattr(corpus, "_archive_of", lambda _part: tmp_path / "again.tar.xz")
    corpus.pack(part)
    assert (tmp_path / "again.tar.xz").read_bytes() == (part / "recordings.tar.xz").read_bytes()
    assert before == corpus.unpack(part)


def reason_of(left: Path) -> str:
    """Of a run's outcome; empty for logs, and where the run went on."""
    outcome = left / "outcome.json"
    return str(with_cause(json.loads(outcome.read_text()))["cause"]) if outcome.exists() else ""


@pytest.mark.parametrize("name", ["kubernetes-oom-killed-pod"])
def test_a_fault_made_anew_ends_as_its_recording_does(name, tmp_path):
    fault = corpus.find_fault(name)
    assert reason_of(making.make(fault, tmp_path / "project")) == reason_of(fault.recording) != ""
