"""Names shared by the launcher, the node and the training: variables, folders, files, labels; the
oldest torch; variables that workers do not get.

``fabric_train/worker_env.py`` repeats the names it needs, because ``train`` never imports
``launcher``; a test holds both equal. Scripts that know nothing of these names need none.
"""

from __future__ import annotations

# -- variables that the launcher sets for every worker -----------------------------------
RUN_ID = "LAUNCHER_RUN_ID"
"""The run's identity; on local processes it is also the label by which they are found."""
NODE_INDEX = "LAUNCHER_NODE_INDEX"
"""This node's place in the plan, 0-based and stable; not the node rank of a rendezvous."""
MAX_WORLD_SIZE = "LAUNCHER_MAX_WORLD_SIZE"
"""Workers of the job when it has all its nodes; the world size may be smaller."""
INCARNATION = "LAUNCHER_INCARNATION"
"""How many times this node index was replaced before, 0-based."""
ATTEMPT = "LAUNCHER_ATTEMPT"
"""How many times the launcher started all nodes anew before, 0-based."""
RDZV_BACKEND = "LAUNCHER_RDZV_BACKEND"
RDZV_ENDPOINT = "LAUNCHER_RDZV_ENDPOINT"
PROGRESS = "LAUNCHER_PROGRESS"
"""``bar`` if a terminal shows rank 0, else ``lines``."""
STOP_GRACE_S = "LAUNCHER_STOP_GRACE_S"
"""Seconds between the request to stop and the kill."""
NODE_DIR = "LAUNCHER_NODE_DIR"
"""This incarnation's folder inside RUN_DIR, set by the agent: the place of the stop files."""
NODE_ATTEMPT = "LAUNCHER_NODE_ATTEMPT"
"""Which start of this incarnation's workers this is, 0-based, set by the agent."""
AGENT_SOCKET = "LAUNCHER_AGENT_SOCKET"
"""Path of the Unix socket at which the agent tells workers of losses and of their next world."""
JOINS = "LAUNCHER_JOINS"
"""``1``: a running group will let this node in. RANK and WORLD_SIZE are what is expected then; the
agent tells the true ones at its socket."""
HEARTBEAT = "LAUNCHER_HEARTBEAT"
"""The worker's heartbeat file, set by the agent; laid out as ``HEARTBEAT_FORMAT``."""
DEBUGGER = "LAUNCHER_DEBUGGER"
"""``pdb``, ``editor`` or ``none``: what ``breakpoint()`` does in this worker; set by the agent of a
run with ``--debug``, and gone before the script begins."""
ASKED_FILE = "LAUNCHER_ASKED_FILE"
"""Path of a file that exists once the agent has asked this worker to end, set by the agent. While
it is missing, a SIGTERM came from elsewhere, such as Slurm's to all processes of a step: a stop
request follows, and after the commit the agent's own SIGTERM."""
GENERATION = "LAUNCHER_GENERATION"
"""The generation of this membership, set by the agent; absent in a static group."""
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""``1`` always: else a restart reuses the old store, and 11 of 11 quick ones hung or failed."""
RUN_DIR = "RUN_DIR"
"""The run folder as the node sees it."""
CHECKPOINT_DIR = "CHECKPOINT_DIR"
"""Where checkpoints go and are resumed from; may outlive the run."""

# -- variables that a pod's manifest sets, from the downward API ------------------------------
POD_NAME = "POD_NAME"
"""Used instead of the host name, which is the machine's if the pod uses the machine's network."""
POD_IP = "POD_IP"
"""Used instead of the pod's name, which may not resolve before the pod is ready."""

# -- variables that an operator, an outer torchrun or Fabric may have left ----------------------
NNODES = "PET_NNODES"
NPROC_PER_NODE = "PET_NPROC_PER_NODE"
NODE_RANK = "PET_NODE_RANK"
PLACE_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
)
"""They tell a worker its place. torchrun sets them, so no job may."""
STALE_VARIABLES = (
    *PLACE_VARIABLES,
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    *("PET_STANDALONE", NNODES, NPROC_PER_NODE, NODE_RANK),
    *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF"),
    *("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_MAX_RESTARTS", "PET_LOCAL_ADDR"),
    *("LT_CLI_USED", "LT_ACCELERATOR", "LT_DEVICES", "LT_NUM_NODES", "LT_STRATEGY"),
    "LT_PRECISION",
)
"""Taken out of a node's environment: they would silently override the plan. An operator's values
count pods, torchrun's count workers."""
ENGINE_PREFIXES = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_STEP", "SLURM_DISTRIBUTION"),
    *("SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_GPU_BIND", "SLURM_SRUN_", "SLURM_LAUNCH_NODE_"),
    *("SLURM_MPI_TYPE", "SLURM_PMI", "SLURM_HET_", "SLURM_KILL_BAD_EXIT", "SRUN_", "SBATCH_"),
    *("PMI_", "PMI2_", "PMIX_", "OMPI_", "ORTE_", "PRTE_", "HYDI_", "PALS_"),
    *("MPI_LOCAL", "MPIEXEC_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_", "FLUX_TASK_", "FLUX_PMI"),
    *("PBS_TASKNUM", "PBS_NODENUM"),
)
"""Prefixes of variables that tell an engine's task, here the agent, which one it is. They are taken
out too: Lightning, accelerate and MPI would take them for the worker's. Variables about the job,
such as SLURM_JOB_ID, and about its GPUs stay."""
LINE_PREFIX = "[{node_index}/${{rank}}] "
"""The prefix of a worker's line on its node's console, as a template for torch."""
LINE_PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"

# -- a variable that the launcher reads --------------------------------------------------------
ENGINE = "LAUNCHER_ENGINE"
"""``torchrun`` switches the node agent off for every job."""

# -- a variable that a batch script sets for its agents ------------------------------------------
STOP_FILE = "LAUNCHER_STOP_FILE"
"""Path of a file in a folder that all nodes see. Once it holds a reason, a value of
``causes.Cause``, the agent stops its node as for a signal. An empty file asks for nothing."""

LOOPBACK = "127.0.0.1"
"""Where processes of one machine meet; on no network."""

# -- paths inside a container --------------------------------------------------------------
CONTAINER_RUN_DIR = "/launcher/run"
CONTAINER_CHECKPOINT_DIR = "/launcher/checkpoints"
CODE_DIR = "code"
"""In a run's folder, where its code is copied there."""
CONTAINER_CODE = "/launcher/code"
CONTAINER_AGENT = "/launcher/agent.pyz"
"""The node agent's archive: the image's own, or mounted read-only."""
CONTAINER_AGENT_VERSION = "/launcher/agent.version"
"""One line that says which agent an image holds."""
TERMINATION_LOG = "/dev/termination-log"
"""A pod's status shows this file after the end: the node's outcome, even without shared folders."""
TERMINATION_LIMIT_BYTES = 4096
CONTAINER_TOKEN = "/launcher/token"
"""Where a pod has the run's Secret, if there is one: a folder with ``TOKEN_FILE``."""
CONTAINER_TASK = "/launcher/node-plan.json"
"""The task that all pods of a job share; each agent finds out which node it is."""

# -- what an agent says that ended well before the run was over -------------------------------
OTHERS_GO_ON = "its work was done; the others may still go on"

# -- what a host's keeper says of a node that it ended ------------------------------------------
LAUNCHER_GONE = "its launcher was gone"

OLDEST_TORCH = (2, 4)
"""The oldest torch that is supported; ``make compat`` shows that it works."""

# -- files of the run folder ---------------------------------------------------------------
PLAN_FILE = "plan.json"
TOKEN_FILE = "token"
"""What connections between the run's agents prove to know; only its owner may read it."""
JOB_FILE = "job.json"
OUTCOME_FILE = "outcome.json"
"""Written by the launcher alone."""
METRICS_FILE = "metrics.json"
"""Written atomically by rank 0 of the training: a flat JSON object of numbers and strings."""
ARTIFACT_FILE = "artifact.sh"
"""What was submitted, as the shell lines that would do the same by hand; secrets by name."""
LAUNCHER_LOG_FILE = "launcher.log"
STARTS_AGAIN = "launcher: the job starts again"
"""A line in the log of a scheduler's job: what stands before it is of an earlier start."""
STOP_RUN_FILE = "stop-run"
SCALE_REQUEST = "scale-request"
RUN_REQUESTS = (STOP_RUN_FILE, SCALE_REQUEST)
"""Files by which a terminal asks the launcher of a run, which removes them when it has acted."""
HOLD_USER = ".in-use"
"""In a hold's run folder: which run uses the nodes (the fields of ``User``); empty if none does.

The launcher of that run holds a lock on it, and touches it every ``LEASE_S`` seconds or more often.
On hosts each host has such a file. The dot in its name keeps it from being copied back."""
HOLD_READY = "ready"
"""In a held node's folder: the fields of ``Ready``, once the node has imported torch and takes
runs. The node touches it every ``ALIVE_S`` seconds."""
HOLD_START = ".start-request"
"""In a held node's folder: the fields of ``StartRun``. The held node removes it and starts the
run's node, whose record is in ``record_dir``. At the end the record has the exit code."""
HOLD_END = ".end-request"
"""In a held node's folder: the fields of ``EndRun``. The held node removes it."""
FOLLOWED_FILE = ".followed"
"""In a node's folder on a host, beside its incarnations. Its time is when the host last heard the
launcher that follows the run, by the clock since the boot."""
NODES_DIR = "nodes"
AGENT_ARCHIVE = "agent.pyz"
"""The node agent of this run, in RUN_DIR."""
NODE_TASK_FILE = "node-plan.json"
"""What the agent is started with, in the node's folder: its plan and its settings."""
CONSOLE_FILE = "console.log"
"""A node's own output: the agent's lines, and every worker's behind a ``[node/rank] `` prefix."""
CHECKPOINTS_DIR = "checkpoints"
"""CHECKPOINT_DIR of a job that names none."""
LATEST_LINK = "latest"
LEDGER_DIR = "ledger"

# -- what the agent leaves in a node's folder, nodes/<index>/<incarnation>/ ---------------------
# OUTCOME_FILE is the node's own there: see ``ending.py``.
NODE_OUTCOME_SCHEMA = 3
"""2 called the cause ``reason``."""
ALIVE_FILE = "alive"
"""Touched every ``ALIVE_S`` seconds by the supervisor of a node with ``meet_dir``: nobody else
watches it."""
ALIVE_S = 5.0
VITALS_FILE = "vitals.json"
"""Replaced by the agent every ``VITALS_S`` seconds: the fields of ``Vitals`` of
``contract/reports/vitals``."""
VITALS_S = 5.0
ATTEMPT_FOLDER = "attempt-{attempt}"
"""One start of this node's workers, 0-based; an incarnation never uses a number again."""
RANK_FOLDER = "rank-{rank}"
"""One worker's folder inside it, by global rank."""
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
ERROR_FILE = "error.json"
"""The uncaught exception, laid out as torch does: ``{"message": {"message", "extraInfo"}}``."""
EXIT_FILE = "exit.json"
"""How the worker ended, well or not: the fields of ``WorkerExit``."""
ENDED_FILE = "ended"
"""Written when the script ends by itself: its exit code. Its interpreter ends later."""
DEBUGGER_FILE = "debugger"
"""Where the node's debugger is reached: the path of a socket, or the port of debugpy."""
END_OF_INPUT = "\x04"
"""A line that tells pdb that the person has typed Ctrl-D."""
ANSWERED = "\0"
"""Follows a prompt of pdb once the person has typed a line."""
LOOK_REQUEST = "look-request"
"""Written atomically by whoever asks for a look at the workers: the fields of ``LookRequest`` of
``contract/reports/look``. The agent removes it."""
LOOKS_DIR = "looks"
"""Holds a folder for each look."""
LOOK_FILE = "look.json"
"""The fields of ``Look``, written last: once it exists, the look is complete."""
PROFILE_REQUEST = "profile-request"
"""What the agent asks a training that answers stop requests: ``{"id", "steps"}``. All ranks trace
the same steps, and each writes TRACE into the look's folder. The agent removes the request."""
TRACE = "rank-{rank}.trace.json"
"""What torch.profiler wrote."""

# -- stopping: the supervisor asks, the training commits and answers; files in NODE_DIR -----------
STOP_READY_FILE = "stop-ready"
"""The training creates it to say that it answers requests; the agent removes it at each start."""
STOP_REQUEST_FILE = "stop-request"
"""The supervisor asks: ``{"reason", "at", "deadline"}``, times in seconds since the epoch."""
STOP_REASON_RESIZE = "resize"
"""The reason of a request that lets waiting nodes in; all others are causes."""
STOP_ACK_FILE = "stop-ack"
"""The training answers with what it committed: ``{"step": int, "checkpoint": str}``. SIGTERM
comes after it, or when the deadline is near; without a request SIGTERM means: exit now."""

# -- heartbeat -----------------------------------------------------------------------------------
HEARTBEAT_FORMAT = "<8siqqd"
"""One beat, as ``struct`` has it: magic, pid, number of this beat, optimizer steps, time of this
beat in seconds of CLOCK_MONOTONIC."""
HEARTBEAT_CHECKSUM_FORMAT = "<I"
"""What follows a beat: its CRC-32, by which a reader knows that it was written whole."""
HEARTBEAT_SLOTS = 2
"""Beats in the file, each with its checksum; beat n is written into slot n % 2."""
HEARTBEAT_MAGIC = b"LNBEAT3\0"

# -- ledger --------------------------------------------------------------------------------------
LEDGER_SCHEMA = 1
AGENT_LEDGER = "agent-{node_index}-{incarnation}.jsonl"
"""The agent's part, in LEDGER_DIR, one JSON object in each line: ``schema``, ``source``
("agent"), ``node_index``, ``incarnation``, ``attempt``, ``event``, ``at`` (epoch), ``monotonic_s``,
and the values of the event. The values of a hang prove it: ``beat`` is the number of the worker's
last beat, ``beat_at`` its time, ``read_at`` the times of the two reads that both found this beat
(all by the clock of ``monotonic_s``), ``cpu_share`` the share of a core that each worker of the
node used between the two reads. Events: agent-started, installed (versions: torch, Python, NCCL,
Driver, code; hardware: CPUs, memory, GPUs), rendezvous-began, rendezvous-ended (rank and
world_size, which count nodes), met-again (cause, generation, rank, world_size: the group has
formed again, and the workers go on in it), healed (generation, step, paused_s: their first step
there has ended), workers-started, first-step, worker-ended (rank, exit_code, cause),
hang (rank, silent_s, limit_s, steps, beat, beat_at, read_at, cpu_share), gpu-wait (waited_s),
restart (cause; detail: words for people, where a worker of this node is to blame),
stop-requested (reason), stop-acknowledged (step), node-lost (detail), store-lost (detail),
agent-ended (cause, exit_code)."""
TRAIN_LEDGER = "train-{node_index}-{incarnation}-{attempt}-{rank}.jsonl"
"""The training's part, written by its rank 0, beside the agents'; ``attempt`` is NODE_ATTEMPT. Each
line has the keys of the agent's, ``source`` "train" and ``rank``. Events: train-started
(world_size, generation, heals: it goes on among other nodes in the same processes), loaded (step),
planned (step, until), first-step (step), progress (step, loss, lr or null, save_stall_s and samples
since the event before), saved (step, blocked_s, write_s, bytes), save-failed (step, error),
stop-agreed (step, reason), trained (step), train-ended (step). Steps are counted over all starts.
The time between the events loaded, progress and trained is training."""

# -- labels of images, containers and networks ----------------------------------------------
LABEL_RUN_ID = "launcher.run-id"
LABEL_JOB = "launcher.job"
LABEL_NODE_INDEX = "launcher.node-index"
LABEL_INCARNATION = "launcher.incarnation"
LABEL_ATTEMPT = "launcher.attempt"
LABEL_RUN_DIR = "launcher.run-dir"
LABEL_TORCH = "launcher.torch-version"
LABEL_CUDA = "launcher.cuda-version"
LABEL_AGENT = "launcher.agent-version"
