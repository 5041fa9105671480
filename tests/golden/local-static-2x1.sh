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
export LAUNCHER_RDZV_BACKEND=static
export LAUNCHER_RDZV_ENDPOINT=127.0.0.1:23456
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[0/${rank}] '
export LAUNCHER_MAX_WORLD_SIZE=2
exec /opt/venv/bin/python -m torch.distributed.run \
  --nnodes=2 \
  --nproc-per-node=1 \
  --rdzv-backend=static \
  --master-addr=127.0.0.1 \
  --master-port=23456 \
  --node-rank=0 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=0 \
  --local-addr=127.0.0.1 \
  '--log-dir=/work space/runs/digits-0a1b2c/nodes/0/0' \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=30 \
  -m \
  train
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
export LAUNCHER_RDZV_BACKEND=static
export LAUNCHER_RDZV_ENDPOINT=127.0.0.1:23456
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[1/${rank}] '
export LAUNCHER_MAX_WORLD_SIZE=2
exec /opt/venv/bin/python -m torch.distributed.run \
  --nnodes=2 \
  --nproc-per-node=1 \
  --rdzv-backend=static \
  --master-addr=127.0.0.1 \
  --master-port=23456 \
  --node-rank=1 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=0 \
  --local-addr=127.0.0.1 \
  '--log-dir=/work space/runs/digits-0a1b2c/nodes/1/0' \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=30 \
  -m \
  train
) &
pids="$pids $!"
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
