#!/usr/bin/env bash
# DeepSeek-R1-Distill-Qwen-7B on 8 x 141 GB GPUs; see train_swap_r1.sh.
set -euo pipefail
SIZE=7B exec bash "$(dirname -- "${BASH_SOURCE[0]}")/train_swap_r1.sh" "$@"
