"""``launcher check job.sbatch``: each rule, a script that breaks it, and one that nearly does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.manifests.batch.check import check_batch_script
from launcher.manifests.batch.rules import BatchRule
from launcher.manifests.batch.script import is_batch_script
from launcher.manifests.check import check_manifests, render_checked
from launcher.manifests.checks.rules import render_rules

SCRIPTS = Path(__file__).parent
ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests/golden/check-batch-script.txt"
GOOD = ("torchrun", "tasks", "static", "single")
Edit = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A good script, the edit that breaks the rule, and one close to it that does not."""

    rule: BatchRule
    base: str
    bad: Edit
    good: Edit


def case(rule: BatchRule, base: str, old: str, new: str, good: str | None = None) -> Case:
    return Case(rule=rule, base=base, bad=(old, new), good=(old, old if good is None else good))


R = BatchRule
TASKS = "#SBATCH --ntasks-per-node=1\n"
EXCLUSIVE = "#SBATCH --exclusive\n"
HEAD = "head_node=${nodes[0]}"
ENDPOINT = '--rdzv-endpoint="$head_node:$PORT"'
ID = '--rdzv-id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"'
ADDRESS = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
TRAP = "trap 'touch stop; scontrol requeue \"$SLURM_JOB_ID\"' USR1\n"
SRUN = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun'
BASH = "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python -u train.py'"
CASES = [
    case(R.SHEBANG, "torchrun", "#!/bin/bash\n", "\n#!/bin/bash\n", "#!/usr/bin/env bash\n"),
    case(R.DOS_LINES, "torchrun", "--requeue\n", "--requeue\r\n", "--requeue\n\n"),
    case(R.SBATCH_LATE, "torchrun", "#SBATCH --job-name", "cd /x\n#SBATCH --job-name"),
    case(
        R.SBATCH_LATE,
        "torchrun",
        "set -euo",
        "#SBATCH --mem=0\nset -euo\n#SBATCH --mem=1",
        "##SBATCH --mem=0\nset -euo\n# SBATCH --mem=1",
    ),
    case(R.SBATCH_VARIABLE, "torchrun", "%x-%j.log", "$HOME/%j.log", "%x-%j.log # $HOME"),
    case(R.SBATCH_VARIABLE, "torchrun", "=train\n", "=$(date)\n", "='train'\n"),
    case(R.FEWEST_NODES, "torchrun", "--nodes=2", "--nodes=1-4", "--nodes=4-4"),
    case(
        R.FEWEST_NODES,
        "static",
        "--nodes=4 --ntasks-per-node=1",
        "-N 2-4 --ntasks-per-node=1",
        "-N 2-4",
    ),
    case(R.SRUN_MISSING, "torchrun", SRUN, "torchrun", "srun numactl -N 0 torchrun"),
    case(
        R.SRUN_MISSING, "torchrun", SRUN, "python -m torch.distributed.run", "mpirun -N 1 torchrun"
    ),
    case(R.TASKS_WITH_TORCHRUN, "torchrun", TASKS, "#SBATCH --ntasks-per-node=8\n"),
    case(R.TASKS_WITH_TORCHRUN, "torchrun", TASKS, "#SBATCH --ntasks=16\n", "#SBATCH -n 2\n"),
    case(R.TASKS_WITH_TORCHRUN, "torchrun", SRUN, "srun --ntasks=4 torchrun", "srun -n2 torchrun"),
    case(
        R.TASKS_WITH_TORCHRUN,
        "tasks",
        BASH,
        "srun --ntasks-per-node=1 torchrun train.py",
        "srun --ntasks=2 --ntasks-per-node=1 torchrun train.py",
    ),
    case(
        R.TASKS_WITH_TORCHRUN,
        "torchrun",
        f'{SRUN} \\\n    --nnodes="$SLURM_NNODES" \\\n    --nproc-per-node=$GPUS_PER_NODE',
        'srun -n 16 torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=$GPUS_PER_NODE',
        "srun -n 16 torchrun --nnodes=16 --nproc-per-node=1",
    ),
    case(
        R.TASKS_WITHOUT_NODES,
        "torchrun",
        f"#SBATCH --nodes=2\n{TASKS}",
        "#SBATCH --ntasks=2\n",
        f"#SBATCH --ntasks=2\n{TASKS}",
    ),
    case(R.TASK_PER_GPU, "tasks", "per-node=4", "per-node=1"),
    case(
        R.TASK_PER_GPU,
        "tasks",
        "per-node=4\n#SBATCH --gres=gpu:a100:4",
        "per-node=1\n#SBATCH --gres=gpu:2",
        "per-node=1\n#SBATCH --gres=gpu:1",
    ),
    case(R.NNODES_NOT_NODES, "torchrun", '"$SLURM_NNODES"', "4", "1:4"),
    case(
        R.NNODES_NOT_NODES,
        "torchrun",
        '    --nnodes="$SLURM_NNODES" \\\n',
        "",
        "    --nnodes 2 \\\n",
    ),
    case(R.NNODES_NOT_NODES, "torchrun", '--nnodes="$SLURM_NNODES"', "--standalone"),
    case(
        R.NNODES_NOT_NODES,
        "torchrun",
        f"{SRUN} \\\n    --nnodes=",
        "srun -n1 torchrun --nnodes=3",
        "srun -n1 torchrun --nnodes=",
    ),
    case(
        R.NNODES_NOT_NODES,
        "torchrun",
        "GPUS_PER_NODE=8",
        "GPUS_PER_NODE=8; SLURM_NNODES=3",
        "GPUS_PER_NODE=8; SLURM_NNODES=2",
    ),
    case(
        R.NNODES_IS_TASKS,
        "static",
        "--nnodes $SLURM_NNODES",
        "--nnodes $((SLURM_NTASKS * 2))",
        "--nnodes $SLURM_NTASKS",
    ),
    case(R.NPROC_NOT_GPUS, "torchrun", "GPUS_PER_NODE=8", "GPUS_PER_NODE=4", 'GPUS_PER_NODE="8"'),
    case(R.NPROC_NOT_GPUS, "torchrun", "=$GPUS_PER_NODE", "=$SLURM_NTASKS_PER_NODE", "=gpu"),
    case(R.NPROC_NOT_GPUS, "static", "    --nproc_per_node 8 \\\n", "", "--nproc_per_node=auto "),
    case(R.NPROC_NOT_GPUS, "single", "=gpu", "=8", "=$SLURM_GPUS_ON_NODE"),
    case(R.NO_ENDPOINT, "static", "    --master_addr $MASTER_ADDR \\\n", ""),
    case(R.NO_ENDPOINT, "torchrun", f"    {ENDPOINT} \\\n", "", "--rdzv-endpoint $X:1 "),
    case(
        R.NO_NODE_RANK,
        "static",
        " --node_rank \\$SLURM_PROCID",
        " ",
        " --node-rank=\\$SLURM_NODEID",
    ),
    case(
        R.NO_NODE_RANK,
        "torchrun",
        "    --rdzv-backend=c10d \\\n",
        "",
        "    --rdzv_backend c10d \\\n",
    ),
    case(R.TASK_VARIABLE_EARLY, "static", "\\$SLURM_PROCID", "$SLURM_PROCID"),
    case(R.TASK_VARIABLE_EARLY, "tasks", BASH, "export RANK=$SLURM_PROCID\nsrun python train.py"),
    case(
        R.TASK_VARIABLE_EARLY,
        "tasks",
        BASH,
        "srun python train.py --rank $SLURM_PROCID",
        "srun bash -c 'python train.py --rank $SLURM_PROCID'",
    ),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "$(echo $SLURM_NODELIST | head -1)"),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "$(head -n1 <<< $SLURM_JOB_NODELIST)"),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "`echo $SLURM_NODELIST | cut -d, -f1`"),
    case(R.NODELIST_UNEXPANDED, "tasks", ADDRESS, "${SLURM_NODELIST%%,*}", "${HOSTS%%,*}"),
    case(
        R.NODELIST_UNEXPANDED,
        "torchrun",
        'nodes=( $( scontrol show hostnames "$SLURM_JOB_NODELIST" ) )',
        "nodes=( $SLURM_JOB_NODELIST )",
        'nodes=( $(nodeset -e "$SLURM_JOB_NODELIST") )',
    ),
    case(
        R.ADDRESS_OF_EACH_NODE,
        "static",
        "--master_addr $MASTER_ADDR",
        "--master_addr \\$(hostname)",
        "--master_addr $(hostname)",
    ),
    case(
        R.ADDRESS_OF_EACH_NODE,
        "tasks",
        "bash -c '",
        "bash -c 'MASTER_ADDR=$SLURMD_NODENAME ",
        "bash -c 'MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR ",
    ),
    case(R.ADDRESS_LOOPBACK, "torchrun", HEAD, "head_node=localhost", "head_node=gpu7"),
    case(R.ADDRESS_LOOPBACK, "tasks", ADDRESS, "127.0.0.1", "10.0.0.1"),
    case(
        R.ADDRESS_OF_LOGIN_NODE, "tasks", ADDRESS, "$SLURM_SUBMIT_HOST", "$SLURM_LAUNCH_NODE_IPADDR"
    ),
    case(
        R.ADDRESS_BY_HOSTNAME,
        "torchrun",
        HEAD,
        'head_node=$(srun -N1 -n1 -w "${nodes[0]}" hostname --ip-address)',
        "head_node=$(hostname -s)",
    ),
    case(R.ADDRESS_BY_HOSTNAME, "tasks", ADDRESS, "$(hostname -I)", "$(hostname)"),
    case(
        R.ADDRESS_UNORDERED,
        "tasks",
        ADDRESS,
        "$(srun hostname | head -n1)",
        "$(srun --nodes=1 --ntasks=1 hostname)",
    ),
    case(
        R.ADDRESS_UNORDERED,
        "tasks",
        ADDRESS,
        "`srun hostname | head -1`",
        "`srun sh -c 'if test $SLURM_PROCID -eq 0; then hostname; fi'`",
    ),
    case(
        R.RANDOM_OF_EACH_NODE,
        "static",
        "--master_port 6000",
        "--master_port \\$((RANDOM + 9000))",
        "--master_port $((RANDOM + 9000))",
    ),
    case(
        R.RANDOM_OF_EACH_NODE,
        "tasks",
        "bash -c '",
        "bash -c 'MASTER_PORT=$(shuf -i 9000-9999 -n 1) ",
        "bash -c 'MASTER_PORT=$((9000 + SLURM_JOB_ID % 999)) ",
    ),
    case(R.PORT_FIXED, "tasks", EXCLUSIVE, ""),
    case(R.PORT_FIXED, "torchrun", "PORT=$((20000 + SLURM_JOB_ID % 20000))", "PORT=29500"),
    case(R.PORT_FIXED, "torchrun", "PORT=$((20000 + SLURM_JOB_ID % 20000))", "PORT=$((2 * 9))"),
    case(
        R.PORT_FIXED,
        "torchrun",
        ENDPOINT,
        "--rdzv-endpoint=$(scontrol show hostnames | head -1)",
        "--rdzv-endpoint=$ENDPOINT",
    ),
    case(R.PORT_FIXED, "torchrun", "$PORT", "29400", "${MASTER_PORT:-29500}"),
    case(R.PORT_FIXED, "torchrun", '$PORT" \\\n    train.py', '9" \\\n $ARGS', '$PORT" \\\n $ARGS'),
    case(R.PORT_FIXED, "single", "--standalone ", "", "--rdzv-endpoint=localhost:0 "),
    case(
        R.RDZV_ID_FIXED,
        "torchrun",
        f"{ID} \\\n    {ENDPOINT}",
        "--rdzv-endpoint=$head_node:29400",
        "--rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$head_node:29400",
    ),
    case(
        R.RDZV_ID_FIXED,
        "torchrun",
        f"{ID} \\\n    {ENDPOINT}",
        "--rdzv-id=100 --rdzv-endpoint=$head_node:29400",
        "--rdzv-id=$RANDOM --rdzv-endpoint=$head_node:29400",
    ),
    case(R.NO_SIGNAL, "torchrun", "#SBATCH --signal=B:USR1@120\n", ""),
    case(
        R.NO_SIGNAL, "tasks", EXCLUSIVE, "#SBATCH --exclusive --time=5\n", "#SBATCH -t UNLIMITED\n"
    ),
    case(R.SIGNAL_UNTRAPPED, "torchrun", TRAP, "", TRAP.replace("USR1", "SIGUSR1")),
    case(R.SIGNAL_UNTRAPPED, "torchrun", "=B:USR1", "=B:TERM", "=B:10"),
    case(R.TRAP_LATE, "torchrun", "--data /data &\nwait", "--data /data", "--data /data & wait"),
    case(
        R.SIGNAL_REACHES_NOBODY, "single", "srun torchrun", "torchrun", "srun --mpi=none torchrun"
    ),
    case(R.SIGNAL_ENDS_TORCHRUN, "single", "TERM@60", "USR1@60", "INT@60"),
    case(R.NO_REQUEUE, "single", "--requeue ", "", "--no-requeue "),
    case(R.NO_REQUEUE_WANTED, "torchrun", "--requeue", "--no-requeue"),
    case(R.LOG_OVERWRITTEN, "torchrun", "#SBATCH --open-mode=append\n", ""),
    case(
        R.GPUS_HIDDEN,
        "tasks",
        "#SBATCH --gres=gpu:a100:4",
        "#SBATCH --gpus-per-task=1",
        "#SBATCH --gpus-per-task=1 --gpu-bind=none",
    ),
    case(
        R.GPUS_HIDDEN,
        "torchrun",
        TASKS,
        f"{TASKS}#SBATCH --gpu-bind=single:1\n",
        f"{TASKS}#SBATCH --gpu-bind=none\n",
    ),
    case(
        R.GPUS_HIDDEN,
        "tasks",
        "srun bash",
        "srun --gpu-bind=closest bash",
        "srun --cpu-bind=none bash",
    ),
    case(
        R.OMP_NUM_THREADS,
        "torchrun",
        "export OMP_NUM_THREADS=8\n",
        "",
        ". ./env.sh; OMP_NUM_THREADS=1\n",
    ),
    case(
        R.OMP_NUM_THREADS,
        "torchrun",
        "export OMP_NUM_THREADS=8\n",
        "source ~/.bashrc\n",
        "source ./env.sh\n",
    ),
    case(R.OMP_NUM_THREADS, "tasks", "#SBATCH -c 8\n", "", "#SBATCH --cpus-per-task 4\n"),
    case(R.SLURM_UNSET, "torchrun", "#SBATCH --cpus-per-task=64", "#", "#SBATCH -c 64"),
    case(R.SLURM_UNSET, "tasks", "WORLD_SIZE=$SLURM_NTASKS", "W=$SLURM_GPUS", "W=${SLURM_GPUS:-4}"),
]


def read(base: str) -> str:
    return (SCRIPTS / f"{base}.sbatch").read_text()


def rules_of(text: str) -> set[BatchRule]:
    found = check_batch_script(text, "job.sbatch")
    return {breach.rule for breach in found if isinstance(breach.rule, BatchRule)}


@pytest.mark.parametrize("base", GOOD)
def test_nothing_is_found_in_a_good_script(base: str) -> None:
    checked = check_manifests([("job.sbatch", read(base))])
    assert render_checked(checked) == "0 errors, 0 warnings; 1 batch script checked\n"


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{one.rule.id}-{one.base}-{i}" for i, one in enumerate(CASES)]
)
def test_a_broken_rule_is_found_and_its_neighbour_is_not(case: Case) -> None:
    text = read(case.base)
    assert case.bad[0] in text, "the edit must change something"
    assert case.rule in rules_of(text.replace(*case.bad, 1))
    assert case.rule not in rules_of(text.replace(*case.good, 1))


@pytest.mark.parametrize("rule", BatchRule)
def test_every_rule_has_a_reason_a_severity_and_a_script_that_breaks_it(rule: BatchRule) -> None:
    assert rule.why
    assert rule.severity in ("error", "warning")
    assert rule in {case.rule for case in CASES}


def test_the_whole_output_for_a_script_with_many_mistakes_is_as_before() -> None:
    rendered = render_checked(check_manifests([("job.sbatch", read("bad"))]))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text()


def test_a_breach_names_file_line_and_fix() -> None:
    text = read("torchrun").replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=4")
    (breach,) = check_batch_script(text, "a/job.sbatch")
    assert (breach.file, breach.fix) == ("a/job.sbatch", "--nproc-per-node=8")
    assert "--nproc-per-node" in text.splitlines()[breach.line - 1]


@pytest.mark.parametrize(
    ("text", "file", "expected"),
    [
        ("#!/bin/bash\necho", "job", True),
        ("#SBATCH -N 2\ntorchrun", "job", True),
        ("echo", "job.sbatch", True),
        ("echo", "job.SLURM", True),
        ("kind: Job", "job", False),
        ("#SBATCH -N 2\nkind: Job", "job.yaml", False),
        ("kind: ConfigMap\ndata:\n  job: |\n    #SBATCH -N 2", "<stdin>", False),
    ],
)
def test_a_batch_script_is_known_by_its_suffix_or_its_content(
    text: str, file: str, expected: bool
) -> None:
    assert is_batch_script(text, file) is expected


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "#SBATCH", "#!/bin/bash", "#!\n#SBATCH --nodes", "#!\n#SBATCH --nodes=x -N -n -n",
        "srun", "srun torchrun", "srun torchrun --nnodes", "torchrun --nnodes=$", "srun bash -c",
        "srun bash -c 'torchrun", "srun bash -c \"$(", "a='b", 'a="b', "a=`b", "a=${b", "a=$((b",
        "a=$((1/0)); srun torchrun --nnodes=$a", "cat <<EOF\nx", "cat <<", "a=(b", "${", "$", "\\",
        "a=$a$a; a=$a$a", "export", "trap", "for", "if", "}", ")", "\x00\ue000\ue002x", "eval eval",
        "#SBATCH --signal=@ --time= --gres=gpu: --gpus-per-node=: --ntasks-per-node=0 -n 3\nsrun"
        " torchrun --nproc-per-node=0 --rdzv-endpoint=: a.py",
    ],
)  # fmt: skip
def test_a_script_of_any_shape_never_breaks_the_check(text: str) -> None:
    for whole in (text, f"#!/bin/bash\n#SBATCH -N 2\n{text}"):
        assert render_checked(check_manifests([("job.sbatch", whole)]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        '"$(' * 5000, "${" * 5000, "a=" + "$(" * 3000 + ")" * 3000, "`" * 9999, "a=(" * 3000,
        "a=xx\n" + "a=$a$a\n" * 60 + "srun torchrun $a",
        "a0=x\n" + "".join(f"a{i}=$(x $a{i - 1} $a{i - 1})\n" for i in range(1, 60)) + "srun $a59",
        "x='eval \"$x\"'\neval \"$x\"", "x='bash -c \"$x\"'\nbash -c \"$x\"",
        "a=" + "x" * 3000 + "\nsrun torchrun " + "$a" * 30_000,
    ],
    ids=range(10),
)  # fmt: skip
def test_a_script_that_grows_or_nests_without_end_is_left_soon(text: str) -> None:
    check_batch_script(f"#!/bin/bash\n#SBATCH -N 2\n{text}\n", "job.sbatch")


@pytest.mark.parametrize("base", GOOD)
def test_a_script_that_is_cut_off_anywhere_never_breaks_the_check(base: str) -> None:
    text = read(base)
    for end in range(0, len(text), 3):
        check_batch_script(text[:end], "job.sbatch")


def test_what_stands_in_comments_strings_and_here_documents_is_no_command() -> None:
    text = read("torchrun").replace(
        "set -euo pipefail",
        "# torchrun --nnodes=7 x.py\necho 'torchrun --nnodes=7 x.py'\nwhich torchrun\n"
        "srun echo torchrun --nnodes=7 x.py\npip install torchrun; pkill -f torchrun\n"
        "cat > run.sh <<'EOF'\ntorchrun --nnodes=7 x.py\nEOF\n",
    )
    assert check_batch_script(text, "job.sbatch") == []


def test_a_variable_that_depends_on_a_condition_has_no_value() -> None:
    known = read("torchrun").replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=4")
    either = read("torchrun").replace(
        "GPUS_PER_NODE=8", 'GPUS_PER_NODE=8\nif [ -n "$X" ]; then\n  GPUS_PER_NODE=4\nfi'
    )
    assert rules_of(known) == {BatchRule.NPROC_NOT_GPUS}
    assert rules_of(either) == set()


def test_missing_threads_are_told_once() -> None:
    text = (
        read("torchrun").replace("OMP_NUM", "MKL_NUM").replace("wait", "srun torchrun x.py & wait")
    )
    found = [one.rule for one in check_batch_script(text, "job.sbatch")]
    assert found.count(BatchRule.OMP_NUM_THREADS) == 1


def test_options_that_are_given_to_sbatch_itself_are_not_missed() -> None:
    text = "#!/bin/bash\nsrun torchrun --standalone --nproc-per-node=$SLURM_NTASKS train.py\n"
    assert rules_of(text) == {BatchRule.OMP_NUM_THREADS}


def test_of_a_job_with_several_components_only_sbatchs_part_is_checked() -> None:
    text = read("bad").replace("source", "#SBATCH hetjob\n#SBATCH -N 1\nsource")
    assert rules_of(text) == {BatchRule.SBATCH_VARIABLE, BatchRule.SBATCH_LATE}


@pytest.mark.parametrize("kind", ["allocation", "array"])
def test_nothing_is_found_in_the_script_that_the_launcher_renders(kind: str) -> None:
    argv = [sys.executable, "-m", "launcher", "render", "jobs/digits.yaml", "--on", "slurm"]
    argv += ["--nnodes", "2", "--set", f"slurm.kind={kind}", "--set", "slurm.time=1:00:00"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "#SBATCH --time" in done.stdout, done.stderr
    assert check_batch_script(done.stdout, "<stdin>") == []


def test_the_command_checks_batch_scripts_beside_manifests(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text("kind: ConfigMap\n")
    argv = [sys.executable, "-m", "launcher", "check", str(SCRIPTS / "bad.sbatch"), str(manifest)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout.endswith("0 objects checked, 1 without rules, 1 batch script checked\n")
    done = subprocess.run([*argv, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert all(one["file"].endswith("bad.sbatch") and one["line"] and one["fix"] for one in found)


def test_the_command_tells_in_one_line_of_a_file_that_is_no_text(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_bytes(b"#!/bin/bash\n\xff\xfe")
    argv = [sys.executable, "-m", "launcher", "check", str(script)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "job.sbatch:2: byte 0xff is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_docs_have_the_rules_of_batch_scripts_as_they_are() -> None:
    text = (ROOT / "docs/manifests.md").read_text()
    assert render_rules(BatchRule) in text, "run python docs/generate.py"
