"""``doctor``: real probes on real targets, and what follows from answers that tell of a fault."""

from tests.launcher.doctor.test_doctor import rows
from tests.launcher.runner import PREFIX


def test_this_machine_is_fit_and_nothing_is_left(launcher):
    launcher.write("raise SystemExit('never run')", PREFIX + "checkpoint_dir: ./saved\n")
    done = launcher.well("doctor", "job.yaml", "--on", "local", "--json", "--nproc-per-node", "2")
    found = rows(done.stdout)
    assert {status for status, _ in found.values()} <= {"ok", "warning"}
    assert found["all-reduce"][1].startswith("gloo: ")
    assert "torch 2." in found["python, torch"][1]
    assert sorted(path.name for path in launcher.folder.iterdir()) == ["job.yaml", "train.py"]
