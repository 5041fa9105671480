"""The job file: what is refused and with which words, what options override, what round-trips."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.contract.errors import ExitCode, InputError
from launcher.job.file import (
    check_job,
    env_override,
    find_place,
    option_override,
    parse_job,
    parse_override,
    read_job,
)
from launcher.job.spec import JobSpec
from launcher.yamlfile.problem import FileError

HEAD = {"name": "name: digits\n", "command": "command: [train.py]\n"}
GOOD = "".join(HEAD.values())


def problems_of(text: str, *settings: str) -> list[str]:
    """The lines of the error for a job file that goes on from two good lines."""
    with pytest.raises(InputError) as caught:
        parse_job(GOOD + text, "job.yaml", [parse_override(setting) for setting in settings])
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    return str(caught.value).splitlines()


GOLDEN = Path(__file__).parents[2] / "golden/bad_job_files.txt"
CASES = [case.partition("\n") for case in GOLDEN.read_text("utf-8").split("\n### ")[1:]]


@pytest.mark.parametrize("case", [pytest.param(rest, id=title) for title, _, rest in CASES])
def test_a_wrong_job_file_is_refused_with_place_key_what_was_found_and_accepted(case):
    text, _, expected = case.partition("\n->\n")
    with pytest.raises(InputError) as caught:
        parse_job(text, "job.yaml")
    assert str(caught.value) == expected.strip()


def test_all_problems_of_a_file_are_reported_at_once_in_the_order_of_the_file():
    text = (
        "nproc_pre_node: 2\nrdzv:\n  port: 70000\n  backend: static\nnnodes: 1:4\nnnodes: 2\n"
        "mounts: ['a:/x', 'b:/x', 'c']\nenv: {RANK: 1, B-C: 2, S: x}\nsecrets: [S]\nstop_grace_s: 0"
    )
    assert [line.split(": ")[:2] for line in problems_of(text) if "fix:" not in line] == [
        ["job.yaml:3", "nproc_pre_node"],
        ["job.yaml:5", "rdzv.port"],
        ["job.yaml:6", "rdzv.backend"],
        ["job.yaml:8", "nnodes"],
        ["job.yaml:9", "mounts.1.target"],
        ["job.yaml:9", "mounts.2"],
        ["job.yaml:10", "env.RANK"],
        ["job.yaml:10", "env.B-C"],
        ["job.yaml:11", "secrets.0"],
        ["job.yaml:12", "stop_grace_s"],
    ]


def test_a_wrong_value_behind_an_alias_is_reported_where_the_key_stands():
    assert problems_of("rdzv: {port: &p 70000}\nstop_grace_s: 5\nmax_restarts: *p") == [
        "job.yaml:3: rdzv.port: found 70000; accepted: a whole number 1..65535",
        "  fix: for example rdzv.port: 29400",
    ]


def test_control_characters_of_a_file_do_not_reach_the_terminal():
    assert problems_of('image: "\\e[31mred"') == [
        'job.yaml:3: image: found "\\e[31mred"; accepted: a Docker image reference such as '
        "ghcr.io/me/train:1.4",
        "  fix: for example image: ghcr.io/me/train:1.4",
    ]
    assert "\x1b" not in "".join(problems_of('"\\e[31m": 1'))


def error_or_job(text: str, *settings: str) -> str | JobSpec:
    """What the reader makes of a text; anything but an InputError goes through."""
    try:
        return parse_job(text, "job.yaml", [parse_override(setting) for setting in settings])
    except InputError as error:
        return str(error)


def test_every_wrong_job_file_is_answered_with_a_fix():
    for _, _, case in CASES:
        lines = case.partition("\n->\n")[2].strip().splitlines()
        whats = [line for line in lines if not line.startswith("  fix: ")]
        assert len(lines) == 2 * len(whats), lines


# -- what is accepted ---------------------------------------------------------------------------


def job(text: str, *settings: str) -> JobSpec:
    return parse_job(GOOD + text, "job.yaml", [parse_override(setting) for setting in settings])


def test_defaults_leave_to_the_planner_what_only_the_target_can_tell():
    made = job("")
    assert (made.nnodes.min, made.nnodes.max, made.is_elastic) == (1, 1, False)
    assert (made.nproc_per_node, made.max_restarts, made.stop_grace_s) == ("auto", 0, 30)
    assert made.image is made.rdzv.backend is made.rdzv.port is made.resources.gpus is None
    assert made.resources.shm_bytes == 2**30


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("nnodes", "1:4", "1:4"), ("nnodes", '"1:4"', "1:4"), ("nnodes", "2", 2),
        ("nnodes", "3:3", 3), ("nnodes", "100000", 100_000),
        ("nproc_per_node", "gpu", "gpu"), ("nproc_per_node", "1024", 1024),
        ("devices", "2", "2"), ("devices", '"2"', "2"), ("devices", "[1, 3]", "1,3"),
        ("devices", '"1, 3"', "1,3"), ("devices", '"1,"', "1,"), ("devices", "-1", "-1"),
        ("devices", "all", "-1"), ("devices", "free:2", "free:2"), ("devices", "1024", "1024"),
        ("devices", "[GPU-a-1, MIG-b]", "GPU-a-1,MIG-b"), ("devices", "[0]", "0,"),
        ("code", "image", "image"), ("code", "./src", "./src"),
        ("command", "'t.py --x \"a b\" c\\;d'", ["t.py", "--x", "a b", "c;d"]),
        ("command", "[t.py, 1.10, true, 0x1, ';x']", ["t.py", "1.10", "true", "0x1", ";x"]),
        ("command", "-m pkg.train", ["-m", "pkg.train"]),
        ("stop_grace_s", "1", 1), ("stop_grace_s", "31536000", 31_536_000),
        ("max_restarts", "1000000", 1_000_000), ("torch_version", "2.10", "2.10"),
        ("name", "a" * 40, "a" * 40),
    ],
)  # fmt: skip
def test_what_is_written_is_what_is_read(key, written, read):
    made = parse_job(f"{''.join(HEAD[one] for one in HEAD if one != key)}{key}: {written}\n", "a")
    assert made.model_dump(mode="json")[key] == read


@pytest.mark.parametrize(
    ("section", "written", "read"),
    [
        ("rdzv", "{port: 65535, id: 1.10}", {"port": 65535, "id": "1.10"}),
        ("rdzv", "{port: 1}", {"port": 1}),
        ("resources", "{rdma: 2, cpus: 0.5, gpus: 0}", {"rdma": 2, "cpus": 0.5, "gpus": 0}),
        ("resources", "{rdma: true, memory: 1Mi}", {"rdma": True, "memory": "1Mi"}),
        ("resources", "{shm: 1048576}", {"shm": "1048576"}),
        ("agent", "{detection_limit_s: 0.5, hang_min_s: 0}", {"hang_min_s": 0}),
        ("agent", "{hang_max_s: 300, same_failure_limit: 1}", {"hang_max_s": 300}),
        ("agent", "{hang_min_s: 5000}", {"hang_min_s": 5000, "hang_max_s": None}),
        ("notify", "{webhook: 'http://x'}", {"webhook": "http://x", "when": "end"}),
        ("docker", "{labels: {a: 1.0}, extra_hosts: {b: c}}", {"labels": {"a": "1.0"}}),
        ("kubernetes", "{run: pvc/a/b, volumes: ['pvc/c:/d:rw']}", {"run": "pvc/a/b"}),
        ("kubernetes", "{gang: kueue, queue: q, start_limit_s: 0}", {"queue": "q"}),
        ("kubernetes", "{gang: volcano, node_selector: {a: 1.0}}", {"node_selector": {"a": "1.0"}}),
        ("slurm", "{time: 1-2:03:04, mem: 5, extra: [-x]}", {"time": "1-2:03:04", "mem": "5"}),
    ],
)  # fmt: skip
def test_what_is_written_in_a_section_is_what_is_read(section, written, read):
    found = job(f"{section}: {written}").model_dump(mode="json")[section]
    assert {key: found[key] for key in read} == read


def test_devices_are_processes_unless_those_are_said_too():
    for written, processes, gpus in (
        ("devices: 2", 2, None), ("devices: [1, 3]", 2, None), ("devices: all", "auto", None),
        ("devices: 2\nnproc_per_node: 4", 4, 2),
        ("devices: 2\nnproc_per_node: 4\nresources: {gpus: 1}", 4, 1),
        ("devices: 2\nnproc_per_node:\nresources: {cpus: 3}", 2, None),
    ):  # fmt: skip
        made = job(written)
        assert (made.nproc_per_node, made.resources.gpus) == (processes, gpus)


def test_what_a_job_says_of_itself():
    own = job("checkpoint_dir: ephemeral\nkubernetes: {namespace: a}")
    assert (own.keeps_own_disks, own.checkpoint_dir, own.kubernetes.namespace) == (True, None, "a")
    plain, cpu = job(""), job("nproc_per_node: cpu")
    assert (plain.keeps_own_disks, plain.names_containers, plain.uses_agent) == (False, False, True)
    assert (plain.is_on_cpu, cpu.is_on_cpu) == (False, True)
    assert job("resources: {gpus: 0}").is_on_cpu
    assert not job("nproc_per_node: cpu\nresources: {gpus: 1}").is_on_cpu
    for named in ("image: a", "code: image", "mounts: ['a:/b']"):
        assert job(named).names_containers
    agents = job("start: fork\nrdzv: {backend: roster, port: 5}").without_agent()
    assert (agents.uses_agent, agents.start, agents.rdzv.backend) == (False, None, None)
    assert agents.rdzv.port == 5
    assert job("rdzv: {backend: static}").without_agent().rdzv.backend == "static"
    assert (plain.resources.memory_bytes, plain.resources.shm_bytes) == (None, 2**30)
    assert job("resources: {memory: 2Mi}").resources.memory_bytes == 2**21


def test_values_of_variables_stay_as_they_are_written():
    made = job("env: {A: NO, B: 1.10, C: 0x10, D: true, E: '', F: 1_000, G: 007, H: 2024-01-01}")
    assert dict(made.env) == {
        "A": "NO", "B": "1.10", "C": "0x10", "D": "true",
        "E": "", "F": "1_000", "G": "007", "H": "2024-01-01",
    }  # fmt: skip


def test_a_mount_reads_the_same_in_both_forms():
    made = job("mounts: ['./a:/x/:ro', {source: ./a, target: /y, read_only: true}]")
    assert [(one.source, one.target, one.read_only) for one in made.mounts] == [
        ("./a", "/x", True),
        ("./a", "/y", True),
    ]


def test_an_empty_key_counts_as_not_given():
    assert job("rdzv:\nimage:\nenv:\nmounts: ~\nmax_restarts:") == job("")


def test_settings_of_the_rendezvous_come_as_torchrun_takes_them():
    conf = "conf: {read_timeout: 600, last_call_timeout: 1, protocol: https}"
    made = job(f"engine: torchrun\nrdzv: {{backend: etcd-v2, endpoint: 'etcd:2379', {conf}}}")
    assert made.rdzv.conf.pairs == (
        ("last_call_timeout", "1"),
        ("read_timeout", "600"),
        ("protocol", "https"),
    )


# -- options ------------------------------------------------------------------------------------


def test_options_replace_values_of_the_file():
    made = job("nnodes: 2\nrdzv: {port: 1, id: x}", "nnodes=1:3", "rdzv.port=29400", "env.A=NO")
    assert (str(made.nnodes), made.rdzv.port, made.rdzv.id) == ("1:3", 29400, "x")
    assert made.env == (("A", "NO"),)


def test_an_option_mends_a_wrong_value_of_the_file():
    assert job("rdzv: {port: 70000}", "rdzv.port=29400").rdzv.port == 29400


def test_an_empty_option_sets_the_default_back():
    assert job("stop_grace_s: 5", "stop_grace_s=").stop_grace_s == 30


def test_an_option_reaches_into_lists():
    made = job("mounts: [{source: a, target: /a}]", "mounts.0.read_only=true", "mounts.1=b:/b")
    assert [(one.target, one.read_only) for one in made.mounts] == [("/a", True), ("/b", False)]


def test_values_of_variables_are_taken_from_an_option_as_they_stand():
    made = job("", "env.A=*.py", "env.B=", "env.C=a: b=c", "env.D=[x", "docker.labels.team=1.0")
    assert dict(made.env) == {"A": "*.py", "B": "", "C": "a: b=c", "D": "[x"}
    assert made.docker.labels == (("team", "1.0"),)


PORT_FIX = "  fix: for example --set rdzv.port=29400"
BAD_OPTIONS = [
    ("rdzv.port=70000", "rdzv.port: found 70000; accepted: a whole number 1..65535\n" + PORT_FIX),
    (
        "image=[",
        "image: a [ or { that is not closed, or lacks a comma\n"
        "  fix: close it, or put the text in quotes",
    ),
    (
        "mounts.1=a:/a",
        "mounts.1: found 1 in a list of 0\n  fix: write a number of 0..0; the last one appends",
    ),
]


@pytest.mark.parametrize(("setting", "message"), BAD_OPTIONS)
def test_a_wrong_option_is_named_as_the_place(setting, message):
    expected = f"--set {setting}: {message}".splitlines()
    assert problems_of("mounts: []", setting) == expected


def test_a_credential_in_an_option_is_not_shown():
    for setting in ("env.MY-TOKEN=hunter2", "env={MY-TOKEN: hunter2}", "env=hunter2"):
        assert "hunter2" not in "".join(problems_of("", setting))


def test_an_option_with_dashes_is_named_as_it_was_typed():
    with pytest.raises(FileError) as caught:
        parse_job(GOOD, "job.yaml", [option_override("--nproc-per-node", "0")])
    assert str(caught.value) == (
        "--nproc-per-node 0: nproc_per_node: found 0; accepted: a whole number 1..1024, "
        "or auto, gpu or cpu\n  fix: for example --nproc-per-node 8"
    )


def test_the_fix_of_a_targets_own_option_is_that_option():
    with pytest.raises(FileError, match=r"fix: for example --time 8:00:00$"):
        parse_job(GOOD, "job.yaml", [option_override("--time", "8h", "slurm")])


def test_the_fix_of_a_setting_with_spaces_is_quoted_for_a_shell():
    *_, fix = problems_of("", "mounts={source: a}")
    assert fix.startswith("  fix: for example --set 'mounts=[")
    assert fix.endswith("]'")


@pytest.mark.parametrize(
    "settings", [("mounts.0=./data:/data",), ("mounts.0.source=./data", "mounts.0.target=/data")]
)
@pytest.mark.parametrize("text", ["", "mounts:\n", "mounts: []\n"])
def test_the_first_item_of_a_list_that_the_file_lacks_begins_it(text, settings):
    (mount,) = job(text, *settings).mounts
    assert (mount.source, mount.target) == ("./data", "/data")


@pytest.mark.parametrize("setting", ["nnodes", "=1", "rdzv..port=1", ".a=1"])
def test_an_option_without_a_key_and_a_value_is_refused(setting):
    with pytest.raises(InputError, match="no key=value"):
        parse_override(setting)


def test_variables_are_taken_from_the_option_or_from_the_shell():
    shell = {"A": "of the shell", "MY_TOKEN": "hunter2"}
    given = [env_override(one, shell) for one in ("A", "B=x=1", "MY_TOKEN", "C=")]
    made = parse_job(GOOD + "secrets: [FIRST]", "job.yaml", given)
    assert dict(made.env) == {"A": "of the shell", "B": "x=1", "C": ""}
    assert made.secrets == ("FIRST", "MY_TOKEN")
    assert [one.option for one in given] == [
        "--env A", "--env B=(hidden)", "--env MY_TOKEN", "--env C=(hidden)"
    ]  # fmt: skip
    assert parse_job(GOOD, "job.yaml", [env_override("MY_TOKEN", shell)]).secrets == ("MY_TOKEN",)
    with pytest.raises(InputError, match="--env D: not set in this shell"):
        env_override("D", shell)


@pytest.mark.parametrize(
    ("option", "text", "section", "is_text", "value"),
    [
        ("--nnodes", "1:2", "", False, "1:2"),
        ("--max-restarts", "3", "", False, 3),
        ("--workdir", "5", "", True, "5"),
        ("--checkpoint-dir", "[x", "", True, "[x"),
        ("--namespace", "1", "kubernetes", True, "1"),
    ],
)
def test_an_option_is_a_number_only_where_its_key_may_be_one(option, text, section, is_text, value):
    made = option_override(option, text, section)
    found = parse_job(GOOD, "job.yaml", [made]).model_dump(mode="json")
    assert (made.is_text, made.option) == (is_text, shlex.join([option, text]))
    for part in made.path:
        found = found[part]
    assert found == value


def test_the_place_of_a_value_is_that_of_the_last_who_gave_it():
    given = [parse_override("rdzv.port=1"), parse_override("env.A=x")]
    text = "name: a\nrdzv:\n  port: 5\n  id: x\n"
    places = {
        ("name",): "job.yaml:1", ("rdzv", "port"): "--set rdzv.port=1",
        ("rdzv", "id"): "job.yaml:4", ("env", "A"): "--set env.A=x", ("env",): "--set env.A=x",
        ("nnodes",): "job.yaml", ("rdzv",): "job.yaml:2",
    }  # fmt: skip
    assert {path: find_place(path, text, "job.yaml", given) for path in places} == places
    assert find_place(("rdzv", "port"), text, "job.yaml") == "job.yaml:3"


def test_a_job_of_no_file_is_checked_alike():
    assert check_job("{name: a, command: t.py}", "Job").name == "a"
    with pytest.raises(InputError) as refused:
        check_job("{name: a, command: t.py, nodes: 2, nnodes: 2:1}", "Job")
    assert str(refused.value) == (
        "Job: nnodes: found 2:1; accepted: MIN:MAX with MIN not above MAX\n  fix: write 1:2\n"
        "Job: nodes: unknown key\n  fix: did you mean nnodes?"
    )


# -- properties -----------------------------------------------------------------------------------

_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
_words = st.text("abcxyz019-_./:= ,'\"", min_size=1, max_size=12)
_names = st.from_regex(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
_variables = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}X", fullmatch=True)
_ranges = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda n: f"{n[0]}:{sum(n)}")
_mounts = st.builds(
    lambda place, source, read_only: {
        "source": f"./{source}", "target": f"/m/{place}", "read_only": read_only
    },
    st.integers(0, 10**6), st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.booleans(),
)  # fmt: skip
_jobs = st.fixed_dictionaries(
    {"name": _names, "command": st.lists(_words, max_size=4).map(lambda words: ["t.py", *words])},
    optional={
        "nnodes": st.integers(1, 100) | _ranges,
        "nproc_per_node": st.integers(1, 64) | st.sampled_from(["auto", "gpu", "cpu"]),
        "rdzv": st.fixed_dictionaries({"port": st.integers(1, 65535)}),
        "max_restarts": st.integers(0, 9),
        "env": st.dictionaries(_variables, _texts | st.integers(-(10**20), 10**20) | st.booleans()),
        "mounts": st.lists(_mounts, max_size=4, unique_by=lambda mount: mount["target"]),
        "resources": st.fixed_dictionaries({"cpus": st.floats(0.1, 64), "rdma": st.booleans()}),
        "stop_grace_s": st.integers(1, 900),
        "torch_version": st.sampled_from(["2.4", "2.10", "2.13.0"]),
    },
)


@given(_jobs)
def test_a_job_written_out_and_read_again_is_the_same_job(raw):
    made = parse_job(json.dumps(raw), "job.yaml")
    again = parse_job(yaml.safe_dump(made.model_dump(mode="json"), sort_keys=False), "job.yaml")
    assert again == made
    assert hash(again) == hash(made)


_tokens = st.sampled_from(
    [
        "name", "command", "rdzv", "mounts", "env", "<<", "*a", "&a ", "!!int ", "!x ", "? ", ": ",
        "- ", "[", "]", "{", "}", ", ", "\n", "\n  ", "\n    ", "\t", "'", '"', "|", ">", "---\n",
        "...\n", "%YAML 1.2\n", "#", "1:4", "true", "~", "\\", "\\ud800", "0x", ".inf", "é", "\0",
        "\x85", "\ufeff", "@", "`", "a", " ",
    ]
)  # fmt: skip


@given(st.lists(_tokens, max_size=25).map("".join) | st.text(max_size=60), st.booleans())
def test_no_text_makes_the_reader_raise_anything_but_an_input_error(text, after):
    made = error_or_job(GOOD + text if after else text)
    assert isinstance(made, JobSpec) or made.startswith("job.yaml")


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_raise_anything_but_an_input_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_job(path)
    assert str(caught.value).startswith(str(path))


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(list(JobSpec.model_fields)), _values))
def test_no_value_of_any_key_makes_the_reader_raise_anything_but_an_input_error(raw):
    text = yaml.safe_dump({"name": "a", "command": "t.py"} | raw, allow_unicode=True)
    made = error_or_job(text)
    assert isinstance(made, JobSpec) or made.startswith("job.yaml")


@given(
    st.lists(st.sampled_from(["rdzv", "0", "7", "mounts", "env", "A", "name", "x"]), min_size=1),
    st.text(max_size=12),
)
def test_no_option_makes_the_reader_raise_anything_but_an_input_error(path, text):
    made = error_or_job(GOOD + "mounts: [a:/a]", ".".join(path) + "=" + text)
    assert isinstance(made, JobSpec) or made.startswith(("job.yaml", "--set"))
