"""The thread that heals, where something in it fails."""

import socket
from types import SimpleNamespace

from launcher.agent.engine.heal import Healer
from launcher.contract.clock import SystemClock
from tests.waiting import wait_until


def test_an_error_of_its_own_is_told_and_left_to_torchs_agent(tmp_path, capsys):
    def settle(*_: object) -> None:
        raise KeyError("unforeseen")

    roster = SimpleNamespace(membership=None, settle=settle, say=len, wake=dict)
    node = SimpleNamespace(attempts=SimpleNamespace(workers={0: 0}), roster=roster)
    healer = Healer(node, tmp_path / "agent", SystemClock())
    healer.start()
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(str(healer.path))
        worker.sendall(b'{"worker": 0}\n')
        wait_until(lambda: healer.refused)
        assert not healer.can_heal
    told = "not healed: KeyError('unforeseen'); the workers start anew"
    assert told in capsys.readouterr().err
