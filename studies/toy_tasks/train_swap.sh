#!/usr/bin/env bash
# A real SWAP training run on the quickstart's policy: Ray, vLLM, DeepSpeed, math-verify. Further flags are passed on.
set -euo pipefail

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../../scripts/common.sh"

HELP_OF="${BASH_SOURCE[0]}" read_flags "" "$@"

MODEL="${MODEL:?folder of the policy}"
PROMPTS="${PROMPTS:?JSONL of problem and answer}"
OUTPUT="${OUTPUT:?output folder}"
STEPS="${STEPS:-40}"
SEED="${SEED:-42}"
PROMPTS_A_STEP="${PROMPTS_A_STEP:-16}"
RESPONSES=8
UPDATES="${UPDATES:-1}"  # per step
for name in STEPS UPDATES PROMPTS_A_STEP; do require_count "$name"; done
undash MODEL PROMPTS OUTPUT

SWAP_ARGS=(
    --swap.output_dir "$OUTPUT"
    # A line is a step: ten tokens in an addition.
    --swap.step_tokens "${STEP_TOKENS:-8}"
    # The policy closes its thought on a new line, so the template starts without one.
    --swap.close_template '</think>\n\n**Final Answer**\n\boxed{'
)
DATA_ARGS=(
    --data.prompt_dataset "$PROMPTS" --data.input_key problem --data.label_key answer --data.apply_chat_template
    --data.max_samples $((STEPS * PROMPTS_A_STEP)) --data.max_len 400
)
ROLLOUT_ARGS=(
    --rollout.batch_size "$PROMPTS_A_STEP" --rollout.n_samples_per_prompt "$RESPONSES"
    --rollout.max_new_tokens 320 --rollout.temperature 1.0 --rollout.micro_batch_size 32
)
TRAIN_ARGS=(
    --actor.model_name_or_path "$MODEL"
    --actor.adam.lr "${LEARNING_RATE:-3e-4}" --actor.lr_scheduler "${LR_SCHEDULER:-constant}"
    --train.batch_size $((PROMPTS_A_STEP * RESPONSES / UPDATES)) --train.micro_batch_size 32 --train.seed "$SEED"
)
CKPT_ARGS=(--ckpt.output_dir "$OUTPUT/policy" --ckpt.path "$OUTPUT/checkpoints")

# Objectives and extractors of the studies are found wherever this is called.
PYTHONPATH="$(cd "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH

# LAUNCHER: a module that trains as `openrlhf-swap train` does, but for what it replaces.
exec python -m "${LAUNCHER:-openrlhf_swap}" train \
    "${SWAP_ARGS[@]}" "${DATA_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${CKPT_ARGS[@]}" "$@"
