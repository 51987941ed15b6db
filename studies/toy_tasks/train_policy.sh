#!/usr/bin/env bash
# Makes a toy task's base policy from scratch: seeded data, seeded weights, OpenRLHF's SFT under the deepspeed launcher;
# for words, word_pairs, columns and chains, plain PyTorch on one thread.
#   WORLD=addition       OUTPUT=outputs/base_policy  ROWS=90000  LEARNING_RATE=3e-3  BATCH_SIZE=64  EPOCHS=1
#   WORLD=decomposition                              ROWS=60000  LEARNING_RATE=2e-3  BATCH_SIZE=16
#   WORLD=words                                      ROWS=44800  LEARNING_RATE=2e-3  BATCH_SIZE=32
#   WORLD=word_pairs                                 ROWS=19200  LEARNING_RATE=1e-3  BATCH_SIZE=32  (from that of words)
#   WORLD=columns                                    ROWS=80000  LEARNING_RATE=4e-3  BATCH_SIZE=32  (3 layers of 64)
#   WORLD=chains                                     ROWS=201600 LEARNING_RATE=2e-3  BATCH_SIZE=32  (then 134,400 more)
# Further flags go to make_policy.py; --start POLICY --modes teaches a policy the prompts of L1 and others.
set -euo pipefail
cd "$(dirname -- "$0")/../.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

HELP_OF=studies/toy_tasks/train_policy.sh read_flags "" "$@"

WORLD="${WORLD:-addition}"
OUTPUT="${OUTPUT:-outputs/base_policy}"
undash OUTPUT
EPOCHS="${EPOCHS:-1}"
case "$WORLD" in
    # Copying and adding take a number of updates rather than of rows, so the longer rows come in small batches.
    decomposition) defaults=(60000 2e-3 16) ;;
    words) defaults=(44800 2e-3 32) ;;
    columns) defaults=(80000 4e-3 32) && set -- --width 64 --layers 3 --probe-share 0.3 "$@" ;;
    chains) defaults=(201600 2e-3 32) ;;
    word_pairs) defaults=(19200 1e-3 32) && set -- --start studies/toy_tasks/policies/words "$@" ;;
    *) defaults=(90000 3e-3 64) ;;
esac
ROWS="${ROWS:-${defaults[0]}}"
LEARNING_RATE="${LEARNING_RATE:-${defaults[1]}}"
BATCH_SIZE="${BATCH_SIZE:-${defaults[2]}}"
export TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

python -m studies.toy_tasks.make_policy --world "$WORLD" --output "$OUTPUT/start" --rows "$ROWS" "$@"
if [[ "$WORLD" == word* || "$WORLD" == columns || "$WORLD" == chains ]]; then
    exec python -m studies.toy_tasks.pretrain --start "$OUTPUT/start" --output "$OUTPUT/trained" \
        --learning-rate "$LEARNING_RATE" --batch-size "$BATCH_SIZE"
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" deepspeed --num_gpus 1 --module studies.sft.train \
    --model.model_name_or_path "$OUTPUT/start" \
    --data.dataset "$OUTPUT/start/sft.jsonl" --data.input_key input --data.output_key output --data.input_template "{}" \
    --data.max_len 512 \
    --train.batch_size "$BATCH_SIZE" --train.micro_batch_size "$BATCH_SIZE" --train.max_epochs "$EPOCHS" --train.seed 0 \
    --adam.lr "$LEARNING_RATE" --adam.betas 0.9 0.98 --lr_scheduler cosine_with_min_lr --lr_warmup_ratio 0.05 \
    --ds.zero_stage 0 --ds.attn_implementation sdpa --ds.param_dtype bf16 \
    --logger.logging_steps 100 \
    --ckpt.output_dir "$OUTPUT/trained"
