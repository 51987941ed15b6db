#!/usr/bin/env bash
# Trains the embedded policy with every objective and evaluates it on held-out problems; collects one table.
# Started again, it goes on where it stopped. Further flags go to openrlhf_swap.sweep, such as --only swap grpo.
#   OUTPUT=...  SEEDS="1 2 3"  STEPS=40  PROBLEMS=500  SAMPLES=2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

HERE=examples/addition
OUTPUT="${OUTPUT:-outputs/compare}"
STEPS="${STEPS:-40}"
PROBLEMS="${PROBLEMS:-500}"
SAMPLES="${SAMPLES:-2}"
read -ra SEEDS <<<"${SEEDS:-1 2 3}"

export MODEL="$HERE/policy" PROMPTS="$OUTPUT/data/train.jsonl" STEPS
python "$HERE/make_data.py" --output "$OUTPUT/data" --train $((STEPS * 16)) --test "$PROBLEMS"
# AdaptThink compares with the policy before training.
python -m openrlhf_swap.reference --model "$MODEL" --dataset "$PROMPTS" --output "$OUTPUT/reference.jsonl" \
    --samples 4 --temperature 1 --top-p 1 --max-tokens 320 --max-model-len 512
exec python -m openrlhf_swap.sweep --configurations "$HERE/objectives.json" --seeds "${SEEDS[@]}" --output "$OUTPUT" \
    --train "env OUTPUT={output} SEED={seed} bash $HERE/train_swap.sh" \
    --evaluate "python $HERE/evaluate.py --model {output}/policy --problems $OUTPUT/data/test.jsonl \
        --output {output}/result.json --samples $SAMPLES" \
    "$@"
