"""The keys of ``rdzv_conf``, as text or typed, and what follows from them."""

import pytest

from launcher.agent.membership.group import SIGNS_PER_S, Rules, parse_rules
from tests.launcher.node_plans import node_plan


def test_rules_are_read_from_the_text_of_a_node_s_plan():
    conf = {"detection_limit_s": "1", "join_timeout_s": "50", "fence_dir": "/shared"}
    plan = node_plan({"conf": tuple(conf.items())}, node_index=2, max_restarts=3)
    read = Rules(
        min_nodes=1,
        max_nodes=2,
        node_index=2,
        max_restarts=3,
        detection_limit_s=1.0,
        join_timeout_s=50.0,
        fence_dir="/shared",
    )
    assert parse_rules(plan) == read
    with pytest.raises(TypeError, match="detection_limit"):
        parse_rules(node_plan({"conf": (("detection_limit", "3"),)}))


@pytest.mark.parametrize("limit_s", [0.5, 1.0, 2.5, 10.0, 60.0])
def test_signs_of_life_come_ten_times_within_the_limit_and_of_many_nodes_less_often(limit_s):
    for nodes in (1, 64, 1_000, 4_000, 8_000):
        interval_s = Rules(min_nodes=1, max_nodes=nodes, detection_limit_s=limit_s).interval_s
        assert min(0.25, limit_s / 10) <= interval_s <= limit_s / 10
        if interval_s < limit_s / 10:
            assert nodes / interval_s <= SIGNS_PER_S
