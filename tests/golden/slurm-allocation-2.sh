#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --comment=launcher:digits-0a1b2c
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --output=/shared/runs/digits-0a1b2c/slurm/%j.log
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --time=8:00:00
# By hand: mkdir -p /shared/runs/digits-0a1b2c/slurm; put agent.pyz beside it; sbatch THIS-FILE
trap early=1 USR1  # The end of its time is near.
module x
set -u +e +o pipefail  # What the lines above have set ends with them.
RUN=/shared/runs/digits-0a1b2c; S=$RUN/slurm
CHECKPOINT_DIR=/shared/runs/digits-0a1b2c/checkpoints
JOB=$SLURM_JOB_ID
STARTS=${SLURM_RESTART_COUNT:-0}; KEY=$JOB.$STARTS
export LAUNCHER_STOP_FILE=$S/$KEY.stop
unset GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LT_ACCELERATOR LT_CLI_USED \
  LT_DEVICES LT_NUM_NODES LT_PRECISION LT_STRATEGY MASTER_ADDR MASTER_PORT NODE_RANK \
  PET_LOCAL_ADDR PET_MASTER_ADDR PET_MASTER_PORT PET_MAX_RESTARTS PET_NNODES PET_NODE_RANK \
  PET_NPROC_PER_NODE PET_RDZV_BACKEND PET_RDZV_CONF PET_RDZV_ENDPOINT PET_RDZV_ID PET_STANDALONE \
  RANK ROLE_RANK ROLE_WORLD_SIZE TORCHELASTIC_ERROR_FILE TORCHELASTIC_MAX_RESTARTS \
  TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE WORLD_SIZE \
  SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK SLURM_EXACT SLURM_RELATIVE \
  SLURM_LABELIO SLURM_HOSTFILE SLURM_OVERCOMMIT SLURM_MPI_TYPE ${!SRUN_@} ${!SLURM_CPU_BIND@} \
  ${!SLURM_MEM_BIND@} ${!SLURM_GPU_BIND@} ${!SLURM_STEP_@} ${!PMI_@} ${!PMIX_@} \
  ${!OMPI_COMM_WORLD_@}
say() { echo "launcher: $*"; }
nap() { read -rt "$1" <> <(:) || :; }  # A sleep that leaves no process behind.
tell() { echo "$2" 1<>"$S/.$KEY.$1" && mv -f "$S/.$KEY.$1" "$S/$KEY.$1"; }
new() { [ -s "$1" ] || { "${@:2}" >"$S/.$KEY.new" && mv "$S/.$KEY.new" "$1"; }; }
end() { tell ended "$1 $2"; exit "$1"; }
fail() { say "error: $1"; end 2 over; }
mkdir -p "$S" "$RUN/nodes" "$RUN/meet" "$CHECKPOINT_DIR" || exit 2
: >>"$S/$KEY.stop"  # Empty until somebody asks: on NFS, nodes may see a new file a minute late.
printf '%60s
' "" >"$S/.$KEY.ended"  # The last word has its place, also when the disk is full.
tell started "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | xargs)"
[ -s "$RUN/agent.pyz" ] || fail "no $RUN/agent.pyz: copy it there, or render with --embed"
new "$S/node-plan.json" cat <<'END'
{"schema": 1, "node": {"node_index": 0, "name": "node-0", "local_addr": "node-0", "min_nodes": 2, "max_nodes": 2, "nproc_per_node": 1, "max_restarts": 0, "rendezvous": {"backend": "roster", "endpoint_host": "node-0", "endpoint_port": 29400, "id": "digits-0a1b2c", "is_host": true, "conf": [["detection_limit_s", "10"], ["connect_timeout_s", "300"], ["fence_dir", "/shared/runs/digits-0a1b2c/checkpoints"]]}, "command": ["train.py"], "workdir": "/shared", "env": [["TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"], ["OMP_NUM_THREADS", "1"], ["PYTHONUNBUFFERED", "1"], ["LAUNCHER_RUN_ID", "digits-0a1b2c"], ["RUN_DIR", "/shared/runs/digits-0a1b2c"], ["CHECKPOINT_DIR", "/shared/runs/digits-0a1b2c/checkpoints"], ["LAUNCHER_ATTEMPT", "0"], ["LAUNCHER_STOP_GRACE_S", "30"], ["LAUNCHER_PROGRESS", "lines"], ["LAUNCHER_NODE_INDEX", "0"], ["LAUNCHER_INCARNATION", "0"], ["LAUNCHER_RDZV_BACKEND", "roster"], ["LAUNCHER_RDZV_ENDPOINT", "node-0:29400"], ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[0/${rank}] "], ["LAUNCHER_MAX_WORLD_SIZE", "2"]], "log_dir": "/shared/runs/digits-0a1b2c/nodes/0/0"}, "settings": {"identity": "slurm", "meet_dir": "/shared/runs/digits-0a1b2c/meet", "hang_max_s": 31536000.0, "tee": false}}
END
new "$RUN/artifact.sh" cat "$0"
[ -s "$RUN/token" ] || {  # Elements start at the same time: the first one's counts.
  (umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' >"$S/.$KEY.token"); ln "$S/.$KEY.token" "$RUN/token"; rm -f "$S/.$KEY.token"
} 2>/dev/null
grep -qsxE 'stop-requested|interrupted' "$S/$JOB".*.stop && end 143 over
idle() {  # How many starts there were since the last file below CHECKPOINT_DIR.
  for file in "$S"/*.started; do
    find "$CHECKPOINT_DIR" -name generations -prune -o -type f -newer "$file" -print -quit |
      grep -q . || echo
  done | wc -l
}
none="starts in a row left nothing new in $CHECKPOINT_DIR; fix: save there, or raise slurm.time"
[ "$(idle)" -le 4 ] || { say "error: $(idle) $none"; end 1 over; }
told() {  # The exit codes of this start's agents, from the outcomes that they leave.
  find "$RUN/nodes" -maxdepth 3 -name outcome.json -newer "$S/$KEY.started" \
    -exec grep -ohE '(^  |"reason": "[a-z-]+", )"exit_code": [0-9]+' {} + 2>/dev/null
}
reason() { cat "$S/$KEY.stop" 2>/dev/null; }
asked() { [ -n "$(reason)" ] || echo preempted >"$S/$KEY.stop"; }
watch() {  # Ends an srun that hangs, or that waits for Slurm to notice a lost node.
  local left=30
  until [ "$(told | wc -l)" -ge "$SLURM_JOB_NUM_NODES" ] || [ "$left" -le 0 ]; do
    nap 5
    [ -z "$(reason)" ] || left=$((left - 5))
  done
  nap 20
  say "srun goes on without its agents: killed"
  kill -KILL "$srun"
}
by_slurm=; trap by_slurm=1 TERM
trap asked USR1; [ -z "${early:-}" ] || asked
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 \
  --wait=0 --cpu-bind=none --mpi=none --export=ALL \
  --output="${S//%/%%}/node-%t.log" --open-mode=append \
  /opt/python /shared/runs/digits-0a1b2c/agent.pyz /shared/runs/digits-0a1b2c/slurm/node-plan.json &
srun=$!; watch &
# A trap ends wait early.
{ while kill -0 "$srun"; do wait "$srun"; done; wait "$srun"; code=$?; kill $!; } 2>/dev/null
code=$(told | awk -v code="$code" '
  { n = $NF + 0; if (n == 0) ok = 1; else if (n < 128) failed = n; else if (n > most) most = n }
  END { print failed ? failed : ok ? 0 : most ? most : code }')
# After a full disk too: the next start would find it as full.
[ "${code:=143}" -ge 128 ] && [ "$code" -ne 198 ] || end "$code" over
why=$(reason)
if [ "$by_slurm" ]; then  # Slurm ended this start. Where it requeues the job, Restarts counts it.
  job=$(scontrol show job -o "$JOB") || end "$code" requeued  # The queue tells what is true.
  [[ $job =~ \ Restarts=([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -gt "$STARTS" ] &&
    end "$code" requeued
  # A requeue would bring back what scancel ended.
  [[ $job == *\ Reason=TimeLimit\ * ]] || end "$code" over
  why=${why:-preempted}
fi
case $why in
  "") tell fault "$code"; set -- "$S"/*.fault
    [ $# -le 3 ] || { say "error: $# faults of the platform"; end "$code" over; } ;;
  preempted) [ "$(idle)" -lt 2 ] || { say "error: $(idle) $none"; end 1 over; } ;;
  *) end "$code" over ;;
esac
trap "" TERM  # A requeue ends all processes of this start, the command that asks for it too.
for try in {1..30}; do
  said=$(scontrol requeue "$JOB" 2>&1) && end "$code" requeued
  case $said in
    *"pending execution"*) end "$code" requeued ;;
    *ontact*|*onnect*|*"imed out"*) say "$said"; nap 20; continue ;;
  esac
  say "$said; another job follows instead"
  next=$(sbatch --parsable --dependency=afterany:"$JOB" "$RUN/artifact.sh") || break
  echo "" >"$S/${next%%;*}.job"
  end "$code" requeued
done
say "error: the job could not be requeued; fix: sbatch $RUN/artifact.sh"
end "$code" over
