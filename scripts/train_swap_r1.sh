#!/usr/bin/env bash
# Trains DeepSeek-R1-Distill-Qwen with SWAP and the paper's settings, vLLM and DeepSpeed taking turns on the same GPUs
# or, with ASYNC=1, running concurrently on separate GPUs. Use train_swap_1.5b.sh or train_swap_7b.sh, which choose the
# size, or train_swap_1gpu.sh.
# However it was stopped, the same command resumes from the last checkpoint. Paths are relative to the checkout; further
# flags go to openrlhf_swap.train and take precedence.
#   PROMPTS=...     JSONL of problem and answer, or a hub data set        (default data/deepscaler.jsonl)
#   OUTPUT=...      folder for metrics, rollouts, checkpoints and policy  (default outputs/swap_<size>)
#   MODEL=...       hub id, or folder in Hugging Face format              (default the R1 distillation of that size)
#   NUM_GPUS=8      GPUs per node
#   NUM_NODES=1     nodes; for more than one, see train_swap_multinode.sh
#   ASYNC=0         1 generates while training, so rollouts come from older weights (docs/use/async.md)
#   GENERATION_GPUS=...  with ASYNC, GPUs per node that generate      (default half of NUM_GPUS)
#   QUEUE=1         with ASYNC, batches of rollouts that may wait
#   PACKED=...      1 packs responses into rows of ROW_TOKENS, 0 does not (default 1 with flash-attn)
#   ROW_TOKENS=...  tokens per packed row                             (default two responses of full length)
#   MICRO_BATCH=1   without packing, responses that a GPU trains on at a time
#   ZERO_STAGE=...  DeepSpeed's ZeRO stage                            (default 2 for 1.5B, 3 for 7B)
#   SAVE_STEPS=20   training steps between checkpoints
#   EAGER=0         1 runs vLLM without CUDA graphs
#   WANDB_KEY=...   also logs to Weights & Biases (as does WANDB_API_KEY); TensorBoard is always on
#   --dry-run       prints the command and stops; --print does the same after checking that the files exist
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "--dry-run --print" "$@"
for word in "${FLAGS[@]}"; do
    case "$word" in
        --config | --config=* | --swap.recipe | --swap.recipe=*)
            fail "${word%%=*}: what this script sets would win over its flags; give them here, or run openrlhf_swap.train"
            ;;
    esac
done

SIZE="${SIZE:-}"
case "$SIZE" in
    1.5B) ZERO_STAGE="${ZERO_STAGE:-2}" ;;
    7B) ZERO_STAGE="${ZERO_STAGE:-3}" ;;
    *) fail "SIZE is ${SIZE:-not set}; use scripts/train_swap_1.5b.sh or scripts/train_swap_7b.sh" ;;
esac
MODEL="${MODEL:-deepseek-ai/DeepSeek-R1-Distill-Qwen-$SIZE}"
PROMPTS="${PROMPTS:-data/deepscaler.jsonl}"
OUTPUT="${OUTPUT:-outputs/swap_${SIZE,,}}"
NUM_GPUS="${NUM_GPUS:-8}"
NUM_NODES="${NUM_NODES:-1}"
undash MODEL PROMPTS OUTPUT
MICRO_BATCH="${MICRO_BATCH:-1}"
SAVE_STEPS="${SAVE_STEPS:-20}"
EAGER="${EAGER:-0}"
ASYNC="${ASYNC:-0}"
QUEUE="${QUEUE:-1}"

# train_swap_1gpu.sh sets these.
PROMPTS_A_STEP="${PROMPTS_A_STEP:-128}" RESPONSES="${RESPONSES:-16}"
MAX_LEN="${MAX_LEN:-14000}"
require_count MAX_LEN # before it is calculated with: arithmetic would evaluate whatever stands in it
PACKED="${PACKED:-$(has_package flash_attn)}" ROW_TOKENS="${ROW_TOKENS:-$((2 * MAX_LEN))}"

COUNTS=(NUM_GPUS NUM_NODES QUEUE MICRO_BATCH SAVE_STEPS PROMPTS_A_STEP RESPONSES MAX_LEN ROW_TOKENS)
for name in "${COUNTS[@]}"; do require_count "$name"; done
GENERATION_GPUS="${GENERATION_GPUS:-$(((NUM_GPUS + 1) / 2))}"
require_count GENERATION_GPUS
[[ "$ZERO_STAGE" =~ ^[1-3]$ ]] || fail "ZERO_STAGE is $ZERO_STAGE; use 1, 2 or 3"
[[ "$ASYNC" =~ ^[01]$ ]] || fail "ASYNC is $ASYNC; use 0, or 1 to generate while training"
[[ "$EAGER" =~ ^[01]$ ]] || fail "EAGER is $EAGER; use 0, or 1 for no CUDA graphs"
[[ "$PACKED" =~ ^[01]$ ]] || fail "PACKED is $PACKED; use 1 to pack responses into rows, or 0"
(( ROW_TOKENS >= MAX_LEN )) || fail "ROW_TOKENS is $ROW_TOKENS; use at least MAX_LEN, $MAX_LEN"
(( MAX_LEN > 2000 )) || fail "MAX_LEN is $MAX_LEN, of which 2000 are reserved for the prompt; use more"
TRAINING_GPUS="$NUM_GPUS" ENGINES="$NUM_GPUS" # of a node
if (( ASYNC )); then
    TRAINING_GPUS=$((NUM_GPUS - GENERATION_GPUS)) ENGINES="$GENERATION_GPUS"
    (( TRAINING_GPUS > 0 )) || fail "GENERATION_GPUS is $GENERATION_GPUS of NUM_GPUS $NUM_GPUS; leave one to train on"
fi

case "$PROMPTS" in
    *.jsonl | *.json | *.csv | *.parquet | *.arrow | /* | ./* | ../*)
        if (( ! DRY_RUN )) && [[ ! -e "$PROMPTS" ]]; then
            fail "PROMPTS is $PROMPTS, which does not exist; create it: python -m openrlhf_swap.prepare --output $PROMPTS"
        fi
        NOTE=""
        (( NUM_NODES > 1 )) && PROMPTS="$(realpath -m -- "$PROMPTS")"
        ;;
    *) NOTE=" (from the hub, as is: openrlhf_swap.prepare would add the instruction to box the answer)" ;;
esac
# Actors on other nodes write there too, and a relative path would depend on where Ray was started.
(( NUM_NODES > 1 )) && OUTPUT="$(realpath -m -- "$OUTPUT")"

# What does not depend on machine and data: the paper's numbers, and ours where it is silent.
RECIPE_ARGS=(--swap.recipe swap_r1)
DATA_ARGS=(--data.prompt_dataset "$PROMPTS" --data.max_len "$MAX_LEN")
ROLLOUT_ARGS=(
    --rollout.batch_size "$PROMPTS_A_STEP" --rollout.n_samples_per_prompt "$RESPONSES"
    --rollout.max_new_tokens $((MAX_LEN - 2000)) --rollout.micro_batch_size "$MICRO_BATCH"
)
TRAIN_ARGS=(
    --actor.model_name_or_path "$MODEL" --train.batch_size $((PROMPTS_A_STEP * RESPONSES))
    --train.micro_batch_size "$MICRO_BATCH" --ds.zero_stage "$ZERO_STAGE"
)
if (( PACKED )); then
    TRAIN_ARGS+=(
        --ds.packing_samples --train.dynamic_batch_enable --train.max_tokens_per_gpu "$ROW_TOKENS"
        --rollout.max_tokens_per_gpu "$ROW_TOKENS"
    )
fi
if (( ASYNC )); then
    # An engine has its GPU to itself.
    PLACEMENT_ARGS=(
        --train.async_enable --train.async_queue_size "$QUEUE" --vllm.gpu_memory_utilization "${UTILIZATION:-0.9}"
    )
else
    # One set of GPUs for everything: vLLM sleeps while DeepSpeed works, and vice versa.
    PLACEMENT_ARGS=(
        --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization "${UTILIZATION:-0.7}"
    )
fi
PLACEMENT_ARGS+=(
    --actor.num_nodes "$NUM_NODES" --actor.num_gpus_per_node "$TRAINING_GPUS"
    --vllm.num_engines "$((NUM_NODES * ENGINES))"
)
# CUDA graphs stay on the GPU while vLLM sleeps, within the plan's allowance, and need not be captured again. Prefix
# caching stays off: prompts are about a hundredth of the tokens, and a cache that outlives an update would silently
# corrupt rollouts.
if [[ "$EAGER" == 1 ]]; then PLACEMENT_ARGS+=(--vllm.enforce_eager); fi
OUTPUT_ARGS=(
    --swap.output_dir "$OUTPUT" --ckpt.output_dir "$OUTPUT/policy" --ckpt.path "$OUTPUT/checkpoints"
    --ckpt.save_steps "$SAVE_STEPS"
    --logger.tensorboard_dir "$OUTPUT/tensorboard" "--logger.wandb.run_name=$(basename -- "$OUTPUT")"
)
# The key itself stays in the environment: command lines are shown by ps, stored by Ray and sent to the tracker. With
# WANDB_API_KEY set, OpenRLHF only checks that the flag has a value.
TRACKERS=TensorBoard
if [[ -n "${WANDB_KEY:-}" ]]; then export WANDB_API_KEY="$WANDB_KEY"; fi
if [[ -n "${WANDB_API_KEY:-}" ]]; then
    OUTPUT_ARGS+=(--logger.wandb.key WANDB_API_KEY --logger.wandb.project openrlhf-swap)
    TRACKERS+=", Weights & Biases"
fi
unset WANDB_KEY

PLACEMENT="vLLM and DeepSpeed taking turns"
if (( ASYNC )); then PLACEMENT="$GENERATION_GPUS of each node for vLLM"; fi
show_run() {
    local section word
    printf '[train] %s\n' "$MODEL on $NUM_NODES x $NUM_GPUS GPUs, $PLACEMENT" "prompts: $PROMPTS$NOTE" "output:  $OUTPUT" \
        "metrics: $TRACKERS" "command:"
    printf '    python -m openrlhf_swap.train'
    for section in RECIPE_ARGS DATA_ARGS ROLLOUT_ARGS TRAIN_ARGS PLACEMENT_ARGS OUTPUT_ARGS FLAGS; do
        local -n words="$section"
        (( ${#words[@]} )) && printf ' \\\n       '
        for word in "${words[@]}"; do printf ' %q' "$word"; done
    done
    printf '\n'
} >&2

show_run
COMMAND=(
    python -m openrlhf_swap.train "${RECIPE_ARGS[@]}" "${DATA_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}"
    "${PLACEMENT_ARGS[@]}" "${OUTPUT_ARGS[@]}" "${FLAGS[@]}"
)
DRY_RUN=$((DRY_RUN || PRINT)) end_dry_run "${COMMAND[@]}"
# Ray would silently wait for missing ones.
if (( NUM_NODES == 1 )) && [[ -z "${RAY_ADDRESS:-}" ]]; then require_gpus; fi
if (( NUM_NODES > 1 )) && [[ -z "${RAY_ADDRESS:-}" ]]; then
    fail "NUM_NODES is $NUM_NODES, but RAY_ADDRESS names no Ray cluster; use scripts/train_swap_multinode.sh"
fi
# Without a cluster, Ray listens on 127.0.0.1 only (on Linux too, whatever the name says).
if [[ -z "${RAY_ADDRESS:-}" ]]; then export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="${RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER:-0}"; fi
export PATH="${VENV:-$PWD/.venv}/bin:$PATH"
exec "${COMMAND[@]}"
