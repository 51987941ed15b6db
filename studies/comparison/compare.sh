#!/usr/bin/env bash
# Trains a toy task's policy with every objective, evaluates it on held-out problems, and collects one table. The same
# command continues where it stopped. Further flags go to run_sweep.py, such as --only swap grpo.
#   WORLD=addition  OUTPUT=...  SEEDS="1 2 3"  STEPS=20  PROBLEMS=500  SAMPLES=1
#   EVALUATE_EVERY=5: each run also answers the held-out problems on its way, after so many steps (fronts.py reads it)
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

HELP_OF=studies/comparison/compare.sh read_flags "" "$@"

WORLD="${WORLD:-addition}"
[[ "$WORLD" =~ ^(addition|decomposition|words|word_pairs)$ ]] ||
    fail "WORLD is $WORLD; use addition, decomposition, words or word_pairs"
OUTPUT="${OUTPUT:-outputs/compare_$WORLD}"
STEPS="${STEPS:-20}"
PROBLEMS="${PROBLEMS:-500}"
SAMPLES="${SAMPLES:-1}"
EVALUATE_EVERY="${EVALUATE_EVERY:-}"
for name in STEPS PROBLEMS SAMPLES ${EVALUATE_EVERY:+EVALUATE_EVERY}; do require_count "$name"; done
undash OUTPUT
read -ra SEEDS <<<"${SEEDS:-1 2 3}"

if [[ "$WORLD" == addition ]]; then
    MODULE=openrlhf_swap.quickstart.addition
    MODEL="${MODEL:-openrlhf_swap/quickstart/policy}"
else
    MODULE="studies.toy_tasks.$WORLD"
    MODEL="${MODEL:-studies/toy_tasks/policies/$WORLD}"
fi
export MODEL PROMPTS="$OUTPUT/data/train.jsonl" STEPS
if [[ ! -f "$MODEL/config.json" ]]; then
    fail "MODEL is $MODEL, where no policy is; make one with WORLD=$WORLD bash studies/toy_tasks/train_policy.sh"
fi
export STEP_TOKENS="${STEP_TOKENS:-$(python -c "from $MODULE import STEP_TOKENS; print(STEP_TOKENS)")}"
python -m openrlhf_swap.quickstart.make_data --world "$MODULE" --output "$OUTPUT/data" --train $((STEPS * 16)) \
    --test "$PROBLEMS"
evaluate=(python -m openrlhf_swap.quickstart.evaluate --world "$MODULE" --problems "$OUTPUT/data/test.jsonl"
          --samples "$SAMPLES")
if [[ ! -f "$OUTPUT/base.json" ]]; then
    "${evaluate[@]}" --model "$MODEL" --output "$OUTPUT/base.json"
fi

WORDS=" $* "
runs() { [[ "$WORDS" == *" $1 "* || ! "$WORDS" =~ " --only "|" --configurations " ]]; }
# L1 and HBPO name a number of tokens, AutoThink and Thinkless let the policy decide whether to think, and the quickstart's
# policy has never seen either: teach it to accept the first and to do the second.
TAUGHT_POLICY="$OUTPUT/taught_policy"
if runs l1_exact || runs l1_max || runs hbpo || runs autothink || runs thinkless || runs swap_taught; then
    if [[ ! -f "$TAUGHT_POLICY/trained/model.safetensors" ]]; then
        OUTPUT="$TAUGHT_POLICY" ROWS=12000 LEARNING_RATE=1e-3 bash studies/toy_tasks/train_policy.sh --start "$MODEL" --modes
    fi
    taught=("${evaluate[@]}" --model "$TAUGHT_POLICY/trained")
    if [[ ! -f "$OUTPUT/base_ellipsis.json" ]]; then  # the last one written
        "${taught[@]}" --output "$OUTPUT/base_taught.json"
        "${taught[@]}" --suffix " Think for 60 tokens." --output "$OUTPUT/base_budget.json"
        "${taught[@]}" --opening $'...\n' --output "$OUTPUT/base_ellipsis.json"
    fi
fi
# AdaptThink compares with the untrained policy.
if runs adaptthink; then
    python -m openrlhf_swap reference --model "$MODEL" --dataset "$PROMPTS" --output "$OUTPUT/reference.jsonl" \
        --samples 4 --temperature 1 --top-p 1 --max-tokens 320 --max-model-len 512
fi
on_the_way=()
if [[ -n "$EVALUATE_EVERY" ]]; then
    # As evaluate.py does: one response a problem at temperature 1.
    on_the_way=(--eval.dataset "$OUTPUT/data/test.jsonl" --eval.steps "$EVALUATE_EVERY" --eval.temperature 1
                --eval.n_samples_per_prompt 1)
fi
train=(bash studies/toy_tasks/train_swap.sh --ckpt.load_enable "${on_the_way[@]}")
python -m studies.comparison.objectives --world "${WORLD/word_pairs/words}" --output "$OUTPUT/configurations.json"
exec python -m studies.comparison.run_sweep --configurations "$OUTPUT/configurations.json" \
    --seeds "${SEEDS[@]}" --output "$OUTPUT" --train "env OUTPUT={output} SEED={seed} ${train[*]@Q}" \
    --evaluate "${evaluate[*]@Q} --model {output}/policy --output {output}/result.json" "$@"
