"""An agent without its old thoughts: what it reads, and how the policy reads it again.

The slow reference has a row for each turn: the context by a chat template, and the turn behind it.
"""

import asyncio
from types import SimpleNamespace

import jinja2
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from support.passes import actor_of, model_of, scorer_of
from vllm import CompletionOutput, SamplingParams
from vllm.logprobs import Logprob

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.contexts import ForgetfulEngine, OldThoughts
from openrlhf_swap.integration.driver.experience import experience_row, fit_context
from openrlhf_swap.integration.engine import actor
from openrlhf_swap.integration.engine.responses import EngineRequest
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.runs.metrics import rollout_rows
from openrlhf_swap.scoring.answer import AnswerBranch, read_per_prefix
from openrlhf_swap.scoring.backends import ScoringBackend
from openrlhf_swap.scoring.signals import WantedSignals
from openrlhf_swap.scoring.small_model import WORDS

# What Qwen3's template does with turns before the user's last message, in the quickstart's marks.
TEMPLATE = jinja2.Template(
    "{% for message in messages %}<|{{ message.role }}|>"
    "{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% endfor %}"
    "<|assistant|><think>\n",
    keep_trailing_newline=True,
)
OPEN = "<|assistant|><think>\n"
QUESTIONS = ["What is 47 + 36?", "higher", "lower"]
TURNS = [
    "ones: 7+6+0=13\n</think>\n\n\\boxed{73}<|end|>",
    "wait ones: 7+6+0=13\n\n</think>\\boxed{93}<|end|>",
    "tens: 4+3+1=08\n</think>\n\n\\boxed{83}<|end|>",
]


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def template_contexts(tokenizer):
    """The ids of what each turn reads, by the template."""
    messages = []
    contexts = []
    for question, turn in zip(QUESTIONS, TURNS, strict=True):
        messages.append({"role": "user", "content": question})
        contexts.append(ids_of(tokenizer, TEMPLATE.render(messages=messages)))
        messages.append({"role": "assistant", "content": turn})
    return contexts


class Game(AgentInstanceBase):
    """Asks the questions one after the other."""

    def __init__(self):
        self.asked = 1

    async def step(self, state, **_):
        done = self.asked == len(QUESTIONS)
        question = "" if done else QUESTIONS[self.asked]
        self.asked += 1
        feedback = "" if done else f"<|user|>{question}<|assistant|><think>\n"
        return {"rewards": torch.ones(1), "environment_feedback": feedback, "done": done}


class Model(actor.SwapRolloutActor):
    """Says the turns; the log-probability of a token is minus its number among all of them."""

    def __init__(self, tokenizer, old_thoughts):
        self.executor = MultiTurnAgentExecutor(Game)
        self.read = []
        self._tokenizer = tokenizer
        self._max_length = 200
        self._budget = None
        self._old_thoughts = old_thoughts
        self._said = 0

    async def generate(self, prompt_token_ids, sampling_params, **_):
        text = TURNS[len(self.read)]
        self.read.append(list(prompt_token_ids))
        ids = ids_of(self._tokenizer, text)
        logprobs = []
        for token in ids:
            self._said += 1
            logprobs.append({token: Logprob(-float(self._said))})
        output = CompletionOutput(0, text, ids, None, logprobs, finish_reason="stop")
        return SimpleNamespace(outputs=[output])


def drawn(tokenizer, forgets):
    """The rollout of the game, and what the engine has read."""
    old_thoughts = OldThoughts("<think>", ResponseReader(tokenizer, "</think>"))
    model = Model(tokenizer, old_thoughts if forgets else None)
    prompt = TEMPLATE.render(messages=[{"role": "user", "content": QUESTIONS[0]}])
    request = EngineRequest(prompt, "83", 1, SamplingParams(logprobs=1), "1")
    ((rollout,),) = asyncio.run(model.respond(request))
    return rollout, model.read


def test_an_agent_reads_what_the_template_keeps(tokenizer):
    contexts = template_contexts(tokenizer)
    turns = [ids_of(tokenizer, turn) for turn in TURNS]
    rollout, read = drawn(tokenizer, forgets=True)
    assert read == contexts
    assert [list(turn) for turn in rollout.turns] == turns

    ids = []
    actions = []
    numbers = []
    logprobs = []
    for number, (context, turn) in enumerate(zip(contexts, turns, strict=True), start=1):
        ids += [*context, *turn]
        actions += [0] * len(context) + [1] * len(turn)
        numbers += [number] * (len(context) + len(turn))
        said = sum(actions) - len(turn)  # in the turns before
        logprobs += [0.0] * len(context)
        logprobs += [-float(said + place) for place in range(1, len(turn) + 1)]
    row = experience_row(rollout, 999)
    assert row.sequences.tolist() == [ids]
    assert row.action_mask.tolist() == [actions[1:]]
    assert row.attention_mask.tolist() == [numbers]
    assert row.rollout_log_probs.tolist() == [logprobs[1:]]
    assert row.response_length.tolist() == [sum(map(len, turns))]

    whole, everything = drawn(tokenizer, forgets=False)
    assert whole.response_ids == rollout.response_ids
    assert everything[2] == [*everything[1], *turns[1], *ids_of(tokenizer, "<|user|>lower" + OPEN)]
    assert set(experience_row(whole, 999).attention_mask.flatten().tolist()) == {1}


def test_a_thought_that_is_not_closed_stays(tokenizer):
    old_thoughts = OldThoughts("<think>", ResponseReader(tokenizer, "</think>"))
    context = ids_of(tokenizer, "<|user|>1+2+0=" + OPEN)
    call = ids_of(tokenizer, "ones: 1+2+0=")
    assert old_thoughts.left_out(context, call) == [*context, *call]
    # Here the model writes the mark itself.
    turn = ids_of(tokenizer, "<think>\nones: 3\n</think>\n\n\\boxed{3}")
    bare = ids_of(tokenizer, "<|user|>1+2+0=<|assistant|>")
    assert old_thoughts.left_out(bare, turn) == [*bare, *ids_of(tokenizer, "\\boxed{3}")]


def test_an_executor_with_contexts_of_its_own_is_refused(tokenizer):
    old_thoughts = OldThoughts("<think>", ResponseReader(tokenizer, "</think>"))
    engine = ForgetfulEngine(Model(tokenizer, old_thoughts), old_thoughts)
    asyncio.run(engine.generate([1, 2], SamplingParams()))
    with pytest.raises(DataError, match="executor changes what was said"):
        asyncio.run(engine.generate([1, 3], SamplingParams()))


def test_an_executor_that_joins_two_turns_is_refused(tokenizer):
    old_thoughts = OldThoughts("<think>", ResponseReader(tokenizer, "</think>"))
    engine = ForgetfulEngine(Model(tokenizer, old_thoughts), old_thoughts)
    first = asyncio.run(engine.generate([1, 2], SamplingParams())).outputs[0].token_ids
    asyncio.run(engine.generate([1, 2, *first, 3], SamplingParams()))
    joined = Rollout("?", "7", [*first, 3, 4], [1, 2], 1.0)
    with pytest.raises(DataError, match="generated 2 times and returned 1 action_ranges"):
        engine.as_read(joined)


def test_what_does_not_fit_is_dropped_and_counts_as_cut_off(tokenizer):
    rollout, _ = drawn(tokenizer, forgets=True)
    whole = fit_context(rollout, len(rollout.row_ids))
    assert whole.response_ids == rollout.response_ids
    assert not whole.truncated
    second = int(rollout.positions[rollout.turn_starts[0]])
    cut = fit_context(rollout, second + 2)
    assert cut.truncated
    assert cut.row_ids == rollout.row_ids[: second + 2]
    assert max(experience_row(cut, 999).attention_mask.flatten().tolist()) == 2


def test_the_numbers_of_contexts_reach_the_update(tokenizer):
    """OpenRLHF pads rows for the policy's pass, and takes the padding off before the update."""
    forgetful, _ = drawn(tokenizer, forgets=True)
    whole, _ = drawn(tokenizer, forgets=False)
    rows = [experience_row(rollout, 999) for rollout in (whole, forgetful)]
    padded = Experience.concat_experiences(rows, pad_token_id=0)
    assert padded.attention_mask.shape == padded.sequences.shape
    bare = remove_padding_in_sequences(split_experience_batch(padded))
    for row, item in zip(rows, bare, strict=True):
        assert item.attention_mask.tolist() == row.attention_mask[0].tolist()
        assert item.sequences.tolist() == row.sequences[0].tolist()
        assert item.action_mask.tolist() == row.action_mask[0].tolist()


BRANCH = AnswerBranch((3, 4, 5, 6), (False, True, True, True))


def random_rollout():
    """A response of three turns, with steps, as random tokens."""
    generator = torch.Generator().manual_seed(1)

    def draw(count):
        return torch.randint(0, WORDS, (count,), generator=generator).tolist()

    return Rollout(
        prompt="?",
        answer="7",
        response_ids=draw(24),
        prompt_ids=draw(6),
        reward=1.0,
        step_ends=(3, 9, 14, 17, 20),
        observations=[(10, draw(9)), (18, draw(12))],
        starts_over=True,
        record={"rollout_log_probs": None, "scores": None, "label": "7"},
    )


def rows_by_turn(rollout):
    """The context of each turn and the turn, as two lists."""
    contexts = [rollout.prompt_ids, *(ids for _, ids in rollout.observations)]
    return list(zip(contexts, rollout.turns, strict=True))


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "deepseek_v3"])
def test_log_probabilities_scores_and_gradients_are_those_of_a_row_for_each_turn(family):
    """Beside a response of one turn, in the same packed row; gemma3 has windows."""
    rollout = random_rollout()
    other = Rollout("?", "7", [5, 6, 7, 8] * 6, [1, 2], 1.0, step_ends=(5, 23))
    ids = torch.zeros(2, len(rollout.row_ids), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    actions = torch.zeros_like(ids)
    wanted = WantedSignals(("answer_logprobs", "entropy"), lambda _: BRANCH)
    for place, each in enumerate((other, rollout)):
        length = len(each.row_ids)
        ids[place, :length] = torch.tensor(each.row_ids)
        mask[place, :length] = 1
        actions[place, each.positions] = 1
    mask[1] = experience_row(rollout, 999).attention_mask
    requests = [wanted.request(0, other), wanted.request(1, rollout)]

    slow = model_of(family, torch.float32)
    expected = []
    for context, turn in rows_by_turn(rollout):
        row = torch.tensor([[*context, *turn]])
        log_probs = (slow(row).logits[0].float() / 0.6).log_softmax(-1)
        begin = len(context)
        places = range(begin - 1, begin + len(turn) - 1)
        expected.append(torch.stack([log_probs[at, row[0, at + 1]] for at in places]))
    expected = torch.cat(expected)
    weights = torch.linspace(-1, 1, len(expected))
    (expected * weights).sum().backward()
    (first, one), (second, two), (third, three) = rows_by_turn(rollout)
    # Places 3 and 9 end steps of the first turn, 14 and 17 of the second, 20 of the third. The last
    # step of a turn is scored behind the context that follows.
    prefixes = [first, [*first, *one[:4]], second, [*second, *two[:5]], third, [*third, *three[:3]]]
    scores = []
    for prefix in prefixes:
        scores.append(read_per_prefix(slow, torch.tensor(prefix), [len(prefix)], BRANCH))

    policy = actor_of(model_of(family, torch.float32), packing=True)
    scored = scorer_of(policy).forward(ids, actions[:, 1:], mask, requests, wanted.names)
    found = scored.action_log_probs[1, rollout.positions - 1]
    assert (found - expected).abs().max() < 1e-4
    assert (scored.signals[1]["answer_logprobs"] - torch.cat(scores)).abs().max() < 1e-4
    assert len(scored.signals[1]["entropy"]) == 5
    one_by_one = ScoringBackend("per_prefix").read(slow, ids, mask, requests)["answer_logprobs"][1]
    assert (one_by_one - torch.cat(scores)).abs().max() < 1e-5

    log_probs = policy.train()(ids, actions[:, 1:], mask)
    (log_probs[1, rollout.positions - 1] * weights).sum().backward()
    theirs = dict(slow.named_parameters())
    for name, weight in policy.model.module.named_parameters():
        error = (weight.grad - theirs[name].grad).norm()
        assert error <= 1e-4 * max(theirs[name].grad.norm(), 1e-3), name


def test_the_table_of_rollouts_has_the_contexts(tokenizer):
    from openrlhf_swap.config import SwapConfig
    from openrlhf_swap.rollouts.rollout import Batch

    rollout, _ = drawn(tokenizer, forgets=True)
    reader = ResponseReader(tokenizer, "</think>")
    (row,) = rollout_rows(Batch([[rollout]], SwapConfig().coefficients(), reader), 1, reader)
    contexts = [tokenizer.decode(ids) for ids in template_contexts(tokenizer)]
    assert [turn["next_context"] for turn in row["turns"]] == [*contexts[1:], ""]
    assert [turn["action"] for turn in row["turns"]] == TURNS
