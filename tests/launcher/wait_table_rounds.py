"""The part of the table of waits that is of the rendezvous: the roster, its store, its endings."""

from __future__ import annotations

from tests.launcher.wait_table_words import Cannot, Row, by

BOUND = Cannot("the limit ends it, whatever they do")
NOBODY = Cannot("nobody is waited for: a pause between two looks, as long as its process lives")

AGENT = "launcher/agent/"
ROSTER, STORE = AGENT + "roster/test_processes.py::", AGENT + "roster/test_store.py::"
HANDLER, WORLD = AGENT + "roster/test_handler.py::", AGENT + "roster/test_world.py::"
ENDED, PARTED = AGENT + "test_endings.py::", AGENT + "roster/test_endings.py::"
TAKEOVER, MEET = AGENT + "roster/test_takeover.py::", AGENT + "roster/test_meeting.py::"

LINES = AGENT + "roster/test_lifelines.py::"
AT_ONCE = AGENT + "node/test_signalled_at_once.py::"

ROWS: tuple[Row, ...] = (
    Row(
        functions="""agent.roster.thread:RosterThread.begin
            agent.roster.thread:RosterThread.next_notice
            agent.roster.thread:RosterThread.settle agent.roster.thread:RosterThread.end
            agent.roster.handler:RosterHandler.next_rendezvous
            agent.roster.store:StoreClient.__init__""",
        who="a node, for the store and what the others say there",
        ends="the group's word; the store's silence; the join limit",
        limit="connect_timeout_s, then the silence limit, then join_limit_s",
        well=by(HANDLER, "test_a_node_that_shuts_down_after_success_closes_the_run"),
        badly=by(ROSTER, "test_the_loss_of_the_store_reaches_all_nodes_as_a_connection_error"),
        frozen=by(
            ROSTER,
            "test_a_frozen_store_reaches_all_nodes_as_a_connection_error_after_the_silence_limit",
            "test_a_store_that_is_frozen_from_the_start_is_given_up_in_time",
            "test_a_frozen_node_is_lost_and_rejoins_as_a_newcomer_under_a_later_generation",
        ),
        never=by(
            HANDLER,
            "test_no_store_raises_a_connection_error_within_the_limit",
            "test_a_node_that_waits_in_vain_raises_timeout_and_closes_nothing",
        ),
    ),
    Row(
        functions="""agent.roster.leaving:AgentStore.wait
            agent.roster.handler:RosterHandler.leave_finished""",
        who="a node that has finished, for the others",
        ends="the run is closed: all have finished, it failed, or those left can form no group; "
        "a lost store; a signal, after which two pulses let the others know",
        limit="none while a member works; a silent one is struck after the detection limit",
        well=(
            *by(ENDED, "test_the_host_of_the_store_stays_until_the_others_have_finished"),
            *by(PARTED, "test_a_node_that_finishes_long_before_the_others_waits_for_them"),
            *by(ENDED, "test_a_finished_node_that_is_stopped_has_completed_and_the_others_go_on"),
        ),
        badly=(
            *by(ENDED, "test_a_worker_that_fails_in_a_collective_another_has_left_ends_the_run"),
            *by(ENDED, "test_a_node_lost_after_another_has_finished_ends_a_run_of_fixed_size"),
        ),
        frozen=(
            *by(ENDED, "test_a_node_that_freezes_after_another_has_finished_is_not_waited_for"),
            *by(PARTED, "test_a_node_that_freezes_after_the_other_has_finished_ends_the_run"),
        ),
        never=by(
            PARTED,
            "test_nobody_is_let_in_once_a_member_has_finished",
            "test_what_had_finished_under_an_earlier_store_is_not_waited_for",
            "test_a_node_that_is_replaced_while_its_only_peer_finishes_holds_nobody_up",
        ),
    ),
    Row(
        functions="agent.engine.rendezvous:RendezvousWrapper.shutdown",
        who="the node that serves a stock backend's store, for the others to leave first",
        ends="all have left",
        limit="LEAVING_LIMIT_S",
        well=by(
            AGENT,
            "test_nodes.py::test_a_good_end_under_c10d_prints_no_backtrace_of_a_node_that_leaves_later",
        ),
        badly=BOUND,
        frozen=BOUND,
        never=BOUND,
    ),
    Row(
        functions="agent.engine.rendezvous:_wait_for_request",
        who="the agent whose workers got SIGTERM from elsewhere, for the supervisor's word",
        ends="the stop request",
        limit="REQUEST_LIMIT_S",
        well=by(AT_ONCE, "test_a_node_whose_script_just_dies_of_it_leaves_and_the_others_go_on"),
        badly=BOUND,
        frozen=BOUND,
        never=by(AT_ONCE, "test_a_worker_that_alone_is_ended_by_sigterm_is_started_again"),
    ),
    Row(
        functions="agent.engine.rendezvous:JobFaults.a_peer_finishes",
        who="an agent whose worker failed, for a peer at torch's exit barrier; stock backends only",
        ends="a peer has come there",
        limit="PEER_FINISHES_S",
        well=by(ENDED, "test_a_worker_that_fails_so_under_c10d_ends_the_run_too"),
        badly=BOUND,
        frozen=BOUND,
        never=BOUND,
    ),
    Row(
        functions="agent.roster.leaving:wait_for_the_others",
        who="the host of the store, for the nodes that still use it",
        ends="all have left, or are silent",
        limit="the detection limit for a silent member, 2 s for a silent node that waits",
        well=by(
            HANDLER,
            "test_the_store_of_a_host_stays_until_who_waits_has_heard_that_the_run_is_over",
            "test_the_store_of_a_host_that_waited_in_vain_stays_until_the_others_have_too",
        ),
        badly=by(ENDED, "test_a_node_lost_after_another_has_finished_ends_a_run_of_fixed_size"),
        frozen=by(ENDED, "test_a_node_that_freezes_after_another_has_finished_is_not_waited_for"),
        never=by(HANDLER, "test_in_a_store_to_which_nobody_came_nobody_waits"),
    ),
    Row.alike(
        "agent.roster.thread:RosterThread._pulse", "the roster's thread, between two pulses", NOBODY
    ),
    Row(
        functions="agent.roster.lifelines:Lifelines._look",
        who="a node, for the end of the connections to those that it watches",
        ends="one closes, and the node is dialled again; the handler ends",
        limit="DIAL_LIMIT_S for each dial; what stands is waited for as long as the handler lives",
        well=by(LINES, "test_an_orderly_close_on_the_way_is_taken_back_once_the_node_answers"),
        badly=by(LINES, "test_the_end_of_a_process_is_told_though_its_children_live_on"),
        frozen=by(LINES, "test_a_stopped_process_whose_connection_was_cut_is_left_to_its_silence"),
        never=by(LINES, "test_a_node_that_never_answered_is_left_to_its_silence"),
    ),
    Row.alike(
        """agent.roster.lifelines:_Resolver._run agent.roster.lifelines:_look_up""",
        "a node, for the resolver's word on the names of others; a thread that does nothing else",
        Cannot("the resolver's own limit ends it; until then the node is judged by its silence"),
    ),
    Row.alike(
        """agent.roster.answering:LifelineListener._answer
            agent.roster.answering:LifelineListener._accept agent.roster.answering:hear""",
        "the thread that answers others, for their connections",
        Cannot("nobody is waited for: its sockets never block, and it lives with its process"),
    ),
    Row(
        functions="""agent.roster.store:_fork_store agent.roster.store:StoreProcess.stop
            agent.roster.store:_serve""",
        who="the host of the store, for its process; that one, for its parent's end",
        ends="the port is told; SIGKILL",
        limit="READY_LIMIT_S, STARTS times",
        well=by(HANDLER, "test_a_host_serves_the_store_itself_and_others_find_it"),
        badly=by(STORE, "test_a_port_that_is_taken_is_an_error_that_names_it"),
        frozen=by(STORE, "test_a_store_whose_process_hangs_at_its_start_is_started_again"),
        never=by(STORE, "test_the_store_dies_with_the_process_that_started_it"),
    ),
    Row(
        functions="""agent.roster.store:_answers agent.roster.store:_asked_elsewhere
            agent.roster.takeover:find_round""",
        who="a node, for a store that serves the run already",
        ends="one answers",
        limit="LOOK_LIMIT_S for each candidate; RETURN_LIMIT_S in all",
        well=by(TAKEOVER, "test_the_first_candidate_comes_back_and_finds_the_store_that_took_over"),
        badly=by(TAKEOVER, "test_the_next_candidate_takes_over_and_the_one_after_it"),
        frozen=by(
            TAKEOVER, "test_a_store_that_freezes_is_replaced_and_its_woken_node_joins_the_others"
        ),
        never=by(
            STORE, "test_the_store_that_serves_the_run_is_found_among_dead_frozen_and_closed_ones"
        ),
    ),
    Row(
        functions="""agent.roster.meeting:Meeting._wait_for
            agent.roster.meeting:Meeting._find_or_serve agent.engine.run:_run_rounds_met""",
        who="a node, for the newest store of the folder in which nodes meet",
        ends="it answers; it is gone, and this node or another serves the next one",
        limit="GONE_S without a sign of life, REACH_LIMIT_S with signs; stores outer_limit times",
        well=by(MEET, "test_the_first_node_to_come_serves_the_store_and_the_others_find_it"),
        badly=by(
            MEET,
            "test_a_node_that_served_the_store_is_lost_and_comes_back_elsewhere",
            "test_a_store_that_refuses_is_replaced_once_its_last_sign_is_old",
        ),
        frozen=by(
            MEET,
            "test_a_store_that_freezes_is_given_up_by_the_others",
            "test_a_store_that_lives_but_cannot_be_reached_is_not_replaced",
        ),
        never=by(MEET, "test_a_claim_whose_node_died_before_it_served_is_passed_over"),
    ),
    Row.alike(
        "agent.addresses:address_towards",
        "a node, for its own address on the way to another",
        Cannot("connecting a datagram socket to an address asks nobody"),
    ),
    Row(
        functions="agent.roster.fencing:Fence.take",
        who="the leader, for a number of its own on shared storage",
        ends="a name that nobody else has made",
        limit="as many tries as others take numbers meanwhile",
        well=by(AGENT, "roster/test_fencing.py::test_a_number_is_taken_once_however_many_ask"),
        badly=by(HANDLER, "test_a_fence_that_cannot_be_written_is_a_state_error"),
        frozen=by(WORLD, "test_a_leader_whose_shared_storage_hangs_gives_the_lead_away"),
        never=by(HANDLER, "test_without_a_fence_the_majority_rule_is_said_aloud"),
    ),
    Row.alike(
        "agent.roster.backend:create_handler",
        "a node, for the resolver's word on its own name",
        Cannot("asked where no address is given: the resolver's own limit ends it"),
    ),
)
