"""How long a held node waits for runs. The rest is shown by real holds: targets/contract."""

from pathlib import Path

from launcher.agent.engine.hold import Holder
from launcher.contract.agent_settings import AgentSettings, NodeTask
from tests.launcher.node_plans import node_plan


def test_a_held_node_warns_once_before_its_idle_limit_and_ends_at_it(capfd):
    task = NodeTask(node=node_plan(), settings=AgentSettings(hold_idle_s=600.0))
    holder = Holder(task, Path("/run"), "agent.pyz")
    assert [holder._wait(now) for now in (0.0, 299.0, 301.0, 302.0)] == [None] * 4
    assert capfd.readouterr().err.count("the hold ends in 5 min") == 1
    assert holder._wait(600.0) == "nothing was run for 10 min"
