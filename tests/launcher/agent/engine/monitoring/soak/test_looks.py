"""Looks at real workers that are stuck in each of the ways that people meet."""

from tests.launcher.agent.engine.monitoring.claims.test_looks import (
    FUNCTIONS,
    ask_until,
    end_stuck,
    stacks_of,
    start_stuck,
)
from tests.launcher.agent.place import Place

FORBIDDEN = "#!/bin/sh\necho 'Error: permission denied (os error 13)' >&2\nexit 1\n"


def forbid_py_spy(place: Place) -> None:
    place.write(FORBIDDEN, "bin/py-spy").chmod(0o755)
    place.env["PATH"] = f"{place.folder}/bin:{place.env['PATH']}"


def test_without_py_spy_a_worker_tells_itself_and_faulthandler_where_it_cannot(place):
    forbid_py_spy(place)
    start_stuck(place)
    id, seen = ask_until(place, "worker", "worker", "faulthandler")
    for rank in (0, 1, 2):
        stacks = stacks_of(place, id, rank)
        assert "py-spy is not allowed to trace this process" in stacks.missing
        assert FUNCTIONS[rank] in [frame.function for frame in stacks.threads[0].frames]
    assert "a signal has stopped it" in seen[3].no_stacks
    assert seen[3].state == "T"
    end_stuck(place)
