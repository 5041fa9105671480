"""Wrong input of every kind, typed at the command line: told in a few lines, and nothing is begun.

What is refused is refused before anything is made: the folder is as it was.
"""

import os
import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.commands import cli
from launcher.contract.causes import Cause

ROOT = Path(__file__).parents[3]
JOB = "name: tiny\ncommand: [train.py]\nnproc_per_node: 1\n"
READ_BY_LAUNCHER = (
    *("LAUNCHER_RUNS", "LAUNCHER_HOSTS", "LAUNCHER_ENGINE", "NO_COLOR", "KUBECONFIG"),
    *("PYTHONIOENCODING", "XDG_RUNTIME_DIR"),
)
NOWHERE = "unix:///nonexistent/docker.sock"
MOST_LINES = 6


@dataclass(frozen=True)
class Told:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)
    for name in READ_BY_LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    return tmp_path


@pytest.fixture
def typed(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Told]:
    # As it is called where the program is on the PATH.
    monkeypatch.setattr("launcher.commands.cli.program_name", lambda: "launcher")
    monkeypatch.setattr(
        "launcher.commands.parsing.printed_commands.program_name", lambda: "launcher"
    )

    def type_(*argv: str) -> Told:
        capfd.readouterr()
        try:
            code = cli.run_command(argv)
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
        return Told(code, *capfd.readouterr())

    return type_


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def assert_refused(told: Told, words: str, code: int = 2) -> None:
    lines = told.err.splitlines()
    assert told.code == code, told
    assert "Traceback" not in told.out + told.err
    assert words in told.err, told.err
    assert 1 <= len(lines) <= MOST_LINES, told.err
    assert any(
        line.startswith("  fix: ") or "; accepted: " in line or "; did you mean " in line
        for line in lines
    ), told.err
    assert told.err.isprintable() or all(line.isprintable() for line in lines), told.err


def put(folder: Path, text: str | bytes, name: str = "job.yaml") -> None:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


# -- values of the job file -----------------------------------------------------------------------

KEYS = [
    ("nnodes: 100000", "nnodes: 100000 nodes"),
    ("max_restarts: 1\nnnodes: 900", "processes; this machine can start about"),
    ("nproc_per_node: 1024", "job.yaml:3: nproc_per_node: "),
    ("nproc_per_node: gpu", "job.yaml:3: nproc_per_node: gpu, but target local has no GPU"),
    ("resources: {gpus: 8}", "job.yaml:4: resources.gpus: 8 on each node"),
    ("workdir: /nowhere", "job.yaml:4: workdir: /nowhere is not there"),
    ("local: {python: /nowhere/python}", "job.yaml:4: local.python: found /nowhere/python"),
    ("local: {python: ./train.py}", "it is not executable"),
    ("command: [nothere.py]", "job.yaml:2: command: found nothere.py; no such file"),
    ("command: [tran.py]", "did you mean train.py?"),
    ('command: ["a\\nb.py"]', "command: found "),
    ("command: [.]", "a folder without __main__.py"),
    ("command: train.py && echo done", "command: found &&"),
    ("command: [-m, '']", "command: "),
    ("command: train.py &", "in your own shell, around the launcher: launcher run JOB > FILE"),
    ("agent: {hang_min_s: 10, hang_max_s: 5}", "agent.hang_max_s: found 5"),
    ("secrets: ['A=1']", "secrets.0: found "),
    ("command: [bash, -c, 'train.py && ls']", "command: found bash"),
    ("engine: agnet", "did you mean agent?"),
    ("hosts: [gpu1, gpu2]", "for example hosts: {inventory: hosts.yaml}"),
    ("rdzv: null\nrdzv: {}", "given a second time"),
    ("env: {RANK: 1}", "torchrun sets this one"),
    ("secrets: [TOKEN_THAT_IS_NOT_SET]", "job.yaml:4: secrets: TOKEN_THAT_IS_NOT_SET not set"),
    ("mounts: ['a:/launcher/x']", "mounts.0.target"),
    ("checkpoint_dir: ''", "checkpoint_dir: found "),
    ("checkpoint_dir: train.py", "train.py cannot be made: Not a directory"),
    ("name: Tiny", "write tiny"),
    ("nnode: 2", "did you mean nnodes?"),
    (
        "slurm: {account: 4711}",
        'slurm.account: found 4711; accepted: text\n  fix: write "4711", in qu',
    ),
]


@pytest.mark.parametrize(("text", "words"), KEYS, ids=[text for text, _ in KEYS])
def test_a_wrong_value_is_refused_before_anything_is_made(folder, typed, text, words):
    lines = JOB.splitlines()
    key = text.partition(":")[0]
    known = [index for index, line in enumerate(lines) if line.startswith(f"{key}:")]
    if known:
        lines[known[0]] = text
    else:
        lines.append(text)
    put(folder, "\n".join(lines) + "\n")
    before = tree(folder)
    assert_refused(typed("run", "job.yaml", "--on", "local"), words)
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainscript", "import torch\nprint(torch)\n"),
        ("t.sh", "#!/bin/sh\nset -e\npython train.py\n"),
        ("n.ipynb", '{"cells": []}\n'),
    ],
)
def test_what_is_no_job_file_by_its_name_is_told_how_scripts_are_called(folder, typed, name, text):
    put(folder, text, name)
    assert_refused(typed("run", name, "--on", "local"), "; a script's name ends in .py\n")


@pytest.mark.parametrize("text", ["", "- gpu1\n"])
def test_an_inventory_that_is_no_mapping_gets_an_inventory_s_fix(folder, typed, text):
    put(folder, text, "hosts.yaml")
    assert_refused(typed("hosts", "--hosts", "hosts.yaml"), "hosts: [gpu1, gpu2]\n")


def test_an_error_in_a_job_file_that_comes_through_a_pipe_has_its_line(folder, typed):
    os.mkfifo(folder / "pipe")
    text = JOB + "code: nope\n"
    writer = threading.Thread(target=(folder / "pipe").write_text, args=(text,), daemon=True)
    writer.start()
    assert_refused(typed("render", "pipe", "--on", "local"), "pipe:4: code: found nope")
    writer.join()


@pytest.mark.parametrize("text", [JOB.replace("\n", "\r\n"), "\ufeff" + JOB], ids=["CRLF", "BOM"])
def test_files_of_other_systems_editors_are_read(folder, typed, text):
    put(folder, text)
    assert typed("render", "job.yaml", "--on", "local").code == 0


@pytest.mark.parametrize("option", ["--account", "--partition", "--qos", "--constraint"])
@pytest.mark.parametrize("value", ["4711", "true", "[a100*2&v100*2]", "a: b", "~"])
def test_an_option_for_a_text_takes_every_value_as_it_is(typed, option, value):
    told = typed("render", "job.yaml", "--on", "slurm", option, value)
    assert told.code == 0, told.err
    assert f"{option}={value}" in told.out


def test_a_number_as_the_name_of_a_folder_or_namespace_is_taken(folder, typed):
    text = JOB.replace("train.py", "2024/train.py")
    put(folder, text + "kubernetes: {checkpoint: pvc/a}\nimage: a/b:1\n")
    (folder / "2024").mkdir()
    (folder / "2024/train.py").write_text("")
    told = typed("render", "job.yaml", "--on", "kubernetes", "-n", "123", "--code", "2024")
    assert told.code == 0, told.err
    assert "namespace: '123'" in told.out or 'namespace: "123"' in told.out, told.out


@pytest.mark.parametrize(("written", "read"), [("010", 10), ("0o10", 8), ("0x10", 16)])
def test_a_leading_zero_is_not_octal(folder, typed, written, read):
    put(folder, JOB + f"max_restarts: {written}\n")
    for argv in ((), ("--set", f"max_restarts={written}"), ("--max-restarts", written)):
        told = typed("render", "job.yaml", "--on", "local", "--json", *argv)
        assert f'"max_restarts": {read},' in told.out, told.err


# -- options and arguments ------------------------------------------------------------------------

LINES = [
    ("", "COMMAND is missing"),
    ("rnu job.yaml", "did you mean run?"),
    ("start job.yaml", "did you mean run?"),
    ("kill digits-0a1b2c", "did you mean stop?"),
    ("hold --name 'My Dev'", "--name 'My Dev': name: found My Dev; accepted: a lower-case letter"),
    ("hold job.yaml --name dev_2 --on local", "error: --name dev_2: name: found dev_2; accepted: "),
    ("run job.yaml --in dev", "hold --name dev --nnodes N"),
    ("--verison", "did you mean launcher --version?"),
    ("--runs x status digits", "launcher status --runs x digits\n"),
    ("--nnodes 2 train.py", "launcher run --nnodes 2 train.py\n"),
    ("run", "JOB is missing"),
    ("run none.yaml", "none.yaml: no such file"),
    ("run jbo.yaml", "did you mean job.yaml?"),
    ("run .", ". is a folder without __main__.py"),
    ("run tran.py", "did you mean train.py?"),
    ("run -m", "expected one argument"),
    ("run train.py -m train", "-m names a module, and another word names a script or job file"),
    ("run -m train --epochs 3", "what is for the training goes behind --, as in -m MODULE"),
    ("run train.py --code nowhere", "--code nowhere: code: found nowhere; no such folder"),
    ("run train.py --code job.yaml", "job.yaml; is not a folder"),
    ("run /dev/null", "the file is empty"),
    ("run $'a\\nb.yaml'", "no such file"),
    ("run job.yaml other.yaml", "launcher run job.yaml -- other.yaml"),
    ("run job.yaml --epochs 3 -- --lr 1", "launcher run job.yaml -- --epochs 3 --lr 1"),
    ("run --epochs 3 job.yaml", "launcher run JOB [options] -- [training arguments]"),
    ("run job.yaml --max 3", "--max 3: no option of run"),
    ("run job.yaml --nnode 2", "did you mean --nnodes? what is for the training goes"),
    ("run train.py --nprocs 2", "did you mean --nproc-per-node? what is"),
    ("run train.py --gpus-per-node 2", "did you mean --nproc-per-node? what is"),
    ("run train.py -N 2", "did you mean --nnodes? what is"),
    ("run train.py --nproc 2", "did you mean --nproc-per-node? what is"),
    ("run train.py --check 2", "fix: what is for the training"),
    ("run train.py --nproc_per_nod 2", "did you mean --nproc-per-node? what is for"),
    ("run train.py --standalone", "leave out --standalone, which the launcher decides; what is"),
    ("run train.py --rdzv-backend c10d --rdzv_id=1", "leave out --rdzv-backend, --rdzv_id, which"),
    ("run python train.py", "python: a program, and no script or job file"),
    ("run torchrun train.py --lr 3", "goes behind --: launcher run train.py -- --lr 3"),
    ("run torchrun --nproc_per_node 2 train.py", "fix: launcher run --nproc_per_node 2"),
    ("train.py --lr 3", "train.py: no command of the launcher"),
    ("train.py --nproc-per-node 2", "fix: launcher run train.py --nproc-per-node 2"),
    ("run job.yaml --nnodes 0", "--nnodes 0: nnodes: found 0"),
    ("run job.yaml --nnodes 100000 --on local", "--nnodes 100000: nnodes: 100000 nodes"),
    ("doctor job.yaml --nnodes 99999999999 --on local", "at most 100000 nodes"),
    ("run job.yaml --nproc-per-node 1.5", "nproc_per_node: found 1.5"),
    ("run job.yaml --image 'a b'", "image: found a b"),
    ("run job.yaml --set x", "no key=value"),
    ("run job.yaml --set nnodes=[1 --on local", "not closed"),
    ("run job.yaml --set slurm.account=1", """fix: --set 'slurm.account="1"'"""),
    ("run job.yaml --on nomad", "one of: docker, local"),
    ("run job.yaml --runs ''", "--runs is empty: "),
    ("run job.yaml --on local --runs train.py", "cannot be made: Not a directory"),
    ("run job.yaml --on local --resume nothing", "no run 'nothing'"),
    ("run job.yaml --kind deployment", "--kind deployment: not one of"),
    ("run job.yaml --context x --on local", "--on kubernetes"),
    ("render job.yaml --on slurm --time 8h", "slurm.time: found 8h; accepted: a time as sbatch"),
    ("run job.yaml --hosts nowhere.yaml", "--hosts nowhere.yaml: no such file"),
    ("run job.yaml --hosts 'gpu[1-'", "--hosts"),
    ("run job.yaml --hosts gpu1 --exclude gpu1", "no host is left"),
    ("run job.yaml --hosts gpu1 --on local", "--hosts gpu1 with --on local"),
    ("run job.yaml --exclude gpu1 --on local", "--exclude gpu1 without --on hosts"),
    ("doctor job.yaml --accept-new-host-keys", "--accept-new-host-keys without --on hosts"),
    ("run job.yaml --on hosts --set hosts.inventory=gpu1 --include gpu2", "gpu2 is not in the inv"),
    ("doctor job.yaml --on local --test-job", "--test-job without --on slurm"),
    ("hosts", "no hosts are named"),
    ("ps x", "launcher ps does not take it"),
    ("ps --on docker", "--on docker: not one of kubernetes"),
    ("status nothing", "no run 'nothing'"),
    ("status ''", "RUN is empty: "),
    ("status --runs train.py", "--runs train.py: not a folder"),
    ("status latest --json --nope", "launcher status does not take it"),
    ("logs latest --rank abc", "'abc' is no whole number"),
    ("stop nothing --grace nan", "'nan' is no number of seconds"),
    ("scale", "N is missing\n  fix: launcher scale --help"),
    ("doctor", "no job file is named"),
    ("docs labtop", "labtop: no such page or section\n  fix: did you mean laptop?"),
    ("exec ls", "exec: which program? "),
    ("exec ls", "fix: launcher exec -- ls, or in a run launcher exec ls -- nvidia-smi"),
    ("shell r 1", "shell: gone\n  fix: launcher exec RUN --node N"),
    ("init train.py", "init: gone\n  fix: launcher import SCRIPT -o job.yaml"),
    ("check", "FILE"),
    ("check .", "is a folder, not a file"),
    ("--nonsense", "--nonsense: options stand behind the command"),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line for line, _ in LINES])
def test_a_wrong_line_is_refused_before_anything_is_made(folder, typed, line, words):
    argv = shlex.split(line.replace("$'a\\nb", "'a\nb"))
    before = tree(folder)
    assert_refused(typed(*argv), words)
    assert tree(folder) == before


@pytest.mark.parametrize("argv", [["check"], ["render", "--on", "local"], ["run", "--on", "local"]])
def test_a_job_whose_script_is_missing_is_refused_by_all_alike(folder, typed, argv):
    put(folder, JOB.replace("train.py", "trian.py"))
    told = typed(*argv, "job.yaml")
    assert_refused(told, "command: found trian.py; no such file in ")
    assert "job.yaml:2: " in told.err
    assert "did you mean train.py?" in told.err


def test_a_page_is_found_without_its_folder_unless_a_section_has_the_name(typed):
    page = (ROOT / "docs/tutorials/laptop.md").read_text()
    assert typed("docs", "laptop").out == typed("docs", "tutorials/laptop").out == page
    assert typed("docs", "docker").out.startswith("### docker\n")


def test_a_page_that_is_written_is_named(folder, typed):
    assert typed("ps", "--html", "runs.html").err == "wrote runs.html\n"
    assert (folder / "runs.html").exists()


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_has_a_section(typed, cause):
    assert typed("docs", cause).out.startswith(f"### {cause}\n")


def test_fixes_name_the_program_as_it_was_called(folder, capfd, monkeypatch):
    (folder / "bin").mkdir()
    monkeypatch.setattr("sys.argv", [str(folder / "bin/launcher")])
    assert cli.run_command(["run", "python", "train.py"]) == 2
    assert "fix: bin/launcher run train.py" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        cli.run_command(["rnu"])
    with pytest.raises(SystemExit):
        cli.run_command(["run"])
    assert "fix: bin/launcher run --help" in (capfd.readouterr().err)


# -- the environment ------------------------------------------------------------------------------

ENVIRONMENTS = [
    ({"LAUNCHER_ENGINE": "slurm"}, "run job.yaml --on local", "LAUNCHER_ENGINE=slurm", 2),
    ({"LAUNCHER_HOSTS": "nowhere.yaml"}, "run job.yaml", "nowhere.yaml: no such file", 2),
    ({"LAUNCHER_RUNS": "/dev/null/x"}, "run job.yaml --on local", "Not a directory", 2),
    ({"DOCKER_HOST": "nonsense"}, "run job.yaml --on docker", "nonsense", 3),
    ({"DOCKER_HOST": "tcp://127.0.0.1:1"}, "run job.yaml --on docker", "127.0.0.1:1", 3),
    ({"KUBECONFIG": "/nowhere"}, "run job.yaml --on kubernetes --image a/b:1", "/nowhere: ", 3),
    ({"KUBECONFIG": "."}, "ps --on kubernetes", "error: ", 3),
    ({"CUDA_VISIBLE_DEVICES": "0"}, "run job.yaml --on local --set resources.gpus=8", "8", 2),
]


@pytest.mark.parametrize(
    ("variables", "line", "words", "code"), ENVIRONMENTS, ids=[str(e[0]) for e in ENVIRONMENTS]
)
def test_a_wrong_variable_is_told(folder, typed, monkeypatch, variables, line, words, code):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = tree(folder)
    assert_refused(typed(*line.split()), words, code)
    assert tree(folder) == before


def test_hosts_of_the_environment_do_no_harm_on_another_target(typed, monkeypatch):
    monkeypatch.setenv("LAUNCHER_HOSTS", "gpu1,gpu2")
    assert typed("render", "job.yaml", "--on", "local").code == 0
    assert_refused(typed("render", "job.yaml", "--on", "local", "--hosts", "gpu3"), "--hosts gpu3")


@pytest.mark.parametrize("name", ["LAUNCHER_RUNS", "LAUNCHER_ENGINE", "LAUNCHER_HOSTS"])
def test_an_empty_variable_counts_as_not_set(typed, monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert typed("render", "job.yaml", "--on", "local").code == 0
    assert "no runs" in typed("ps").out
