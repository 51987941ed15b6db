#!/usr/bin/env bash
# Trains with SWAP on one GPU of 24, 48 or 80 GB, vLLM and DeepSpeed taking turns on it: 32 prompts x 8 responses per
# step. What fits was computed by openrlhf_swap.plan; on an H100 the training side was measured (docs/measurements.md).
# Everything else works as in train_swap_r1.sh: resuming, PROMPTS, OUTPUT and the other settings, and further flags.
#   MODEL=r1-1.5b   DeepSeek-R1-Distill-Qwen-1.5B; or qwen-0.5b, qwen-1.5b (Qwen2.5-Instruct)
#   MEMORY=...      GB of the GPU: 24, 48 or 80                  (default: the largest that nvidia-smi's figure allows)
#   LORA=0          rank of the LoRA adapters, such as 32; 0 trains the whole model
#   MAX_LEN=...     tokens of prompt and response together       (default 14000)
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
CHOICE="${MODEL:-r1-1.5b}"
case "$CHOICE" in
    qwen-0.5b) MODEL=Qwen/Qwen2.5-0.5B-Instruct ;;
    qwen-1.5b) MODEL=Qwen/Qwen2.5-1.5B-Instruct ;;
    r1-1.5b) MODEL=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B ;;
    *) fail "MODEL is $CHOICE; use qwen-0.5b, qwen-1.5b or r1-1.5b" ;;
esac
if [[ -z "${MEMORY:-}" ]]; then
    # In MiB, and somewhat less than the nominal size.
    FOUND="$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | sort -n | head -n 1 || true)"
    if (( ${FOUND:-0} >= 79000 )); then MEMORY=80; elif (( ${FOUND:-0} >= 44000 )); then MEMORY=48; else MEMORY=24; fi
    (( ${FOUND:-0} >= 22500 )) || fail "MEMORY is not set, and no GPU of 24 GB or more was found; use 24, 48 or 80"
fi
LORA="${LORA:-0}"
require_count LORA 0
EXTRA=() NAME="swap_1gpu_$CHOICE"
if (( LORA )); then
    EXTRA=(--ds.lora.rank "$LORA" --actor.adam.lr 1e-5)
    NAME+="_lora$LORA" # not the folder of a training of the whole model, which would be resumed
fi
case "$MEMORY" in
    24) UTILIZATION=0.6 ;;
    48 | 80) UTILIZATION=0.7 ;;
    *) fail "MEMORY is $MEMORY; use 24, 48 or 80" ;;
esac
# Moves the optimizer to main memory: 37 GiB at R1-1.5B (openrlhf_swap.plan says what is in it).
if (( MEMORY < 48 && ! LORA )); then EXTRA+=(--ds.adam_offload); fi

MAX_LEN="${MAX_LEN:-14000}"
export MODEL MAX_LEN ROW_TOKENS="${ROW_TOKENS:-$MAX_LEN}" UTILIZATION NUM_GPUS=1 ZERO_STAGE=2 PROMPTS_A_STEP=32 RESPONSES=8
export SIZE=1.5B OUTPUT="${OUTPUT:-outputs/$NAME}"
exec bash scripts/train_swap_r1.sh "${EXTRA[@]}" "$@"
