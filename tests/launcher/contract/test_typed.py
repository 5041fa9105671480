"""What a person can type, as messages show it."""

from pathlib import Path

from launcher.contract.typed import shown


def test_a_path_is_shown_from_the_current_folder_and_never_from_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs/a-1") == "runs/a-1"
    assert shown(Path("/elsewhere/a-1")) == "/elsewhere/a-1"
    monkeypatch.chdir("/")
    assert shown(tmp_path / "runs/a-1") == f"{tmp_path}/runs/a-1"
