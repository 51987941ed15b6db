#!/usr/bin/env bash
# Supervised fine-tuning with OpenRLHF under the deepspeed launcher, on the GPUs of one node or on a CPU. Only the
# output is trained on; input and output are joined as is, without a chat template. Further flags go to
# studies.sft.train (OpenRLHF's train_sft) and take precedence. With SAVE_STEPS, the same command resumes from the last
# checkpoint.
#   MODEL=...            hub id, or folder in Hugging Face format
#   DATA=...             JSONL with the columns input and output
#   OUTPUT=outputs/sft   folder for the trained model in Hugging Face format, tensorboard/ and checkpoints/
#   EPOCHS=1             passes over the data
#   LEARNING_RATE=1e-5   peak of a cosine schedule
#   BATCH_SIZE=64        rows per update
#   MICRO_BATCH=1        rows that a GPU processes at a time
#   MAX_LEN=4096         tokens per row; longer rows are truncated
#   NUM_GPUS=8           processes, one per GPU, the first of CUDA_VISIBLE_DEVICES if that is set (default on a CPU: 1)
#   ZERO_STAGE=2         DeepSpeed's ZeRO stage (default on a CPU: 0)
#   SAVE_STEPS=...       updates between checkpoints; no checkpoints by default
#   MASTER_PORT=29500    rendezvous port; choose another for a second run on the same machine
#   PROFILE=...          gpu or cpu; by default gpu if there is a CUDA device
#   --dry-run            prints the command and stops
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

HELP_OF=studies/sft/train_sft_deepspeed.sh read_flags --dry-run "$@"

PROFILE="${PROFILE:-$(detect_profile)}"
case "$PROFILE" in
    gpu)
        NUM_GPUS="${NUM_GPUS:-8}" ZERO_STAGE="${ZERO_STAGE:-2}"
        DEVICE_ARGS=(--model.gradient_checkpointing_enable)
        ;;
    cpu)
        NUM_GPUS="${NUM_GPUS:-1}" ZERO_STAGE="${ZERO_STAGE:-0}"
        DEVICE_ARGS=(--ds.attn_implementation sdpa)
        export TORCHDYNAMO_DISABLE=1
        ;;
    *) fail "PROFILE is $PROFILE; use gpu or cpu" ;;
esac
MODEL="${MODEL:-}"
DATA="${DATA:-}"
OUTPUT="${OUTPUT:-outputs/sft}"
undash MODEL DATA OUTPUT
EPOCHS="${EPOCHS:-1}"
LEARNING_RATE="${LEARNING_RATE:-1e-5}"
BATCH_SIZE="${BATCH_SIZE:-64}"
MICRO_BATCH="${MICRO_BATCH:-1}"
MAX_LEN="${MAX_LEN:-4096}"
SAVE_STEPS="${SAVE_STEPS:--1}"
MASTER_PORT="${MASTER_PORT:-29500}"

[[ -n "$MODEL" ]] || fail "MODEL is not set; use a hub id, or a folder in Hugging Face format"
[[ -n "$DATA" ]] || fail "DATA is not set; use a JSONL file with the columns input and output"
for name in NUM_GPUS EPOCHS BATCH_SIZE MICRO_BATCH MAX_LEN MASTER_PORT; do require_count "$name"; done
[[ "$SAVE_STEPS" == -1 ]] || require_count SAVE_STEPS
[[ "$ZERO_STAGE" =~ ^[0-3]$ ]] || fail "ZERO_STAGE is $ZERO_STAGE; use 0, 1, 2 or 3"
[[ "$LEARNING_RATE" =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$ ]] \
    || fail "LEARNING_RATE is $LEARNING_RATE; use a number such as 1e-5"
if (( BATCH_SIZE % (MICRO_BATCH * NUM_GPUS) != 0 )); then
    fail "BATCH_SIZE is $BATCH_SIZE; use a multiple of MICRO_BATCH x NUM_GPUS, which is $((MICRO_BATCH * NUM_GPUS))"
fi
if (( ! DRY_RUN )); then
    [[ -f "$DATA" ]] || fail "DATA is $DATA, which does not exist; use a JSONL file with the columns input and output"
    rows="$(grep -c . -- "$DATA" || true)"
    (( rows >= BATCH_SIZE )) || fail "BATCH_SIZE is $BATCH_SIZE, but $DATA has $rows rows; use at most as many"
    if [[ "$PROFILE" == gpu ]]; then require_gpus; fi
fi

PLACES=(--num_gpus "$NUM_GPUS")
if [[ "$PROFILE" == gpu && -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    # Next to --num_gpus, DeepSpeed's launcher drops the variable and takes the machine's first GPUs.
    IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES// /}"
    printf -v chosen '%s,' "${visible[@]:0:NUM_GPUS}"
    [[ "$chosen" =~ ^([0-9]+,)+$ ]] || fail \
        "CUDA_VISIBLE_DEVICES is $CUDA_VISIBLE_DEVICES; DeepSpeed's launcher needs numbers: use those of nvidia-smi"
    PLACES=(--include "localhost:${chosen%,}")
fi

COMMAND=(
    deepspeed "${PLACES[@]}" --master_port "$MASTER_PORT" --module studies.sft.train
    --model.model_name_or_path "$MODEL"
    --data.dataset "$DATA" --data.input_key input --data.output_key output --data.input_template "{}"
    --data.max_len "$MAX_LEN"
    --train.batch_size "$BATCH_SIZE" --train.micro_batch_size "$MICRO_BATCH" --train.max_epochs "$EPOCHS"
    --adam.lr "$LEARNING_RATE" --ds.zero_stage "$ZERO_STAGE" --ds.param_dtype bf16 "${DEVICE_ARGS[@]}"
    --ckpt.output_dir "$OUTPUT" --ckpt.path "$OUTPUT/checkpoints" --ckpt.save_steps "$SAVE_STEPS" --ckpt.max_num 3
    --ckpt.load_enable
    --logger.tensorboard_dir "$OUTPUT/tensorboard" "--logger.wandb.run_name=$(basename -- "$OUTPUT")"
    "${FLAGS[@]}"
)
printf '[sft] %s\n' "$MODEL on $NUM_GPUS $PROFILE process(es)" "data:   $DATA" "output: $OUTPUT" >&2
end_dry_run "${COMMAND[@]}"
printf '[sft] command: %s\n' "$(show "${COMMAND[@]}")" >&2
export PATH="${VENV:-$PWD/.venv}/bin:$PATH" TOKENIZERS_PARALLELISM=false
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${COMMAND[@]}"
