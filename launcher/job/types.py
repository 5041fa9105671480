"""The types of a job file's fields: how a value is checked, written out, and put in the schema.

What each accepts, in words, stands in its JSON Schema under ``errorMessage``, which editors show
and ``job_problems.py`` reads.
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
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from launcher.job import values as values
from launcher.job.values import NodeRange


def shape(words: str, *types: dict[str, Any]) -> WithJsonSchema:
    """A field's JSON Schema, and the words for it, for messages and for editors."""
    one = {"anyOf": list(types)} if len(types) > 1 else types[0]
    return WithJsonSchema({**one, "errorMessage": words})


def text(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


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
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Names in ``propertyNames``: pydantic's ``patternProperties`` let all other names pass."""
        schema = handler(core)
        for pattern, items in schema.pop("patternProperties", {}).items():
            schema["additionalProperties"] = items
            schema.setdefault("propertyNames", {})["pattern"] = pattern
        return schema


class OrText:
    """In the JSON Schema, a section that may also be written as one text."""

    def __init__(self, pattern: str, words: str) -> None:
        self._text = text(pattern)
        self._words = words

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(core), self._text], "errorMessage": self._words}


_SCALAR = {"type": ["string", "number", "boolean"]}

Nodes = Annotated[
    NodeRange,
    PlainValidator(values.parse_nodes),
    PlainSerializer(values.dump_nodes),
    shape(
        values.NODES_WORDS,
        {"type": "integer", "minimum": 1, "maximum": values.MAX_NODES},
        text(values.NODES_PATTERN),
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(values.parse_quantity),
    shape(
        values.QUANTITY_WORDS,
        text(values.QUANTITY_PATTERN),
        {"type": "integer", "minimum": values.MIN_QUANTITY_BYTES},
    ),
]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(values.parse_command),
    shape(
        values.COMMAND_WORDS,
        {"type": "array", "items": _SCALAR, "minItems": 1},
        {"type": "string", "minLength": 1},
    ),
]
JobName = Annotated[
    str,
    AfterValidator(values.parse_name),
    shape(values.NAME_WORDS, text(values.NAME_PATTERN, maxLength=values.MAX_NAME)),
]
Image = Annotated[
    str,
    AfterValidator(values.parse_image),
    shape(values.IMAGE_WORDS, text(values.IMAGE_PATTERN, maxLength=255)),
]
Endpoint = Annotated[
    str,
    AfterValidator(values.parse_endpoint),
    shape(values.ENDPOINT_WORDS, text(values.ENDPOINT_PATTERN)),
]
TorchVersion = Annotated[
    str,
    BeforeValidator(values.parse_torch_version),
    shape(
        values.TORCH_WORDS,
        text(values.TORCH_PATTERN),
        {"type": "number", "exclusiveMinimum": 0},
    ),
]
Rdma = Annotated[
    bool | int,
    PlainValidator(values.parse_rdma),
    shape(values.RDMA_WORDS, {"type": "boolean"}, {"type": "integer", "minimum": 0}),
]
Label = Annotated[
    str,
    AfterValidator(values.parse_label),
    shape(values.LABEL_WORDS, text(values.LABEL_PATTERN)),
]
HostAddress = Annotated[
    str,
    AfterValidator(values.parse_host_address),
    shape(values.ADDRESS_WORDS, {"type": "string", "minLength": 2}),
]
Text = Annotated[str, Field(min_length=1)]
ScalarText = Annotated[str, BeforeValidator(values.parse_text), shape(values.SCALAR_WORDS, _SCALAR)]
Variable = Annotated[
    str,
    AfterValidator(values.parse_variable),
    shape(
        values.VARIABLE_WORDS,
        text(values.VARIABLE_PATTERN, **{"not": {"pattern": values.RESERVED_PATTERN}}),
    ),
]
HostPath = Annotated[
    str,
    AfterValidator(values.parse_host_path),
    shape(values.HOST_PATH_WORDS, text("^[^~]")),
]
ListenAddress = Annotated[
    str,
    Field(pattern=values.LISTEN_PATTERN),
    shape(values.LISTEN_WORDS, text(values.LISTEN_PATTERN)),
]
MountTarget = Annotated[
    str,
    AfterValidator(values.parse_mount_target),
    shape(values.TARGET_WORDS, text("^/[^:]+$")),
]
Processes = Annotated[
    int | Literal["auto", "gpu", "cpu"],
    PlainValidator(values.parse_processes),
    shape(
        values.PROCESSES_WORDS,
        {"type": "integer", "minimum": 1, "maximum": values.MAX_PROCESSES},
        {"enum": ["auto", "gpu", "cpu"]},
    ),
]
Pairs = tuple[tuple[str, str], ...]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Cores = Annotated[float, Field(strict=True, gt=0)]
Seconds = Annotated[int, Field(strict=True, ge=1, le=values.MAX_SECONDS)]
Limit = Annotated[float, Field(strict=True, ge=0.5, le=values.MAX_LIMIT_S)]
Count = Annotated[int, Field(strict=True, ge=0, le=values.MAX_COUNT)]
Flag = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A group of keys: frozen, and closed, so that a misspelt key is an error and not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, keys: object) -> object:
        """A key left empty counts as not given; an unknown one stays an error."""
        if not isinstance(keys, dict):
            return keys
        known = cls.model_fields
        return {key: value for key, value in keys.items() if value is not None or key not in known}

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
