#!/bin/bash
# By hand: mkdir -p /shared/runs/digits-0a1b2c/slurm; put agent.pyz and code.tar.gz beside it; bash THIS-FILE
end() { : >>/shared/runs/digits-0a1b2c/slurm/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.started; echo 1 over >/shared/runs/digits-0a1b2c/slurm/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.ended; }; trap end EXIT
[ -s /shared/runs/digits-0a1b2c/agent.pyz ] || { echo launcher: error: no /shared/runs/digits-0a1b2c/agent.pyz: copy it there, or render with --embed; exit 2; }
trap '' USR1  # It would end the next program, which has yet to ask for it.
exec /opt/python /shared/runs/digits-0a1b2c/agent.pyz job \
  --run=/shared/runs/digits-0a1b2c --checkpoints=/shared/runs/digits-0a1b2c/checkpoints \
  '--code=tar -czf code.tar.gz -C '"'"'/shared/my code'"'"' .' \
  --script="$0" --grace=30 --max-requeues=3 \
  srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 \
  --wait=0 --cpu-bind=none --mpi=none --export=ALL \
  --output=/shared/runs/digits-0a1b2c/slurm/node-%t.log --open-mode=append \
  --job-name=digits-0a1b2c \
  /opt/python /shared/runs/digits-0a1b2c/agent.pyz /shared/runs/digits-0a1b2c/slurm/node-plan.json <<'END'
{"schema": 1, "node": {"node_index": 0, "name": "node-0", "local_addr": "node-0", "min_nodes": 2, "max_nodes": 2, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "node-0", "endpoint_port": 29400, "id": "digits-0a1b2c", "is_host": true, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/shared/runs/digits-0a1b2c/checkpoints"]]}, "command": ["train.py"], "workdir": "/shared", "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/shared/runs/digits-0a1b2c"], ["CHECKPOINT_DIR", "/shared/runs/digits-0a1b2c/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["LAUNCHER_NODE_INDEX", "0"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "node-0:29400"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[0/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "2"]], "log_dir": "/shared/runs/digits-0a1b2c/nodes/0/0"}, "settings": {"identity": "slurm", "meet_dir": "/shared/runs/digits-0a1b2c/meet", "hang_max_s": 31536000.0, "tee": false}}
END
