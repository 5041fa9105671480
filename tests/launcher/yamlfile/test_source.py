"""The YAML reader: values by YAML 1.2, places of keys and values, limits, files.

What it refuses, with the words for it, is in ``golden/bad_yaml.txt``.
"""

import math
from pathlib import Path

import pytest
import yaml

import launcher.yamlfile
from launcher.yamlfile import nodes
from launcher.yamlfile.problem import FileError, Problem, render_value
from launcher.yamlfile.source import (
    MAX_DEPTH,
    MAX_NODES,
    Entry,
    decode_text,
    parse_documents,
    parse_fragment,
    parse_yaml,
    read_text,
)
from tests.launcher.values import by_place, changeable

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/bad_yaml.txt"
CASES = [case.partition("\n") for case in GOLDEN.read_text("utf-8").split("\n### ")[1:]]
FILES = [
    *(ROOT / "k8s").rglob("*.yaml"),
    *(ROOT / "tests").rglob("*.yaml"),
    *ROOT.glob("jobs/*.yaml"),
]
TEXTS = [
    "a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: 'f'}\n",
    "é: ü\nkey: \U0001f600 # smile\nafter: [1,\n  2]\n",
    'a: "one\n  two"\nb: |\n  three\n\n  four\nc: >-\n  five\n  six\n',
    "a: 010\nb: 1_000\nc: yes\nd: 12:30:45\ne: ~\nf:\n",
]


@pytest.mark.parametrize(
    "text",
    [*TEXTS, *(pytest.param(path.read_text(), id=path.name) for path in sorted(FILES))],
)
def test_the_fast_reader_of_many_documents_sees_what_the_careful_one_sees(text, monkeypatch):
    fast = parse_documents(text, "a.yaml")
    monkeypatch.setattr(nodes, "FastLoader", nodes.CoreLoader)
    assert fast == parse_documents(text, "a.yaml")


@pytest.mark.skipif(nodes.FastLoader is nodes.CoreLoader, reason="PyYAML without libyaml")
def test_a_text_without_mistakes_is_read_once_and_by_libyaml(monkeypatch):
    """The careful reader takes about ten times as long."""
    used = []
    compose = nodes._compose

    def counted(text: str, kind: type[yaml.SafeLoader]) -> list[tuple[int, yaml.Node]]:
        used.append(kind)
        return compose(text, kind)

    monkeypatch.setattr(nodes, "_compose", counted)
    for file in FILES:
        parse_documents(file.read_text(), file.name)
    assert used == [nodes.FastLoader] * len(FILES)


@pytest.mark.parametrize("case", [pytest.param(rest, id=title) for title, _, rest in CASES])
def test_what_is_refused_is_told_with_its_place_and_a_fix_by_both_readers(case, monkeypatch):
    text, _, expected = case.partition("\n->\n")
    for loader in (nodes.FastLoader, nodes.CoreLoader):
        monkeypatch.setattr(nodes, "FastLoader", loader)
        with pytest.raises(FileError) as refused:
            parse_yaml(text, "job.yaml")
        assert str(refused.value) == expected.strip()
    assert all(problem.fix for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True), ("True", True), ("TRUE", True),
        ("false", False), ("False", False), ("FALSE", False),
        ("yes", "yes"), ("NO", "NO"), ("on", "on"), ("y", "y"),
        ("1:4", "1:4"), ("12:30:45", "12:30:45"), ("2024-01-01", "2024-01-01"),
        ("17", 17), ("-3", -3), ("+3", 3), ("010", 10), ("0o17", 15), ("0xff", 255),
        ("1_000", "1_000"), ("0b11", "0b11"),
        ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("-.inf", -math.inf), ("1.", 1.0),
        ("+1.5E-1", 0.15), (".Inf", math.inf), ("+.INF", math.inf), ("!!int 0x1F", 31),
        ("~", None), ("null", None), ("Null", None), ("NULL", None), ("", None), ("nil", "nil"),
        ("!!null ~", None), ("!!bool 'true'", True), ("!!seq [1]", [1]), ("!!map {a: 1}", {"a": 1}),
        ('"\\ufffd"', "\ufffd"), ("9" * 40, int("9" * 40)), ("-0o17", "-0o17"), ("0xg", "0xg"),
        ("'1'", "1"), ('"true"', "true"), ("!!str 1", "1"), ("!!float 1", 1.0),
        ("=", "="), ("<<", "<<"), ('"\\ud83d\\ude00"', "\U0001f600"),
        ("[1, a, {b: 2}]", [1, "a", {"b": 2}]), ("[]", []), ("{}", {}),
    ],
)  # fmt: skip
def test_a_value_is_read_as_yaml_1_2_reads_it(written, value):
    read = parse_yaml(f"key: {written}", "a.yaml").data["key"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("written", [".nan", ".NaN", ".NAN"])
def test_not_a_number_is_a_number(written):
    assert math.isnan(parse_yaml(f"key: {written}", "a.yaml").data["key"])


def test_keys_are_names_as_they_are_written():
    source = parse_yaml("NO: 1\n8080: 2\n1.10: 3\ntrue: 4\n'a b': 5", "a.yaml")
    assert list(source.data) == ["NO", "8080", "1.10", "true", "a b"]


def test_every_value_keeps_the_line_of_its_key():
    text = "# a comment\nname: x\nrdzv:\n  port: 5\nmounts:\n- a:/a\n- source: >-\n    b\n"
    entries = parse_yaml(text, "jobs/a.yaml").entries
    places = {path: (entry.where, entry.line) for path, entry in entries.items()}
    assert places == {
        (): ("jobs/a.yaml:2", 2),
        ("name",): ("jobs/a.yaml:2", 2),
        ("rdzv",): ("jobs/a.yaml:3", 3),
        ("rdzv", "port"): ("jobs/a.yaml:4", 4),
        ("mounts",): ("jobs/a.yaml:5", 5),
        ("mounts", 0): ("jobs/a.yaml:6", 6),
        ("mounts", 1): ("jobs/a.yaml:7", 7),
        ("mounts", 1, "source"): ("jobs/a.yaml:7", 7),
    }


def test_a_byte_order_mark_and_windows_line_ends_do_not_move_a_line(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    source = parse_yaml(read_text(path), str(path))
    assert source.data == {"a": 1, "b": "x"}
    assert source.entries["b",].where == f"{path}:2"


@pytest.mark.parametrize(
    ("value", "text", "written"),
    [
        ("1.10", "1.10", "1.10"),
        ("NO", "NO", "NO"),
        ("'1.10'", "1.10", "'1.10'"),
        ("&x 0x10", "0x10", "0x10"),
        ('&x !!str "a"', "a", '"a"'),
        ("[1, 2]", None, "[1, 2]"),
    ],
)
def test_a_value_keeps_how_it_was_written(value, text, written):
    entry = parse_yaml(f"key: {value} # comment", "a.yaml").entries["key",]
    assert (entry.text, entry.written) == (text, written)


def test_the_nearest_entry_of_what_is_not_written_is_that_of_its_holder():
    source = parse_yaml("a: 1\nb:\n  c: 2", "a.yaml")
    assert source.nearest(("b", "x", "y")).where == "a.yaml:2"
    assert source.nearest(("x",)).where == "a.yaml:1"


def test_merged_keys_give_way_to_own_ones_and_later_merges_to_earlier_ones():
    text = "p: &p {a: 1, b: 1}\nq: &q {b: 2, c: 2}\nr:\n  <<: [*p, *q]\n  a: 3\n"
    source = parse_yaml(text, "a.yaml")
    assert source.data["r"] == {"a": 3, "b": 1, "c": 2}
    assert source.entries["r", "c"].where == "a.yaml:2"


def test_a_list_nested_to_the_limit_is_read_and_one_level_more_is_refused():
    deepest = MAX_DEPTH - 1
    data = parse_yaml(f"a: {'[' * deepest}{']' * deepest}", "a.yaml").data
    for _ in range(deepest - 1):
        (data["a"],) = data["a"]
    assert data == {"a": []}
    with pytest.raises(FileError, match=r"a.yaml:1: nested deeper than 40 levels"):
        parse_yaml(f"a: {'[' * MAX_DEPTH}1{']' * MAX_DEPTH}", "a.yaml")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_without_an_end_is_an_error_and_no_crash(opening):
    with pytest.raises(FileError, match="nested"):
        parse_yaml("a:\n  " + opening * 20_000, "a.yaml")


def test_as_many_values_as_the_limit_are_read_and_more_are_refused():
    items = MAX_NODES - 3  # the mapping, counted once as a value and once for its keys; the list
    text = "a: [" + "1," * items + "]"
    assert len(parse_yaml(text, "a.yaml").data["a"]) == items
    with pytest.raises(FileError, match="more than 20000 values"):
        parse_yaml(text.replace("]", "1]"), "a.yaml")


def test_merges_of_merges_are_counted_too():
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)]
    with pytest.raises(FileError, match="more than 20000 values"):
        parse_yaml("\n".join(lines), "a.yaml")


@pytest.mark.parametrize(("text", "line"), [("\x01", 1), ("a: 1\nb: \x01", 2), ("\n\n\n\x07", 4)])
def test_a_control_character_is_refused_where_it_stands(text, line):
    with pytest.raises(FileError, match=rf"^a.yaml:{line}: a control character in the text"):
        parse_yaml(text, "a.yaml")


def test_the_rest_of_a_file_with_flaws_is_handed_on_with_the_error():
    with pytest.raises(FileError) as caught:
        parse_yaml("a: 1\na: 2\nb: !x 3\nc: 4", "a.yaml")
    assert caught.value.source.data == {"a": 1, "b": "3", "c": 4}
    assert [(flaw.line, flaw.path) for flaw in caught.value.problems] == [(2, ("a",)), (3, ("b",))]
    option = Problem(where="--set a", what="x")
    assert FileError([option, *caught.value.problems]).problems[-1] == option, "after the file's"


def test_a_problem_may_be_about_no_key_and_have_no_fix():
    source = parse_yaml("a:\n  b: 1", "a.yaml")
    assert str(source.problem((), "is odd")) == "a.yaml:1: is odd"
    assert str(source.problem(("a", "b", "c"), "is odd", "drop it")) == (
        "a.yaml:2: a.b.c: is odd\n  fix: drop it"
    )
    assert render_value("x" * 60) == "x" * 60
    assert render_value("x" * 61) == "x" * 57 + "..."


def test_text_of_several_lines_is_kept_as_it_was_written():
    text = 'a: |\n  b\n  c\n\nd: &x !!str >-\n  e\nf: &y "g"\n'
    source = parse_yaml(text, "a.yaml")
    assert source.data == {"a": "b\nc\n", "d": "e", "f": "g"}
    written = [entry.written for path, entry in source.entries.items() if path]
    assert written == ["|\n  b\n  c", "&x !!str >-\n  e", '"g"']


def test_of_several_documents_those_with_something_in_them_are_read():
    found = parse_documents("---\n---\na: 1\n---\n~\n---\nnull\n---\nb: 2\n", "a.yaml")
    assert [source.data for source in found] == [{"a": 1}, {"b": 2}]
    assert [source.entries[()].line for source in found] == [3, 9]
    assert parse_yaml("---\na: 1\n", "a.yaml").data == {"a": 1}
    for text, told in {
        "---\n~\n": "a.yaml:1: the file is empty\n  fix: write at least apiVersion: and kind:",
        "a: 1\n---\n- b\n": "a.yaml:3: found a list at the top; accepted: a mapping\n"
        "  fix: write one object, with apiVersion: and kind:",
    }.items():
        with pytest.raises(FileError) as refused:
            parse_documents(text, "a.yaml")
        assert str(refused.value) == told


def test_a_value_from_outside_a_file_names_its_origin_and_no_line():
    source = parse_fragment("{a: [1, x]}", "--set a")
    assert source.data == {"a": [1, "x"]}
    assert {(entry.where, entry.line) for entry in source.entries.values()} == {("--set a", 0)}
    nothing = parse_fragment("", "--set a")
    assert (nothing.data, nothing.entries[()]) == (
        None,
        Entry(where="--set a", line=0, text="", written=""),
    )
    for text in ("1\n---\n2", "[", "{a: 1, a: 2}"):
        with pytest.raises(FileError, match=r"^--set a: ") as refused:
            parse_fragment(text, "--set a")
        assert refused.value.problems[0].line == 0


# -- files ----------------------------------------------------------------------------------------


def refusal(path: Path | str) -> str:
    with pytest.raises(FileError) as caught:
        parse_yaml(read_text(path), str(path))
    return str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path):
    (tmp_path / "digits.yaml").touch()
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "latin").write_bytes(b"\nb: \xe9\n")
    (tmp_path / "large").write_bytes(b"#" * (2**20 + 1))
    told = {
        "digit.yaml": f"no such file\n  fix: did you mean {tmp_path / 'digits.yaml'}?",
        "folder.yam": "no such file\n  fix: check the path",
        "no/a.yaml": f"no such file\n  fix: there is no folder {tmp_path / 'no'} either",
        "": f"is a folder, not a file\n  fix: name a file in it, such as {tmp_path}/digits.yaml",
        "folder.yaml": "is a folder, not a file\n  fix: name a file",
        "latin:2": "byte 0xe9 is not UTF-8\n  fix: save the file as UTF-8",
        "large": "larger than 1 MiB, so not a YAML file\n  fix: name the YAML file",
        # Opens for everyone, root included, and fails on reading.
        "/proc/self/mem": "cannot be read: Input/output error\n  fix: name a readable file",
        "a\0b": "cannot be read: embedded null byte\n  fix: name a readable file",
    }
    for name, error in told.items():
        assert refusal(tmp_path / name.removesuffix(":2")) == f"{tmp_path / name}: {error}"
    (tmp_path / "large").write_bytes(b"#" * 2**20)
    assert len(read_text(tmp_path / "large")) == 2**20
    with pytest.raises(FileError, match="larger than 2 MiB"):
        decode_text(b"#" * (2**21 + 1), "a.yaml", 2**21)


def test_what_was_read_cannot_be_changed():
    assert changeable(launcher.yamlfile) == set()
    assert by_place(launcher.yamlfile) == {"Origin"}
