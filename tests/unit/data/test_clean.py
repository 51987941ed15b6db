"""Which rows are dropped: the same problems and near-duplicates, whatever stands around them."""

import html
import random
import tracemalloc
from dataclasses import dataclass
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_swap.data import clean, contamination
from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.chats import EMPTY_PROBLEM
from openrlhf_swap.data.clean import (
    DUPLICATE,
    NEAR_BENCHMARK,
    SAME_AS_BENCHMARK,
    ProblemComparison,
    find_reasons,
)
from openrlhf_swap.data.contamination import BenchmarkIndex, Wrappers
from openrlhf_swap.data.problem_texts import nearly_same, read_text, read_variants
from openrlhf_swap.data.references import STATED_ANSWER, states_answer
from openrlhf_swap.rewards.answers import EMPTY_ANSWER, UNPARSABLE_ANSWER
from openrlhf_swap.rewards.references import Reference

DIE = (
    "When rolling an unfair die with faces numbered 1, 2, 3, 4, 5, and 6, the probability of "
    "obtaining face $F$ is greater than $1/6$, the probability of the face opposite is less than "
    "$1/6$, and any one of the other faces has probability $1/6$. When two such dice are rolled, "
    "the probability of a sum of 7 is $47/288$. Find the probability of obtaining face $F$."
)


@dataclass
class Row:
    problem: str
    reference: Reference
    fault: str | None = None


def find(problem, index):
    """The reason to drop a problem that is alone in its data set."""
    comparison = ProblemComparison(index, StringIO(), StringIO())
    digest = comparison.add(problem)
    return comparison.find_repeated().get(digest)


def same(one, other):
    return read_text(one).key == read_text(other).key


def near(one, other):
    assert not same(one, other)
    verdict = nearly_same(read_text(one), read_text(other))
    assert nearly_same(read_text(other), read_text(one)) == verdict  # neither side is special
    return verdict


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"Evaluate $\dfrac{1}{2}+x$.", r"evaluate \( \frac12 + x \)"),
        (r"If \[0\leqslant x \le 10,\!000,\] then", r"If $0 \leq x ≤ 10000$ then"),
        (r"$z\neq i$ and $z\not= 2$", r"$z \ne i$ and $z ≠ 2$"),
        (r"$\text{lcm}(4,\,6)\quad$ is?", r"$\operatorname{lcm}(4,6)$ is"),
        (r"A six-sided die; $3^\circ$", r"A six sided die, 3°"),
        (r"Well done! What is $n!$?", r"Well done. What is \(n!\)?"),
    ],
)
def test_spelling_does_not_matter(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is $2+3$?", "What is $2-3$?"),
        ("What is $12$ and $3$?", "What is $1$ and $23$?"),
        (r"What is $\frac{1}{12}$?", r"What is $\frac{11}{2}$?"),
        ("What is $5!$?", "What is $5$?"),
        ("What is $2(x+1)$?", "What is $2x+1$?"),
        ("Is $x < 2$ or $y < 3$?", "Is $x > 2$ or $y < 3$?"),
    ],
)
def test_what_changes_a_problem_changes_its_key(one, other):
    assert not same(one, other)


# A problem as a list of pieces, each with all the spellings that copies use.
PIECES = [
    ("Find", "find", "FIND"),
    ("the value of", "the value  of", "the\nvalue of:"),
    (r"$\frac{a}{b}$", r"\(\dfrac{a}{b}\)", r"\[\tfrac a b\]", r"$\frac{ a }{ b }$"),
    (r"$x^2$", r"$x^{2}$", r"\( x ^ {2} \)"),
    (r"$\left(x+y\right)$", r"$( x + y )$", r"\(\bigl(x+y\bigr)\)"),
    (r"$n \ge k$", r"$n\geq k$", r"$n\geqslant k,$"),
    (r"$1,2,\dots,n$", r"$1, 2, \ldots, n$", r"$1,\,2,\,\cdots,\,n$"),
    (r"for all $m$.", r"for all $m$", r"for all $m_{}$,"),
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), st.integers(1, 999), st.randoms())
def test_any_mixture_of_spellings_has_one_key(pieces, number, rng):
    def copy(value):
        words = [
            *(rng.choice(piece) for piece in pieces),
            rng.choice([f"{value}", f"${value}$.", f"\\({value}\\)!"]),
        ]
        return rng.choice([" ", "  ", "\n"]).join(words)

    assert same(copy(number), copy(number))
    assert not same(copy(number), copy(number + 1))
    assert not same(copy(number), " ".join(piece[0] for piece in pieces))


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_can_be_read(text):
    assert same(text, f"  {text.upper().lower()} ") or text.lower() != text.upper().lower()
    index = BenchmarkIndex({"own": [Problem("p", text, "1")]})
    expected = {"reason": SAME_AS_BENCHMARK, "benchmark": "own", "benchmark_id": "p"}
    assert find(text, index) == expected


CARDS = (
    "Every card has a picture of one shape in one of several colors and shades, with every "
    "combination represented once. A set of cards is called complementary if all of them agree or "
    "all of them differ in shape, in color and in shade. How many different complementary sets of "
    "cards are there?"
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # The same problem, asked for another form of the answer: one text contains the other.
        (
            DIE,
            DIE.replace("Find the", "Given that the").replace("$F$.", "$F$ is $m/n$, find $m+n$."),
        ),
        # A hint appended.
        (
            DIE,
            DIE
            + " Hint: "
            + "name the unknown probability and write down what the sum of two faces needs. " * 4,
        ),
        # Without numbers a long text says enough.
        (CARDS, CARDS.replace(" once", "").replace("in color and in", "color and")),
    ],
)
def test_near_duplicates(one, other):
    assert near(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Another number, however long the rest.
        (DIE, DIE.replace("47/288", "49/288")),
        ("Find $f(3)$ if $f(x)=x^2+5$ for all $x$.", "Find $f(4)$ if $f(x)=x^2+5$ for all $x$."),
        # All distinct numbers of one occur in the other, but not as often.
        (
            r"What is the remainder when $1 + 2 + 3 + \dots + 9 + 10$ is divided by 9?",
            r"What is the remainder when $1 + 2 + 3 + \dots + 9 + 10$ is divided by 8?",
        ),
        # Another word of a short problem.
        (
            "Determine the number of ways to arrange the letters of the word RADII in 2 rows of 5.",
            "Determine the number of ways to arrange the letters of the word LEVEL in 2 rows of 5.",
        ),
        # No numbers, and another question of a few words.
        (
            "Let $f(x)$ be an odd function. Is $f(f(x))$ even, odd, or neither?",
            "Let $f(x)$ be an odd function, and $g(x)$ an even one. "
            "Is $f(f(g(x)))$ even, odd, or neither?",
        ),
    ],
)
def test_different_problems(one, other):
    assert not near(one, other)


def test_the_index_finds_what_a_comparison_with_every_problem_finds():
    rng = random.Random(3)
    words = ["sum", "of", "all", "integers", "that", "are", "less", "than", "number", "divide"]
    bench = []
    rows = []
    for _ in range(60):
        tokens = rng.choices([*words, "7", "12", "x"], k=rng.randint(6, 60))
        bench.append(" ".join(tokens))
        tokens[rng.randrange(len(tokens))] = rng.choice(words)
        longer = tokens + rng.choices(words, k=9)
        shorter = tokens[: len(tokens) // 3]
        rows += [" ".join(tokens), " ".join(longer), " ".join(shorter)]
    problems = [Problem(str(number), text, "") for number, text in enumerate(bench)]
    index = BenchmarkIndex({"own": problems})
    texts = [read_text(text) for text in bench]
    found = 0
    for problem in rows:
        row = read_text(problem)
        expected = any(row.key == text.key or nearly_same(row, text) for text in texts)
        assert (find(problem, index) is not None) == expected
        found += expected
    assert 20 < found < len(rows) - 20  # the test sees both sides


# As the files of verl's examples and of DAPO's authors have them.
VERL = "{} Let's think step by step and output the final answer within \\boxed{{}}."
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
    "\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n"
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
DEEPSEEK = "<\uff5cbegin▁of▁sentence\uff5c><\uff5cUser\uff5c>{}<\uff5cAssistant\uff5c><think>\n"
CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>a"
EXAMPLE = "Problem: Find $2^3$.\nSolution: $8$.\n\nProblem: {}\nSolution:"
SUBJECTS = ["apples", "pears", "plums", "figs", "nuts", "limes", "dates", "peas", "beans", "leeks"]
PROBLEMS = [
    f"{12 + n} {kind} hang in a tree, {n} fall. Count those {kind}"
    for n, kind in enumerate(SUBJECTS)
]


def reasons_of(problems, index):
    return find_reasons([Row(problem, Reference("1")) for problem in problems], index)


# Ways in which data sets write their problems: by the problem and its number.
FORMS = {
    "verl": lambda text, n: VERL.format(text),
    "DAPO": lambda text, n: DAPO.format(text),
    "Llama": lambda text, n: LLAMA.format(text),
    "DeepSeek": lambda text, n: DEEPSEEK.format(text),
    "Qwen": lambda text, n: CHATML.format(text),
    "short labels": lambda text, n: f"Q: {text}\nA:",
    "Chinese behind": lambda text, n: f"{text}请一步一步地推理并把最终答案放在\\boxed{{}}中。",
    "doubled backslashes": lambda text, n: text.replace("\\", "\\\\"),
    "numbers": lambda text, n: f"{n}. {text}",
    "headings": lambda text, n: f"### Task {n}\n\n{text}\n\n### Response\n",
    "XML": lambda text, n: f'<task id="{n}"><statement>{html.escape(text)}</statement></task>',
    "an example in front": lambda text, n: EXAMPLE.format(text),
    "BBCode": lambda text, n: f"[i]{text}[/i]",
    "a label behind": lambda text, n: f"{text} A:",
    "a number behind": lambda text, n: f"{text} #{n}",
    "asterisks": lambda text, n: f"*{text}*",
    "twice": lambda text, n: f"{text}\n\n{text}",
}
SHORT = [
    r"What is $3 + 4$?",
    "Evaluate $\\log_2\n64$.",
    r"Find the matrix $\begin{pmatrix} 1 & a \\ x & 2 \end{pmatrix}^2$ for $a<x$.",
    "Find $x$ in the figure. [asy]\ndraw((0,0)--(4,3));\n[/asy]",
    DIE,
]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_copy_of_a_benchmark_problem_is_found_in_its_wrapper(form):
    problems = [Problem(str(n), text, "7") for n, text in enumerate(SHORT)]
    rows = [form(text, n) for n, text in enumerate(SHORT + PROBLEMS)]
    reasons = reasons_of(rows, BenchmarkIndex({"math500": problems}))
    found = [reason and reason["benchmark_id"] for reason in reasons]
    assert found == ["0", "1", "2", "3", "4", *[None] * 10]


# A benchmark's problem, and other problems that have its words, or most of them.
NEAR_MISSES = {
    "Evaluate $\\log_2 64$.": (
        "Evaluate $\\log_2 64 + \\log_3 81$.",
        "Evaluate $\\log_2 64.5$ to two decimals.",
        "Evaluate $\\log_2 64x$ in terms of $y = \\log_2 x$.",
        "If $n$ is such that $3^n = m$, evaluate $\\log_2 64$ in base $n$.",
    ),
    "What is $3+4$?": (
        "What is $3+4\\cdot 5$?",
        "Ann has apples. What is $3+4$ times their number if she has 12?",
        "Solve $x = y$. What is $3 + 4y$?",
    ),
    "Find $x$.": (
        "The sides of a square are $x+1$ and $2x-3$. Find $x$.",
        "Find $x$. Then find $y = x + 2$ where $3x = 12$.",
    ),
    "Solve for $x$: $2x = 10$.": (
        "Solve for $x$: $2x = 10y$.",
        "Solve for $x$: $2x = 10 - 3x + 5$.",
    ),
    "How many primes are less than 20?": (
        "How many primes are less than 20 and leave a remainder of 1 when halved?",
        "Let $k$ be a digit. How many primes are less than 20k, if k is 3?",
        "How many squares are less than 20?",
    ),
}


@pytest.mark.parametrize("form", [None, "verl", "short labels", "XML"])
def test_problems_that_contain_a_benchmarks_words_stay(form):
    others = [row for rows in NEAR_MISSES.values() for row in rows]
    problems = [Problem(text, text, "1") for text in NEAR_MISSES]
    index = BenchmarkIndex({"own": problems})
    rows = others
    if form:
        rows = [FORMS[form](row, number) for number, row in enumerate(others)]
    reasons = reasons_of(rows, index)
    dropped = [row for row, reason in zip(others, reasons, strict=True) if reason]
    # After a formula's last number, a letter and a wrapper's words are not told apart.
    expected = ["Solve for $x$: $2x = 10y$."] if form in ("verl", "short labels") else []
    assert dropped == expected


def test_every_reason():
    sum_of_two = Problem("m/1", "What is $3 + 4$?", "7")
    die = Problem("a-1", DIE, "1")
    index = BenchmarkIndex({"math500": [sum_of_two], "aime24": [die]})
    same_as = {"reason": SAME_AS_BENCHMARK, "benchmark": "math500", "benchmark_id": "m/1"}
    near_to = {"reason": NEAR_BENCHMARK, "benchmark": "aime24", "benchmark_id": "a-1"}
    table = [
        ("  \n", "1", {"reason": EMPTY_PROBLEM}),
        ("what is 3+4", "7", same_as),
        (DIE + " Thanks", "", near_to),
        ("What is $3+5$?", " $ $ ", {"reason": EMPTY_ANSWER}),
        ("What is $3+5$?", r"\boxed{}", {"reason": UNPARSABLE_ANSWER}),
        ("What is $3+5$?", "8", None),  # the first with a usable answer
        ("What is $3 + 5$", "9", {"reason": DUPLICATE, "duplicate_of": 5}),
        ("What is $3+6$?", r"\frac{18}{2}", None),
        ("What is $3+7$? Answer: 10", "10", {"reason": STATED_ANSWER}),
    ]
    rows = [Row(problem, Reference(answer)) for problem, answer, _ in table]
    assert find_reasons(rows, index) == [expected for *_, expected in table]
    # Without benchmarks their problems are rows like others.
    assert find_reasons(rows, None)[1] is None


def test_half_a_kilobyte_of_a_row_stays_in_memory(monkeypatch):
    """Beside 1 MB of a block of rows and the counts of what rows have in common."""
    monkeypatch.setattr(clean, "BLOCK", 2000)
    index = BenchmarkIndex({"own": [Problem("p", "What is $3+4$?", "7")]})
    count = 10_000
    tracemalloc.start()
    rows = (Row(f"Add {number} to {number % 97}", Reference("1")) for number in range(count))
    reasons = find_reasons(rows, index)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(reasons) == count
    assert not any(reasons)
    assert peak < 1e6 + 500 * count


def test_what_rows_have_in_common_is_known_of_many(monkeypatch):
    """Where rare triples are forgotten meanwhile."""
    monkeypatch.setattr(contamination, "COUNTED_TOGETHER", 50)
    wrappers = Wrappers(StringIO())
    for number in range(1000):
        text = f"{number} apples and pears"
        if number % 9 == 4:
            text += " in each box"
        if number % 11 == 4:
            text += " on each table"
        wrappers.add(read_variants(text))
    assert {("apples", "and", "pears"), ("in", "each", "box")} <= wrappers.triples
    # In 91 rows, less than a tenth.
    assert ("on", "each", "table") not in wrappers.triples
    assert len(wrappers._counts) < 300
    assert wrappers.has("", "applesandpearsoneachtable")
    assert not wrappers.has("", "applesandpearsoneachchair")


@pytest.mark.parametrize(
    ("problem", "answer", "stated"),
    [
        (r"He did $\boxed{100}$ sets and $\boxed{106}$ more.", "106", True),
        ("What is 1+1?\n#### 2", "$2$", True),
        ("What is 1+1? The answer is **2**.", "2", True),
        ("What is 1+1? Put it into \\boxed{}.", "2", False),
        ("If the answer is 2x, what is x?", "2", False),
        ("Problem: 1+1? Answer: 2\nProblem: 3-1? Answer:", "2", False),
    ],
)
def test_a_problem_that_states_its_answer(problem, answer, stated):
    assert states_answer(problem, answer) == stated
