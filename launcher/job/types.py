"""The types of a job file's fields: how a value is checked, written out, and put in the schema.

The words for what each type accepts are in its JSON Schema under ``errorMessage``, which editors
show and ``problems.py`` reads: they are written here and nowhere else.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from launcher.job import storage, values
from launcher.job.command import parse_command, parse_text
from launcher.job.values import NodeRange, NotAcceptedError

MAX_SECONDS = 31_536_000
"""A year: timers do not accept arbitrarily large numbers."""
MOST_SILENCE_S = 3_600
"""The longest silence after which a node may count as lost."""
MOST_COUNT = 1_000_000
"""The most restarts, GPUs and so on; a larger number is a mistake."""


def text(pattern: str, **more: Any) -> JsonSchemaValue:
    """The schema of a text that the pattern matches as a whole."""
    return {"type": "string", "pattern": f"^(?:{pattern})$", **more}


class Read:
    """How a value is read, its JSON Schema, and the words for it, for messages and for editors.

    If all ``types`` are text, ``parse`` only gets text. ``dump`` writes the value out again; with
    ``keep`` the value stays as it was written.
    """

    def __init__(
        self,
        parse: Callable[[Any], Any],
        words: str,
        *types: JsonSchemaValue,
        dump: Callable[[Any], Any] | None = None,
        keep: bool = False,
    ) -> None:
        self._parse = (lambda value: (parse(value), value)[1]) if keep else parse
        self._is_text = all(kind.get("type") == "string" for kind in types)
        self._schema = {"anyOf": list(types)} if len(types) > 1 else types[0]
        self._words, self._dump = words, dump

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        dump = self._dump and core_schema.plain_serializer_function_ser_schema(self._dump)
        given = core_schema.str_schema() if self._is_text else core_schema.any_schema()
        return core_schema.no_info_after_validator_function(self._parse, given, serialization=dump)

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**self._schema, "errorMessage": self._words}


def matching(pattern: str, words: str, number: JsonSchemaValue | None = None) -> Read:
    """A text that the pattern matches as a whole.

    ``number`` is the schema of the numbers that are taken as their text.
    """

    def parse(value: Any) -> str:
        given = parse_text(value)
        if not re.fullmatch(pattern, given):
            raise NotAcceptedError(words)
        return given

    return Read(parse, words, text(pattern), *([number] if number else []))


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
    ) -> JsonSchemaValue:
        """Puts names in ``propertyNames``: pydantic's ``patternProperties`` let others pass."""
        schema = handler(core)
        for pattern, items in schema.pop("patternProperties", {}).items():
            schema["additionalProperties"] = items
            schema.setdefault("propertyNames", {})["pattern"] = pattern
        return schema


class OrText:
    """Marks, in the JSON Schema, a section that may also be written as one text."""

    def __init__(self, pattern: str, words: str) -> None:
        self._text = text(pattern)
        self._words = words

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(core), self._text], "errorMessage": self._words}


# Docker's own grammar of a reference: [host[:port]/]path[:tag][@digest]
_HOST = r"(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+)(:[0-9]+)?|[A-Za-z0-9-]+:[0-9]+"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?"
_IMAGE = f"(({_HOST})/)?{_PART}(/{_PART})*{_TAG}"
# Brackets are needed, because torch reads fd00::1 as port 1.
_PORT = "6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
_ENDPOINT = rf"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):({_PORT})"
_SCALAR = {"type": ["string", "number", "boolean"]}
WHOLE: JsonSchemaValue = {"type": "integer", "minimum": 0}

Nodes = Annotated[
    NodeRange,
    Read(
        values.parse_nodes,
        'a whole number >= 1, or MIN:MAX such as "1:4"',
        {**WHOLE, "minimum": 1, "maximum": values.MAX_NODES},
        text(values.NODES),
        dump=values.dump_nodes,
    ),
]
Quantity = Annotated[
    str,
    Read(
        values.check_quantity,
        "a quantity of at least 1Mi such as 512Mi, 8Gi or 1.5G",
        text(values.QUANTITY),
        {**WHOLE, "minimum": values.MIN_QUANTITY_BYTES},
    ),
]
Command = Annotated[
    tuple[str, ...],
    Read(
        parse_command,
        "what torchrun runs: a script path or -m MODULE, then its arguments",
        {"type": "array", "items": _SCALAR, "minItems": 1},
        {"type": "string", "minLength": 1},
    ),
]
JobName = Annotated[
    str,
    Read(
        values.parse_name,
        "a lower-case letter, then lower-case letters, digits and -, not - at the end, "
        f"at most {values.MAX_NAME} characters",
        text(values.NAME, maxLength=values.MAX_NAME),
    ),
]
Image = Annotated[str, matching(_IMAGE, "a Docker image reference such as ghcr.io/me/train:1.4")]
Endpoint = Annotated[
    str, matching(_ENDPOINT, "HOST:PORT such as etcd.internal:2379, an IPv6 address in brackets")
]
TorchVersion = Annotated[
    str,
    matching(
        values.TORCH, "a torch version such as 2.4 or 2.4.1", {"type": "number", "minimum": 0}
    ),
]
Rdma = Annotated[
    bool | int,
    Read(
        values.parse_rdma,
        "true, false or a whole number >= 0",
        {"type": "boolean"},
        WHOLE,
    ),
]
Label = Annotated[
    str,
    matching(values.LABEL, "a label's name, without = and not starting with launcher."),
]
Url = Annotated[str, matching(r"https?://[^\s/]+\S*", "an address that starts with http")]
Text = Annotated[str, Field(min_length=1)]
ScalarText = Annotated[str, Read(parse_text, "text, a number, true or false", _SCALAR)]
Variable = Annotated[
    str,
    Read(
        values.parse_variable,
        values.VARIABLE_WORDS,
        text(values.VARIABLE, **{"not": {"pattern": values.RESERVED}}),
    ),
]
HostPath = Annotated[
    str,
    Read(
        values.parse_host_path,
        "a path, absolute or relative; ~ is not expanded",
        {"type": "string", "pattern": "^[^~]"},
    ),
]
Code = Annotated[str, Read(values.parse_host_path, "a folder, or image", text("[^~].*"))]
ListenAddress = Annotated[
    str,
    matching(
        r"[A-Za-z0-9:][A-Za-z0-9.:-]*",
        "an address of the node to listen on, such as 127.0.0.1 or 0.0.0.0",
    ),
]
MountTarget = Annotated[
    str,
    Read(
        storage.parse_mount_target,
        "an absolute path in the container, without : and ..",
        text("/[^:]+"),
    ),
]
Processes = Annotated[
    int | Literal["auto", "gpu", "cpu"],
    Read(
        values.parse_processes,
        f"a whole number 1..{values.MAX_PROCESSES}, or auto, gpu or cpu",
        {**WHOLE, "minimum": 1, "maximum": values.MAX_PROCESSES},
        {"enum": ["auto", "gpu", "cpu"]},
    ),
]
DeviceChoice = Annotated[
    values.Devices,
    Read(
        values.parse_devices,
        values.DEVICES_WORDS,
        {"type": "integer"},
        text(values.DEVICES),
        {"type": "array", "items": {"type": ["integer", "string"]}, "minItems": 1},
        dump=str,
    ),
]
Pairs = tuple[tuple[str, str], ...]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Cores = Annotated[float, Field(strict=True, gt=0)]
Seconds = Annotated[int, Field(strict=True, ge=1, le=MAX_SECONDS)]
Limit = Annotated[float, Field(strict=True, ge=0.5, le=MOST_SILENCE_S)]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)]
Flag = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A group of keys: frozen, and closed, so that a misspelt key is an error and not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

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
    ) -> JsonSchemaValue:
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
    docstrings = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            name, text = ast.unparse(field.target), ast.literal_eval(below.value)
            docstrings[name] = inspect.cleandoc(text)
    return docstrings
