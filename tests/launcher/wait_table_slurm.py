"""The part of the table of waits that is of Slurm."""

from __future__ import annotations

from tests.launcher.wait_table_words import Cannot, Row, by

DOCTOR, ON_CLUSTER = "launcher/targets/slurm/test_doctor.py::", "slurm/test_doctor.py::"
FAULTS, NODES = "slurm/test_faults.py::", "slurm/test_lost_nodes.py::"

OF_SLURM = (
    Row(
        functions="targets.slurm.doctor_job:_TestJob._wait_for",
        who="doctor, for what a test job that has ended wrote into the shared folder",
        ends="this machine sees the file",
        limit="NOTICED_WITHIN_S",
        well=by(DOCTOR, "test_an_answer_that_this_machine_never_sees_is_given_up"),
        badly=by(ON_CLUSTER, "test_the_test_job_tells_what_a_node_sees_and_what_it_lacks"),
        frozen=by(DOCTOR, "test_an_answer_that_this_machine_never_sees_is_given_up"),
        never=by(ON_CLUSTER, "test_a_test_job_that_does_not_start_is_taken_back"),
    ),
    Row(
        functions="""targets.slurm.target:SlurmTarget._has_ended
            targets.slurm.target:SlurmTarget._wait_gone""",
        who="launcher stop, for the last words of the scripts, then for the queue",
        ends="each script has ended, and the queue knows no job any more",
        limit="the grace and STOP_SLACK_S, then END_LIMIT_S after scancel",
        well=by(FAULTS, "test_a_run_whose_launcher_was_killed_is_found_and_stopped"),
        badly=by(NODES, "test_a_run_that_waits_for_drained_nodes_says_so_and_is_stopped_at_once"),
        frozen=by(FAULTS, "test_an_srun_that_starts_nothing_is_ended_by_stop"),
        never=by(FAULTS, "test_an_srun_that_starts_nothing_is_ended_by_stop"),
    ),
    Row.alike(
        "targets.slurm.queue_watch:QueueWatch._look",
        "nobody: a pause of its own thread between two questions",
        Cannot("its process ends it"),
    ),
)
