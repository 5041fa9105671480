"""The CRDs in the folder that ``CRD_DIR`` names, as schemas that refuse what they do not name."""

import functools
import os
from pathlib import Path
from typing import Any

CRD_DIR = os.environ.get("CRD_DIR")


def closed(schema: Any) -> Any:
    """The CRD's schema, refusing fields that it does not name, as the API server's pruning would
    drop them without a word."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items() if key != "format"}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made |= {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        made.pop("type", None)
    return made


@functools.cache
def crd_schemas() -> dict[tuple[str, str], Any]:
    """Validators by API version and kind; none without ``CRD_DIR``."""
    import jsonschema
    import yaml

    found = {}
    for path in sorted(Path(CRD_DIR).glob("*.yaml")) if CRD_DIR else ():
        crd = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        for version in crd["versions"]:
            name = f"{crd['group']}/{version['name']}", crd["names"]["kind"]
            schema = closed(version["schema"]["openAPIV3Schema"])
            # Kubernetes' own, which CRDs leave open.
            schema["properties"]["metadata"] = {"type": "object"}
            found[name] = jsonschema.Draft7Validator(schema)
    return found
