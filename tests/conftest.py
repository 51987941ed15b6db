import os
import random
import secrets
import signal
from contextlib import closing
from itertools import islice

import pytest
from hypothesis import settings
from support.paths import POLICY, ROOT

# Shared machines stall now and then; no test here is about time.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Every Ray of these tests asks for the same token, because some tests look into the Ray of a
# training that they start.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute on one thread, in this process and in those that the tests start.

    The tensors are small, so that threads only wait for each other, and another worker of the
    tests has the other core.
    """
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture(scope="session")
def grader():
    """Two grading processes with a limit of three CPU seconds."""
    from openrlhf_swap.rewards import Grader

    with closing(Grader(processes=2, time_limit=3.0)) as grader:
        yield grader


@pytest.fixture
def in_foreground():
    """Take Ctrl-C as usual, which tests ignore that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory):
    """Sixty-four addition problems as a prompt data set."""
    from openrlhf_swap.quickstart.addition import problems
    from openrlhf_swap.quickstart.make_data import write

    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    write(path, list(islice(problems(7), 64)))
    return path


@pytest.fixture(scope="module")
def arguments():
    """OpenRLHF's arguments for a small run on this machine."""
    from support.actors import GROUP_SIZE, GROUPS, make_config

    from openrlhf_swap.config import RunConfig
    from openrlhf_swap.flags.configuration import configure
    from openrlhf_swap.recipes import as_words

    flags = {
        "actor.model_name_or_path": POLICY,
        "data.max_len": 400,
        "rollout.n_samples_per_prompt": GROUP_SIZE,
        "rollout.batch_size": GROUPS,
        "rollout.micro_batch_size": 3,
        "train.batch_size": 16,
    }
    args = configure(as_words(flags), on_cpu=True).args
    args.swap = make_config()
    args.swap_run = RunConfig(logits_chunk=100)  # several chunks in a micro-batch
    return args


@pytest.fixture(scope="module")
def ray_session():
    """Ray with places for two actors, which can import the classes in tests/support."""
    import ray

    from openrlhf_swap.integration.patches import CPU_COMMAND, install
    from openrlhf_swap.integration.startup.ray import start_ray

    install(CPU_COMMAND)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "tests"), prepend=os.pathsep)
        start_ray(2, on_cpu=True)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def actor_group(ray_session, arguments):
    """A group of one IntrinsicRewardActor, which is never updated, and its strategy."""
    from support.actors import running_actors

    with running_actors(arguments) as actors:
        yield actors


@pytest.fixture(scope="module")
def responses(tokenizer):
    """Sixteen responses to four problems, about a quarter of them incorrect."""
    from support.actors import GROUP_SIZE, GROUPS, response_to

    from openrlhf_swap.quickstart.addition import (
        overthinking_trace,
        problems,
        prompt,
        shortest_trace,
    )

    rng = random.Random(5)
    made = []
    for problem in islice(problems(11), GROUPS):
        for n in range(GROUP_SIZE):
            text = shortest_trace(problem) if n == 0 else overthinking_trace(problem, rng)
            correct = f"\\boxed{{{problem.answer}}}" in text and n != 3
            made.append(response_to(tokenizer, prompt(problem), problem.answer, text, correct))
    return made
