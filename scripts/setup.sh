#!/usr/bin/env bash
# Makes .venv in the checkout and installs everything into it. Safe to run again: what is up to date is left alone.
#   VENV=...     put the environment elsewhere
#   PROFILE=cpu  or gpu; by default whether a CUDA device is there decides
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    sed -n '2,4s/^# \{0,1\}//p' scripts/setup.sh
    exit 0
fi

VENV="${VENV:-$PWD/.venv}"
LOG="$VENV/setup.log"
TORCH_CPU_INDEX="https://download.pytorch.org/whl/cpu"

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3 python; do
        command -v "${candidate:-none}" >/dev/null || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 was not found; install it, or name it: PYTHON=/path/to/python3.11 bash scripts/setup.sh"
}

detect_profile() {
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo gpu; else echo cpu; fi
}

require_disk() {
    local needed_gib="$1" free_kib
    free_kib="$(df -Pk "$(dirname "$VENV")" | awk 'NR == 2 { print $4 }')"
    if (( free_kib < needed_gib * 1024 * 1024 )); then
        fail "$(dirname "$VENV") has $(( free_kib / 1024 / 1024 )) GiB free; the $PROFILE profile needs $needed_gib: free some, or set VENV"
    fi
}

# flash-attn is compiled here, DeepSpeed's Adam when a training starts; both refuse a CUDA that is not torch's.
require_cuda_compiler() {
    local nvcc version
    nvcc="${CUDA_HOME:+$CUDA_HOME/bin/}nvcc"
    command -v "$nvcc" >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
    version="$("$nvcc" --version 2>/dev/null | grep -oE 'release [0-9.]+' | cut -d ' ' -f 2 || true)"
    if [[ "${version%%.*}" != 13 ]]; then
        fail "the CUDA compiler (nvcc) is ${version:-missing}; torch is built for CUDA 13: install the CUDA 13.0 toolkit, and set CUDA_HOME"
    fi
}

# Runs pip; shows what it downloads, keeps the rest in the log, and says in one line what went wrong.
pip_install() {
    if "$VENV/bin/python" -m pip install --no-input "$@" >>"$LOG" 2>&1; then return 0; fi
    if grep -q 'No space left on device' "$LOG"; then
        fail "the disk is full; free some space, or set VENV to another disk (details: $LOG)"
    elif grep -qE 'Failed to establish a new connection|Temporary failure in name resolution|ConnectTimeout|Read timed out' "$LOG"; then
        fail "the package index cannot be reached; check the network and run this again (details: $LOG)"
    fi
    return 1
}

watch_progress() {
    local installer="$1" name="$2"
    while kill -0 "$installer" 2>/dev/null; do
        sleep 10
        local step
        step="$(grep -oE '^ *(Downloading|Using cached|Building wheel|Installing collected packages)[^(:]{0,60}' "$LOG" | tail -n 1 || true)"
        printf '[setup] %s: %s\n' "$name" "${step:-working}"
    done
}

step() {
    local name="$1"
    shift
    printf '[setup] %s\n' "$name"
    pip_install "$@" &
    local installer=$!
    watch_progress "$installer" "$name" &
    local watcher=$!
    local status=0
    wait "$installer" || status=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    return "$status"
}

PROFILE="${PROFILE:-$(detect_profile)}"
case "$PROFILE" in
    cpu) REQUIREMENTS=requirements-cpu.txt PINS=requirements-cpu.txt ;;
    gpu) REQUIREMENTS=requirements.txt PINS=constraints-gpu.txt ;;
    *) fail "PROFILE is $PROFILE; use cpu or gpu" ;;
esac

PYTHON_PATH="$(find_python)"
STAMP="$VENV/.installed"
if [[ -f "$STAMP" && "$(cut -d ' ' -f 1 "$STAMP")" != "$PROFILE" ]]; then
    # pip would keep the other profile's torch, whose version is the same.
    fail "$VENV holds the $(cut -d ' ' -f 1 "$STAMP") profile; for $PROFILE remove it, or set VENV to another place"
fi
WANTED="$PROFILE $(cat "$REQUIREMENTS" "$PINS" pyproject.toml | sha256sum | cut -d ' ' -f 1)"
if [[ -f "$STAMP" && "$(cat "$STAMP")" == "$WANTED" ]]; then
    printf '[setup] %s is up to date (%s)\n' "$VENV" "$PROFILE"
    exit 0
fi

if [[ "$PROFILE" == cpu ]]; then require_disk 7; else require_cuda_compiler; require_disk 30; fi
command -v g++ >/dev/null || fail "no C++ compiler (g++) was found, which DeepSpeed needs; install one, such as Debian's package g++"
if [[ "$PROFILE" == cpu ]] && ! "$PYTHON_PATH" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    fail "libnuma.so.1 was not found, without which vLLM fails at its first response; install it, such as Debian's package libnuma1"
fi
"$PYTHON_PATH" -m venv "$VENV" || fail "$PYTHON_PATH cannot make a virtual environment; install its venv package"
: >"$LOG"
if [[ "$PROFILE" == cpu ]]; then takes="a few minutes"; else takes="long, because flash-attn is compiled,"; fi
printf '[setup] %s profile into %s; takes %s the first time (log: %s)\n' "$PROFILE" "$VENV" "$takes" "$LOG"

TORCH="$(grep -oE '^torch==[^ ]+' "$REQUIREMENTS")"
if ! step "torch" "$TORCH" numpy==2.3.5 setuptools==77.0.3 wheel packaging ninja; then
    [[ "$PROFILE" == cpu ]] || fail "$TORCH could not be installed (details: $LOG)"
    # Package indexes carry the CUDA build; PyTorch's own index has the CPU build.
    step "torch from PyTorch's CPU index" "$TORCH" numpy==2.3.5 setuptools==77.0.3 wheel packaging ninja \
        --extra-index-url "$TORCH_CPU_INDEX" || fail "$TORCH could not be installed (details: $LOG)"
fi
# --use-pep517: DeepSpeed comes as source, and its setup.py with torch's build command fails on the setuptools that vLLM
# pins ("unexpected keyword argument 'use_ninja'"); in an environment of its own it builds in seconds.
if [[ "$PROFILE" == cpu ]]; then
    step "Ray, vLLM, DeepSpeed, OpenRLHF and what they need" --use-pep517 --no-deps -r "$REQUIREMENTS" \
        || fail "the packages of $REQUIREMENTS could not be installed (details: $LOG)"
else
    step "DeepSpeed" --use-pep517 --no-deps "$(grep -oE '^deepspeed==[^ ]+' "$REQUIREMENTS")" \
        || fail "DeepSpeed could not be built (details: $LOG)"
    step "Ray, vLLM, flash-attn, OpenRLHF and what they need" --no-build-isolation -r "$REQUIREMENTS" -c "$PINS" \
        || fail "the packages of $REQUIREMENTS could not be installed (details: $LOG)"
fi
step "openrlhf-swap" --no-deps --no-build-isolation -e . || fail "this checkout could not be installed (details: $LOG)"
if [[ "$PROFILE" == cpu ]]; then
    printf '[setup] communication op of DeepSpeed\n'
    PATH="$VENV/bin:$PATH" "$VENV/bin/python" -c \
        'from openrlhf_swap.integration.cpu import build_communication_op; build_communication_op()' 2>>"$LOG" \
        || fail "DeepSpeed's communication op could not be compiled (details: $LOG)"
fi
printf '%s\n' "$WANTED" >"$STAMP"
printf '[setup] done\n'
