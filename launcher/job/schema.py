"""The JSON Schema of a job file, and what is read from it: the words for messages and docs."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from launcher.job.spec import JobSpec
from launcher.job.types import Section
from launcher.job.values import NodeRange, dump_nodes
from launcher.yamlfile.problem import FileError, KeyPath
from launcher.yamlfile.source import parse_fragment

Schema = Mapping[str, Any]


@functools.cache
def job_schema() -> JsonSchemaValue:
    """The JSON Schema (draft 2020-12) of a job file, for editors and for the reference.

    It accepts all that ``parse_job`` accepts; only ``parse_job`` checks the rules between keys and
    a few others (the bytes of a quantity, MIN not above MAX).
    """
    made = JobSpec.model_json_schema(schema_generator=_JobSchema)
    for section in (made, *made["$defs"].values()):
        for key, field in section["properties"].items():
            if key not in section.get("required", ()):
                _allow_empty(field)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def render_schema() -> str:
    """``job_schema()`` as the text of a file."""
    return json.dumps(job_schema(), indent=2) + "\n"


class _JobSchema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False  # "Stop Grace S" says less than the key

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, NodeRange):
            return dump_nodes(dft)
        return None if isinstance(dft, Section) else super().encode_default(dft)


def _allow_empty(field: JsonSchemaValue) -> None:
    """Accepts ``null`` too: an empty key counts as not given, so its default is used."""
    if field.get("default", 0) is None or field.get("default") in ((), [], {}):
        del field["default"]
    about = ("description", "default", "examples")
    shape = {key: field.pop(key) for key in list(field) if key not in about}
    if {"type": "null"} not in shape.get("anyOf", ()):
        shape = {"anyOf": [shape, {"type": "null"}]}
    field.update(shape)


# -- parts of it --------------------------------------------------------------------------------


def schema_at(path: KeyPath) -> Schema:
    """The schema of the value at ``path``; empty where there is none."""
    return resolve(field_at(path))


def field_at(path: KeyPath) -> Schema:
    """The schema of the field at ``path``, which also has description, default and examples."""
    return _child(schema_at(path[:-1]), path[-1]) if path else job_schema()


def resolve(node: Schema) -> Schema:
    """The schema that a reference points to, also if the value may be left empty instead."""
    while True:
        if "$ref" in node:
            node = job_schema()["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        elif "anyOf" in node and any("$ref" in choice for choice in node["anyOf"]):
            node = next(choice for choice in node["anyOf"] if "$ref" in choice)
        else:
            return node


def _child(node: Schema, part: str | int) -> Schema:
    for choice in [node, *node.get("anyOf", ())]:
        if isinstance(part, int) and "items" in choice:
            return dict(choice["items"])
        if part in choice.get("properties", {}):
            return dict(choice["properties"][part])
        if isinstance(choice.get("additionalProperties"), dict):
            return dict(choice["additionalProperties"])
    return {}


def choices(schema: Schema) -> Iterator[Schema]:
    """A schema and all its alternatives."""
    yield schema
    for choice in schema.get("anyOf", ()):
        yield from choices(choice)


# -- in words -----------------------------------------------------------------------------------


def describe(schema: Schema) -> str:
    """What a schema accepts, in words."""
    if "$ref" in schema:
        return describe(resolve(schema))
    if "errorMessage" in schema:
        return str(schema["errorMessage"])
    if "anyOf" in schema:
        words = [describe(choice) for choice in schema["anyOf"] if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "enum" in schema:
        return " or ".join([", ".join(schema["enum"][:-1]), schema["enum"][-1]])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return f"a {'whole ' if kind == 'integer' else ''}number{_range(schema)}"
    if kind == "array":
        return f"a list of {describe(schema['items'])}"
    if kind == "object" and "properties" in schema:
        keys = list(schema["properties"])
        return f"the key{'s' if len(keys) > 1 else ''} {', '.join(keys)}"
    return {"string": "text", "boolean": "true or false", "object": "name: value lines"}[str(kind)]


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" {low}..{high}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}"
    return "" if low is None else f" >= {low}"


def render_flow(value: Any) -> str:
    """A value as YAML on one line, with quotes only where they are needed."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {render_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(render_flow(item) for item in value) + "]"
    if not isinstance(value, str) or re.search(r"[\[\]{},#&*!|>'\"%@`]|: |^[-?] |^[0-9]+:", value):
        return json.dumps(value)
    try:
        return value if parse_fragment(value, "").data == value else json.dumps(value)
    except FileError:
        return json.dumps(value)
