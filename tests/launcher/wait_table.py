"""Every wait of agent, roster, follower, keeper and targets: for whom, what ends it, who holds it.

A row holds for all functions that it names. Of the one waited for: has it ended well, has it ended
badly, is it frozen, did it never come. Each case names the tests that hold it, or says why it
cannot occur.
"""

from __future__ import annotations

from tests.launcher.wait_table_rounds import ROWS as OF_ROUNDS
from tests.launcher.wait_table_targets import ROWS as OF_TARGETS
from tests.launcher.wait_table_words import Cannot, Row, by

BOUND = Cannot("the limit ends it, whatever they do")
NOBODY = Cannot("nobody is waited for: a pause between two looks, as long as its process lives")
SHOWN = Cannot("holds up nobody but whoever reads it; Ctrl-C ends it, and a closed pipe too")

AGENT, STAND = "launcher/agent/", "launcher/test_standstill.py::"
FROZEN = AGENT + "test_frozen.py::"
RESTARTS, NODES = AGENT + "engine/test_restarts.py::", AGENT + "test_nodes.py::"
SUPERVISOR, ENDINGS = AGENT + "node/test_supervisor.py::", AGENT + "worker/test_worker_endings.py::"
DECISIONS = AGENT + "engine/test_agent_decisions.py::"
DISK, FULL = AGENT + "test_disk.py::", AGENT + "test_full_disk.py::"
STREAMS, FULL_RUN = AGENT + "test_streams.py::", "launcher/runs/test_full_disk.py::"
EARLY = "launcher/targets/local/test_early.py::"
TEMPLATE = "launcher/targets/local/test_template.py::"
RUN_ENDINGS = "launcher/targets/local/test_run_endings.py::"
PYTHON = "launcher/api/test_python.py::"
LOCAL, RUN_LOCAL = "launcher/targets/local/test_target.py::", "launcher/targets/local/test_run.py::"
UNREAD, OUTLET = "launcher/follow/test_run_unread.py::", "launcher/follow/test_output_buffer.py::"
ALONE, CLUSTER = (
    "launcher/targets/kubernetes/test_alone.py::",
    "launcher/targets/kubernetes/test_target.py::",
)

IN_THE_NODE = (
    Row(
        functions="""agent.node.supervisor:Supervisor._wait_for_agent
            agent.node.supervisor:Supervisor._take_signal agent.processes:wait_for_sender""",
        who="the supervisor, for the agent",
        ends="the agent's end; after a stop its grace, 2 s, SIGKILL and OUTLIVE_LIMIT_S",
        limit="none before a stop: as long as the training",
        well=by(RESTARTS, "test_a_killed_worker_is_started_again_with_the_others"),
        badly=by(SUPERVISOR, "test_nothing_is_left_after_the_agent_was_killed"),
        frozen=by(
            FROZEN,
            "test_an_agent_that_was_stopped_is_continued",
            "test_a_node_that_stood_still_for_longer_than_its_waits_goes_on",
            "test_a_node_whose_agent_is_stopped_ends_within_its_grace",
        ),
        never=by(FROZEN, "test_an_agent_that_outlives_sigkill_is_left_behind"),
    ),
    Row(
        functions="""agent.worker.guard:_run agent.worker.guard:_Watch.wait
            agent.worker.guard:_end_when_told""",
        who="the guard, for its script",
        ends="the script's end; its agent's end; after a signal the exit grace, then SIGKILL",
        limit="none before a signal: the watchdog judges scripts",
        well=by(ENDINGS, "test_a_guarded_script_ends_and_speaks_as_under_the_interpreter"),
        badly=by(ENDINGS, "test_a_grandchild_that_ignores_sigterm_ends_with_its_script"),
        frozen=by(
            FROZEN,
            "test_a_worker_that_is_stopped_does_not_hold_up_the_end_of_its_node",
            "test_a_worker_that_was_stopped_is_found_as_a_hang_and_started_again",
        ),
        never=by(ENDINGS, "test_a_guard_whose_agent_has_gone_ends_its_script"),
    ),
    Row(
        functions="""agent.processes:end_children agent.processes:reap
            agent.engine.preload:_check_running agent.engine.preload:_is_bad_in_fork""",
        who="supervisor and guard, for what is left below them",
        ends="no child is left",
        limit="10 s: uninterruptible sleep outlives SIGKILL; looking (WNOHANG) waits for nobody",
        well=by(FROZEN, "test_children_that_are_stopped_end_all_the_same"),
        badly=by(ENDINGS, "test_a_grandchild_that_ignores_sigterm_ends_with_its_script"),
        frozen=by(FROZEN, "test_children_that_are_stopped_end_all_the_same"),
        never=by(FROZEN, "test_children_that_are_stopped_end_all_the_same"),
    ),
    Row(
        functions="""agent.engine.torch_agent:run_elastic_agent agent.engine.run:run_rounds
            agent.engine.rendezvous:RendezvousWrapper.next_rendezvous""",
        who="the agent, for workers, fork server, guards and the other nodes",
        ends="the workers' end, an ending of the group, SIGTERM, a lost store",
        limit="as long as the training; stores are tried outer_limit times",
        well=by(NODES, "test_a_worker_that_has_ended_is_not_taken_for_hanging_while_others_go_on"),
        badly=(
            *by(NODES, "test_a_run_that_is_given_up_on_one_node_ends_on_all_with_that_reason"),
            *by(FROZEN, "test_a_fork_server_that_was_killed_ends_the_node_with_a_reason"),
        ),
        frozen=by(
            FROZEN,
            "test_a_guard_that_was_stopped_is_continued_and_tells_how_its_script_ended",
            "test_a_fork_server_that_was_stopped_is_continued_and_makes_the_next_workers",
            "test_a_worker_that_was_stopped_is_found_as_a_hang_and_started_again",
        ),
        never=by(NODES, "test_a_store_that_nobody_serves_is_unreachable_and_worth_a_retry"),
    ),
    Row(
        functions="agent.engine.gpu:GpuGate.wait agent.engine.node_state:Node.wait_for_gpus",
        who="the agent, for the dead workers' GPU memory",
        ends="the memory is free",
        limit="gpu_free_limit_s, then the reason gpu-busy",
        well=by(DECISIONS, "test_a_restart_waits_until_the_dead_workers_memory_is_free"),
        badly=by(DECISIONS, "test_memory_that_stays_in_use_is_a_clear_error"),
        frozen=by(DECISIONS, "test_memory_that_stays_in_use_is_a_clear_error"),
        never=Cannot("the workers were there: it is their memory"),
    ),
    Row(
        functions="agent.disk:retry_while_full agent.node.supervisor:_pause",
        who="supervisor and agent, for room on a full disk",
        ends="there is room; a signal that ends the node",
        limit="disk_free_limit_s, then the reason disk-full",
        well=by(
            FULL,
            "test_a_disk_that_has_room_again_lets_the_run_go_on",
            "test_a_disk_that_is_full_before_the_start_is_waited_for",
        ),
        badly=(
            *by(DISK, "test_other_errors_are_not_waited_for"),
            *by(FULL, "test_a_signal_ends_the_wait_for_room"),
        ),
        frozen=by(FULL, "test_a_disk_that_stays_full_ends_the_node_by_its_own_reason"),
        never=by(FULL, "test_a_disk_that_is_full_before_the_start_and_stays_so_ends_the_node"),
    ),
    Row(
        functions="agent.streams:_Unrefused.write",
        who="the agent, for whoever reads its console, where that is a pipe that does not block",
        ends="it is read, or lost",
        limit="_HOLD_S",
        well=by(STREAMS, "test_a_pipe_that_is_read_late_gets_all"),
        badly=(
            *by(STREAMS, "test_a_pipe_whose_reader_has_gone_takes_all"),
            *by(DISK, "test_a_console_that_takes_nothing_ends_nobody"),
        ),
        frozen=by(STREAMS, "test_a_pipe_that_nobody_reads_is_not_waited_for"),
        never=by(STREAMS, "test_a_pipe_that_nobody_reads_is_not_waited_for"),
    ),
    Row(
        functions="agent.engine.watchdog:Watchdog._wait_for_stacks",
        who="the watchdog, for the stacks of workers that hang",
        ends="all stacks are written",
        limit="STACKS_LIMIT_S",
        well=by(RESTARTS, "test_a_hang_is_restarted_after_every_rank_s_stacks_were_written"),
        badly=BOUND,
        frozen=by(FROZEN, "test_a_worker_that_was_stopped_is_found_as_a_hang_and_started_again"),
        never=BOUND,
    ),
    Row.alike(
        "agent.engine.watchdog:Watchdog._watch agent.processes:keep_awake.look_on",
        "threads of the agent, between two looks",
        NOBODY,
    ),
    Row.alike(
        "agent.node.supervisor:Scratch.__init__ agent.node.supervisor:_sweep",
        "the supervisor, for the lock of its own new folder",
        Cannot("a file that nobody else knows yet; others' are tried without waiting"),
    ),
    Row.alike(
        """agent.streams:say agent.streams:write_to_file
            agent.node.supervisor:Supervisor._fork_agent agent.worker.start:_tell
            agent.worker.guard:_flush agent.__main__:main
            targets.local.early_program:run targets.local.early_program:_move_streams""",
        "a node's processes, for their console",
        Cannot("a file of the run folder, or the log of the container's engine"),
    ),
)

LAUNCHER = (
    Row(
        functions="follow.loop:Follower._loop contract.clock:SystemClock.sleep",
        who="the launcher, for the nodes, for a cluster's job, for room to record a node's start",
        ends="an outcome, a request to stop, a signal, the removal of the run's folder",
        limit="none: as long as the job lives; for room disk_free_limit_s, or none at all",
        well=(
            *by(RUN_LOCAL, "test_a_detached_run_ends_by_itself_and_logs_follow_it_to_its_end"),
            *by(CLUSTER, "test_a_run_is_followed_through_a_lost_pod_to_its_end"),
            *by(
                FULL_RUN,
                "test_a_node_that_is_lost_while_the_disk_is_full_is_replaced_once_there_is_room",
            ),
        ),
        badly=(
            *by(
                RUN_LOCAL,
                "test_a_failing_script_is_exit_1_and_the_first_rank_is_named",
                "test_under_the_agent_a_lost_node_of_a_fixed_group_is_replaced_and_no_restart_is_"
                "used",
            ),
            *by(CLUSTER, "test_a_failed_run_says_why_and_keeps_its_object"),
            *by(
                FULL_RUN,
                "test_a_job_without_restarts_ends_at_once_and_not_as_the_training_s_failure",
            ),
        ),
        frozen=(
            *by(
                RUN_ENDINGS,
                "test_a_node_that_stays_frozen_when_the_other_has_finished_is_started_again",
            ),
            *by(STAND, "test_a_node_of_this_machine_that_is_frozen_ends_with_its_run"),
            "launcher/targets/docker/test_faults.py::"
            "test_a_node_that_freezes_is_lost_and_joins_again_when_it_wakes",
            *by(CLUSTER, "test_a_server_that_fails_for_a_while_is_asked_again"),
            *by(FULL_RUN, "test_a_node_that_is_lost_on_a_disk_that_stays_full_ends_the_run"),
        ),
        never=(
            *by(LOCAL, "test_a_program_that_is_missing_is_named_and_nothing_starts"),
            *by(STAND, "test_a_detached_run_whose_folder_is_removed_ends"),
            *by(
                RUN_ENDINGS,
                "test_a_node_that_is_lost_while_the_other_finishes_does_not_hold_the_run_up",
            ),
            *by(CLUSTER, "test_a_job_that_somebody_deleted_was_stopped_and_is_nobodys_fault"),
        ),
    ),
    Row(
        functions="targets.local.target:LocalTarget._end",
        who="whoever stops a local run, for its processes",
        ends="none is left",
        limit="the grace, then SWEEP_LIMIT_S of SIGKILL",
        well=by(LOCAL, "test_stopping_leaves_no_process_however_stubborn"),
        badly=by(LOCAL, "test_orphans_of_a_killed_agent_are_found_by_their_run_and_ended"),
        frozen=by(STAND, "test_a_node_of_this_machine_that_is_frozen_ends_with_its_run"),
        never=by(LOCAL, "test_stopping_leaves_no_process_however_stubborn"),
    ),
    Row(
        functions="targets.local.early_program:main",
        who="an agent's process that was started early, for its launcher's plan; the template of "
        "several nodes, for the next one",
        ends="the plan; the run's end; the launcher's end, which closes the socket",
        limit="the launcher's planning, which ends it where it fails; the run's end",
        well=(
            *by(EARLY, "test_a_script_runs_in_the_process_that_began_while_it_was_planned"),
            *by(TEMPLATE, "test_three_nodes_share_one_import_and_each_is_a_node_of_its_own"),
        ),
        badly=by(EARLY, "test_it_ends_with_a_planning_that_fails"),
        frozen=Cannot("a person waits for that launcher, and ends both with it"),
        never=(
            *by(EARLY, "test_it_ends_with_its_launcher_however_that_dies"),
            *by(TEMPLATE, "test_nodes_and_template_end_with_a_launcher_that_is_killed"),
        ),
    ),
    Row.alike(
        "targets.local.early_program:fork_node",
        "the template of several nodes and the node that it forks, for each other",
        Cannot("each only forks or ends; a pipe that its end closes tells the node of it"),
    ),
    Row(
        functions="targets.local.template:Template.end",
        who="the launcher, for nodes that are just being forked from a template that it ended",
        ends="they have told of themselves, or have ended",
        limit="LAST_WORD_S",
        well=by(TEMPLATE, "test_an_interrupt_during_the_import_leaves_nothing"),
        badly=by(TEMPLATE, "test_ended_it_gives_back_what_it_has_not_forked"),
        frozen=BOUND,
        never=by(TEMPLATE, "test_ended_it_gives_back_what_it_has_not_forked"),
    ),
    Row(
        functions="targets.proc:end_early",
        who="the launcher, for a process that no run took over",
        ends="its end",
        limit="SIGKILL, then KILL_LIMIT_S",
        well=by(EARLY, "test_it_ends_with_a_planning_that_fails"),
        badly=by(EARLY, "test_it_ends_with_a_planning_that_fails"),
        frozen=Cannot("SIGKILL ends a process that a signal has stopped, too"),
        never=Cannot("only a process that hangs in the kernel outlives SIGKILL: KILL_LIMIT_S"),
    ),
    Row.alike(
        "targets.local.template:Template._read targets.adoption:poll",
        "the launcher, for nodes that a template forks",
        Cannot("a socket that does not block, and WNOHANG"),
    ),
    Row(
        functions="api.stopping:stop_run",
        who="launcher stop, for the launcher that follows the run",
        ends="the outcome; the launcher's end; a launcher that a signal has stopped",
        limit="the grace and MARGIN_S; then it is done in its place",
        well=by(RUN_LOCAL, "test_a_detached_run_is_listed_followed_and_stopped_from_elsewhere"),
        badly=by(
            RUN_LOCAL,
            "test_a_launcher_killed_with_sigkill_leaves_nothing_and_its_run_is_ended_later",
        ),
        frozen=by(
            STAND, "test_a_run_whose_launcher_is_frozen_is_stopped_at_once_and_the_launcher_named"
        ),
        never=by(LOCAL, "test_orphans_of_a_killed_agent_are_found_by_their_run_and_ended"),
    ),
    Row(
        functions="api.stopping:_ask_elsewhere",
        who="launcher stop, for a launcher on another machine or in another container",
        ends="the outcome",
        limit="the grace and MARGIN_S; then it says where to stop it",
        well=by(
            "launcher/commands/test_runs.py::",
            "test_a_run_of_another_container_is_not_taken_for_dead_and_can_be_stopped_from_here",
        ),
        badly=by(
            "launcher/commands/test_runs.py::", "test_a_launcher_elsewhere_that_does_not_answer"
        ),
        frozen=by(
            "launcher/commands/test_runs.py::", "test_a_launcher_elsewhere_that_does_not_answer"
        ),
        never=by(
            "launcher/commands/test_runs.py::", "test_a_launcher_elsewhere_that_does_not_answer"
        ),
    ),
    Row(
        functions="api.scaling:scale_run",
        who="launcher scale, for the launcher that follows the run",
        ends="the request is taken up",
        limit="ANSWER_LIMIT_S",
        well=by("launcher/follow/test_scaling.py::", "test_a_run_that_has_ended_cannot_be_scaled"),
        badly=by(STAND, "test_a_launcher_that_takes_up_no_request_is_told_after_the_limit"),
        frozen=by(STAND, "test_a_launcher_that_takes_up_no_request_is_told_after_the_limit"),
        never=by(STAND, "test_a_launcher_that_takes_up_no_request_is_told_after_the_limit"),
    ),
    Row(
        functions="""follow.output_buffer:OutputBuffer.close
            follow.output_buffer:OutputBuffer._make_room
            follow.output_buffer:OutputBuffer._put follow.output_buffer:OutputBuffer._write_on
            follow.output_buffer:OutputBuffer.wait_for_room""",
        who="the launcher, for whoever reads what it says",
        ends="it is read, or left out with a word",
        limit="HOLD_S while it runs, STALL_S at its end",
        well=by(
            OUTLET,
            "test_at_the_end_a_slow_reader_is_waited_for",
            "test_who_asks_for_room_first_misses_nothing_however_long_a_reader_pauses",
        ),
        badly=by(
            OUTLET,
            "test_a_reader_that_has_gone_is_no_error",
            "test_a_stream_that_takes_no_more_is_told_once_with_the_systems_word",
        ),
        frozen=by(UNREAD, "test_a_lost_node_is_replaced_and_a_stop_is_heard_while_nobody_reads"),
        never=by(OUTLET, "test_at_the_end_a_reader_that_never_comes_is_not_waited_for"),
    ),
    Row.alike(
        "runs.folder:hold runs.folder:is_held",
        "the launcher's lock on its run",
        Cannot("tried without waiting"),
    ),
    Row(
        functions="api.listing:_turns",
        who="launcher logs --follow, for the run's end",
        ends="the outcome, the launcher's end, Ctrl-C",
        limit="none: as long as the run",
        well=by(RUN_LOCAL, "test_a_detached_run_ends_by_itself_and_logs_follow_it_to_its_end"),
        badly=by(RUN_LOCAL, "test_a_detached_run_is_listed_followed_and_stopped_from_elsewhere"),
        frozen=Cannot("a person looks on: Ctrl-C; it holds up nobody"),
        never=Cannot("a run that is not there is refused before"),
    ),
    Row(
        functions="api.python:RunHandle.wait api.python:RunHandle.stop",
        who="a caller in Python, for the run's end",
        ends="the outcome, its timeout, an exception such as KeyboardInterrupt",
        limit="the caller's timeout; none without: as long as the run",
        well=by(PYTHON, "test_a_run_is_followed_to_its_typed_outcome_and_found_again"),
        badly=by(PYTHON, "test_a_failed_training_is_an_outcome_that_names_its_rank"),
        frozen=by(
            PYTHON,
            "test_the_callers_signals_streams_and_folder_stay_its_own",
            "test_an_interrupted_wait_leaves_the_run_alone",
        ),
        never=by(PYTHON, "test_a_run_that_is_not_there_is_named"),
    ),
    Row(
        functions="api.python:_call",
        who="a caller in Python, for the launcher that starts its run",
        ends="the end of its stdout; an exception interrupts it, and ends it after 1 s",
        limit="that of the submission; Ctrl-C",
        well=by(PYTHON, "test_a_run_is_followed_to_its_typed_outcome_and_found_again"),
        badly=by(PYTHON, "test_what_a_run_cannot_have_is_an_error_of_the_launcher"),
        frozen=by(PYTHON, "test_what_was_being_started_ends_when_the_start_is_interrupted"),
        never=by(PYTHON, "test_what_a_run_cannot_have_is_an_error_of_the_launcher"),
    ),
    Row(
        functions="targets.background:in_background targets.background:in_background.tell",
        who="launcher run --detach, for the background's first word",
        ends="the word, or the background's end",
        limit="that of the submission; Ctrl-C",
        well=by(STAND, "test_a_background_that_dies_or_says_nothing_does_not_hold_up_its_parent"),
        badly=by(STAND, "test_a_background_that_dies_or_says_nothing_does_not_hold_up_its_parent"),
        frozen=Cannot("a person waits, and has the pid in launcher.json; Ctrl-C ends the wait"),
        never=by(STAND, "test_a_background_that_dies_or_says_nothing_does_not_hold_up_its_parent"),
    ),
    Row(
        functions="""targets.proc:_read_end targets.hosts.program.processes:read_output
            doctor.program:_output""",
        who="anybody, for a short command, also one of Slurm",
        ends="its end",
        limit="the caller's timeout_s, then SIGKILL; in the launcher KILL_LIMIT_S on top",
        well=by(LOCAL, "test_the_torch_of_another_interpreter_is_read"),
        badly=by(LOCAL, "test_an_interpreter_without_torch_is_named_with_the_fix"),
        frozen=by(
            STAND,
            "test_nodes_of_an_engine_that_stands_still_are_not_told_as_ended",
            "test_a_command_that_outlives_sigkill_is_left_behind",
        )
        + by("launcher/targets/slurm/test_client.py::", "test_a_command_that_hangs_is_given_up"),
        never=by(
            "launcher/",
            "targets/hosts/test_examine.py::test_an_engine_that_is_not_there_is_told_as_empty",
        ),
    ),
    Row.alike(
        """targets.docker.in_image:_enter_venv targets.docker.in_image:_pip_install
            targets.docker.in_image:facts""",
        "a step of a build, for pip; the engine, for what it prints",
        Cannot("a person looks on: Ctrl-C ends the build, and the engine then ends its step"),
    ),
    Row.alike(
        """commands.doctor:_doctor commands.env:_env targets.hosts.room:_show_hosts
            commands.jobs:_render commands.runs:_ps commands.runs:_status
            commands.runs:_report commands.schema:_schema commands.check:_check
            commands.completion:_completion
            api.listing:show_logs __main__:say __main__:_flush __main__:_end_at_once
            commands.parser:Parser._print_message""",
        "a command, for whoever reads it (check: writes to it)",
        SHOWN,
    ),
    Row.alike(
        "job.schema:resolve api.joining:_take_index",
        "nobody: loops over what is given, until a free name or the end of a chain",
        Cannot("every turn takes one from what there is"),
    ),
    Row.alike(
        "targets.by_hand:read_local_addr",
        "a command, for a route to the endpoint",
        Cannot("UDP: no packet is sent, the kernel answers"),
    ),
    Row.alike(
        """doctor.program:measure doctor.program:_check_shared doctor.program:resolve
            doctor.program:resolve.look doctor.program:""",
        "the probe in a node, for the other nodes",
        Cannot("it is a job's worker: the doctor's limit stops its run (probe_run.run_probe)"),
    ),
)

TABLE: tuple[Row, ...] = (*IN_THE_NODE, *OF_ROUNDS, *LAUNCHER, *OF_TARGETS)
