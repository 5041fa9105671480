#!/bin/sh
# One container per node, on a network of their own. Ends when all have ended;
# removes them and the network then, and on Ctrl-C.
set -eu
mkdir -p \
  /home/me/runs/digits-0a1b2c \
  /home/me/runs/digits-0a1b2c/checkpoints \
  /home/me/runs/digits-0a1b2c/nodes/0/0 \
  /home/me/runs/digits-0a1b2c/nodes/1/0 \
  /home/me/runs/digits-0a1b2c/nodes/2/0
# The node agent: a Python archive.
[ -s /home/me/runs/digits-0a1b2c/agent.pyz ] || /venv/bin/python -P -m launcher.targets.agent_archive --compiled >/home/me/runs/digits-0a1b2c/agent.pyz
[ -s /home/me/runs/digits-0a1b2c/token ] || (umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' >/home/me/runs/digits-0a1b2c/token)  # What connections must know.
# What each node's agent is told. Workers' output:
# nodes/<node>/<incarnation>/attempt-<n>/rank-<rank>/ of the run folder.
cat >/home/me/runs/digits-0a1b2c/nodes/0/0/node-plan.json <<'END'
{"schema": 1, "node": {"node_index": 0, "name": "digits-0a1b2c-0", "local_addr": "digits-0a1b2c-0", "min_nodes": 1, "max_nodes": 3, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "digits-0a1b2c-0", "endpoint_port": 29400, "id": "digits-0a1b2c", "is_host": true, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/launcher/checkpoints"]]}, "command": ["-m", "train"], "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/launcher/run"], ["CHECKPOINT_DIR", "/launcher/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["HOME", "/tmp"], ["USER", "launcher"], ["LOGNAME", "launcher"], ["LAUNCHER_NODE_INDEX", "0"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "digits-0a1b2c-0:29400"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[0/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "3"]], "mounts": [{"source": "/home/me/runs/digits-0a1b2c", "target": "/launcher/run"}, {"source": "/home/me/runs/digits-0a1b2c/checkpoints", "target": "/launcher/checkpoints"}, {"source": "/home/me/runs/digits-0a1b2c/agent.pyz", "target": "/launcher/agent.pyz", "read_only": true}], "log_dir": "/launcher/run/nodes/0/0"}, "settings": {"start": "fork", "stores": [{"host": "digits-0a1b2c-0", "port": 29400, "node_index": 0}, {"host": "digits-0a1b2c-1", "port": 29400, "node_index": 1}, {"host": "digits-0a1b2c-2", "port": 29400, "node_index": 2}], "hang_max_s": 31536000.0, "tee": false}}
END
cat >/home/me/runs/digits-0a1b2c/nodes/1/0/node-plan.json <<'END'
{"schema": 1, "node": {"node_index": 1, "name": "digits-0a1b2c-1", "local_addr": "digits-0a1b2c-1", "min_nodes": 1, "max_nodes": 3, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "digits-0a1b2c-0", "endpoint_port": 29400, "id": "digits-0a1b2c", "is_host": false, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/launcher/checkpoints"]]}, "command": ["-m", "train"], "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/launcher/run"], ["CHECKPOINT_DIR", "/launcher/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["HOME", "/tmp"], ["USER", "launcher"], ["LOGNAME", "launcher"], ["LAUNCHER_NODE_INDEX", "1"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "digits-0a1b2c-0:29400"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[1/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "3"]], "mounts": [{"source": "/home/me/runs/digits-0a1b2c", "target": "/launcher/run"}, {"source": "/home/me/runs/digits-0a1b2c/checkpoints", "target": "/launcher/checkpoints"}, {"source": "/home/me/runs/digits-0a1b2c/agent.pyz", "target": "/launcher/agent.pyz", "read_only": true}], "log_dir": "/launcher/run/nodes/1/0"}, "settings": {"start": "fork", "stores": [{"host": "digits-0a1b2c-0", "port": 29400, "node_index": 0}, {"host": "digits-0a1b2c-1", "port": 29400, "node_index": 1}, {"host": "digits-0a1b2c-2", "port": 29400, "node_index": 2}], "hang_max_s": 31536000.0, "tee": false}}
END
cat >/home/me/runs/digits-0a1b2c/nodes/2/0/node-plan.json <<'END'
{"schema": 1, "node": {"node_index": 2, "name": "digits-0a1b2c-2", "local_addr": "digits-0a1b2c-2", "min_nodes": 1, "max_nodes": 3, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "digits-0a1b2c-0", "endpoint_port": 29400, "id": "digits-0a1b2c", "is_host": false, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/launcher/checkpoints"]]}, "command": ["-m", "train"], "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/launcher/run"], ["CHECKPOINT_DIR", "/launcher/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["HOME", "/tmp"], ["USER", "launcher"], ["LOGNAME", "launcher"], ["LAUNCHER_NODE_INDEX", "2"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "digits-0a1b2c-0:29400"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[2/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "3"]], "mounts": [{"source": "/home/me/runs/digits-0a1b2c", "target": "/launcher/run"}, {"source": "/home/me/runs/digits-0a1b2c/checkpoints", "target": "/launcher/checkpoints"}, {"source": "/home/me/runs/digits-0a1b2c/agent.pyz", "target": "/launcher/agent.pyz", "read_only": true}], "log_dir": "/launcher/run/nodes/2/0"}, "settings": {"start": "fork", "stores": [{"host": "digits-0a1b2c-0", "port": 29400, "node_index": 0}, {"host": "digits-0a1b2c-1", "port": 29400, "node_index": 1}, {"host": "digits-0a1b2c-2", "port": 29400, "node_index": 2}], "hang_max_s": 31536000.0, "tee": false}}
END

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
  --entrypoint python3 --restart no \
  --stop-signal SIGTERM --stop-timeout 40 \
  --user 1000:1000 \
  --shm-size 1073741824 \
  --ulimit stack=67108864:67108864 \
  --log-driver local --log-opt compress=false --log-opt max-file=1 --log-opt max-size=1t \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  --label launcher.attempt=0 \
  --label launcher.node-index=0 \
  --label launcher.incarnation=0 \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c,target=/launcher/run \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c/checkpoints,target=/launcher/checkpoints \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c/agent.pyz,target=/launcher/agent.pyz,readonly \
  --env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  --env OMP_NUM_THREADS=1 \
  --env PYTHONUNBUFFERED=1 \
  --env LAUNCHER_RUN_ID=digits-0a1b2c \
  --env RUN_DIR=/launcher/run \
  --env CHECKPOINT_DIR=/launcher/checkpoints \
  --env LAUNCHER_ATTEMPT=0 \
  --env LAUNCHER_STOP_GRACE_S=30 \
  --env LAUNCHER_PROGRESS=lines \
  --env HOME=/tmp \
  --env USER=launcher \
  --env LOGNAME=launcher \
  --env LAUNCHER_NODE_INDEX=0 \
  --env LAUNCHER_INCARNATION=0 \
  --env LAUNCHER_RDZV_BACKEND=roster \
  --env LAUNCHER_RDZV_ENDPOINT=digits-0a1b2c-0:29400 \
  --env 'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[0/${rank}] ' \
  --env LAUNCHER_MAX_WORLD_SIZE=3 \
  fabric-train:cpu \
  /launcher/agent.pyz \
  /launcher/run/nodes/0/0/node-plan.json >/dev/null

docker run --detach --pull never \
  --name digits-0a1b2c-1 --hostname digits-0a1b2c-1 \
  --network digits-0a1b2c \
  --entrypoint python3 --restart no \
  --stop-signal SIGTERM --stop-timeout 40 \
  --user 1000:1000 \
  --shm-size 1073741824 \
  --ulimit stack=67108864:67108864 \
  --log-driver local --log-opt compress=false --log-opt max-file=1 --log-opt max-size=1t \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  --label launcher.attempt=0 \
  --label launcher.node-index=1 \
  --label launcher.incarnation=0 \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c,target=/launcher/run \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c/checkpoints,target=/launcher/checkpoints \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c/agent.pyz,target=/launcher/agent.pyz,readonly \
  --env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  --env OMP_NUM_THREADS=1 \
  --env PYTHONUNBUFFERED=1 \
  --env LAUNCHER_RUN_ID=digits-0a1b2c \
  --env RUN_DIR=/launcher/run \
  --env CHECKPOINT_DIR=/launcher/checkpoints \
  --env LAUNCHER_ATTEMPT=0 \
  --env LAUNCHER_STOP_GRACE_S=30 \
  --env LAUNCHER_PROGRESS=lines \
  --env HOME=/tmp \
  --env USER=launcher \
  --env LOGNAME=launcher \
  --env LAUNCHER_NODE_INDEX=1 \
  --env LAUNCHER_INCARNATION=0 \
  --env LAUNCHER_RDZV_BACKEND=roster \
  --env LAUNCHER_RDZV_ENDPOINT=digits-0a1b2c-0:29400 \
  --env 'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[1/${rank}] ' \
  --env LAUNCHER_MAX_WORLD_SIZE=3 \
  fabric-train:cpu \
  /launcher/agent.pyz \
  /launcher/run/nodes/1/0/node-plan.json >/dev/null

docker run --detach --pull never \
  --name digits-0a1b2c-2 --hostname digits-0a1b2c-2 \
  --network digits-0a1b2c \
  --entrypoint python3 --restart no \
  --stop-signal SIGTERM --stop-timeout 40 \
  --user 1000:1000 \
  --shm-size 1073741824 \
  --ulimit stack=67108864:67108864 \
  --log-driver local --log-opt compress=false --log-opt max-file=1 --log-opt max-size=1t \
  --label launcher.run-id=digits-0a1b2c \
  --label launcher.job=digits \
  --label launcher.run-dir=/home/me/runs/digits-0a1b2c \
  --label launcher.attempt=0 \
  --label launcher.node-index=2 \
  --label launcher.incarnation=0 \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c,target=/launcher/run \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c/checkpoints,target=/launcher/checkpoints \
  --mount type=bind,source=/home/me/runs/digits-0a1b2c/agent.pyz,target=/launcher/agent.pyz,readonly \
  --env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  --env OMP_NUM_THREADS=1 \
  --env PYTHONUNBUFFERED=1 \
  --env LAUNCHER_RUN_ID=digits-0a1b2c \
  --env RUN_DIR=/launcher/run \
  --env CHECKPOINT_DIR=/launcher/checkpoints \
  --env LAUNCHER_ATTEMPT=0 \
  --env LAUNCHER_STOP_GRACE_S=30 \
  --env LAUNCHER_PROGRESS=lines \
  --env HOME=/tmp \
  --env USER=launcher \
  --env LOGNAME=launcher \
  --env LAUNCHER_NODE_INDEX=2 \
  --env LAUNCHER_INCARNATION=0 \
  --env LAUNCHER_RDZV_BACKEND=roster \
  --env LAUNCHER_RDZV_ENDPOINT=digits-0a1b2c-0:29400 \
  --env 'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[2/${rank}] ' \
  --env LAUNCHER_MAX_WORLD_SIZE=3 \
  fabric-train:cpu \
  /launcher/agent.pyz \
  /launcher/run/nodes/2/0/node-plan.json >/dev/null

# Shows and keeps what the nodes print until they end.
docker logs --follow digits-0a1b2c-0 2>&1 | tee /home/me/runs/digits-0a1b2c/nodes/0/0/console.log &
docker logs --follow digits-0a1b2c-1 2>&1 | tee /home/me/runs/digits-0a1b2c/nodes/1/0/console.log &
docker logs --follow digits-0a1b2c-2 2>&1 | tee /home/me/runs/digits-0a1b2c/nodes/2/0/console.log &
wait
for code in $(docker wait digits-0a1b2c-0 digits-0a1b2c-1 digits-0a1b2c-2); do
  [ "$code" -eq 0 ] || exit 1
done
