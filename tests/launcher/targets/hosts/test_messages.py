"""Records that launcher and hosts exchange: what is read is what was written, or is refused."""

import io
import json

import pytest

from launcher.targets.hosts.program.messages import (
    Answered,
    FunctionCall,
    KeeperSpec,
    Lease,
    NodeSeen,
    NodesSeen,
    read_frame,
    write_frame,
)

LEASE = Lease(run_id="r", node_index=0, owner="me", gpus=["0"], slots=0)
SPEC = KeeperSpec(
    run_id="r",
    node_index=0,
    node_dir="/runs/r",
    argv=["true"],
    cwd="/",
    env={"Lease": "KeeperSpec"},
    unset=[],
    secrets={},
    detached=False,
    stop_grace_s=5.0,
)


@pytest.mark.parametrize(
    "message",
    [
        LEASE,
        Answered(value=[LEASE, LEASE.having(node_index=1)]),
        FunctionCall(function="m.f", arguments={"node": SPEC, "n": 1}, limit_s=3.0),
        NodesSeen(nodes={"0.0": NodeSeen(state="exited", exit_code=137, detail="\udcff")}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_read_as_it_was_written(message):
    wire = io.BytesIO()
    write_frame(wire, message)
    wire.seek(0)
    assert read_frame(wire) == (message, b"")


def test_a_record_of_another_version_is_read_where_it_has_what_is_needed():
    data = json.loads(SPEC.to_json())
    assert KeeperSpec.from_json({**data, "news": 1}) == SPEC
    del data["container"]
    assert KeeperSpec.from_json(data) == SPEC
    del data["argv"]
    with pytest.raises(ValueError, match="KeeperSpec without argv"):
        KeeperSpec.from_json(data)


@pytest.mark.parametrize("data", [None, [], "text", {"run_id": "r"}])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(ValueError, match="Lease"):
        Lease.from_json(data)


def test_a_field_that_is_missing_or_misspelt_is_an_error_where_it_is_written():
    with pytest.raises(TypeError, match="NodeSeen without state"):
        NodeSeen(exit_code=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="NodeSeen has no code"):
        NodeSeen(state="exited", code=1)  # type: ignore[call-arg]


BODIES = (b"[]", b"{}", b'{"@record": []}', b'{"@record": "Nothing"}', b'{"@record": "NodeSeen"}')
OTHERS = (b"1 0\n{", b"5 0\n{}", b"0 5\n{}", b"-1 0\n", b"0 -1\n", b"hello\n")


@pytest.mark.parametrize("text", [*(b"%d 0\n%b" % (len(one), one) for one in BODIES), *OTHERS])
def test_what_is_no_message_is_refused(text):
    with pytest.raises(ValueError, match=r"message|NodeSeen|Expecting|literal"):
        read_frame(io.BytesIO(text))
