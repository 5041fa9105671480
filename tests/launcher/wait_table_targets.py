"""The part of the table of waits that is of Docker, hosts and their keepers, and Kubernetes."""

from __future__ import annotations

from tests.launcher.wait_table_slurm import OF_SLURM
from tests.launcher.wait_table_starter import OF_STARTER
from tests.launcher.wait_table_words import Cannot, Row, by

NOBODY = Cannot("nobody is waited for: a pause between two looks, as long as its process lives")

STAND, PLACE = "launcher/test_standstill.py::", "launcher/code/test_place.py::"
ENGINE, DOCKER = (
    "launcher/targets/docker/test_engine.py::",
    "launcher/targets/docker/test_target.py::",
)
PLAY, FAULTS = (
    "launcher/manifests/test_play_docker.py::",
    "launcher/targets/docker/test_faults.py::",
)
PLAY_FAULTS = "launcher/manifests/test_play_faults.py::"
SSH, COPY = "launcher/targets/hosts/test_ssh_sessions.py::", "launcher/targets/hosts/test_copy.py::"
LEASES, LATE = (
    "launcher/targets/hosts/test_leases.py::",
    "launcher/targets/hosts/test_late_start.py::",
)
FACTS, EXAMINE = (
    "launcher/targets/hosts/test_facts.py::",
    "launcher/targets/hosts/test_examine.py::",
)
REVIVE, REQUESTS = (
    "launcher/targets/hosts/test_revive.py::",
    "launcher/targets/hosts/test_requests.py::",
)
ENDINGS, HARD = "hosts/test_endings.py::", "hosts/test_hard_faults.py::"
K8S_FAULTS = "launcher/targets/kubernetes/test_faults.py::"
CLUSTER, ALONE = (
    "launcher/targets/kubernetes/test_target.py::",
    "launcher/targets/kubernetes/test_alone.py::",
)
ELSEWHERE = "hosts/test_elsewhere.py::"
STILL = "test_an_engine_that_stands_still_after_its_first_word_is_an_error"
SILENT_CLUSTER = "test_a_cluster_that_accepts_and_never_answers_is_asked_once"
AWAY = "test_ctrl_c_with_the_engine_away_says_what_runs_on_and_the_command_that_ends_it"
COMES_BACK = "test_an_engine_that_comes_back_while_the_removal_is_tried_leaves_nothing"
STUCK_IMAGE = "test_an_image_that_gets_stuck_on_its_way_is_an_error"

OF_DOCKER = (
    Row(
        functions="""targets.docker.engine:Engine.api targets.docker.engine:Engine.read_info
            targets.docker.engine:Engine.read_image_config
            targets.docker.engine:Engine.list_containers targets.docker.engine:Engine._networks
            targets.docker.engine:Engine.read_ending targets.docker.engine:Engine.create
            targets.docker.engine:Engine.create.create
            targets.docker.engine:Engine.create.create_network targets.docker.engine:Engine._start
            targets.docker.engine:Engine.end targets.docker.engine:Engine.remove
            targets.docker.engine:Engine._remove_network targets.docker.engine:at_once
            targets.docker.build:Builder._id_of targets.docker.build:Builder._remove_untagged""",
        who="the launcher, for the Docker engine",
        ends="its answer",
        limit="CONNECT_TIMEOUT_S for its first word, REQUEST_TIMEOUT_S for each request",
        well=by(DOCKER, "test_nodes_meet_by_name_over_the_private_network"),
        badly=by(ENGINE, "test_an_engine_that_refuses_the_connection_is_an_error_with_the_fix"),
        frozen=by(STAND, STILL, "test_a_run_on_an_engine_that_stands_still_ends_as_not_reachable"),
        never=by(
            ENGINE,
            "test_an_engine_that_never_answers_is_an_error_within_seconds",
            "test_an_engine_that_is_not_there_is_an_error_with_the_fix",
        ),
    ),
    Row(
        functions="""code.git:read_git api.planning:PlannedRun._read_code
            api.planning:plan_job api.planning:_in_background""",
        who="the launcher, for what git says of the code",
        ends="git's end",
        limit="LIMIT_S for each command",
        well=by(PLACE, "test_a_script_in_a_repository_takes_it_and_keeps_the_working_folder"),
        badly=by(PLACE, "test_a_git_that_fails_or_hangs_leaves_the_scripts_folder"),
        frozen=by(PLACE, "test_a_git_that_fails_or_hangs_leaves_the_scripts_folder"),
        never=by(PLACE, "test_a_script_outside_of_git_takes_its_own_folder"),
    ),
    Row(
        functions="targets.docker.engine:Engine._until_gone",
        who="whoever stops, for the engine to remove what has ended",
        ends="it is gone",
        limit="SWEEP_LIMIT_S",
        well=by(
            DOCKER, "test_stop_lets_nodes_end_in_their_grace_keeps_their_output_and_leaves_nothing"
        ),
        badly=by(DOCKER, "test_stop_without_grace_kills_at_once"),
        frozen=by(STAND, STILL),
        never=by(DOCKER, "test_stop_may_be_called_again_and_for_a_run_that_is_not_known"),
    ),
    Row(
        functions="""targets.docker.target:Consoles.save targets.docker.target:_follow
            targets.docker.target:_complete""",
        who="the launcher, for a container's output",
        ends="the container's end",
        limit="JOIN_LIMIT_S; the follower is a daemon of its own",
        well=by(DOCKER, "test_the_console_file_holds_every_byte_that_the_node_printed"),
        badly=by(DOCKER, "test_after_kill_9_of_the_launcher_another_call_finds_collects_and_stops"),
        frozen=by(FAULTS, "test_a_node_that_freezes_is_lost_and_joins_again_when_it_wakes"),
        never=by(DOCKER, "test_a_start_that_fails_half_way_leaves_nothing_behind"),
    ),
    Row(
        functions="""manifests.player:Player.play manifests.player:Player._join
            manifests.player:Player._show manifests.player:_read_output""",
        who="launcher play, for its pods",
        ends="an outcome by the operator's rules; Ctrl-C",
        limit="activeDeadlineSeconds, if the manifest has it; LAST_OUTPUT_S for output",
        well=by(PLAY, "test_a_foreign_job_sees_the_environment_that_the_operator_would_give"),
        badly=by(PLAY, "test_the_job_fails_when_restarts_reach_the_backoff_limit"),
        frozen=(
            *by(PLAY, "test_pods_are_restarted_while_nobody_reads"),
            *by(PLAY, "test_an_interrupted_play_leaves_nothing_behind"),
            *by("launcher/manifests/test_play.py::", "test_a_job_ends_at_its_deadline"),
        ),
        never=by(PLAY, "test_an_image_that_is_not_there_is_told_before_anything_is_left"),
    ),
    Row(
        functions="manifests.player:Player.close",
        who="launcher play, for the engine that is to remove its containers",
        ends="they are gone",
        limit="LEAST_TRIES_S; then it says STILL RUNNING, with the commands to type",
        well=by(PLAY, "test_an_interrupted_play_leaves_nothing_behind"),
        badly=by(PLAY_FAULTS, COMES_BACK),
        frozen=by(STAND, STILL),
        never=by(PLAY_FAULTS, AWAY),
    ),
    Row(
        functions="manifests.docker_play:_remove_as_root",
        who="launcher play, for the container that removes what pods' users own",
        ends="its end",
        limit="REMOVE_LIMIT_S",
        well=by(PLAY, "test_a_pod_that_is_removed_is_made_anew"),
        badly=by(STAND, "test_a_container_that_cleans_up_and_never_ends_is_not_waited_for"),
        frozen=by(STAND, "test_a_container_that_cleans_up_and_never_ends_is_not_waited_for"),
        never=by(STAND, "test_a_container_that_cleans_up_and_never_ends_is_not_waited_for"),
    ),
)

TO_HOSTS = (
    Row(
        functions="""targets.hosts.ssh:Session.__init__ targets.hosts.ssh:Session._write
            targets.hosts.ssh:Session.send targets.hosts.ssh:Session.receive
            targets.hosts.ssh:Session.say targets.proc:Conversation._end""",
        who="the launcher, for the program on a host, and the ssh client between them",
        ends="its answer; the end of the connection",
        limit="OPEN_LIMIT_S, then the request's own; a watch: SILENCE_LIMIT_S by its beats",
        well=by(SSH, "test_conversations_that_are_kept_are_used_by_the_next_block"),
        badly=by(SSH, "test_what_goes_wrong_early_is_told_when_it_is_asked_for"),
        frozen=by(
            STAND,
            "test_a_host_that_stands_still_answers_no_question",
            "test_a_host_that_stands_still_takes_nothing",
            "test_a_frozen_shared_connection_is_left_and_the_host_reached_without_it",
        ),
        never=by(STAND, "test_a_host_that_never_says_its_first_word_is_not_waited_for"),
    ),
    Row(
        functions="""targets.hosts.ssh:Ssh.each targets.hosts.ssh:Ssh.open_early
            targets.hosts.ssh:Ssh.sessions
            targets.hosts.doctor:_HostsProbe._diagnose_pairs""",
        who="the launcher, for all hosts at once",
        ends="the last answer, or the last limit",
        limit="the longest of the requests' own",
        well=by(SSH, "test_conversations_are_opened_while_the_launcher_has_other_things_to_do"),
        badly=by(SSH, "test_what_goes_wrong_early_is_told_when_it_is_asked_for"),
        frozen=by(STAND, "test_a_host_that_stands_still_answers_no_question"),
        never=by(STAND, "test_a_host_that_never_says_its_first_word_is_not_waited_for"),
    ),
    Row(
        functions="""targets.hosts.connection:HostLine._run targets.hosts.connection:HostLine.close
            targets.hosts.connection:HostLine.free targets.hosts.target:HostsTarget.bring_output""",
        who="a line of the launcher, for what its host tells",
        ends="the launcher's word; silence, after which the host is reached anew",
        limit="SILENCE_LIMIT_S; FREE_LIMIT_S and 5 s to close; FIRST_WORD_LIMIT_S to look on",
        well=by(ELSEWHERE, "test_a_followed_run_is_seen_scaled_and_stopped_from_another_machine"),
        badly=by(
            ENDINGS,
            "test_a_host_that_loses_its_power_is_waited_for_and_its_node_started_again",
        ),
        frozen=(
            *by(STAND, "test_a_host_that_falls_silent_is_dropped_and_reached_anew"),
            *by(HARD, "test_a_host_that_stands_still_is_lost_and_joins_again_when_it_wakes"),
        ),
        never=by(STAND, "test_a_host_that_takes_long_to_be_reached_is_heard_all_the_same"),
    ),
    Row(
        functions="targets.hosts.connection:copy_once",
        who="the launcher, for all files of a host",
        ends="the host says that it is done",
        limit="COPY_SILENCE_S between two messages",
        well=by(COPY, "test_after_a_cut_the_copy_goes_on_where_it_broke"),
        badly=by(ENDINGS, "test_under_torchrun_a_host_that_loses_its_power_is_a_lost_node"),
        frozen=by(STAND, "test_a_host_that_stands_still_is_not_copied_from_for_ever"),
        never=by(STAND, "test_a_host_that_never_says_its_first_word_is_not_waited_for"),
    ),
    Row.alike(
        "targets.hosts.connection:send_beats.beat",
        "the launcher's beat, between two beats",
        NOBODY,
    ),
    Row(
        functions="targets.hosts.late_start:LateStarts.add.keep_trying",
        who="the launcher, for a host that is away",
        ends="the start; the run's end",
        limit="BACK_LIMIT_S, where the run cannot do without it; else the run's life",
        well=by(LATE, "test_a_node_starts_when_its_host_is_back"),
        badly=by(LATE, "test_a_host_that_refuses_is_asked_once"),
        frozen=by(HARD, "test_a_host_that_stands_still_is_lost_and_joins_again_when_it_wakes"),
        never=by(LATE, "test_a_run_that_needs_the_host_gives_it_up_after_the_limit"),
    ),
    Row(
        functions="targets.hosts.program.requests:ask_launcher",
        who="a host, for the launcher of a run to take up what another machine asks",
        ends="its request is taken up",
        limit="TAKE_UP_LIMIT_S",
        well=by(ELSEWHERE, "test_a_followed_run_is_seen_scaled_and_stopped_from_another_machine"),
        badly=Cannot("of a launcher that has ended, the host refuses the request at once"),
        frozen=Cannot("a launcher that beats no more is none after FOLLOWED_S: as ended badly"),
        never=Cannot("a run that nobody follows is refused at once"),
    ),
    Row(
        functions="""targets.proc:Conversation.read targets.hosts.program.processes:feed
            targets.hosts.program.__main__:read_chunks""",
        who="launcher and host, for the two engines that an image goes between",
        ends="the last part",
        limit="SILENCE_LIMIT_S for each part, SEND_LIMIT_S for the end; IDLE_LIMIT_S there",
        well=by(
            "hosts/test_run_docker.py::",
            "test_an_image_travels_to_hosts_that_lack_it_and_two_hosts_train_together",
        ),
        badly=by(STAND, STUCK_IMAGE),
        frozen=by(STAND, STUCK_IMAGE),
        never=by(STAND, STUCK_IMAGE),
    ),
)

ON_HOSTS = (
    Row(
        functions="""targets.hosts.program.__main__:converse
            targets.hosts.program.__main__:ConversationState.answer_callers
            targets.hosts.program.records:read_frame targets.hosts.program.records:write_frame
            targets.hosts.program.watch:Watch.run targets.hosts.program.watch:Watch._hear
            targets.hosts.program.watch:Watch._tell_done targets.hosts.program.watch:Watch.send_new
            targets.hosts.program.watch:Watch._send_file""",
        who="the program on a host, for its launcher",
        ends="what it says; the end of the stream",
        limit="SIGALRM: IDLE_LIMIT_S between requests, SILENCE_LIMIT_S in a watch",
        well=by(COPY, "test_a_launcher_has_its_conversation_back_in_the_middle_of_a_large_file"),
        badly=by(ENDINGS, "test_a_launcher_whose_network_is_cut_takes_its_nodes_along"),
        frozen=by(COPY, "test_a_launcher_that_never_says_a_word_is_not_waited_for"),
        never=by(COPY, "test_a_launcher_that_never_says_a_word_is_not_waited_for"),
    ),
    Row(
        functions="targets.hosts.program.processes:start_keeper",
        who="a session, for the keeper to take its spec; the keeper, for the spec",
        ends="it is handed over",
        limit="the request's, by SIGALRM; SPEC_LIMIT_S for the keeper",
        well=by(
            STAND,
            "test_a_keeper_that_was_stopped_is_continued_by_whoever_looks_and_tells_its_nodes_end",
        ),
        badly=by(REVIVE, "test_secrets_are_not_kept_for_the_next_keeper"),
        frozen=by(STAND, "test_a_keeper_whose_starter_hangs_does_not_wait_for_ever"),
        never=by(STAND, "test_a_keeper_whose_starter_hangs_does_not_wait_for_ever"),
    ),
    Row(
        functions="""targets.hosts.program.keeper:_Keeper._follow
            targets.hosts.program.keeper:_Keeper._close""",
        who="the keeper, for its node",
        ends="the node's end; the lease's; a request to stop, with its grace and SIGKILL",
        limit="none while the lease lives; SWEEP_LIMIT_S at the end",
        well=by(
            STAND,
            "test_a_keeper_that_was_stopped_is_continued_by_whoever_looks_and_tells_its_nodes_end",
        ),
        badly=by(ENDINGS, "test_a_launcher_that_ends_takes_its_nodes_along"),
        frozen=by(STAND, "test_a_keeper_that_is_stopped_does_not_hold_up_a_stop"),
        never=by(REQUESTS, "test_what_a_node_holds_is_its_own_until_its_grace_is_over"),
    ),
    Row(
        functions="targets.hosts.program.keeper:_Keeper._may_come_back",
        who="the keeper, for Docker to bring its container back",
        ends="it runs again, or is gone",
        limit="BACK_LIMIT_S, MAX_COMEBACKS times; 20 s for each word of the engine",
        well=by("hosts/test_reboot.py::", "test_a_node_outlives_its_engine"),
        badly=by(REVIVE, "test_a_container_that_is_gone_is_not_waited_for"),
        frozen=by(REVIVE, "test_a_node_waits_for_its_engine_and_not_for_ever"),
        never=by(REVIVE, "test_a_node_waits_for_its_engine_and_not_for_ever"),
    ),
    Row(
        functions="targets.hosts.program.requests:end_nodes",
        who="a session that stops, for keepers and their nodes",
        ends="none is left",
        limit="the grace and 5 s, then SIGKILL and 5 s, then it is refused with the pids",
        well=by(ENDINGS, "test_a_run_is_stopped_from_another_terminal"),
        badly=by(STAND, "test_nodes_of_an_engine_that_stands_still_are_not_told_as_ended"),
        frozen=by(STAND, "test_a_keeper_that_is_stopped_does_not_hold_up_a_stop"),
        never=by(STAND, "test_nodes_of_an_engine_that_stands_still_are_not_told_as_ended"),
    ),
    Row(
        functions="""targets.hosts.program.leases:LeaseBook._locked
            targets.hosts.program.leases:LeaseBook._try_lock targets.hosts.program.keeper:revive""",
        who="whoever takes a lease, for the lock; revive: tried without waiting",
        ends="the lock is free: the kernel lets go of it with its holder",
        limit="LOCK_LIMIT_S",
        well=by(LEASES, "test_of_many_who_take_the_same_gpu_at_once_one_gets_it"),
        badly=by(LEASES, "test_one_who_dies_while_the_lock_is_made_shuts_nobody_out"),
        frozen=by(STAND, "test_a_lock_whose_holder_is_frozen_ends_no_node"),
        never=by(LEASES, "test_the_last_lease_takes_its_folder_with_it"),
    ),
    Row(
        functions="""targets.hosts.program.reach:read_reachable
            targets.hosts.program.reach:read_reachable.make_calls
            targets.hosts.program.reach:Listener.answer""",
        who="a host, for others at the addresses that they may have",
        ends="each has answered; SETTLED_S after each host has",
        limit="the request's wait_s",
        well=by(FACTS, "test_a_host_greets_its_callers_while_it_calls_others"),
        badly=by(FACTS, "test_a_listener_with_another_token_is_somebody_else"),
        frozen=by(FACTS, "test_an_address_that_never_answers_of_a_host_that_did_is_not_waited_for"),
        never=by(
            FACTS,
            "test_many_hosts_are_called_with_few_descriptors_and_silent_ones_hold_up_none",
        ),
    ),
    Row(
        functions="targets.hosts.program.reach:find_tokens",
        who="a host, for the others' files in a shared folder",
        ends="all are seen",
        limit="the request's wait_s",
        well=by(EXAMINE, "test_tokens_are_seen_and_go_with_the_folders_that_were_made_for_them"),
        badly=by(EXAMINE, "test_a_folder_that_is_not_there_shows_no_tokens"),
        frozen=Cannot("a file is there or is not: as never came"),
        never=by(EXAMINE, "test_a_folder_that_is_not_there_shows_no_tokens"),
    ),
)

OF_CLUSTERS = (
    Row(
        functions="targets.kubernetes.api:Cluster._request targets.kubernetes.api:Cluster._open",
        who="the launcher, for the API server",
        ends="its answer; a stream's end",
        limit="REQUEST_LIMIT_S for each request, STREAM_SILENCE_S in a stream",
        well=by(CLUSTER, "test_a_log_is_followed_to_its_end", "test_pods_come_change_and_go"),
        badly=by(CLUSTER, "test_what_the_server_refuses_is_told_with_its_words_and_a_fix"),
        frozen=by(STAND, SILENT_CLUSTER),
        never=by(CLUSTER, "test_an_unreachable_server_is_told_with_the_fix"),
    ),
    Row(
        functions="targets.kubernetes.cluster_job:ClusterJob.wait_gone",
        who="whoever stops, for the pods' end",
        ends="none is left",
        limit="the grace and STOP_MARGIN_S",
        well=by(CLUSTER, "test_a_stopped_run_is_deleted_and_its_claims_are_not_touched"),
        badly=by(
            ALONE,
            "test_a_stop_without_a_launcher_deletes_the_job_and_all_that_was_made_for_it",
        ),
        frozen=by(CLUSTER, "test_pods_that_do_not_end_are_told_after_the_limit"),
        never=by(CLUSTER, "test_a_job_that_somebody_deleted_was_stopped_and_is_nobodys_fault"),
    ),
    Row(
        functions="targets.kubernetes.follow:ClusterDriver._insist",
        who="the launcher, for the cluster to end a job",
        ends="it takes the word",
        limit="the grace, LEAST_TRIES_S at least; then STILL RUNNING",
        well=by(K8S_FAULTS, "test_a_cluster_that_comes_back_within_the_grace_still_ends_the_job"),
        badly=by(K8S_FAULTS, "test_a_run_that_this_user_may_not_delete_runs_on_and_is_said_to"),
        frozen=by(K8S_FAULTS, "test_a_run_whose_cluster_is_away_is_not_said_to_be_stopped"),
        never=by(K8S_FAULTS, "test_ctrl_c_twice_with_the_cluster_away_says_that_the_job_runs"),
    ),
    Row(
        functions="targets.kubernetes.watch:PodWatch.wait_endings",
        who="the launcher, for the last events of pods that are gone",
        ends="each has told its end",
        limit="ENDINGS_LIMIT_S",
        well=by(
            K8S_FAULTS, "test_pods_that_a_controller_deletes_leave_their_outcome_and_a_timeline"
        ),
        badly=by(CLUSTER, "test_a_run_is_followed_through_a_lost_pod_to_its_end"),
        frozen=by(K8S_FAULTS, "test_a_run_whose_cluster_is_away_is_not_said_to_be_stopped"),
        never=by(CLUSTER, "test_a_failed_run_says_why_and_keeps_its_object"),
    ),
    Row(
        functions="""targets.kubernetes.logs:LogFollower.finish
            targets.kubernetes.logs:LogFollower._run targets.kubernetes.watch:PodWatch._run""",
        who="the launcher, for the last lines of a pod; its threads, between two tries",
        ends="the log's end",
        limit="LOG_LIMIT_S",
        well=by(CLUSTER, "test_a_log_is_followed_to_its_end"),
        badly=by(CLUSTER, "test_a_log_that_is_cut_anywhere_loses_and_repeats_no_line"),
        frozen=by(STAND, SILENT_CLUSTER),
        never=by(CLUSTER, "test_a_log_that_is_gone_with_its_pod_ends_the_reading"),
    ),
    Row.alike(
        """targets.kubernetes.collector:PodCollector.writes_output
            targets.kubernetes.collector:ConsoleWriter._is_held
            targets.kubernetes.logs:LogFollower._accept""",
        "nobody: a lock that is tried without waiting, a file, and lines that are there",
        Cannot("the kernel answers at once"),
    ),
    Row.alike(
        "targets.kubernetes.kubeconfig:open_client",
        "the launcher, for the login command of the person's context",
        Cannot("it may ask the person at the terminal, who ends it with Ctrl-C"),
    ),
)

ROWS: tuple[Row, ...] = (*OF_DOCKER, *TO_HOSTS, *ON_HOSTS, *OF_CLUSTERS, *OF_SLURM, *OF_STARTER)
