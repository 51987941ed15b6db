#!/usr/bin/env bash
# Trains DeepSeek-R1-Distill-Qwen with SWAP and the paper's settings on one node of 8 GPUs.
# Use train_swap_1.5b.sh or train_swap_7b.sh; they choose the size. Further flags are passed on; --dry-run prints the
# command and stops.
#   PROMPTS      prompt set: a data set of the hub or a local file   (default agentica-org/DeepScaleR-Preview-Dataset)
#   OUTPUT       folder for metrics, rollouts, checkpoints, policy   (default outputs/swap_<size>)
#   NUM_GPUS     GPUs of this node                                   (default 8)
#   WANDB_KEY    log to Weights & Biases; TensorBoard is always on
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SIZE="${SIZE:?use train_swap_1.5b.sh or train_swap_7b.sh}"
MODEL="${MODEL:-deepseek-ai/DeepSeek-R1-Distill-Qwen-$SIZE}"
PROMPTS="${PROMPTS:-agentica-org/DeepScaleR-Preview-Dataset}"
OUTPUT="${OUTPUT:-outputs/swap_${SIZE,,}}"
NUM_GPUS="${NUM_GPUS:-8}"
MICRO_BATCH="${MICRO_BATCH:-2}"
ZERO_STAGE="${ZERO_STAGE:-2}"

DRY_RUN=0
FLAGS=()
for flag in "$@"; do
    case "$flag" in
        -h | --help)
            sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        --dry-run) DRY_RUN=1 ;;
        *) FLAGS+=("$flag") ;;
    esac
done

# The paper's numbers; what it does not give (tau, eps, close template, learning rate, clip) has our defaults.
SWAP_ARGS=(
    --swap.objective swap --swap.step_tokens 350 --swap.max_steps 25 --swap.length_coef 1.0
    --swap.outcome_weight 1.0 --swap.process_weight 0.3 --swap.output_dir "$OUTPUT"
)
DATA_ARGS=(
    --data.prompt_dataset "$PROMPTS" --data.input_key problem --data.label_key answer --data.apply_chat_template
    --data.max_len 14000
)
ROLLOUT_ARGS=(
    --rollout.batch_size 128 --rollout.n_samples_per_prompt 16 --rollout.max_new_tokens 12000
    --rollout.temperature 0.6 --rollout.micro_batch_size "$MICRO_BATCH"
)
TRAIN_ARGS=(
    --actor.model_name_or_path "$MODEL" --actor.adam.lr 1e-6 --actor.gradient_checkpointing_enable
    --train.batch_size 2048 --train.micro_batch_size "$MICRO_BATCH" --train.num_episodes 2
    --ds.zero_stage "$ZERO_STAGE"
)
# One set of GPUs for everything: vLLM sleeps while DeepSpeed works, and the other way round.
PLACEMENT_ARGS=(
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep
    --actor.num_gpus_per_node "$NUM_GPUS" --vllm.num_engines "$NUM_GPUS" --vllm.gpu_memory_utilization 0.7
)
OUTPUT_ARGS=(
    --ckpt.output_dir "$OUTPUT/policy" --ckpt.path "$OUTPUT/checkpoints" --ckpt.save_steps 20 --ckpt.save_hf
    --logger.tensorboard_dir "$OUTPUT/tensorboard"
)
if [[ -n "${WANDB_KEY:-}" ]]; then
    OUTPUT_ARGS+=(--logger.wandb.key "$WANDB_KEY" --logger.wandb.project openrlhf-swap)
fi

COMMAND=(
    python -m openrlhf_swap.train "${SWAP_ARGS[@]}" "${DATA_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}"
    "${PLACEMENT_ARGS[@]}" "${OUTPUT_ARGS[@]}" "${FLAGS[@]}"
)
if (( DRY_RUN )); then
    printf '%q ' "${COMMAND[@]/${WANDB_KEY:-no key}/***}"
    printf '\n'
    exit 0
fi
export PATH="${VENV:-$PWD/.venv}/bin:$PATH"
exec "${COMMAND[@]}"
