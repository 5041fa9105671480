"""How one host finds out which others answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from launcher.host.facts import Listener, read_reachable


def test_a_host_greets_its_callers_while_it_calls_others():
    listener, silent = Listener("mine"), Listener("silent")
    call = ["127.0.0.1", listener.port, "mine"]
    with ThreadPoolExecutor() as pool:
        # Nobody answers this one, so that it lasts until its limit.
        calling = [["127.0.0.1", silent.port, "silent"]]
        busy = pool.submit(read_reachable, calling, 2.0, [listener])
        assert read_reachable([call], 5.0) == [0]
        assert busy.result() == []
    assert read_reachable([call], 0.2) == []


def test_a_listener_with_another_token_is_somebody_else():
    listener = Listener("mine")
    with ThreadPoolExecutor() as pool:
        greeting = pool.submit(listener.answer)
        assert read_reachable([["127.0.0.1", listener.port, "yours"]], 5.0) == []
        greeting.result()
