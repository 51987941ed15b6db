#!/usr/bin/env bash
# Trains on several nodes, which form one Ray cluster. Checkout, prompts and OUTPUT must be on a file system that all
# of them share, under the same path. Export what the run needs (HF_HOME, HF_HUB_OFFLINE, NCCL_*, WANDB_KEY) before
# `head` and `worker`: every process inherits it from there, and no secret appears on a command line that Ray would
# store.
#   head [--block] [flags of ray start]     on the first node
#   worker [--block] [flags of ray start]   on each other node, with HEAD_IP=address of the first
#   submit [--dry-run] NAME [flags]         on the first node: trains as scripts/train_swap.sh NAME does, as soon as the GPUs
#                                           of all nodes are there, and streams the log
#   submit --command LINE                   the same with a shell command instead of the training, to test the cluster
#   stop                                    on each node: ends the Ray that `head` or `worker` started there
# --block stays in the foreground; --dry-run, after any subcommand, prints what would run.
#   NUM_NODES=2           nodes of the run, including this one
#   NUM_GPUS=8            GPUs per node
#   NODE_IP=...           address of this node, if Ray picks the wrong network
#   PORT=6379             the cluster's port; DASHBOARD_PORT=8265 the dashboard's, to which jobs are submitted
#   RAY_FOLDER=...        local folder for Ray's files and logs; keep it short (default /tmp/ray_swap_<user id>)
#   WAIT=600              seconds to wait for the first node
# Ray asks for a token: RAY_AUTH_TOKEN or the file RAY_AUTH_TOKEN_PATH if they are set, otherwise ~/.ray/auth_token, which
# `head` makes. The other nodes need the same: share the home folder, or copy that file.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "--block --dry-run" "$@"
SUBCOMMAND="${FLAGS[0]:-}"
FLAGS=("${FLAGS[@]:1}")

NUM_NODES="${NUM_NODES:-2}"
NUM_GPUS="${NUM_GPUS:-8}"
PORT="${PORT:-6379}"
DASHBOARD_PORT="${DASHBOARD_PORT:-8265}"
RAY_FOLDER="${RAY_FOLDER:-/tmp/ray_swap_$(id -u)}"
WAIT="${WAIT:-600}"
for name in NUM_NODES PORT DASHBOARD_PORT WAIT; do require_count "$name" 1; done
require_count NUM_GPUS 0
[[ "$RAY_FOLDER" == /* ]] || fail "RAY_FOLDER is $RAY_FOLDER; use an absolute path"
export NUM_NODES NUM_GPUS PATH="${VENV:-$PWD/.venv}/bin:$PATH"
[[ "${HEAD_IP:-}" =~ ^([A-Za-z0-9][A-Za-z0-9.:_-]*)?$ ]] || fail "HEAD_IP is $HEAD_IP; use the address that head printed"
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
TOKEN_FILE="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"
PID_FILE="$RAY_FOLDER/started.pid"
LOG="$RAY_FOLDER/started.log"

# Whether the process that `head` or `worker` recorded is still running, and its pid has not been reused.
is_running() {
    [[ -s "$PID_FILE" ]] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$PID_FILE")/cmdline" | grep -q 'ray start'
}

# ray start --block: one process; when it ends, so do this cluster's Ray processes, and no others.
start_ray() {
    local command=(
        ray start "$@" --block --num-gpus "$NUM_GPUS" --temp-dir "$RAY_FOLDER/ray" --disable-usage-stats
        --log-color false ${NODE_IP:+--node-ip-address "$NODE_IP"} "${FLAGS[@]}"
    )
    end_dry_run "${command[@]}"
    show "${command[@]}" >&2
    is_running && fail "Ray already runs here, as process $(cat "$PID_FILE"); end it: bash $0 stop"
    # OpenRLHF expects the key under this name; Ray's processes get it in their environment.
    if [[ -n "${WANDB_KEY:-}" ]]; then export WANDB_API_KEY="$WANDB_KEY"; fi
    # RAY_ADDRESS of another cluster would reach the actors; with the last variable at 0, nodes do not find each other.
    unset WANDB_KEY RAY_ADDRESS RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER
    # A killed actor takes the processes it has started along: a vLLM engine would live on and keep its GPU's memory.
    export RAY_process_group_cleanup_enabled=true
    # Logs and sockets: for their owner alone. Another user may have made the folder first.
    (umask 077 && mkdir -p "$RAY_FOLDER" && [[ -O "$RAY_FOLDER" && ! -L "$RAY_FOLDER" ]] && chmod 700 "$RAY_FOLDER") \
        2>/dev/null || fail "RAY_FOLDER is $RAY_FOLDER, which does not belong to you; name another"
    if (( BLOCK )); then
        echo "$$" >"$PID_FILE"
        exec "${command[@]}"
    fi
    # In its own session: Ray signals its whole process group when it goes down.
    setsid "${command[@]}" >"$LOG" 2>&1 </dev/null &
    local ray_pid=$!
    echo "$ray_pid" >"$PID_FILE"
    # Ray checks once a second that all of its processes are alive, and goes down if one is not.
    local seconds_up=0
    until (( seconds_up >= 3 )); do
        kill -0 "$ray_pid" 2>/dev/null || fail "Ray did not start; see its log: $LOG"
        sleep 1
        if grep -q 'Ray runtime started' "$LOG"; then seconds_up=$((seconds_up + 1)); fi
    done
    printf '[ray] running as process %s; log: %s\n' "$ray_pid" "$LOG"
}

# wait_for HOST PORT VARIABLES: until something listens there.
wait_for() {
    local deadline=$((SECONDS + WAIT))
    # shellcheck disable=SC2016  # the inner shell expands them
    until timeout 5 bash -c '</dev/tcp/"$1"/"$2"' _ "$1" "$2" 2>/dev/null; do
        (( SECONDS < deadline )) || fail "nothing answers at $1:$2 after $WAIT s ($3, WAIT)"
        sleep 1
    done
}

# has_token: whether there is a token for Ray, or it was told to do without.
has_token() {
    [[ "$RAY_AUTH_MODE" != token || -n "${RAY_AUTH_TOKEN:-}" || -s "$TOKEN_FILE" ]]
}

start_head() {
    if (( ! DRY_RUN )) && ! has_token; then
        (umask 077 && mkdir -p "$(dirname -- "$TOKEN_FILE")" && ray get-auth-token --generate >/dev/null 2>&1) \
            || fail "no token for Ray could be written to $TOKEN_FILE; set RAY_AUTH_TOKEN"
    fi
    # The dashboard and its job interface stay on loopback. The cluster's own port must be open to the other nodes, and
    # Ray opens it on all interfaces: the token keeps others out, but the traffic is not encrypted.
    start_ray --head --port "$PORT" --dashboard-host 127.0.0.1 --dashboard-port "$DASHBOARD_PORT"
    printf '[ray] on each other node: HEAD_IP=%s PORT=%s NUM_GPUS=%s bash scripts/train_swap_multinode.sh worker\n' \
        "$(grep -oE 'Local node IP: *[^ ]+' "$LOG" | awk '{ print $NF }')" "$PORT" "$NUM_GPUS"
}

start_worker() {
    [[ -n "${HEAD_IP:-}" ]] || fail "HEAD_IP is not set; use the address that head printed"
    if (( ! DRY_RUN )); then
        has_token || fail "$TOKEN_FILE is missing, Ray's token; copy it from the first node, or set RAY_AUTH_TOKEN"
        wait_for "$HEAD_IP" "$PORT" "HEAD_IP, PORT"
    fi
    start_ray --address "$HEAD_IP:$PORT"
}

submit_training() {
    local address="http://127.0.0.1:$DASHBOARD_PORT" name="${FLAGS[0]:-}" folder="$RAY_FOLDER" line
    if [[ "$name" == --command ]]; then
        (( ${#FLAGS[@]} == 2 )) || fail "--command takes one shell command, and no other flags"
        line="${FLAGS[1]}"
    else
        [[ "$name" =~ ^[A-Za-z0-9._-]+$ && -f "scripts/train_swap_$name.yaml" ]] \
            || fail "the run is ${name:-missing}; use 1.5b or 7b, as for scripts/train_swap.sh"
        local words=(
            bash scripts/train_swap.sh "$name" --actor.num_nodes "$NUM_NODES" --actor.num_gpus_per_node "$NUM_GPUS"
            "${FLAGS[@]:1}"
        )
        line="exec $(show "${words[@]}")"
    fi
    # The command is passed in a file, because Ray quotes words for another shell. No working_dir: Ray would copy the
    # checkout, and the run would write into the copy. Ray sets RAY_ADDRESS for the job, so its ray.init joins this
    # cluster.
    local submission=(ray job submit --address "$address" -- bash "$folder/job.sh")
    if (( DRY_RUN )); then printf '%s\n' "$line"; fi
    end_dry_run "${submission[@]}"
    has_token || fail "$TOKEN_FILE is missing, Ray's token; set RAY_AUTH_TOKEN to the one that head was started with"
    # Ray gives these precedence over --address.
    unset RAY_ADDRESS RAY_API_SERVER_ADDRESS
    # Otherwise requests to this machine would go to the proxy.
    export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}" NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
    wait_for 127.0.0.1 "$DASHBOARD_PORT" DASHBOARD_PORT
    # The training takes the place of its shell, so that this is its process, for signals.
    printf '#!/usr/bin/env bash\nset -euo pipefail\ncd %q\necho "$$" >%q\n%s\n' "$PWD" "$folder/job.pid" "$line" \
        >"$folder/job.sh"
    show "${submission[@]}" >&2
    exec "${submission[@]}"
}

# Not `ray stop`: that ends every Ray on the machine, whoever started it.
stop_ray() {
    is_running || fail "$PID_FILE names no running Ray; nothing was stopped"
    local ray_pid
    ray_pid="$(cat "$PID_FILE")"
    end_dry_run kill "$ray_pid"
    kill "$ray_pid"
    for _ in {1..60}; do
        if ! is_running; then
            rm -f "$PID_FILE"
            printf '[ray] process %s has ended\n' "$ray_pid"
            return
        fi
        sleep 0.5
    done
    fail "process $ray_pid is still running 30 s after it was asked to stop; look at $LOG"
}

case "$SUBCOMMAND" in
    head) start_head ;;
    worker) start_worker ;;
    submit) submit_training ;;
    stop) stop_ray ;;
    *) fail "the subcommand is ${SUBCOMMAND:-missing}; use head, worker, submit, stop or --help" ;;
esac
