"""``launcher check``: each rule with a manifest that breaks it and one that nearly does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.commands.cli import run_command
from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.manifests.check import check_manifests, render_checked
from launcher.manifests.checks.rules import Rule
from launcher.manifests.source import render_path
from launcher.yamlfile import source
from launcher.yamlfile.problem import FileError
from tests.launcher.manifests.cases import case

MANIFESTS = Path(__file__).parents[1] / "manifests"
ROOT = Path(__file__).parents[3]

ENV = '                  value: "3"'
IMAGE = "              image: example/train:1\n"
SECCOMP = "          volumes:\n"


def tolerating(one: str) -> str:
    return f"          tolerations: [{one}]\n{SECCOMP}"


CASES = [
    case(Rule.ENV_NOT_TEXT, "elastic", ENV, "                  value: 3"),
    case(Rule.ENV_NOT_TEXT, "elastic", ENV, "                  value: off", ENV[:-3] + '"off"'),
    case(Rule.SECRET_IN_CLEAR, "elastic", "name: EPOCHS", "name: HF_TOKEN", "name: TOKENIZER"),
    case(Rule.SECRET_IN_CLEAR, "elastic", SECCOMP,
     f"          initContainers: [{{name: a, env: [{{name: TOKEN, value: x}}]}}]\n{SECCOMP}"),
    case(Rule.GPU_REQUESTS, "static", "limits: {nvidia.com/gpu: 2}", "limits: {nvidia.com/gpu: 1}",
     "limits: {nvidia.com/gpu: 2, cpu: 4}"),
    case(Rule.SHM_SMALL, "elastic", "mountPath: /dev/shm", "mountPath: /shm"),
    case(Rule.SHM_UNBOUNDED, "elastic", ", sizeLimit: 1Gi", "", ", sizeLimit: 500M"),
    case(Rule.SHM_OVER_MEMORY, "elastic", "memory: 2Gi", "memory: 1024Mi", "memory: 1025Mi"),
    *(
        case(Rule.TOLERATION, "elastic", SECCOMP, tolerating(bad), tolerating(good))
        for bad, good in (
            ("{key: a, operator: Exists, value: b}", "{key: a, value: b}"),
            ("{value: b}", "{operator: Exists}"),
            ("{operator: Equal}", "{key: a, operator: Equal}"),
        )
    ),
    case(Rule.HOST_NETWORK_DNS, "elastic", SECCOMP, f"          hostNetwork: true\n{SECCOMP}",
     f"          hostNetwork: true\n          dnsPolicy: ClusterFirstWithHostNet\n{SECCOMP}"),
    case(Rule.JOB_NAME, "elastic", "name: digits", f"name: {'d' * 53}", f"name: {'d' * 52}"),
    case(Rule.JOB_NAME, "elastic", "name: digits", "name: 2digits", "name: digits2"),
    case(Rule.JOB_NAME, "elastic", "name: digits", "name: Digits", "generateName: digits-"),
    case(Rule.RESTART_POLICY_VALUE, "elastic", "OnFailure", "OnError", "Never"),
    case(Rule.RESTART_ALWAYS, "elastic", "restartPolicy: OnFailure", "restartPolicy: Always"),
    case(Rule.POD_RESTART_POLICY, "elastic", SECCOMP, f"          restartPolicy: Never\n{SECCOMP}"),
    case(Rule.CLEAN_POD_POLICY_VALUE, "elastic", "Policy: Running", "Policy: Failed",
     "Policy: All"),
    case(Rule.CLEAN_POD_POLICY_NONE, "elastic", "Policy: Running", "Policy: None", "Policy: All"),
    case(Rule.CLEAN_POD_POLICY_NONE, "elastic", "    cleanPodPolicy: Running\n", "",
     "    ttlSecondsAfterFinished: 60\n"),
    case(Rule.RDZV_CONF_EMPTY, "elastic", "    rdzvId: digits-1\n",
     "    rdzvId: digits-1\n    rdzvConf: []\n",
     "    rdzvId: digits-1\n    rdzvConf: [{key: timeout, value: '900'}]\n"),
    case(Rule.BACKOFF_NEGATIVE, "elastic", "backoffLimit: 3", "backoffLimit: -1",
     "backoffLimit: 0"),
    case(Rule.BACKOFF_WITH_EXIT_CODE, "elastic", "restartPolicy: OnFailure",
     "restartPolicy: ExitCode"),
    case(Rule.DEADLINE_IS_LATE, "elastic", "    backoffLimit: 3", "    activeDeadlineSeconds: 60",
     "    ttlSecondsAfterFinished: 60"),
    case(Rule.NO_ADDRESS, "static", "    Master: &replica", "    Other: &replica"),
    case(Rule.ELASTIC_BOUNDS, "elastic", "minReplicas: 1", "minReplicas: 4", "minReplicas: 2"),
    case(Rule.ELASTIC_BOUNDS, "elastic", "replicas: 2", "replicas: 4", "replicas: 3"),
    case(Rule.ELASTIC_UNWRITTEN, "elastic", "    rdzvId: digits-1\n", "", "    rdzvId: other\n"),
    case(Rule.ELASTIC_MASTER, "static", "  runPolicy:",
     "  elasticPolicy: {minReplicas: 1, maxReplicas: 3, rdzvId: a}\n  runPolicy:"),
    case(Rule.ELASTIC_SUCCESS, "elastic", "[torchrun, train.py]", "[python, train.py]",
     "[sh, x.sh]"),
    case(Rule.STANDALONE, "elastic", "    minReplicas: 1",
     "    standalone: true\n    minReplicas: 1", "    standalone: false\n    minReplicas: 1"),
    case(Rule.NPROC_AUTO, "elastic", '"1"', "auto", "cpu"),
    case(Rule.NPROC_NOT_GPUS, "static", 'nprocPerNode: "2"', 'nprocPerNode: "4"',
     "nprocPerNode: auto"),
    case(Rule.NPROC_NOT_GPUS, "static", 'nprocPerNode: "2"', 'nprocPerNode: "1"'),
    case(Rule.RANK_COUNTS_PODS, "static", "[torchrun, train.py]", "[python, train.py]",
     "[python, -m, torch.distributed.run, train.py]"),
    case(Rule.ENV_OVERRIDDEN, "elastic", "name: EPOCHS", "name: PET_NNODES", "name: MASTER_ADDR"),
    case(Rule.READINESS_PROBE, "elastic", IMAGE,
     f"{IMAGE}              readinessProbe: {{tcpSocket: {{port: 23456}}}}\n",
     f"{IMAGE}              livenessProbe: {{tcpSocket: {{port: 23456}}}}\n"),
]  # fmt: skip


def read(base: str) -> str:
    return (MANIFESTS / f"{base}.yaml").read_text()


def rules_of(text: str) -> set[str]:
    return {breach.rule.id for breach in check_manifests([("m.yaml", text)]).breaches}


@pytest.mark.parametrize("base", sorted(path.stem for path in MANIFESTS.glob("*.yaml")))
def test_nothing_is_found_in_a_good_manifest(base):
    checked = check_manifests([("m.yaml", read(base))])
    assert render_checked(checked).splitlines()[0].startswith("0 errors, 0 warnings")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_what_nearly_breaks_a_rule_is_good(case):
    text = read(case.base)
    assert case.old in text, "the edit must change something"
    assert not rules_of(text.replace(case.old, case.good, 1))


def test_each_broken_rule_is_told_with_what_stands_there_and_the_fix(expect_golden):
    told = []
    for broken in CASES:
        text = read(broken.base).replace(broken.old, broken.bad, 1)
        found = check_manifests([(broken.base, text)]).breaches
        assert broken.rule in {one.rule for one in found}, broken
        told += [f"{one.where}: {one.rule.id}: {one.what}; fix: {one.fix}\n" for one in found]
    expect_golden("check-manifests.txt", "".join(told))


@pytest.mark.parametrize(("restart_policy", "found"), [("ExitCode", True), ("OnFailure", False)])
def test_a_ttl_does_not_make_up_for_pods_that_stay_where_exit_codes_decide(restart_policy, found):
    text = read("elastic").replace("restartPolicy: OnFailure", f"restartPolicy: {restart_policy}")
    ttl = "    cleanPodPolicy: None\n    ttlSecondsAfterFinished: 60\n"
    text = text.replace("    cleanPodPolicy: Running\n", ttl)
    assert (Rule.CLEAN_POD_POLICY_NONE.id in rules_of(text)) is found


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_a_reason_a_severity_and_a_manifest_that_breaks_it(rule):
    assert rule.why
    assert rule.severity in ("error", "warning")
    assert rule is Rule.YAML or rule in {broken.rule for broken in CASES}


@pytest.mark.parametrize("kind", ["Pod", "Job", "Deployment", "StatefulSet"])
def test_of_other_objects_the_pods_are_checked_but_need_no_shared_memory(kind):
    pod = "{containers: [{name: a, env: [{name: TOKEN, value: x}]}]}"
    spec = pod if kind == "Pod" else f"{{template: {{spec: {pod}}}}}"
    text = f"apiVersion: v1\nkind: {kind}\nspec: {spec}\n"
    assert rules_of(text) == {Rule.SECRET_IN_CLEAR.id}


def test_objects_in_a_list_are_checked_too():
    indented = "".join(f"    {line}\n" for line in read("elastic").splitlines()).replace(
        "    a", "  - a", 1
    )
    text = f"kind: List\nitems:\n{indented}"
    assert not rules_of(text)
    assert Rule.ELASTIC_BOUNDS.id in rules_of(text.replace("minReplicas: 1", "minReplicas: 9"))


def test_a_breach_names_file_line_object_and_path():
    text = f"# a comment\n---\n{read('elastic')}".replace("backoffLimit: 3", "backoffLimit: -3")
    (breach,) = check_manifests([("a/b.yaml", text)]).breaches
    assert (breach.file, breach.line) == ("a/b.yaml", 16)
    assert text.splitlines()[breach.line - 1].strip() == "backoffLimit: -3"
    assert (breach.object, render_path(breach.path)) == (
        "PyTorchJob/digits",
        "spec.runPolicy.backoffLimit",
    )


@pytest.mark.parametrize(
    "text",
    ["kind: PyTorchJob", "kind: PyTorchJob\nspec: [1]", "kind: Job\nspec: {template: 3}",
     "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Worker: null, Master: [x]}}",
     "kind: [Job]", "a: b", "kind: Pod\nspec: {containers: [1, null, {env: 3}]}",
     "kind: PyTorchJob\nspec: {nprocPerNode: [], elasticPolicy: 3, runPolicy: x,"
     " pytorchReplicaSpecs: {Worker: {replicas: x, template: {spec: {containers: [a]}}}}}"],
)  # fmt: skip
def test_a_manifest_of_the_wrong_shape_never_breaks_the_check(text):
    assert render_checked(check_manifests([("m.yaml", text)]))


def test_a_file_that_is_no_yaml_is_a_breach_beside_those_of_other_files():
    bad = read("elastic").replace("minReplicas: 1", "minReplicas: 9")
    checked = check_manifests([("a.yaml", "a: [1\nb: 2\n"), ("b.yaml", bad)])
    assert [(f.file, f.rule.id) for f in checked.breaches] == [
        ("a.yaml", "yaml"),
        ("b.yaml", "elastic-bounds"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [("", "", 0), ("Policy: Running", "Policy: None", 0), ("minReplicas: 1", "minReplicas: 9", 2)],
    ids=["good", "a warning", "an error"],
)
def test_the_command_ends_with_2_for_errors_alone(tmp_path, capsys, old, new, code):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(read("elastic").replace(old, new) if old else read("elastic"))
    assert run_command(["check", "--json", str(manifest)]) == code
    found = json.loads(capsys.readouterr().out)
    assert all(f["file"] == str(manifest) and f["line"] and f["fix"] for f in found)


def test_the_command_reads_a_file_of_many_manifests_that_is_larger_than_a_job_file(
    tmp_path, capsys
):
    many = tmp_path / "many.yaml"
    comment = "# one of many\n" * 10_000
    many.write_text("---\n".join([comment + read("elastic")] * 10))
    assert many.stat().st_size > source.MAX_FILE_BYTES
    assert run_command(["check", str(many)]) == 0
    told = "0 errors, 0 warnings; 10 objects checked, 0 without rules\n"
    assert capsys.readouterr().out == told


BAD_MANIFEST = ("elastic.yaml", "minReplicas: 1", "minReplicas: 9", "7: error: minReplicas 9")
BAD_SCRIPT = ("scripts/faulty/fabric_cpu.py", "", "", "4: error: L.Fabric(accelerator='cpu')")


@pytest.mark.parametrize(("file", "old", "new", "said"), [BAD_MANIFEST, BAD_SCRIPT])
def test_the_command_reads_a_manifest_or_a_script_from_its_standard_input(file, old, new, said):
    argv = [sys.executable, "-m", "launcher", "check", "-"]
    text = (MANIFESTS / file).read_text().replace(old, new)
    done = subprocess.run(argv, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"<stdin>:{said}" in done.stdout


@pytest.mark.parametrize("text", ["name: digits\ncomand: [train.py]\n", "command: [train.py]\n"])
def test_of_a_wrong_job_file_it_tells_what_run_would_refuse(text):
    with pytest.raises(FileError) as caught:
        check_manifests([("job.yaml", text)])
    with pytest.raises(FileError) as refused:
        parse_job(text, "job.yaml")
    assert caught.value.problems == refused.value.problems


@pytest.mark.parametrize(("file", "typed"), [("my job.yaml", "'my job.yaml'"), ("<stdin>", "JOB")])
def test_a_job_file_is_refused_with_the_commands_that_check_it(file, typed):
    text = "name: digits\ncommand: [train.py]\n"
    with pytest.raises(InputError) as caught:
        check_manifests([("elastic.yaml", read("elastic")), (file, text)])
    assert caught.value.what == (f"{file}:1: a job file, and no file here is its script")
    assert caught.value.hint == f"launcher doctor {typed}, or launcher render {typed}"


def test_a_batch_script_is_refused_with_the_command_that_reads_it():
    with pytest.raises(InputError) as caught:
        check_manifests([("job.sbatch", "#!/bin/bash\nsrun torchrun train.py\n")])
    assert caught.value.hint == "launcher import job.sbatch"


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: example/v1\nkind: Other\nname: digits\ncommand: [train.py]\n",
        "kind: Other\nname: digits\n",
        "metadata: {name: digits}\nspec: {}\n",
    ],
)
def test_a_manifest_without_rules_is_no_job_file(text):
    checked = check_manifests([("other.yaml", text)])
    assert (checked.breaches, checked.others) == ((), 1)


def test_of_a_job_file_the_script_is_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\nmodel = torch.nn.DataParallel(None)\n")
    (tmp_path / "job.yaml").write_text("name: a\ncommand: [train.py]\n")
    assert run_command(["check", "job.yaml"]) == run_command(["check", "train.py"])
    of_job, of_script = capsys.readouterr().out.splitlines()[-1], "1 training script checked"
    assert of_job.endswith(of_script)


@pytest.mark.parametrize(
    ("code", "told"), [("nowhere", "found nowhere; no such folder"), ("other", "is not in ")]
)
def test_a_job_file_whose_code_run_would_refuse_is_refused_in_the_same_words(
    tmp_path, monkeypatch, capsys, code, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "job.yaml").write_text(f"name: a\ncommand: [train.py]\ncode: {code}\n")
    assert run_command(["check", "job.yaml"]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert run_command(["run", "job.yaml", "--on", "local"]) == 2
    assert said.startswith("error: job.yaml:3: code: ")
    assert capsys.readouterr().err == said
