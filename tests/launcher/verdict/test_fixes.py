"""Fixes with the values that a line names, and for where the workers ran."""

from dataclasses import replace

import pytest

from launcher.contract.causes import Cause
from launcher.targets.held.target import HeldSettings
from launcher.targets.processes import ProcessSettings
from launcher.verdict.evidence import Evidence
from launcher.verdict.fixes import fill_fix, fit_fixes
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.all import judge_line
from launcher.verdict.verdict import decide_verdict


@pytest.mark.parametrize(
    ("cause", "text", "told"),
    [
        ("master-unreachable", "while trying to connect to (10.0.0.9, 29500).", "10.0.0.9 29500"),
        ("master-unreachable", "failed to connect to [fd00::9]:29500 (errno: 113)",
         "fd00::9 29500"),
        ("master-unreachable",
         "[E1128 00:57:24.6 TCPStore.cpp:328] failed to connect to host gpu7:29511",
         "nc -vz gpu7 29511"),
        ("firewall", "NCCL WARN Net : Connect to 10.0.0.7<43727> failed", "nc -vz 10.0.0.7 43727"),
        ("dns", "curl: (6) Could not resolve host: mirror.example", "getent hosts mirror.example"),
        ("dns", "HTTPSConnectionPool(host='hub.example', port=443)", "getent hosts hub.example"),
        ("dns", "socket.gaierror: [Errno -2] Name or service not known", "getent hosts NAME"),
        ("permission", "[Errno 13] Permission denied: '/data/out'", "namei -l /data/out "),
        ("permission", "mkdir: cannot create '/ckpt': Permission denied", "namei -l /ckpt "),
        ("stopped-by-user", "", "--resume train-1"),
    ],
)  # fmt: skip
def test_a_fix_names_the_value_that_stands_in_the_line(cause, text, told):
    assert told in fill_fix(Cause(cause).fix, text, RUN="train-1")  # type: ignore[call-arg]


def test_what_the_line_does_not_name_the_word_for_the_runs_end_may():
    detail = "denied: '/other'; fix: --set resources.memory=1400Mi"
    text = "Permission denied: '/data'"
    assert fill_fix("SIZE of FILE", text, detail) == "1400Mi of /data"


@pytest.mark.parametrize(
    ("cause", "text", "told"),
    [
        ("container-start", '0/1 nodes are available: persistentvolumeclaim "data" not found.',
         "kubectl get pvc"),
        ("no-room", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
         "correct nodeSelector"),
        ("host-out-of-memory", "MemoryError", "ulimit -v"),
        ("host-out-of-memory", "RuntimeError: Cannot allocate memory", "ulimit -v"),
        ("bad-data", "OSError: [Errno 5] Input/output error: '/data/9.tar'", "dmesg -T"),
        ("bad-data", "OSError: [Errno 22] Invalid argument", "an earlier checkpoint"),
        ("master-unreachable",
         "DistStoreError: Timed out after 7 seconds waiting for clients. 1/2 clients joined.",
         "before init_process_group"),
        ("script-error", "EOFError: EOF when reading a line", "no stdin"),
        ("missing-module", "/p/python: No module named pkg.train; pkg has no train",
         "correct the name; ls PACKAGE"),
        ("missing-module",
         "python: Error while finding module specification for 'ddp.tarin'; ddp.py is no package",
         "PACKAGE.py is no package"),
        ("missing-module",
         "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No mod",
         "cd to the folder of PACKAGE"),
        ("missing-module",
         "ModuleNotFoundError: No module named 'torch.nn'; 'torch' is not a package",
         "rename PACKAGE.py"),
        ("script-error", "ImportError: cannot import name 'x' from 'datasets' (/a/datasets.py)",
         "rename your own PACKAGE"),
        ("script-error", "ImportError: cannot import name 'x' from 'datasets' (unknown location)",
         "rename your own PACKAGE"),
        ("missing-module",
         "ImportError: cannot import name 'x' from 'peft' (/v/lib/python3/site-packages/peft.py)",
         "install -U PACKAGE"),
        ("script-error", "AttributeError: partially initialized module 'torch' has no attribute",
         "rename PACKAGE.py"),
    ],
)  # fmt: skip
def test_a_rule_may_have_a_fix_of_its_own(cause, text, told):
    found = judge_line(LogLine(text=text))
    assert found.cause == cause
    assert told in found.fix


def test_a_package_is_put_where_the_workers_look_for_it(make_plan):
    python = replace(make_plan(), image=None, own=ProcessSettings(python="/my env/bin/python"))
    (fix, memory) = fit_fixes(python).values()
    assert fill_fix(fix, "", PACKAGE="toolkit").startswith(
        "'/my env/bin/python' -m pip install toolkit; or another Python: --set local.python="
    )
    assert "resources" not in memory
    (fix,) = fit_fixes(replace(make_plan(), image="train:1", own=None)).values()
    assert fill_fix(fix, "", PACKAGE="toolkit") == (
        "launcher build --base train:1 --tag REF, with toolkit in requirements.txt; "
        "then --image REF"
    )


def test_a_run_whose_hold_has_ended_is_told_how_to_hold_the_nodes_again(make_plan):
    plan = replace(make_plan(nnodes=2), image=None, own=HeldSettings(hold="dev-2-0a1b2c"))
    detail = "the hold dev-2 has ended (stop-requested)"
    ended = Evidence(
        subject="r-1",
        state="failed",
        run_cause=Cause.NODE_LOST,
        detail=detail,
        lines=(LogLine(file="nodes/0/0/console", node=0, text="[supervisor] preempted"),),
        fixes=fit_fixes(plan),
    )
    verdict = decide_verdict(ended)
    assert (verdict.cause, verdict.what) == (Cause.HOLD_ENDED, detail)
    assert verdict.fix == "launcher hold --name dev-2 --nnodes 2"


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (Cause.STOPPED_BY_USER, "run it again"),
        (Cause.LAUNCHER_LOST, "run it again; --detach outlives the terminal"),
        (Cause.TIME_LIMIT, "ask for more time"),
        (Cause.NETWORK_CUT, "ping, ip -s link between the two"),
        (Cause.NODE_LOST, "look at its power, kernel log and network"),
    ],
)
def test_a_run_without_a_checkpoint_is_not_resumed(cause, told, make_plan):
    assert fit_fixes(make_plan(), can_resume=False)[cause] == told
    assert not any("--resume" in fix for fix in fit_fixes(make_plan(), can_resume=False).values())
    assert cause not in fit_fixes(make_plan())
