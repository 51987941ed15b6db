#!/usr/bin/env bash
# Trains the policy of the quickstart to answer as R1-Zero's prompt asks, <answer>\boxed{12}</answer>: a short supervised
# warm-up on its own problems (two minutes on one core), then a training whose rewards such responses earn.
#   OUTPUT=outputs/answer_tags  ROWS=6400  STEPS=4
set -euo pipefail
cd "$(dirname -- "$0")/../.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

HELP_OF=studies/toy_tasks/answer_tags.sh read_flags "" "$@"

OUTPUT="${OUTPUT:-outputs/answer_tags}"
ROWS="${ROWS:-6400}"
export STEPS="${STEPS:-4}" HF_HUB_OFFLINE=1
require_count ROWS
undash OUTPUT

python -m studies.toy_tasks.make_policy --start openrlhf_swap/quickstart/policy --output "$OUTPUT/start" \
    --rows "$ROWS" --probe-share 0
sed -i -E 's#\*\*Final Answer\*\*\\n(\\\\boxed\{[^}]*\})#<answer>\1</answer>#' "$OUTPUT/start/sft.jsonl"
python -m studies.toy_tasks.pretrain --start "$OUTPUT/start" --output "$OUTPUT/warm" --learning-rate 2e-3
python -m openrlhf_swap.quickstart.make_data --output "$OUTPUT/data"
export MODEL="$OUTPUT/warm" PROMPTS="$OUTPUT/data/train.jsonl"
export OUTPUT="$OUTPUT/trained"
exec bash studies/toy_tasks/train_swap.sh --swap.close_template '</think>\n\n<answer>\boxed{' "$@"
