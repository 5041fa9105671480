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


@pytest.mark.parametrize(
    ("argv", "kinds"),
    [
        ([], ["ConfigMap", "PyTorchJob"]),
        (["--kind", "job"], ["ConfigMap", "Service", "Job"]),
        (["--kind", "jobset"], ["ConfigMap", "JobSet"]),
        (["--kind", "trainjob"], ["ConfigMap", "TrainingRuntime", "TrainJob"]),
        (["--set", "kubernetes.kind=job"], ["ConfigMap", "Service", "Job"]),
    ],
)
def test_objects_are_printed_in_the_order_in_which_they_are_needed(argv, kinds, capsys):
    assert run_command(["render", "job.yaml", "--on", "kubernetes", *argv]) == 0
    printed = capsys.readouterr()
    assert [one["kind"] for one in yaml.safe_load_all(printed.out)] == kinds
    assert printed.err == ""


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


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["render", "job.yaml", "--on", "kubernetes", "--resume", "r"], "--resume r"),
        (
            ["render", "job.yaml", "--on", "kubernetes", "--nnodes", "1:2", "--kind", "jobset"],
            "size",
        ),
    ],
)
def test_what_cannot_be_rendered_is_bad_input_with_a_fix(argv, says, capsys):
    assert run_command(argv) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert "  fix: " in told.err
    assert told.out == ""
