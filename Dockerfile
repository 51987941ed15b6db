# Two images of the same stack, each installed by scripts/setup.sh:
#   docker build -t openrlhf-swap:cuda .               CUDA GPUs (the default target)
#   docker build -t openrlhf-swap:cpu --target cpu .   no GPU: the quickstart and the tests
# scripts/docker_run.sh builds and runs both; docs/docker.md tells how, and what was checked. Needs BuildKit.

# Bases are pinned by tag, for people, and by digest, for the build. Each can be replaced, for a mirror say.
# CUDA 13.0.3, because the wheels are built for it: torch 2.13.0 requires cuda-toolkit==13.0.3, vLLM 0.29.0 the cu13
# libraries. Ubuntu 22.04, because 24.04 comes with a user 1000 of its own.
ARG CUDA_DEVEL=nvidia/cuda:13.0.3-devel-ubuntu22.04@sha256:3869b846a8cc495ce11c172d87cfc0da8874b910d14a9810bec6b6182e9ee9f8
ARG CUDA_BASE=nvidia/cuda:13.0.3-base-ubuntu22.04@sha256:73ab6dfb3814a5097cd456736e70650ef9dc72343be4117d0400de78168760fe
# Debian 12 has Python 3.11 itself. Not python:3.11-slim: a plain Debian can be made with debootstrap, so this target
# was built where no image can be pulled (docs/docker.md).
ARG DEBIAN=debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
# Ubuntu 22.04 has Python 3.10 and a release candidate of 3.11, and the PPA with 3.11 keeps only its newest build: uv
# installs a pinned one and knows its checksum.
ARG UV=ghcr.io/astral-sh/uv:0.11.32@sha256:df4cae8f3a96d175e2e5f992e597550000edbe78fdc2594d5cd8de1a217f504c
ARG PYTHON_VERSION=3.11.15

# hadolint ignore=DL3006  # the ARG above carries tag and digest
FROM ${UV} AS uv

# ---------------------------------------------------------------------------------------------------------------- cpu
# hadolint ignore=DL3006  # the ARG above carries tag and digest
FROM ${DEBIAN} AS cpu
LABEL org.opencontainers.image.title="openrlhf-swap (CPU)" org.opencontainers.image.licenses="Apache-2.0"

# DL3008: Debian removes a version from its mirrors when it publishes the next one, so a pin breaks the build at every
# security update. The base is pinned, and so are all Python packages.
# libnuma1 is for vLLM; g++ and the headers of Python are for DeepSpeed, which compiles ops.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates g++ libnuma1 python3.11 python3.11-dev python3.11-venv \
    && rm -rf /var/lib/apt/lists/*

# HOME is writable for every uid, because docker run --user is how outputs come to belong to the caller. USER and
# LOGNAME name a uid that /etc/passwd does not know.
RUN useradd --uid 1000 --create-home --shell /bin/bash swap && chmod 1777 /home/swap
ENV VENV=/opt/venv PROFILE=cpu PATH=/opt/venv/bin:$PATH HOME=/home/swap USER=swap LOGNAME=swap PYTHONUNBUFFERED=1
WORKDIR /app

# Only what the installation reads, so that an edit of the code or of the documents does not repeat it.
COPY LICENSE pyproject.toml requirements-cpu.txt ./
COPY scripts/setup.sh scripts/
COPY evaluation/__init__.py evaluation/
COPY openrlhf_swap/__init__.py openrlhf_swap/
COPY openrlhf_swap/integration/__init__.py openrlhf_swap/integration/cpu.py openrlhf_swap/integration/
# torch_extensions: DeepSpeed locks an op's folder even when the op is there already.
RUN --mount=type=cache,target=/var/cache/pip \
    touch README.md && PIP_CACHE_DIR=/var/cache/pip HOME=/root bash scripts/setup.sh && chmod -R a+rwX /opt/venv/torch_extensions

COPY . .
# a+rX: the files' modes come from the checkout, whose umask may be strict. vllm._C: vLLM goes on without its kernels
# where a library of the system is missing, and fails much later.
RUN chmod -R a+rX . && install -d -m 1777 outputs \
    && python -c "import evaluation.run, openrlhf_swap.train, torch, vllm._C"
USER 1000:1000
# The stack imports, and the outputs can be written: a folder mounted with another owner is the usual mistake.
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "-c", "import os, ray, torch, transformers; assert os.access('outputs', os.W_OK)"]
CMD ["python", "-m", "openrlhf_swap.train", "--help"]

# --------------------------------------------------------------------------------------------------------- cuda-build
# hadolint ignore=DL3006  # the ARG above carries tag and digest
FROM ${CUDA_DEVEL} AS cuda-build
ARG PYTHON_VERSION

# DL3008: see above.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ \
    && rm -rf /var/lib/apt/lists/*

COPY --from=uv /uv /usr/local/bin/
ENV UV_PYTHON_INSTALL_DIR=/opt/python UV_PYTHON_INSTALL_BIN=0
RUN uv python install "$PYTHON_VERSION"
# The environment comes first: flash-attn's build finds ninja there, without which it compiles one file at a time.
ENV VENV=/opt/venv PROFILE=gpu CUDA_HOME=/usr/local/cuda \
    PATH=/opt/venv/bin:/opt/python/cpython-$PYTHON_VERSION-linux-x86_64-gnu/bin:$PATH
# flash-attn is compiled here unless its project publishes a wheel for this torch. Each job takes several GB of memory.
# Architectures: 80 is A100, 90 is H100 and H200; add 100 or 120 for Blackwell.
ARG MAX_JOBS=4
ARG FLASH_ATTN_CUDA_ARCHS="80;90"
WORKDIR /app

COPY LICENSE pyproject.toml requirements.txt constraints-gpu.txt ./
COPY scripts/setup.sh scripts/
COPY evaluation/__init__.py evaluation/
COPY openrlhf_swap/__init__.py openrlhf_swap/
RUN --mount=type=cache,target=/var/cache/pip \
    touch README.md && PIP_CACHE_DIR=/var/cache/pip bash scripts/setup.sh

# --------------------------------------------------------------------------------------------------------------- cuda
# hadolint ignore=DL3006  # the ARG above carries tag and digest
FROM ${CUDA_BASE} AS cuda
LABEL org.opencontainers.image.title="openrlhf-swap (CUDA)" org.opencontainers.image.licenses="Apache-2.0"

# The CUDA libraries come with torch, so the smallest base is enough, but not without a compiler: DeepSpeed compiles
# its Adam and FlashInfer its kernels at first use. The headers and libraries are those that their sources ask for.
# DL3008: see above.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates cuda-minimal-build-13-0 cuda-nvrtc-dev-13-0 g++ libcublas-dev-13-0 libcurand-dev-13-0 \
        libcusolver-dev-13-0 libcusparse-dev-13-0 libnuma1 \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 1000 --create-home --shell /bin/bash swap && chmod 1777 /home/swap
ENV VENV=/opt/venv PROFILE=gpu CUDA_HOME=/usr/local/cuda PATH=/opt/venv/bin:$PATH \
    HOME=/home/swap USER=swap LOGNAME=swap PYTHONUNBUFFERED=1
WORKDIR /app

COPY --from=cuda-build /opt/python /opt/python
COPY --from=cuda-build /opt/venv /opt/venv
COPY . .
RUN chmod -R a+rX . && install -d -m 1777 outputs && python -c "import flash_attn, openrlhf_swap, evaluation"
USER 1000:1000
# Also that the GPUs are there: a container loses them when the host reloads its devices.
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "-c", "import os, torch; assert torch.cuda.device_count() and os.access('outputs', os.W_OK)"]
CMD ["python", "-m", "openrlhf_swap.train", "--help"]
