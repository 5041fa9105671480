"""The types of a job file's fields: how a value is checked, written out, and put in the schema.

What each accepts, in words, stands in its JSON Schema under ``patternErrorMessage``, which
editors show and ``job_problems.py`` reads.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from launcher import job_values as values
from launcher.job_values import NodeRange

# Docker's own grammar of a reference: [host[:port]/]path[:tag][@digest]
_HOST = r"(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+)(:[0-9]+)?|[A-Za-z0-9-]+:[0-9]+"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?"
IMAGE_PATTERN = f"^(({_HOST})/)?{_PART}(/{_PART})*{_TAG}$"


def says(words: str) -> dict[str, Any]:
    """The words for a pattern, in the editors' own extension of JSON Schema and in our messages."""
    return {"patternErrorMessage": words}


def shape(*types: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(types)} if len(types) > 1 else types[0])


class AsPairs:
    """A mapping in the file, a tuple of (name, value) pairs in the spec: immutable and ordered."""

    def __init__(self, name: Any, value: Any) -> None:
        self._mapping = dict[name, value]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda mapping: tuple(mapping.items()),
            handler.generate_schema(self._mapping),
            serialization=core_schema.plain_serializer_function_ser_schema(dict),
        )

    def __get_pydantic_json_schema__(
        self, core: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Names in ``propertyNames``: pydantic's ``patternProperties`` let all other names pass."""
        mapping = core["schema"]
        return {
            "type": "object",
            "propertyNames": handler(mapping["keys_schema"]),
            "additionalProperties": handler(mapping["values_schema"]),
        }


SCALAR = {"type": ["string", "number", "boolean"]}
_QUANTITY_TEXT = {"type": "string", "pattern": values.QUANTITY_PATTERN}

Nodes = Annotated[
    NodeRange,
    PlainValidator(values.parse_nodes),
    PlainSerializer(values.dump_nodes),
    shape(
        {"type": "integer", "minimum": 1, "maximum": values.MAX_NODES},
        {"type": "string", "pattern": values.NODES_PATTERN, **says('MIN:MAX such as "1:4"')},
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(values.parse_quantity),
    shape(
        {**_QUANTITY_TEXT, **says(values.QUANTITY_WORDS)},
        {"type": "integer", "minimum": values.MIN_QUANTITY_BYTES},
    ),
]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(values.parse_command),
    shape({"type": "array", "items": SCALAR, "minItems": 1}, {"type": "string", "minLength": 1}),
]
JobName = Annotated[
    str,
    Field(
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        max_length=40,
        json_schema_extra=says(
            "a lower-case letter, then lower-case letters, digits and -, not - at the end, "
            "at most 40 characters"
        ),
    ),
]
Image = Annotated[
    str,
    Field(
        pattern=IMAGE_PATTERN,
        max_length=255,
        json_schema_extra=says("a Docker image reference such as ghcr.io/me/train:1.4"),
    ),
]
TorchVersion = Annotated[
    str,
    BeforeValidator(values.parse_torch_version),
    shape(
        {"type": "string", "pattern": values.TORCH_PATTERN, **says(values.TORCH_WORDS)},
        {"type": "number", "exclusiveMinimum": 0, **says(values.TORCH_WORDS)},
    ),
]
Rdma = Annotated[
    bool | int,
    PlainValidator(values.parse_rdma),
    shape({"type": "boolean"}, {"type": "integer", "minimum": 0}),
]
Label = Annotated[
    str,
    AfterValidator(values.parse_label),
    shape({"type": "string", "pattern": values.LABEL_PATTERN, **says(values.LABEL_WORDS)}),
]
HostAddress = Annotated[
    str,
    AfterValidator(values.parse_host_address),
    shape({"type": "string", "minLength": 2, **says(values.ADDRESS_WORDS)}),
]
Text = Annotated[str, Field(min_length=1)]
ScalarText = Annotated[str, BeforeValidator(values.parse_text), shape(SCALAR)]
Variable = Annotated[
    str,
    AfterValidator(values.parse_variable),
    shape(
        {
            "type": "string",
            "pattern": values.VARIABLE_PATTERN,
            "not": {"pattern": values.RESERVED_PATTERN},
            **says(values.VARIABLE_WORDS),
        }
    ),
]
HostPath = Annotated[
    str,
    AfterValidator(values.parse_host_path),
    shape({"type": "string", "pattern": "^[^~]", **says(values.HOST_PATH_WORDS)}),
]
MountTarget = Annotated[
    str,
    AfterValidator(values.parse_mount_target),
    shape({"type": "string", "pattern": "^/[^:]+$", **says(values.TARGET_WORDS)}),
]
Processes = Annotated[
    int | Literal["auto", "gpu", "cpu"],
    PlainValidator(values.parse_processes),
    shape(
        {"type": "integer", "minimum": 1, "maximum": values.MAX_PROCESSES},
        {"enum": ["auto", "gpu", "cpu"]},
    ),
]
Pairs = tuple[tuple[str, str], ...]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Cores = Annotated[float, Field(strict=True, gt=0)]
Seconds = Annotated[int, Field(strict=True, ge=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A group of keys: frozen, and closed, so that a misspelt key is an error and not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Adds each field's docstring as its description.

        Not by pydantic's ``use_attribute_docstrings``, which parses this file at every import.
        """
        schema = handler(core)
        documented = _field_docstrings(cls)
        for key, field in handler.resolve_ref_schema(schema).get("properties", {}).items():
            field["description"] = documented[key]
        return schema


def _field_docstrings(section: type) -> dict[str, str]:
    """The string literal below each field of a class, by the field's name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            name, text = ast.unparse(field.target), ast.literal_eval(below.value)
            found[name] = inspect.cleandoc(text)
    return found
