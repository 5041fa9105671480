#!/bin/bash
# One agent per host over ssh; ends when all have ended.
[ -n "$CODE" ] || CODE=/home/me/runs/digits-0a1b2c/code.tar.gz
[ -r "$CODE" ] || { echo 'set CODE=code.tar.gz, made with: tar -czf code.tar.gz -C /home/me .' >&2; exit 2; }
trap 'kill $(jobs -p)' EXIT

# node 0
ssh gpu1 'mkdir -p /home/gpu1/.launcher/runs/digits-0a1b2c/code && tar -xz --no-same-owner -C /home/gpu1/.launcher/runs/digits-0a1b2c/code' <"$CODE"
ssh gpu1 -tt sh -s <<'NODE' &
unset \
  MASTER_ADDR MASTER_PORT RANK LOCAL_RANK \
  GROUP_RANK ROLE_RANK NODE_RANK WORLD_SIZE \
  LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE TORCHELASTIC_RUN_ID \
  TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE \
  PET_STANDALONE PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK \
  PET_RDZV_BACKEND PET_RDZV_ENDPOINT PET_RDZV_ID PET_RDZV_CONF \
  PET_MASTER_ADDR PET_MASTER_PORT PET_MAX_RESTARTS PET_LOCAL_ADDR \
  LT_CLI_USED LT_ACCELERATOR LT_DEVICES LT_NUM_NODES \
  LT_STRATEGY LT_PRECISION
mkdir -p \
  /home/gpu1/.launcher/runs/digits-0a1b2c/nodes/0/0 \
  /home/gpu1/.launcher/checkpoints/digits-0a1b2c
cd /home/gpu1/.launcher/runs/digits-0a1b2c/code/examples || exit
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=digits-0a1b2c
export RUN_DIR=/home/gpu1/.launcher/runs/digits-0a1b2c
export CHECKPOINT_DIR=/home/gpu1/.launcher/checkpoints/digits-0a1b2c
export LAUNCHER_ATTEMPT=0
export LAUNCHER_STOP_GRACE_S=30
export LAUNCHER_PROGRESS=lines
export GLOO_SOCKET_IFNAME=ib0
export NCCL_SOCKET_IFNAME==ib0
export LAUNCHER_NODE_INDEX=0
export LAUNCHER_INCARNATION=0
export LAUNCHER_RDZV_BACKEND=static
export LAUNCHER_RDZV_ENDPOINT=10.1.0.1:23456
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[0/${rank}] '
export LAUNCHER_MAX_WORLD_SIZE=2
exec /opt/venv/bin/python -m torch.distributed.run \
  --nnodes=2 \
  --nproc-per-node=1 \
  --rdzv-backend=static \
  --master-addr=10.1.0.1 \
  --master-port=23456 \
  --node-rank=0 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=0 \
  --local-addr=10.1.0.1 \
  --log-dir=/home/gpu1/.launcher/runs/digits-0a1b2c/nodes/0/0 \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=30 \
  train.py \
  'it'"'"'s $HOME' \
  'a
b'
NODE
pids="$pids $!"

# node 1
ssh gpu2 'mkdir -p /home/gpu2/.launcher/runs/digits-0a1b2c/code && tar -xz --no-same-owner -C /home/gpu2/.launcher/runs/digits-0a1b2c/code' <"$CODE"
ssh gpu2 -tt sh -s <<'NODE' &
unset \
  MASTER_ADDR MASTER_PORT RANK LOCAL_RANK \
  GROUP_RANK ROLE_RANK NODE_RANK WORLD_SIZE \
  LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE TORCHELASTIC_RUN_ID \
  TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE \
  PET_STANDALONE PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK \
  PET_RDZV_BACKEND PET_RDZV_ENDPOINT PET_RDZV_ID PET_RDZV_CONF \
  PET_MASTER_ADDR PET_MASTER_PORT PET_MAX_RESTARTS PET_LOCAL_ADDR \
  LT_CLI_USED LT_ACCELERATOR LT_DEVICES LT_NUM_NODES \
  LT_STRATEGY LT_PRECISION
mkdir -p \
  /home/gpu2/.launcher/runs/digits-0a1b2c/nodes/1/0 \
  /home/gpu2/.launcher/checkpoints/digits-0a1b2c
cd /home/gpu2/.launcher/runs/digits-0a1b2c/code/examples || exit
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=digits-0a1b2c
export RUN_DIR=/home/gpu2/.launcher/runs/digits-0a1b2c
export CHECKPOINT_DIR=/home/gpu2/.launcher/checkpoints/digits-0a1b2c
export LAUNCHER_ATTEMPT=0
export LAUNCHER_STOP_GRACE_S=30
export LAUNCHER_PROGRESS=lines
export GLOO_SOCKET_IFNAME=ib1
export NCCL_SOCKET_IFNAME==ib1
export LAUNCHER_NODE_INDEX=1
export LAUNCHER_INCARNATION=0
export LAUNCHER_RDZV_BACKEND=static
export LAUNCHER_RDZV_ENDPOINT=10.1.0.1:23456
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[1/${rank}] '
export LAUNCHER_MAX_WORLD_SIZE=2
exec /opt/venv/bin/python -m torch.distributed.run \
  --nnodes=2 \
  --nproc-per-node=1 \
  --rdzv-backend=static \
  --master-addr=10.1.0.1 \
  --master-port=23456 \
  --node-rank=1 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=0 \
  --local-addr=10.1.0.2 \
  --log-dir=/home/gpu2/.launcher/runs/digits-0a1b2c/nodes/1/0 \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=30 \
  train.py \
  'it'"'"'s $HOME' \
  'a
b'
NODE
pids="$pids $!"
code=0
for pid in $pids; do wait $pid || code=$?; done
trap - EXIT
exit $code
