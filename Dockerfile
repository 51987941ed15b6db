# Two images of the same stack, each installed by scripts/setup.sh:
#   docker build -t openrlhf-swap:cuda .               CUDA GPUs (the default target)
#   docker build -t openrlhf-swap:cpu --target cpu .   no GPU: the quickstart and the tests
# scripts/docker_run.sh builds and runs both; docs/use/cluster.md explains how, and what was checked. Needs BuildKit.

# The base is pinned by tag, for people, and by digest, for the build. It can be replaced, by a mirror for example.
# Debian 12 ships Python 3.11. Why not python:3.11-slim: a plain Debian can be made with debootstrap, so the CPU target
# could be built where no image can be pulled (docs/use/cluster.md). It works for CUDA too: the driver comes from the
# container toolkit, everything else from the Python packages.
ARG DEBIAN=debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

# --------------------------------------------------------------------------------------------------------------- base
# hadolint ignore=DL3006  # the ARG above carries tag and digest
FROM ${DEBIAN} AS base

# DL3008: Debian removes a version from its mirrors when it publishes the next one, so pins would break the build at
# every security update. The base image and all Python packages are pinned. libnuma1 is for vLLM; g++ and the Python
# headers are for DeepSpeed and Triton, which compile when a run starts.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates g++ libnuma1 python3.11 python3.11-dev python3.11-venv \
    && rm -rf /var/lib/apt/lists/*

# HOME is writable for every uid, because docker run --user makes the caller the owner of the outputs. USER and LOGNAME
# give a name to uids that /etc/passwd does not list.
RUN useradd --uid 1000 --create-home --shell /bin/bash swap && chmod 1777 /home/swap
ENV VENV=/opt/venv PATH=/opt/venv/bin:$PATH HOME=/home/swap USER=swap LOGNAME=swap PYTHONUNBUFFERED=1 \
    MYPY_CACHE_DIR=/home/swap/.cache/mypy UV_LINK_MODE=copy
WORKDIR /app

# Only what the installation reads, so that editing code or documentation does not repeat it.
COPY LICENSE pyproject.toml requirements-cpu.txt constraints-gpu.txt requirements-flash-attn.txt ./
COPY scripts/common.sh scripts/setup.sh scripts/
COPY openrlhf_swap/__init__.py openrlhf_swap/errors.py openrlhf_swap/
COPY openrlhf_swap/packages/__init__.py openrlhf_swap/packages/kernels.py openrlhf_swap/packages/versions.py \
    openrlhf_swap/packages/
COPY openrlhf_swap/integration/__init__.py openrlhf_swap/integration/patches.py openrlhf_swap/integration/
COPY openrlhf_swap/integration/runtime/__init__.py openrlhf_swap/integration/runtime/attention.py \
    openrlhf_swap/integration/runtime/cpu.py openrlhf_swap/integration/runtime/
COPY openrlhf_swap/integration/startup/__init__.py openrlhf_swap/integration/startup/communication_op.py \
    openrlhf_swap/integration/startup/
COPY openrlhf_swap/process/__init__.py openrlhf_swap/process/private_ray.py openrlhf_swap/process/

# ---------------------------------------------------------------------------------------------------------------- cpu
FROM base AS cpu
LABEL org.opencontainers.image.title="openrlhf-swap (CPU)" org.opencontainers.image.licenses="Apache-2.0"
ENV PROFILE=cpu
# PYTHONDONTWRITEBYTECODE: users of the image may not write bytecode, so all of it is made here. torch_extensions:
# DeepSpeed locks an op's folder even if the op is already built.
RUN --mount=type=cache,target=/var/cache/pip \
    touch README.md && PIP_CACHE_DIR=/var/cache/pip/pip UV_CACHE_DIR=/var/cache/pip/uv HOME=/root \
        PYTHONDONTWRITEBYTECODE=1 bash scripts/setup.sh \
    && chmod -R a+rwX /opt/venv/torch_extensions

COPY . .
# a+rX: file modes come from the checkout, whose umask may be strict. vllm._C: if a system library is missing, vLLM
# carries on without its kernels and fails much later.
RUN chmod -R a+rX . && install -d -m 1777 outputs \
    && python -c "import openrlhf_swap.evaluation.run, openrlhf_swap.train, torch, vllm._C"
USER 1000:1000
# The stack imports, and the outputs are writable: mounting a folder with another owner is the usual mistake.
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "-c", "import os, ray, torch, transformers; assert os.access('outputs', os.W_OK)"]
CMD ["python", "-m", "openrlhf_swap.train", "--help"]

# --------------------------------------------------------------------------------------------------------------- cuda
FROM base AS cuda
LABEL org.opencontainers.image.title="openrlhf-swap (CUDA)" org.opencontainers.image.licenses="Apache-2.0"
ENV PROFILE=gpu NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# 1 compiles flash-attn with the compiler shipped in the Python packages; each job takes several GB of memory.
# Architectures: 80 is A100, 90 is H100 and H200; add 100 or 120 for Blackwell.
ARG FLASH_ATTN=0
ARG MAX_JOBS=4
ARG FLASH_ATTN_CUDA_ARCHS="80;90"
RUN --mount=type=cache,target=/var/cache/pip \
    touch README.md && PIP_CACHE_DIR=/var/cache/pip/pip UV_CACHE_DIR=/var/cache/pip/uv HOME=/root bash scripts/setup.sh

COPY . .
RUN chmod -R a+rX . && install -d -m 1777 outputs && python -c "import openrlhf_swap.evaluation.run, openrlhf_swap.train, torch"
USER 1000:1000
# Also checks that the GPUs are there: a container loses them when the host reloads its devices.
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "-c", "import os, torch; assert torch.cuda.device_count() and os.access('outputs', os.W_OK)"]
CMD ["python", "-m", "openrlhf_swap.train", "--help"]
