"""The JSON Schema against the reader, and the files that are made from it."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.job.schema import (
    describe,
    field_at,
    job_schema,
    render_flow,
    render_schema,
    schema_at,
)
from launcher.job.spec import JobSpec
from launcher.yamlfile.problem import FileError
from launcher.yamlfile.source import parse_fragment, parse_yaml

ROOT = Path(__file__).parents[3]
SCHEMA = job_schema()
PAGES = ("docs/job-file-targets.md", "docs/job-file.md")
REFERENCE = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GOLDEN = ROOT / "tests/golden/bad_job_files.txt"
CASES = [case.partition("\n") for case in GOLDEN.read_text("utf-8").split("\n### ")[1:]]
ONLY_THE_READER_KNOWS = " *"
"""Ends the title of what no JSON Schema can say, or none that an editor would show well."""


def test_the_schema_is_a_valid_one_of_draft_2020_12():
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_that_editors_read_is_made_from_the_sources():
    assert render_schema() == (ROOT / "jobs/job.schema.json").read_text("utf-8"), "run make docs"


def test_every_key_of_every_section_is_described():
    sections = [SCHEMA, *SCHEMA["$defs"].values()]
    described = {
        key: field["description"] for one in sections for key, field in one["properties"].items()
    }
    assert {*JobSpec.model_fields, "port", "source", "shm", "last_call_timeout"} <= {*described}
    assert all(len(text) > 15 for text in described.values())


def data_of(case: str) -> object:
    """The data of a case; nothing where it is no YAML, of which no schema gets to know."""
    try:
        return parse_yaml(case.partition("\n->\n")[0], "job.yaml").data
    except FileError:
        return None


READABLE = [(title, data_of(rest)) for title, _, rest in CASES if data_of(rest) is not None]


@pytest.mark.parametrize(("title", "data"), READABLE, ids=[title for title, _ in READABLE])
def test_what_the_reader_refuses_the_schema_refuses_where_it_can(title, data):
    assert VALIDATOR.is_valid(data) == title.endswith(ONLY_THE_READER_KNOWS)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a b", "a b"), ("1", '"1"'), (1, "1"), (True, "true"), ("true", '"true"'), ("", '""'),
        ("8:00", '"8:00"'), ("a: b", '"a: b"'), ("- a", '"- a"'), ("a#", '"a#"'), ("-x", "-x"),
        ([1, "a"], "[1, a]"), ({"a": ["b"], "c": "2"}, '{a: [b], c: "2"}'), ("a\tb ", '"a\\tb "'),
        ("\x01", '"\\u0001"'),
    ],
)  # fmt: skip
def test_an_example_is_written_as_a_job_file_has_it(value, written):
    assert render_flow(value) == written
    assert parse_fragment(written, "").data == value


def test_a_field_is_found_by_its_path():
    assert field_at(()) == SCHEMA
    assert field_at(("rdzv", "port"))["examples"] == [29400]
    assert schema_at(("mounts", 3, "target"))["errorMessage"].startswith("an absolute path")
    assert schema_at(("env", "ANY"))["errorMessage"].startswith("text, a number")
    assert schema_at(("no", "such")) == {}
    told = {
        ("rdzv",): "the keys backend, port, endpoint, id, conf",
        ("local",): "the key python",
        ("env",): "name: value lines",
        ("secrets",): "a list of variables' names",
        ("slurm", "setup"): "a list of text",
        ("resources", "cpus"): "a number > 0",
        ("kubernetes", "gang"): "volcano or kueue",
        ("agent", "in_image"): "true or false",
    }
    assert {path: describe(field_at(path)) for path in told} == told


def test_every_example_of_the_schema_is_accepted_by_the_reader():
    names = ("rdzv", "resources", "local", "docker", "kubernetes")
    sections = {"": SCHEMA} | {key: SCHEMA["$defs"][f"{key.title()}Spec"] for key in names}
    made = []
    for section, keys in sections.items():
        for key, field in keys["properties"].items():
            for example in field.get("examples", ()):
                of_etcd = key == "endpoint"
                inner = {key: example} | ({"backend": "etcd-v2"} if of_etcd else {})
                job = {"name": "a", "command": "t.py"} | ({section: inner} if section else inner)
                job |= {"engine": "torchrun"} if of_etcd else {}
                assert VALIDATOR.is_valid(job), (section, key)
                made.append(parse_job(json.dumps(job), f"{section}.{key}"))
    assert len(made) > 20


_texts = ["", "a", "1:4", "4:1", "gpu", "auto", "static", "2.4", "8Gi"]
_texts += ["a:/a", "a:/a:ro", "/a", "~"]
_keys = ["A", "RANK", "port", "conf", "source", "target", "shm", "gpus", "labels"]
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70_000)
    | st.floats(allow_nan=False, allow_infinity=False)  # JSON has neither
    | st.sampled_from(_texts)
)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_keys), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(list(JobSpec.model_fields)), _values, max_size=3))
def test_what_the_reader_accepts_the_schema_accepts(keys):
    raw = {"name": "a", "command": ["t.py"]} | keys
    try:
        parse_job(json.dumps(raw), "job.yaml")
    except InputError:
        return
    VALIDATOR.validate(raw)


def test_the_shipped_job_fits_the_schema_that_it_names():
    text = (ROOT / "jobs/digits.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=job.schema.json\n")
    VALIDATOR.validate(parse_yaml(text, "digits.yaml").data)


def test_every_example_of_the_reference_is_a_valid_job():
    blocks = re.findall("```yaml\n(.*?)```", REFERENCE, flags=re.DOTALL)
    examples = [one for block in blocks[:-1] for one in block.split("# or\n")]
    head = {"name": "name: a\n", "command": "command: t.py\n"}
    given = [re.findall(r"^(\w+):", one, re.MULTILINE) for one in examples]
    made = [
        parse_job("".join(head[key] for key in head if key not in keys) + one, one)
        for one, keys in zip(examples, given, strict=True)
    ]
    assert len(made) >= len(JobSpec.model_fields)
