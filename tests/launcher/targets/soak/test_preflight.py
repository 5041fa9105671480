"""What a job wants started is looked at where it can be: folders, scripts, modules and mounts."""

import pytest

# -- the same ending whatever started it -----------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        ("torchrun", "script"),
        ("agent", "script"),
        ("agent", "module"),
    ],
)
def test_what_is_only_found_missing_at_the_start_ends_the_same_under_both_engines(
    launcher, engine, found
):
    launcher.write("", f"name: tiny\nnproc_per_node: 1\nengine: {engine}\n")
    # Looked at before the start it is there; when the worker is started, it has gone.
    if found == "script":
        (launcher.folder / "sitecustomize.py").write_text(GONE.format(name="train.py"))
        command = "train.py"
    else:
        (launcher.folder / "odd").mkdir()
        (launcher.folder / "odd/__init__.py").write_text("__path__ = list(__path__)\n")
        command = "-m odd.nothere"
    argv = ("--on", "local", "--set", f"command={command}", "--set", "env.PYTHONPATH=.")
    told = launcher.fails(2, "run", "job.yaml", *argv)
    assert "bad-input" in told
    assert (launcher.outcome["cause"], launcher.outcome["exit_code"]) == ("bad-input", 2)


GONE = """
import os
if "LAUNCHER_RUN_ID" in os.environ:
    try:
        os.unlink("{name}")
    except FileNotFoundError:
        pass
"""
