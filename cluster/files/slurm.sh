#!/bin/bash
# A Ray cluster for the length of a Slurm job, and a sweep on it. From the project's folder, which all nodes see and
# which has the package in .venv (or in $TIERCACHE_VENV):
#
#     export TIERCACHE_DB=postgresql://user@host/results      # its password in ~/.pgpass
#     sbatch cluster/files/slurm.sh sweeps/papers_full.yaml
#
# Two minutes before the time limit the sweep stops cleanly; the same sbatch goes on from there. A job that Slurm
# requeues after a lost node or a preemption does so by itself.
#SBATCH --job-name=tiercache
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "usage: sbatch slurm.sh SPEC [options of tiercache run]" >&2
    exit 2
fi
: "${TIERCACHE_DB:?set it to a database outside of the nodes, for example postgresql://user@host/results}"
source "${TIERCACHE_VENV:-.venv}/bin/activate"

RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))') # of this job alone; srun hands it on
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token OMP_WAIT_POLICY=PASSIVE

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ip=$(hostname --ip-address | awk '{print $1}') # this script runs on the first node
address=$ip:6379
folder=/tmp/ray-$SLURM_JOB_ID # short: a socket's path has at most 107 characters
steps=()

clean_up() {
    trap - EXIT TERM
    kill "${steps[@]}" 2>/dev/null || true # srun passes it on, and Ray ends what it has started
    wait || true
    srun --overlap --ntasks-per-node=1 rm -rf "$folder" || true
}
trap clean_up EXIT

srun --overlap --cpu-bind=none --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --block --node-ip-address="$ip" --port=6379 --temp-dir="$folder" &
steps+=($!)
timeout 300 bash -c 'until (exec 3<>"/dev/tcp/$0/6379") 2>/dev/null; do sleep 1; done' "$ip"

workers=$((SLURM_JOB_NUM_NODES - 1))
if [ "$workers" -gt 0 ]; then
    srun --overlap --cpu-bind=none --nodes="$workers" --ntasks="$workers" --exclude="$head" \
        ray start --block --address="$address" --temp-dir="$folder" &
    steps+=($!)
fi
timeout 300 python - "$address" "$SLURM_JOB_NUM_NODES" <<'END'
import sys, time
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(1)
END

tiercache run "$@" --address "$address" --no-progress &
driver=$!
trap 'kill -TERM "$driver"' TERM
code=0
wait "$driver" || code=$?
if kill -0 "$driver" 2>/dev/null; then # the signal ended that wait, not the driver
    code=0
    wait "$driver" || code=$?
fi
exit "$code"
