"""The part of the table of waits that is of nodes which somebody else starts."""

from __future__ import annotations

from tests.launcher.wait_table_words import Cannot, Row, by

NODE, STARTS = (
    "launcher/targets/starter/test_node.py::",
    "launcher/targets/starter/test_starts.py::",
)
SAYS_NOTHING = "test_others_give_up_where_node_0_says_nothing"
NO_ANSWER = "test_a_stop_that_no_node_answers_says_what_ends_it"

OF_STARTER = (
    Row(
        functions="api.node:become_node targets.starter.starts:StartFiles.wait_for_plan",
        who="a node that a starter started, for node 0's plan",
        ends="node 0 says that it is there, or why it is not",
        limit="PLAN_LIMIT_S",
        well=by(STARTS, "test_others_take_the_plan_once_node_0_says_that_it_is_there"),
        badly=by(STARTS, "test_others_end_with_what_kept_node_0_from_a_plan"),
        frozen=by(STARTS, SAYS_NOTHING),
        never=by(STARTS, SAYS_NOTHING),
    ),
    Row(
        functions="targets.starter.target:StarterTarget.stop",
        who="launcher stop, for agents that read its request in the run's folder",
        ends="each node has left its outcome",
        limit="the grace and STOP_MARGIN_S; then it names what ends them",
        well=by(NODE, "test_a_stop_from_another_terminal_reaches_nodes_that_mpirun_started"),
        badly=by(STARTS, NO_ANSWER),
        frozen=by(STARTS, NO_ANSWER),
        never=by(STARTS, NO_ANSWER),
    ),
    Row.alike(
        "targets.proc:become",
        "a node, for its own streams before it becomes the agent",
        Cannot("they hold a line or two, which its starter reads"),
    ),
)
