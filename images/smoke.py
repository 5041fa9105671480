"""Imports what training imports, in a new image, and refuses one whose labels differ from what is
in it.

Prints the versions as JSON. The planner reads the labels without starting the image, so a wrong
label would choose flags that this torch does not have.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys


def find_lies(flavor: str, labels: dict[str, str], installed: dict[str, str]) -> list[str]:
    """One line, with its fix, for each label that differs from what is in the image."""
    lies = []
    if labels["torch"] != installed["torch"].partition("+")[0]:
        lies.append(
            f"TORCH_VERSION is {labels['torch'] or 'empty'}, the image holds torch "
            f"{installed['torch']}\n"
            "  fix: TORCH_VERSION as pinned in pyproject.toml, and wheels of it"
        )
    if labels["cuda"] != installed["cuda"]:
        build = (
            f"a torch for CUDA {installed['cuda']}" if installed["cuda"] else "a CPU build of torch"
        )
        lies.append(
            f"the {flavor} image was to have {labels['cuda'] or 'no'} CUDA, but got {build}\n"
            f"  fix: another wheelhouse or TORCH_INDEX_URL; or CUDA_VERSION={installed['cuda']} "
            "if it is meant"
        )
    return lies


def main() -> int:
    torch, *others = (
        importlib.import_module(name)
        for name in ("torch", "lightning.fabric", "torchmetrics", "jsonargparse", "sklearn")
    )
    installed = {"python": platform.python_version(), "torch": torch.__version__}
    installed["cuda"] = torch.version.cuda or ""
    installed |= {module.__name__: module.__version__ for module in others}
    labels = {"torch": os.environ["TORCH_VERSION"], "cuda": os.environ["CUDA_VERSION"]}
    flavor = os.environ["FLAVOR"]
    lies = find_lies(flavor, labels, installed)
    if lies:
        print("\n".join(f"error: {lie}" for lie in lies), file=sys.stderr)
        return 1
    if flavor == "cuda" and not installed["cuda"]:
        print("note: this cuda image holds a CPU build of torch, as asked", file=sys.stderr)

    print(json.dumps(installed, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
