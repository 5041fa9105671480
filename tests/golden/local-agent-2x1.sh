#!/bin/sh
# One agent per node; ends when all have ended, with the code of one that failed.
unset \
  GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE \
  LT_ACCELERATOR LT_CLI_USED LT_DEVICES LT_NUM_NODES \
  LT_PRECISION LT_STRATEGY MASTER_ADDR MASTER_PORT \
  NODE_RANK PET_LOCAL_ADDR PET_MASTER_ADDR PET_MASTER_PORT \
  PET_MAX_RESTARTS PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE \
  PET_RDZV_BACKEND PET_RDZV_CONF PET_RDZV_ENDPOINT PET_RDZV_ID \
  PET_STANDALONE RANK ROLE_RANK ROLE_WORLD_SIZE \
  TORCHELASTIC_ERROR_FILE TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID \
  TORCHELASTIC_USE_AGENT_STORE WORLD_SIZE
mkdir -p \
  '/work space/runs/digits-0a1b2c' \
  '/work space/runs/digits-0a1b2c/checkpoints' \
  '/work space/runs/digits-0a1b2c/nodes/0/0' \
  '/work space/runs/digits-0a1b2c/nodes/1/0'
# The node agent: a Python archive.
[ -s '/work space/runs/digits-0a1b2c/agent.pyz' ] || /venv/bin/python -P -m launcher.targets.agent_archive --compiled >'/work space/runs/digits-0a1b2c/agent.pyz'
[ -s '/work space/runs/digits-0a1b2c/token' ] || (umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' >'/work space/runs/digits-0a1b2c/token')  # What connections must know.
# What each node's agent is told. Workers' output:
# nodes/<node>/<incarnation>/attempt-<n>/rank-<rank>/ of the run folder.
cat >'/work space/runs/digits-0a1b2c/nodes/0/0/node-plan.json' <<'END'
{"schema": 1, "node": {"node_index": 0, "name": "digits-0a1b2c-0", "local_addr": "127.0.0.1", "min_nodes": 2, "max_nodes": 2, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "127.0.0.1", "endpoint_port": 23456, "id": "digits-0a1b2c", "is_host": true, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/work space/runs/digits-0a1b2c/checkpoints"]]}, "command": ["-m", "train"], "workdir": "/work space", "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/work space/runs/digits-0a1b2c"], ["CHECKPOINT_DIR", "/work space/runs/digits-0a1b2c/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["GLOO_SOCKET_IFNAME", "lo"], ["LAUNCHER_NODE_INDEX", "0"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "127.0.0.1:23456"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[0/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "2"]], "log_dir": "/work space/runs/digits-0a1b2c/nodes/0/0"}, "settings": {"stores": [{"host": "127.0.0.1", "port": 23456, "node_index": 0}], "hang_max_s": 31536000.0, "tee": false}}
END
cat >'/work space/runs/digits-0a1b2c/nodes/1/0/node-plan.json' <<'END'
{"schema": 1, "node": {"node_index": 1, "name": "digits-0a1b2c-1", "local_addr": "127.0.0.1", "min_nodes": 2, "max_nodes": 2, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "127.0.0.1", "endpoint_port": 23456, "id": "digits-0a1b2c", "is_host": false, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/work space/runs/digits-0a1b2c/checkpoints"]]}, "command": ["-m", "train"], "workdir": "/work space", "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/work space/runs/digits-0a1b2c"], ["CHECKPOINT_DIR", "/work space/runs/digits-0a1b2c/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["GLOO_SOCKET_IFNAME", "lo"], ["LAUNCHER_NODE_INDEX", "1"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "127.0.0.1:23456"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[1/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "2"]], "log_dir": "/work space/runs/digits-0a1b2c/nodes/1/0"}, "settings": {"stores": [{"host": "127.0.0.1", "port": 23456, "node_index": 0}], "hang_max_s": 31536000.0, "tee": false}}
END
(  # node 0
cd '/work space' || exit
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=digits-0a1b2c
export RUN_DIR='/work space/runs/digits-0a1b2c'
export CHECKPOINT_DIR='/work space/runs/digits-0a1b2c/checkpoints'
export LAUNCHER_ATTEMPT=0
export LAUNCHER_STOP_GRACE_S=30
export LAUNCHER_PROGRESS=lines
export GLOO_SOCKET_IFNAME=lo
export LAUNCHER_NODE_INDEX=0
export LAUNCHER_INCARNATION=0
export LAUNCHER_RDZV_BACKEND=roster
export LAUNCHER_RDZV_ENDPOINT=127.0.0.1:23456
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[0/${rank}] '
export LAUNCHER_MAX_WORLD_SIZE=2
exec /opt/venv/bin/python '/work space/runs/digits-0a1b2c/agent.pyz' '/work space/runs/digits-0a1b2c/nodes/0/0/node-plan.json'
) &
pids="$pids $!"
(  # node 1
cd '/work space' || exit
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=digits-0a1b2c
export RUN_DIR='/work space/runs/digits-0a1b2c'
export CHECKPOINT_DIR='/work space/runs/digits-0a1b2c/checkpoints'
export LAUNCHER_ATTEMPT=0
export LAUNCHER_STOP_GRACE_S=30
export LAUNCHER_PROGRESS=lines
export GLOO_SOCKET_IFNAME=lo
export LAUNCHER_NODE_INDEX=1
export LAUNCHER_INCARNATION=0
export LAUNCHER_RDZV_BACKEND=roster
export LAUNCHER_RDZV_ENDPOINT=127.0.0.1:23456
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[1/${rank}] '
export LAUNCHER_MAX_WORLD_SIZE=2
exec /opt/venv/bin/python '/work space/runs/digits-0a1b2c/agent.pyz' '/work space/runs/digits-0a1b2c/nodes/1/0/node-plan.json'
) &
pids="$pids $!"
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
