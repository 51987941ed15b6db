"""Stands in for vLLM's LLM, as far as `openrlhf_swap.generate` needs it."""

from types import SimpleNamespace

from vllm import CompletionOutput


class EngineOfVllm:
    """Finishes one request in a step, the last one first.

    Attributes: asked: the token ids of each prompt and the fields of its SamplingParams, in the
        order of the requests. peak: the largest number of requests at a time.
    """

    def __init__(self, tokenizer, answers, context=10_000):
        """Answer requests with the texts that `answers(prompt ids, parameters)` returns.

        A text that ends in a space was cut off.
        """
        self.llm_engine = self
        self.model_config = SimpleNamespace(max_model_len=context)
        self.tokenizer = tokenizer
        self.answers = answers
        self.asked = []
        self.waiting = []
        self.peak = 0

    def get_tokenizer(self):
        return self.tokenizer

    def add_request(self, number, prompt, parameters):
        ids = list(prompt["prompt_token_ids"])
        self.asked.append((ids, parameters))
        self.waiting.append((number, self.answers(ids, parameters)))
        self.peak = max(self.peak, len(self.waiting))

    def get_num_unfinished_requests(self):
        return len(self.waiting)

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        number, texts = self.waiting.pop()
        responses = [self._response(text) for text in texts]
        return [SimpleNamespace(request_id=number, outputs=responses)]

    def _response(self, text):
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        reason = "length" if text.endswith(" ") else "stop"
        return CompletionOutput(0, text, ids, None, None, finish_reason=reason)
