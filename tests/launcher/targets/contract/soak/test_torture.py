"""Arguments and variables arrive byte for byte, whatever they hold and wherever the job runs."""

import hashlib
import json
import os

import pytest

from tests.launcher.targets.contract.benches import on

TORTURE = [
    *("", "plain", "two words", "  spaces  ", "it's", 'say "hi"', "back\\slash\\", "new\nline\n"),
    *("tab\tand\rreturn", "$HOME", "$$ $(RANK) $$(RANK) ${RANK}", "~root", "!history", "%s%n"),
    *("$(touch /tmp/launcher-torture)", "`touch /tmp/launcher-torture`", "a;b|c&d>e<f"),
    *("*?[a-z]{1,2}", "-leading-dash", "--", "--option=value with space", "#comment"),
    *("{node_index} {{}}", "ünïcödé ✓ 你好", "\u202eright to left", "\x01\x7f", "x" * 100_000),
]
ENV = {f"T_{number}": text for number, text in enumerate(TORTURE)}
ECHO = """
import hashlib, json, os, sys
env = {name: os.environ.get(name) for name in os.environ if name.startswith("T_")}
for text in [*sys.argv[1:], *(env[f"T_{number}"] for number in range(len(env)))]:
    print("was given", hashlib.sha256(text.encode()).hexdigest(), flush=True)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["agent", "torchrun"])
@on("local", "docker", "hosts", "slurm", "kubernetes")
def test_arguments_and_variables_arrive_byte_for_byte(bench, engine):
    if engine == "torchrun" and bench.name in ("kubernetes", "slurm"):
        pytest.skip(f"{bench.name}: the agent alone learns there where the others are")
    bench.write(ECHO)
    job = {"name": "tiny", "command": ["train.py"], "env": ENV, "engine": engine}
    (bench.folder / "job.yaml").write_text(json.dumps(job))
    words = bench.typed("run", "job.yaml", "1")
    done = bench.launcher.well(*words, "--", *TORTURE)
    found = [line.split()[-1] for line in done.stdout.splitlines() if "was given" in line]
    assert found == [hashlib.sha256(text.encode()).hexdigest() for text in TORTURE] * 2
    assert not os.path.exists("/tmp/launcher-torture")
