# Sourced by the scripts, which are run from the checkout.
# shellcheck shell=bash

# Prints a one-line error and exits.
fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

# require_count NAME [LEAST]: fails unless the variable holds a whole number of at least LEAST (default 1).
require_count() {
    local least="${2:-1}"
    if [[ ! "${!1}" =~ ^(0|[1-9][0-9]*)$ ]] || (( ${!1} < least )); then
        fail "$1 is ${!1}; use a whole number of at least $least"
    fi
}

# undash NAME ...: puts ./ in front of paths that start with a dash, which commands would take for options.
undash() {
    local name
    for name in "$@"; do
        if [[ "${!name}" == -* ]]; then printf -v "$name" './%s' "${!name}"; fi
    done
}

# print_help [SCRIPT]: prints the comment at the top of a script in scripts/, by default the one that was called, or of
# the file that HELP_OF names.
print_help() {
    sed -n '2,/^set /{/^#SBATCH/d;s/^# \{0,1\}//p}' -- "${HELP_OF:-scripts/${1:-$(basename -- "$0")}}"
}

# read_flags "FLAG ..." WORD ...: the first argument lists the flags that the script supports: --dry-run, --block. Sets
# DRY_RUN and BLOCK to 1 if given, and FLAGS to the remaining words. --help prints the help and exits.
read_flags() {
    local own=" $1 " word name
    # shellcheck disable=SC2034  # used by the sourcing script
    DRY_RUN=0 BLOCK=0 FLAGS=()
    for word in "${@:2}"; do
        if [[ "$word" == -h || "$word" == --help ]]; then
            print_help
            exit 0
        elif [[ -n "$word" && "$own" == *" $word "* ]]; then
            name="${word#--}"
            name="${name^^}"
            printf -v "${name//-/_}" 1
        else
            FLAGS+=("$word")
        fi
    done
}

# count_gpus: number of GPUs that a process started here would see.
count_gpus() {
    if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -cE '^ *([0-9]|GPU-|MIG-)' || true  # -1 hides them all
    else
        nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true
    fi
}

# require_gpus: fails if a process started here would see fewer than NUM_GPUS.
require_gpus() {
    local there where="this machine has"
    there="$(count_gpus)"
    if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then where="CUDA_VISIBLE_DEVICES leaves"; fi
    (( there >= NUM_GPUS )) || fail "NUM_GPUS is $NUM_GPUS, but $where $there; set it to at most as many"
}

# detect_profile: gpu if there are GPUs, else cpu.
detect_profile() {
    if (( $(count_gpus) )); then echo gpu; else echo cpu; fi
}

# use_cpu_environment: the quickstart and the tests need no GPU. On a machine with GPUs .venv is for training on them,
# so these use a second environment next to it.
use_cpu_environment() {
    if [[ "$(detect_profile)" == gpu ]]; then VENV="${VENV:-$PWD/.venv-cpu}"; else VENV="${VENV:-$PWD/.venv}"; fi
    export PROFILE=cpu VENV
}

# show WORD ...: prints a command, quoted for pasting.
show() {
    printf '%q ' "$@"
    printf '\n'
}

# end_dry_run WORD ...: in a dry run, prints the command and exits.
end_dry_run() {
    (( DRY_RUN )) || return 0
    show "$@"
    exit 0
}
