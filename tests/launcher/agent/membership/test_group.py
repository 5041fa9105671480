"""The keys of ``rdzv_conf``, as text or typed, and what follows from them."""

import pytest

from launcher.agent.membership.group import Rules, parse_rules
from tests.launcher.node_plans import node_plan


def test_rules_are_read_from_the_text_of_a_node_s_plan():
    conf = {"detection_limit_s": "1", "join_timeout_s": "50", "fence_dir": "/shared"}
    plan = node_plan({"conf": tuple(conf.items())}, node_index=2, max_restarts=3, nproc_per_node=4)
    told = {"min_nodes": 1, "max_nodes": 2, "node_index": 2, "max_restarts": 3, "workers": 4}
    by_default = {"last_call_s": 2.0, "rejoin_timeout_s": 0.0, "connect_timeout_s": 60.0}
    by_default |= {"growth_pause_s": 10.0}
    read = {**conf, "detection_limit_s": 1.0, "join_timeout_s": 50.0}
    assert vars(parse_rules(plan)) == told | by_default | read
    with pytest.raises(TypeError, match="detection_limit"):
        parse_rules(node_plan({"conf": (("detection_limit", "3"),)}))


@pytest.mark.parametrize(
    ("limit_s", "nodes", "interval_s", "silence_s"),
    [
        (0.25, 1, 0.05, 2.0),
        (1.0, 1_000, 0.1, 2.0),
        (2.5, 1_000, 0.25, 2.5),
        (60.0, 64, 0.25, 60.0),
        (60.0, 4_000, 4.0, 60.0),
        (60.0, 8_000, 6.0, 60.0),
    ],
)
def test_signs_of_life_come_ten_times_within_the_limit_and_of_many_nodes_less_often(
    limit_s, nodes, interval_s, silence_s
):
    rules = Rules(min_nodes=1, max_nodes=nodes, detection_limit_s=limit_s)
    assert (rules.interval_s, rules.silence_s) == (interval_s, silence_s)
