"""``launcher check job.sbatch``: each rule, a script that breaks it, and one that nearly does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.commands.cli import run_command
from launcher.contract.errors import ExitCode
from launcher.manifests.batch.check import BatchRule, check_batch_script
from launcher.manifests.batch.script import is_batch_script
from launcher.manifests.check import check_manifests, render_checked
from tests.launcher.manifests.cases import case

SCRIPTS = Path(__file__).parent
ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests/golden/check-batch-script.txt"
GOOD = ("torchrun", "tasks", "static", "single")
R = BatchRule
TASKS = "#SBATCH --ntasks-per-node=1\n"
ENDPOINT = '--rdzv-endpoint="$head_node:$PORT"'
ADDRESS = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
TRAP = "trap 'touch stop; scontrol requeue \"$SLURM_JOB_ID\"' USR1\n"
SRUN = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun'
NNODES = f'{SRUN} \\\n    --nnodes="$SLURM_NNODES"'
BASH = "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python -u train.py'"
STATIC = "srun --jobid $SLURM_JOBID"
CASES = [
    case(R.SBATCH_LATE, "torchrun", "#SBATCH --job-name", "cd /x\n#SBATCH --job-name"),
    case(R.SBATCH_LATE, "torchrun", "set -euo", "#SBATCH --mem=0\nset -euo\n#SBATCH --mem=1",
         "##SBATCH --mem=0\nset -euo\n# SBATCH --mem=1"),
    case(R.SRUN_MISSING, "torchrun", SRUN, "torchrun", "srun numactl -N 0 torchrun"),
    case(R.SRUN_MISSING, "torchrun", SRUN, "python -m torch.distributed.run",
         "mpirun -N 1 torchrun"),
    case(R.SRUN_MISSING, "torchrun", SRUN, "ip=$(srun hostname)\ntorchrun"),
    case(R.SRUN_MISSING, "static", STATIC, "exec"),
    case(R.TASKS_WITH_TORCHRUN, "torchrun", TASKS, "#SBATCH --ntasks-per-node=8\n"),
    case(R.TASKS_WITH_TORCHRUN, "torchrun", TASKS, "#SBATCH --ntasks=16\n", "#SBATCH -n 2\n"),
    case(R.TASKS_WITH_TORCHRUN, "torchrun", SRUN, "srun --ntasks=4 torchrun", "srun -n2 torchrun"),
    case(R.TASKS_WITH_TORCHRUN, "tasks", BASH, "srun torchrun train.py",
         "srun --ntasks=2 torchrun train.py"),
    case(R.NNODES_NOT_NODES, "torchrun", '"$SLURM_NNODES"', "4", "1:4"),
    case(R.NNODES_NOT_NODES, "torchrun", '    --nnodes="$SLURM_NNODES" \\\n', "",
         "    --nnodes 2 \\\n"),
    case(R.NNODES_NOT_NODES, "torchrun", '--nnodes="$SLURM_NNODES"', "--standalone"),
    case(R.NNODES_NOT_NODES, "torchrun", NNODES, "srun -n1 torchrun --nnodes=3",
         "srun -n1 torchrun --nnodes=2"),
    case(R.NNODES_NOT_NODES, "torchrun", NNODES, "srun torchrun --nnodes=3",
         "srun -w $host torchrun --nnodes=3"),
    case(R.NNODES_NOT_NODES, "torchrun", '"$SLURM_NNODES"', "$(($SLURM_NNODES * 2)) --nnodes 9",
         "$(($SLURM_NNODES * 2))"),
    case(R.NNODES_NOT_NODES, "bad", "--nnodes=$SLURM_NTASKS", "--nnodes=$SLURM_NTASKS",
         "--nnodes=$SLURM_NNODES"),
    case(R.NPROC_NOT_GPUS, "torchrun", "=$GPUS_PER_NODE", "=4", '="8"'),
    case(R.NPROC_NOT_GPUS, "torchrun", "=$GPUS_PER_NODE", "=$SLURM_NTASKS_PER_NODE", "=gpu"),
    case(R.NPROC_NOT_GPUS, "static", "    --nproc_per_node 8 \\\n", "", "--nproc_per_node=auto "),
    case(R.NPROC_NOT_GPUS, "single", "=gpu", "=8", "=$SLURM_GPUS_ON_NODE"),
    case(R.NO_ENDPOINT, "static", "    --master_addr $MASTER_ADDR \\\n", ""),
    case(R.NO_ENDPOINT, "torchrun", f"    {ENDPOINT} \\\n", "", "--rdzv-endpoint $X:1 "),
    case(R.NO_ENDPOINT, "torchrun", f"    {ENDPOINT} \\\n", "", '"${MEET[@]}" '),
    case(R.NO_NODE_RANK, "static", " --node_rank \\$SLURM_PROCID", " ", " --node-rank=\\$N"),
    case(R.NO_NODE_RANK, "torchrun", "    --rdzv-backend=c10d \\\n", "",
         "    --rdzv_backend c10d \\\n"),
    case(R.TASK_VARIABLE_EARLY, "static", "\\$SLURM_PROCID", "$SLURM_PROCID"),
    case(R.TASK_VARIABLE_EARLY, "tasks", BASH, "export RANK=$SLURM_PROCID\nsrun python train.py"),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "$(echo $SLURM_NODELIST | head -1)"),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "`echo $SLURM_NODELIST | cut -d, -f1`"),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "${SLURM_NODELIST%%,*}", "${HOSTS%%,*}"),
    case(R.NODELIST_UNEXPANDED, "torchrun", ENDPOINT, "--rdzv-endpoint=$SLURM_JOB_NODELIST:9"),
    case(R.DIFFERS_BY_NODE, "static", "--master_addr $MASTER_ADDR", "--master_addr \\$(hostname)",
         "--master_addr $(hostname)"),
    case(R.DIFFERS_BY_NODE, "tasks", "bash -c '", "bash -c 'MASTER_ADDR=$SLURMD_NODENAME ",
         "bash -c 'MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR "),
    case(R.DIFFERS_BY_NODE, "torchrun", ENDPOINT, "--rdzv-endpoint=localhost:$PORT",
         "--rdzv-endpoint=gpu7:$PORT"),
    case(R.DIFFERS_BY_NODE, "tasks", ADDRESS, "127.0.0.1", "10.0.0.1"),
    case(R.DIFFERS_BY_NODE, "tasks", "bash -c '", "bash -c 'MASTER_PORT=$(shuf -i 9-99 -n 1) ",
         "bash -c 'MASTER_PORT=$((9000 + SLURM_JOB_ID % 999)) "),
    case(R.DIFFERS_BY_NODE, "static", "--master_port 6000", "--master_port \\$((RANDOM + 9000))",
         "--master_port $((RANDOM + 9000))"),
    case(R.NO_SIGNAL, "torchrun", "#SBATCH --signal=B:USR1@120\n", ""),
    case(R.NO_SIGNAL, "static", "--exclusive", "--exclusive --time=5", "-t UNLIMITED"),
    case(R.SIGNAL_UNTRAPPED, "torchrun", TRAP, "", TRAP.replace("USR1", "SIGUSR1")),
    case(R.SIGNAL_UNTRAPPED, "torchrun", "=B:USR1", "=B:TERM", "=B:10"),
    case(R.SIGNAL_UNTRAPPED, "torchrun", "--data /data &\nwait", "--data /data",
         "--data /data & wait"),
]  # fmt: skip


def read(base: str) -> str:
    return (SCRIPTS / f"{base}.sbatch").read_text()


def rules_of(text: str) -> set[BatchRule]:
    found = check_batch_script(text, "job.sbatch")
    return {breach.rule for breach in found if isinstance(breach.rule, BatchRule)}


@pytest.mark.parametrize("base", GOOD)
def test_nothing_is_found_in_a_good_script(base):
    checked = check_manifests([("job.sbatch", read(base))])
    assert render_checked(checked) == "0 errors, 0 warnings; 1 batch script checked\n"


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.id)
def test_a_broken_rule_is_found_and_its_neighbour_is_not(case):
    text = read(case.base)
    assert case.old in text, "the edit must change something"
    assert case.rule in rules_of(text.replace(case.old, case.bad, 1))
    assert case.rule not in rules_of(text.replace(case.old, case.good, 1))


@pytest.mark.parametrize("rule", BatchRule)
def test_every_rule_has_a_reason_a_severity_and_a_script_that_breaks_it(rule):
    assert rule.why
    assert rule.severity in ("error", "warning")
    assert rule in {case.rule for case in CASES}


def test_the_whole_output_for_a_script_with_many_mistakes_is_as_before():
    rendered = render_checked(check_manifests([("job.sbatch", read("bad"))]))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text()


def test_a_breach_names_file_line_and_fix():
    text = read("torchrun").replace("=$GPUS_PER_NODE", "=4")
    (breach,) = check_batch_script(text, "a/job.sbatch")
    assert (breach.file, breach.fix) == ("a/job.sbatch", "--nproc-per-node=8")
    assert "--nproc-per-node" in text.splitlines()[breach.line - 1]


@pytest.mark.parametrize(
    ("text", "file", "expected"),
    [
        ("#!/bin/bash\necho", "job", True),
        ("#SBATCH -N 2\ntorchrun", "job", True),
        ("echo", "job.SLURM", True),
        ("kind: Job", "job", False),
        ("#SBATCH -N 2\nkind: Job", "job.yaml", False),
        ("kind: ConfigMap\ndata:\n  job: |\n    #SBATCH -N 2", "<stdin>", False),
    ],
)
def test_a_batch_script_is_known_by_its_suffix_or_its_content(text, file, expected):
    assert is_batch_script(text, file) is expected


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "", "#SBATCH", "#!\n#SBATCH --nodes", "#!\n#SBATCH --nodes=x -N -n -n - --", "srun",
        "srun torchrun --nnodes", "torchrun --nnodes=$", "srun bash -c 'torchrun", "a=`b", "a=${b",
        "cat <<EOF\nx", "cat <<", "$", "\\", "\x00", "srun bash -c", "eval eval",
        '"$(' * 5000, "${" * 5000, "a=" + "$(" * 3000 + ")" * 3000, "`" * 9999, "'\n" * 2001,
        '"$(x)' * 2000, "srun torchrun " + "$a" * 30_000,
        "#SBATCH --gpus=²", "#SBATCH --gpus=" + "9" * 5000 + "\nsrun torchrun --nnodes=² x.py",
    ],
    ids=range(26),
)  # fmt: skip
def test_a_script_of_any_shape_never_breaks_the_check_and_is_read_soon(text):
    for whole in (text, f"#!/bin/bash\n#SBATCH -N 2\n{text}"):
        assert render_checked(check_manifests([("job.sbatch", whole)]))


@pytest.mark.parametrize("base", GOOD)
def test_a_script_that_is_cut_off_anywhere_never_breaks_the_check(base):
    text = read(base)
    for end in range(0, len(text), 7):
        check_batch_script(text[:end], "job.sbatch")


def test_what_stands_in_comments_strings_and_here_documents_is_no_command():
    text = read("torchrun").replace(
        "set -euo pipefail",
        "# torchrun --nnodes=7 x.py\necho 'torchrun --nnodes=7 x.py'\nwhich torchrun\n"
        "srun echo torchrun --nnodes=7 x.py # don't\npip install torchrun; pkill -f torchrun\n"
        "cat > run.sh <<'EOF'\ntorchrun --nnodes=7 x.py\nEOF\n"
        'LAUNCHER="torchrun --nnodes=7"\n',
    )
    assert check_batch_script(text, "job.sbatch") == []


def test_a_command_in_quotes_over_several_lines_is_read_with_what_starts_it():
    text = (
        read("torchrun").replace(SRUN, "srun bash -c '\ntorchrun").replace(" &\nwait", "'&\nwait")
    )
    assert rules_of(text) == set()
    assert rules_of(text.replace("srun bash", "bash")) == {BatchRule.SRUN_MISSING}


def test_options_that_are_given_to_sbatch_itself_are_not_missed():
    text = "#!/bin/bash\nsrun torchrun --standalone --nproc-per-node=$SLURM_NTASKS train.py\n"
    assert rules_of(text) == set()


def test_of_a_job_with_several_components_only_the_places_of_options_are_checked():
    text = read("bad").replace("source", "#SBATCH hetjob\n#SBATCH -N 1\nsource")
    assert rules_of(text) == {BatchRule.SBATCH_LATE}


@pytest.mark.parametrize("kind", ["allocation", "array"])
def test_nothing_is_found_in_the_script_that_the_launcher_renders(kind, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    words = ["render", "jobs/digits.yaml", "--on", "slurm", "--nnodes", "2"]
    settings = ["--set", f"slurm.kind={kind}", "--set", "slurm.time=1:00:00"]
    assert run_command([*words, *settings]) == ExitCode.OK
    rendered = capsys.readouterr().out
    assert "#SBATCH --time" in rendered
    assert check_batch_script(rendered, "<stdin>") == []


def test_the_command_checks_batch_scripts_beside_manifests(tmp_path, capsys):
    manifest = tmp_path / "job.yaml"
    manifest.write_text("kind: ConfigMap\n")
    assert run_command(["check", str(SCRIPTS / "bad.sbatch"), str(manifest)]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().out
    assert said.endswith("0 objects checked, 1 without rules, 1 batch script checked\n")


def test_the_command_tells_in_one_line_of_a_file_that_is_no_text(tmp_path, capsys):
    script = tmp_path / "job.sbatch"
    script.write_bytes(b"#!/bin/bash\n\xff\xfe")
    assert run_command(["check", str(script)]) == ExitCode.BAD_INPUT
    assert "job.sbatch:2: byte 0xff is not UTF-8" in capsys.readouterr().err
