"""``launcher render JOB --on kubernetes``: what it prints, and what it says where it does not."""

from pathlib import Path

import pytest
import yaml

from launcher.commands.cli import run_command

JOB = """\
name: tiny
command: [train.py]
nproc_per_node: 1
nnodes: 2
kubernetes: {checkpoint: pvc/storage}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)


def test_an_argument_of_two_lines_stays_inside_of_the_comment(capsys, monkeypatch):
    words = ["render", "job.yaml", "--on", "kubernetes", "--", "--prompt", "one\ntwo: x"]
    monkeypatch.setattr("sys.argv", ["launcher", *words])
    assert run_command(words) == 0
    text = capsys.readouterr().out
    assert "# two: x'\n" in text
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["ConfigMap", "PyTorchJob"]


def test_what_pod_security_loses_is_said_beside_the_manifest(capsys):
    opt_in = ["--set", "kubernetes.host_network=true"]
    assert run_command(["render", "job.yaml", "--on", "kubernetes", *opt_in]) == 0
    said = capsys.readouterr().err
    assert said == "note: not admissible under Pod Security restricted: kubernetes.host_network\n"


def test_a_run_to_resume_is_refused_where_a_manifest_is_rendered(capsys):
    assert run_command(["render", "job.yaml", "--on", "kubernetes", "--resume", "r"]) == 2
    told = capsys.readouterr()
    assert "--resume r" in told.err
    assert "  fix: " in told.err
    assert told.out == ""
