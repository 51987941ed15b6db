#!/usr/bin/env bash
# Runs a command in the project's image: bash scripts/docker_run.sh [options] [command ...]
# Without a command the image prints the help of the training command. No port is published. WANDB_API_KEY, WANDB_KEY,
# HF_TOKEN and RAY_AUTH_TOKEN are passed on from the environment, by name. Options come first:
#   --build         build the image first
#   --cpu           use the image without CUDA; by default the CUDA image, with every GPU
#   --dry-run       print the docker commands and stop
#   OUTPUTS=...     folder for everything that is written (default outputs)   -> outputs in the container
#   DATA=...        folder with prompts or models, read only   (default none) -> /data
#   HF_HOME=...     cache of the Hugging Face hub  (default ~/.cache/huggingface) -> /huggingface
#   CACHE=...       all other caches, and compiled kernels  (default ~/.cache/openrlhf-swap) -> /home/swap/.cache
#   GPUS=all        or device=0,1
#   SHM_SIZE=16g    limit of /dev/shm, which Ray and NCCL need; not reserved
#   IPC=private     or host, to share the host's /dev/shm instead
#   IMAGE=...       tag of the image (default openrlhf-swap:cuda or :cpu)
#   DOCKER_OPTIONS="..."  further options of docker run, such as "--network host"
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

BUILD=0 DRY_RUN=0 TARGET=cuda
while (( $# )); do
    case "$1" in
        -h | --help)
            print_help
            exit 0
            ;;
        --build) BUILD=1 ;;
        --cpu) TARGET=cpu ;;
        --dry-run) DRY_RUN=1 ;;
        -*) fail "$1 is not an option; use --build, --cpu, --dry-run or --help before the command" ;;
        *) break ;;
    esac
    shift
done

IMAGE="${IMAGE:-openrlhf-swap:$TARGET}"
# realpath -m: docker takes only absolute paths, and missing folders are created below.
OUTPUTS="$(realpath -m -- "${OUTPUTS:-outputs}")"
HUB="$(realpath -m -- "${HF_HOME:-$HOME/.cache/huggingface}")"
CACHE="$(realpath -m -- "${CACHE:-$HOME/.cache/openrlhf-swap}")"
DATA="${DATA:+$(realpath -m -- "$DATA")}"
for folder in "$OUTPUTS" "$HUB" "$CACHE" "$DATA"; do
    [[ "$folder" != *,* ]] || fail "$folder has a comma, which docker cannot mount; rename it or choose another folder"
done

build=(docker build --target "$TARGET" --tag "$IMAGE" .)

# The caller's ids, so that the caller owns what the container writes. It needs no privileges.
run=(docker run --rm --init --user "$(id -u):$(id -g)" --cap-drop ALL --security-opt no-new-privileges)
if [[ "${IPC:-private}" == host ]]; then run+=(--ipc host); else run+=(--ipc private --shm-size "${SHM_SIZE:-16g}"); fi
if [[ -t 0 && -t 1 ]]; then run+=(--interactive --tty); fi
if [[ "$TARGET" == cuda ]]; then
    GPUS="${GPUS:-all}"
    # Docker reads the value as CSV, so a list of devices needs inner quotes.
    if [[ "$GPUS" == device=*,* ]]; then GPUS="\"$GPUS\""; fi
    run+=(--gpus "$GPUS" --ulimit memlock=-1 --ulimit stack=67108864)
fi
run+=(--mount "type=bind,source=$OUTPUTS,target=/app/outputs"
    --mount "type=bind,source=$CACHE,target=/home/swap/.cache"
    --mount "type=bind,source=$HUB,target=/huggingface" --env HF_HOME=/huggingface)
if [[ -n "$DATA" ]]; then run+=(--mount "type=bind,source=$DATA,target=/data,readonly"); fi
for name in WANDB_API_KEY WANDB_KEY HF_TOKEN RAY_AUTH_TOKEN; do
    # Only the name: docker takes the value from the environment, which keeps it off command lines and out of logs.
    if [[ -n "${!name:-}" ]]; then run+=(--env "$name"); fi
done
read -ra options <<<"${DOCKER_OPTIONS:-}"
run+=("${options[@]}" "$IMAGE" "$@")

if (( DRY_RUN && BUILD )); then show "${build[@]}"; fi
end_dry_run "${run[@]}"

command -v docker >/dev/null || fail "docker was not found; install it, or run without it: bash scripts/setup.sh"
engine="$(docker info --format '{{json .Runtimes}}' 2>/dev/null)" \
    || fail "the Docker engine does not answer; start it, or ask for access to it (see docker info)"
[[ -z "$DATA" || -d "$DATA" ]] || fail "DATA is $DATA, which is not a folder; name one that exists"
if (( BUILD )); then
    show "${build[@]}" >&2
    "${build[@]}"
fi
if [[ "$TARGET" == cuda ]]; then
    # CUDA_VISIBLE_DEVICES restricts processes on the host, not Docker.
    (( $(unset CUDA_VISIBLE_DEVICES; count_gpus) )) \
        || fail "no NVIDIA GPU was found (nvidia-smi -L lists none); run the image without CUDA: --cpu"
    # With CDI, Docker's list of runtimes does not name NVIDIA's, but the toolkit's program is still installed.
    [[ "$engine" == *nvidia* ]] || command -v nvidia-ctk >/dev/null \
        || fail "Docker has no GPU runtime; install the NVIDIA Container Toolkit, or run the image without CUDA: --cpu"
fi
# Otherwise docker would create them, as root.
mkdir -p "$OUTPUTS" "$HUB" "$CACHE"
show "${run[@]}" >&2
exec "${run[@]}"
