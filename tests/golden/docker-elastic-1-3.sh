#!/bin/sh
# One container per node, on a network of their own. Ends when all have ended;
# removes them and the network then, and on Ctrl-C.
set -eu
: "${HF_TOKEN:?is a secret of the job: export it first}"
: "${WANDB_API_KEY:?is a secret of the job: export it first}"
mkdir -p \
  /home/me/runs/digits-0a1b2c \
  '/home/me/check points' \
  /home/me/runs/digits-0a1b2c/nodes/0/0 \
  /home/me/runs/digits-0a1b2c/nodes/1/0 \
  /home/me/runs/digits-0a1b2c/nodes/2/0

# Fails where the run is already there, before anything of it could be touched.
docker network create --driver bridge \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  digits-0a1b2c >/dev/null

finish() {
  trap '' INT TERM HUP
  containers=$(docker ps --all --quiet --filter label=launcher.run-id=digits-0a1b2c)
  if [ -n "$containers" ]; then
    docker stop $containers >/dev/null
    docker rm --force --volumes $containers >/dev/null
  fi
  docker network rm digits-0a1b2c >/dev/null
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

docker run --detach --pull never \
  --name digits-0a1b2c-0 --hostname digits-0a1b2c-0 \
  --network digits-0a1b2c \
  --add-host data.internal:10.0.0.7 \
  --add-host host:host-gateway \
  --init --entrypoint torchrun --restart no \
  --stop-signal SIGTERM --stop-timeout 130 \
  --user 1000:1000 \
  --cpus 1.5 \
  --memory 4294967296 --memory-swap 4294967296 \
  --shm-size 268435456 \
  --ulimit stack=67108864:67108864 \
  --log-driver local --log-opt compress=false --log-opt max-file=1 --log-opt max-size=1t \
  --label team=vision \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  --label launcher.attempt=0 \
  --label launcher.node-index=0 \
  --label launcher.incarnation=0 \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c,target=/launcher/run \
  --mount 'type=bind,source=/home/me/check points,target=/launcher/checkpoints' \
  --mount type=bind,source=/home/me/data,target=/data,readonly \
  --mount type=bind,source=/scratch,target=/scratch \
  --workdir /data \
  --env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  --env OMP_NUM_THREADS=1 \
  --env PYTHONUNBUFFERED=1 \
  --env LAUNCHER_RUN_ID=digits-0a1b2c \
  --env RUN_DIR=/launcher/run \
  --env CHECKPOINT_DIR=/launcher/checkpoints \
  --env LAUNCHER_ATTEMPT=0 \
  --env LAUNCHER_STOP_GRACE_S=120 \
  --env LAUNCHER_PROGRESS=lines \
  --env HOME=/data \
  --env USER=launcher \
  --env LOGNAME=launcher \
  --env 'GREETING=it'"'"'s $5' \
  --env LAUNCHER_NODE_INDEX=0 \
  --env LAUNCHER_INCARNATION=0 \
  --env LAUNCHER_RDZV_BACKEND=c10d \
  --env LAUNCHER_RDZV_ENDPOINT=digits-0a1b2c-0:29400 \
  --env 'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[0/${rank}] ' \
  --env LAUNCHER_MAX_WORLD_SIZE=3 \
  --env WANDB_API_KEY \
  --env HF_TOKEN \
  fabric-train:cpu \
  --nnodes=1:3 \
  --nproc-per-node=1 \
  --rdzv-backend=c10d \
  --rdzv-endpoint=digits-0a1b2c-0:29400 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=3 \
  --rdzv-conf=read_timeout=300,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=3,is_host=1 \
  --local-addr=digits-0a1b2c-0 \
  --log-dir=/launcher/run/nodes/0/0 \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=120 \
  -m train >/dev/null

docker run --detach --pull never \
  --name digits-0a1b2c-1 --hostname digits-0a1b2c-1 \
  --network digits-0a1b2c \
  --add-host data.internal:10.0.0.7 \
  --add-host host:host-gateway \
  --init --entrypoint torchrun --restart no \
  --stop-signal SIGTERM --stop-timeout 130 \
  --user 1000:1000 \
  --cpus 1.5 \
  --memory 4294967296 --memory-swap 4294967296 \
  --shm-size 268435456 \
  --ulimit stack=67108864:67108864 \
  --log-driver local --log-opt compress=false --log-opt max-file=1 --log-opt max-size=1t \
  --label team=vision \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  --label launcher.attempt=0 \
  --label launcher.node-index=1 \
  --label launcher.incarnation=0 \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c,target=/launcher/run \
  --mount 'type=bind,source=/home/me/check points,target=/launcher/checkpoints' \
  --mount type=bind,source=/home/me/data,target=/data,readonly \
  --mount type=bind,source=/scratch,target=/scratch \
  --workdir /data \
  --env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  --env OMP_NUM_THREADS=1 \
  --env PYTHONUNBUFFERED=1 \
  --env LAUNCHER_RUN_ID=digits-0a1b2c \
  --env RUN_DIR=/launcher/run \
  --env CHECKPOINT_DIR=/launcher/checkpoints \
  --env LAUNCHER_ATTEMPT=0 \
  --env LAUNCHER_STOP_GRACE_S=120 \
  --env LAUNCHER_PROGRESS=lines \
  --env HOME=/data \
  --env USER=launcher \
  --env LOGNAME=launcher \
  --env 'GREETING=it'"'"'s $5' \
  --env LAUNCHER_NODE_INDEX=1 \
  --env LAUNCHER_INCARNATION=0 \
  --env LAUNCHER_RDZV_BACKEND=c10d \
  --env LAUNCHER_RDZV_ENDPOINT=digits-0a1b2c-0:29400 \
  --env 'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[1/${rank}] ' \
  --env LAUNCHER_MAX_WORLD_SIZE=3 \
  --env WANDB_API_KEY \
  --env HF_TOKEN \
  fabric-train:cpu \
  --nnodes=1:3 \
  --nproc-per-node=1 \
  --rdzv-backend=c10d \
  --rdzv-endpoint=digits-0a1b2c-0:29400 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=3 \
  --rdzv-conf=read_timeout=300,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=3,is_host=0 \
  --local-addr=digits-0a1b2c-1 \
  --log-dir=/launcher/run/nodes/1/0 \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=120 \
  -m train >/dev/null

docker run --detach --pull never \
  --name digits-0a1b2c-2 --hostname digits-0a1b2c-2 \
  --network digits-0a1b2c \
  --add-host data.internal:10.0.0.7 \
  --add-host host:host-gateway \
  --init --entrypoint torchrun --restart no \
  --stop-signal SIGTERM --stop-timeout 130 \
  --user 1000:1000 \
  --cpus 1.5 \
  --memory 4294967296 --memory-swap 4294967296 \
  --shm-size 268435456 \
  --ulimit stack=67108864:67108864 \
  --log-driver local --log-opt compress=false --log-opt max-file=1 --log-opt max-size=1t \
  --label team=vision \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  --label launcher.attempt=0 \
  --label launcher.node-index=2 \
  --label launcher.incarnation=0 \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c,target=/launcher/run \
  --mount 'type=bind,source=/home/me/check points,target=/launcher/checkpoints' \
  --mount type=bind,source=/home/me/data,target=/data,readonly \
  --mount type=bind,source=/scratch,target=/scratch \
  --workdir /data \
  --env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  --env OMP_NUM_THREADS=1 \
  --env PYTHONUNBUFFERED=1 \
  --env LAUNCHER_RUN_ID=digits-0a1b2c \
  --env RUN_DIR=/launcher/run \
  --env CHECKPOINT_DIR=/launcher/checkpoints \
  --env LAUNCHER_ATTEMPT=0 \
  --env LAUNCHER_STOP_GRACE_S=120 \
  --env LAUNCHER_PROGRESS=lines \
  --env HOME=/data \
  --env USER=launcher \
  --env LOGNAME=launcher \
  --env 'GREETING=it'"'"'s $5' \
  --env LAUNCHER_NODE_INDEX=2 \
  --env LAUNCHER_INCARNATION=0 \
  --env LAUNCHER_RDZV_BACKEND=c10d \
  --env LAUNCHER_RDZV_ENDPOINT=digits-0a1b2c-0:29400 \
  --env 'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[2/${rank}] ' \
  --env LAUNCHER_MAX_WORLD_SIZE=3 \
  --env WANDB_API_KEY \
  --env HF_TOKEN \
  fabric-train:cpu \
  --nnodes=1:3 \
  --nproc-per-node=1 \
  --rdzv-backend=c10d \
  --rdzv-endpoint=digits-0a1b2c-0:29400 \
  --rdzv-id=digits-0a1b2c \
  --max-restarts=3 \
  --rdzv-conf=read_timeout=300,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=3,is_host=0 \
  --local-addr=digits-0a1b2c-2 \
  --log-dir=/launcher/run/nodes/2/0 \
  --redirects=3 \
  --tee=3 \
  --shutdown-timeout=120 \
  -m train >/dev/null

# Shows and keeps what the nodes print until they end.
docker logs --follow digits-0a1b2c-0 2>&1 | tee /home/me/runs/digits-0a1b2c/nodes/0/0/console.log &
docker logs --follow digits-0a1b2c-1 2>&1 | tee /home/me/runs/digits-0a1b2c/nodes/1/0/console.log &
docker logs --follow digits-0a1b2c-2 2>&1 | tee /home/me/runs/digits-0a1b2c/nodes/2/0/console.log &
wait
for code in $(docker wait digits-0a1b2c-0 digits-0a1b2c-1 digits-0a1b2c-2); do
  [ "$code" -eq 0 ] || exit 1
done
