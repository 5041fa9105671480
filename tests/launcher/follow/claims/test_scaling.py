from tests.waiting import wait_until

ELASTIC = """
import os, pathlib, time
told = f"world-{os.environ['WORLD_SIZE']}-{os.environ['LAUNCHER_NODE_INDEX']}"
pathlib.Path(f"{told}-{os.environ['LAUNCHER_INCARNATION']}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.1)
"""


def test_a_run_shrinks_and_grows_again_and_no_restart_is_used(launcher):
    launcher.write(ELASTIC)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nnodes", "1:2")
    wait_until(lambda: (launcher.folder / "world-2-1-0").exists())
    assert launcher("scale", "latest", "1").returncode == 0
    wait_until(lambda: (launcher.folder / "world-1-0-0").exists())
    assert launcher("scale", "2").returncode == 0
    wait_until(lambda: (launcher.folder / "world-2-1-1").exists())
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr.decode()
    assert "worker-fault" not in launcher.outcome["restarts"]
    assert launcher.outcome["attempts"] == 1
    assert b"survived" not in stderr, "no node was lost"
