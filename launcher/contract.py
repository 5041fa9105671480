"""Names shared by the launcher, the node and the training: variables, folders, files, labels.

``train/worker_env.py`` repeats the names it needs, because ``train`` never imports
``launcher``; a test holds both equal. Scripts that know nothing of these names need none.
"""

from __future__ import annotations

# -- variables that the launcher sets for every worker -----------------------------------
RUN_ID = "LAUNCHER_RUN_ID"
"""The run's identity; on local processes it is also the label by which they are found."""
NODE_INDEX = "LAUNCHER_NODE_INDEX"
"""This node's place in the plan, 0-based and stable; not the node rank of a rendezvous."""
INCARNATION = "LAUNCHER_INCARNATION"
"""How many times this node index was replaced before, 0-based."""
ATTEMPT = "LAUNCHER_ATTEMPT"
"""How many times the launcher started all nodes anew before, 0-based."""
RDZV_BACKEND = "LAUNCHER_RDZV_BACKEND"
RDZV_ENDPOINT = "LAUNCHER_RDZV_ENDPOINT"
PROGRESS = "LAUNCHER_PROGRESS"
"""``bar`` where a terminal shows rank 0, ``lines`` where none does."""
STOP_GRACE_S = "LAUNCHER_STOP_GRACE_S"
"""Seconds between the request to stop and the kill."""
RUN_DIR = "RUN_DIR"
"""The run folder as the node sees it."""
CHECKPOINT_DIR = "CHECKPOINT_DIR"
"""Where checkpoints go and are resumed from; may outlive the run."""

# -- paths inside a container --------------------------------------------------------------
CONTAINER_RUN_DIR = "/launcher/run"
CONTAINER_CHECKPOINT_DIR = "/launcher/checkpoints"

# -- files of the run folder ---------------------------------------------------------------
PLAN_FILE = "plan.json"
OUTCOME_FILE = "outcome.json"
"""Written by the launcher alone."""
METRICS_FILE = "metrics.json"
"""Written atomically by rank 0 of the training: a flat JSON object of numbers and strings."""
ARTIFACT_FILE = "artifact.sh"
"""What was submitted, as the shell lines that would do the same by hand; secrets by name."""
LAUNCHER_LOG_FILE = "launcher.log"
NODES_DIR = "nodes"
CONSOLE_FILE = "console.log"
"""A node's own output: the agent's lines, and every worker's behind a ``[node/rank] `` prefix."""
CHECKPOINTS_DIR = "checkpoints"
"""CHECKPOINT_DIR of a job that names none."""
LATEST_LINK = "latest"

# -- labels of images, containers and networks ----------------------------------------------
LABEL_RUN_ID = "launcher.run-id"
LABEL_JOB = "launcher.job"
LABEL_NODE_INDEX = "launcher.node-index"
LABEL_INCARNATION = "launcher.incarnation"
LABEL_ATTEMPT = "launcher.attempt"
LABEL_RUN_DIR = "launcher.run-dir"
LABEL_TORCH = "launcher.torch-version"
LABEL_CUDA = "launcher.cuda-version"
