"""The data preparation: what is dropped and why, what counts as the same problem, and the files that come and go."""

import json
import os
import random
import string
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from evaluation.benchmarks import Problem
from openrlhf_swap.duplicates import BenchmarkIndex, Match, nearly_same, read_text
from openrlhf_swap.prepare import (
    DUPLICATE,
    EMPTY_ANSWER,
    EMPTY_PROBLEM,
    NEAR_BENCHMARK,
    SAME_AS_BENCHMARK,
    SUFFIX,
    UNPARSABLE_ANSWER,
    Row,
    find_reasons,
    load_benchmarks,
    main,
    removed_path,
)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """What `datasets` caches of the small files goes with them."""
    import datasets

    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    yield
    datasets.config.HF_DATASETS_CACHE = before


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def run(source, output, *flags):
    return main(["--input", str(source), "--output", str(output), *(flags or ("--no-benchmarks",))])


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
        (r"Evaluate $\tfrac{1}{2}+x$.", r"Evaluate 1/2 + x"),
        (r"Let $a^{3}+b^{3}=(a b c)^{2}$.", r"Let $a^3 + b^3 = (abc)^2$"),
        (r"If \[0\leqslant x \le 10,\!000,\] then", r"If $0 \leq x ≤ 10000$ then"),
        (r"$\left(1,2,\ldots,9\right)$", r"$(1, 2, \cdots, 9)$"),
        (r"$z\neq i$ and $z\not= 2$", r"$z \ne i$ and $z ≠ 2$"),
        (r"$\text{lcm}(4,\,6)\quad$ is?", r"$\operatorname{lcm}(4,6)$ is"),
        (r"A six-sided die; $3^\circ$", r"A six sided die, 3°"),
        (r"\begin{align*}x&=1\\y&=2\end{align*}", r"$x=1$ $y=2$"),
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
        ("List $1$, $23$.", "List $12$, $3$."),
        ("What is $1.5$?", "What is $15$?"),
        (r"What is $\frac{1}{12}$?", r"What is $\frac{11}{2}$?"),
        ("What is $5!$?", "What is $5$?"),
        ("What is $2(x+1)$?", "What is $2x+1$?"),
        ("Is $x < 2$ or $y < 3$?", "Is $x > 2$ or $y < 3$?"),
    ],
)
def test_what_changes_a_problem_changes_its_key(one, other):
    assert not same(one, other)


# A problem as a list of pieces, each with all the ways in which copies write it.
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
        words = [*(rng.choice(piece) for piece in pieces), rng.choice([f"{value}", f"${value}$.", f"\\({value}\\)!"])]
        return rng.choice([" ", "  ", "\n"]).join(words)

    assert same(copy(number), copy(number))
    assert not same(copy(number), copy(number + 1))
    assert not same(copy(number), " ".join(piece[0] for piece in pieces))


@given(st.text(max_size=300))
def test_any_text_can_be_read(text):
    assert same(text, f"  {text.upper().lower()} ") or text.lower() != text.upper().lower()
    assert BenchmarkIndex({"own": [Problem("p", text, "1")]}).find(read_text(text)) == Match("own", "p", exact=True)


DIE = (
    r"When rolling an unfair die with faces numbered 1, 2, 3, 4, 5, and 6, the probability of obtaining face $F$ is "
    r"greater than $1/6$, the probability of the face opposite is less than $1/6$, and any one of the other faces has "
    r"probability $1/6$. When two such dice are rolled, the probability of a sum of 7 is $47/288$. Find the "
    r"probability of obtaining face $F$."
)
SEQUENCE = r"Let $z_n=F(z_{n-1})$ with $F(z)=\dfrac{z+i}{z-i}$ for all $n$. Given that $z_0=\dfrac{1}{137}+i$, "


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # A word of a long problem replaced, and a fraction written otherwise.
        (DIE, DIE.replace("any one of the", "each of the").replace("47/288", r"\frac{47}{288}")),
        # The same problem, asked for another form of the answer: one text contains the other.
        (DIE, DIE.replace("Find the", "Given that the").replace("$F$.", "$F$ is $m/n$, find $m+n$.")),
        (SEQUENCE + "find $z_{2002}$.", SEQUENCE + "and $z_{2002}=a+bi$, where $a$ and $b$ are real, find $a+b$."),
        # A hint appended.
        (DIE, DIE + " Hint: " + "name the unknown probability and write down what the sum of two faces needs. " * 4),
        # Without numbers a long text says enough.
        (
            "Every card has a picture of one shape in one of several colors and shades, with every combination "
            "represented once. A set of cards is called complementary if all of them agree or all of them differ in "
            "shape, in color and in shade. How many different complementary sets of cards are there?",
            "Every card has a picture of one shape in one of several colors and shades, with every combination "
            "represented. A set of cards is called complementary if all of them agree or all of them differ in "
            "shape, color and shade. How many different complementary sets are there?",
        ),
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
        # A short problem inside another one.
        (
            r"Compute $\sin 60^\circ + 2$.",
            r"Compute $\sin 60^\circ + 2$ divided by the sine of the angle that is wanted.",
        ),
        # No numbers, and another question of a few words.
        (
            "Let $f(x)$ be an odd function. Is $f(f(x))$ even, odd, or neither?",
            "Let $f(x)$ be an odd function, and $g(x)$ an even one. Is $f(f(g(x)))$ even, odd, or neither?",
        ),
    ],
)
def test_different_problems(one, other):
    assert not near(one, other)


def test_thresholds():
    def text(length, *replaced):
        letters = string.ascii_lowercase
        words = [letters[n // 26] + letters[n % 26] for n in range(length)]
        return " ".join("other" + word if n in replaced else word for n, word in enumerate(words))

    # 42 words are 40 triples: each word is in 3 of them, the last but one in 2. Shared: 40 - 3 - 3 - 2 = 32, just 80%.
    assert near(text(42), text(42, 10, 20, 40))
    # 40 - 3 - 3 - 3 = 31.
    assert not near(text(42), text(42, 10, 20, 39))
    # 39 triples are a short text, and this one has no numbers.
    assert not near(text(41), text(41, 10))
    # 38 words and two numbers are 38 triples. Of the words 37/38 = 97% are shared, then 36/38 = 94.7%.
    assert near(text(38) + " 7 9", text(38, 20) + " 7 9")
    assert not near(text(38) + " 7 9", text(38, 20, 37) + " 7 9")


def test_a_better_match_is_not_hidden_by_a_likelier_one():
    reworded = DIE.replace("any one of the", "each of the").replace(
        "When two such dice are", "If two of these dice are"
    )
    index = BenchmarkIndex(
        {"own": [Problem("other number", DIE.replace("288", "289"), ""), Problem("it", reworded, "")]}
    )
    assert index.find(read_text(DIE)) == Match("own", "it", exact=False)


def test_a_figure_counts_where_the_words_say_little():
    first, second = "[asy] draw((0,0)--(4,3)); [/asy]", "[asy] draw((0,0)--(5,12)); [/asy]"
    assert not same("Find $x$ in the diagram. " + first, "Find $x$ in the diagram. " + second)
    assert same("Find $x$ in the diagram. " + first, "Find $x$ in the diagram! " + first)
    # Two numbers in the words: the figure only shows them.
    words = "Triangle $ABC$ has $AB=AC$ and altitude $AM=11$; $D$ is on it with $AD=10$. "
    assert same(words + first, words + second)
    assert same(words + first, words)
    assert same(words + "![](https://example.org/figure_3.png)", words)


def test_the_index_finds_what_a_comparison_with_every_problem_finds():
    rng = random.Random(3)
    words = ["sum", "of", "all", "integers", "that", "are", "less", "than", "number", "divide", "its", "square"]
    bench = [" ".join(rng.choices([*words, "7", "12", "x"], k=rng.randint(6, 60))) for _ in range(60)]
    rows = []
    for text in bench:
        tokens = text.split()
        tokens[rng.randrange(len(tokens))] = rng.choice(words)
        rows += [" ".join(tokens), " ".join(tokens + rng.choices(words, k=9)), " ".join(tokens[: len(tokens) // 3])]
    index = BenchmarkIndex({"own": [Problem(str(n), text, "") for n, text in enumerate(bench)]})
    texts = [read_text(text) for text in bench]
    found = 0
    for row in map(read_text, rows):
        expected = any(row.key == text.key or nearly_same(row, text) for text in texts)
        assert (index.find(row) is not None) == expected
        found += expected
    assert 20 < found < len(rows) - 20  # the test sees both sides


def test_every_reason():
    index = BenchmarkIndex(
        {"math500": [Problem("m/1", "What is $3 + 4$?", "7")], "aime24": [Problem("a-1", DIE, "1")]}
    )
    table = [
        ("  \n", "1", {"reason": EMPTY_PROBLEM}),
        ("what is 3+4", "7", {"reason": SAME_AS_BENCHMARK, "benchmark": "math500", "benchmark_id": "m/1"}),
        (DIE + " Thanks", "", {"reason": NEAR_BENCHMARK, "benchmark": "aime24", "benchmark_id": "a-1"}),
        ("What is $3+5$?", " $ $ ", {"reason": EMPTY_ANSWER}),
        ("What is $3+5$?", r"\boxed{}", {"reason": UNPARSABLE_ANSWER}),
        ("What is $3+5$?", "8", None),  # the first with a usable answer
        ("What is $3 + 5$", "9", {"reason": DUPLICATE, "duplicate_of": 105}),
        ("What is $3+6$?", r"\frac{18}{2}", None),
    ]
    rows = [Row(100 + n, None, problem, answer) for n, (problem, answer, _) in enumerate(table)]
    assert find_reasons(rows, index) == [expected for *_, expected in table]
    # Without benchmarks their problems are rows like others.
    assert find_reasons(rows, None)[1] is None


ROWS = [
    {"id": "a", "problem": "What is $1+1$?", "answer": "2", "source": "own"},
    {"id": "b", "problem": "What is $1 + 1$", "answer": "2", "source": "own"},
    {"id": "c", "problem": "Éric counts to\u2028three.", "answer": r"\frac{1}{3}", "source": "own"},
    {"id": "d", "problem": None, "answer": "4", "source": "own"},
    {"id": "e", "problem": "What is $2+2$?", "answer": None, "source": "own"},
    {"id": "f", "problem": "What is $2+3$?", "answer": "5", "source": "own"},
]
KEPT = [
    {"id": "a", "problem": "What is $1+1$?" + SUFFIX, "answer": "2"},
    {"id": "c", "problem": "Éric counts to\u2028three." + SUFFIX, "answer": r"\frac{1}{3}"},
    {"id": "f", "problem": "What is $2+3$?" + SUFFIX, "answer": "5"},
]


def test_all_file_kinds_give_the_same(tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for ending in ("jsonl", "json", "parquet"):
        output = tmp_path / "new" / ending / "prompts.jsonl"
        assert run(tmp_path / f"rows.{ending}", output) == 0
        assert read_rows(output) == KEPT
        assert [(row["row"], row["id"], row["reason"]) for row in read_rows(removed_path(output))] == [
            (1, "b", DUPLICATE),
            (3, "d", EMPTY_PROBLEM),
            (4, "e", EMPTY_ANSWER),
        ]
        assert sorted(path.name for path in output.parent.iterdir()) == [
            "prompts.jsonl",
            "prompts.jsonl.removed.jsonl",
        ]
        summary = capsys.readouterr().out
        for line in ("6 rows read", f"1 dropped: {DUPLICATE}", f"0 dropped: {NEAR_BENCHMARK}", "3 rows written"):
            assert line in summary


def test_preparing_twice_changes_nothing(tmp_path):
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    assert run(write_rows(tmp_path / "rows.jsonl", ROWS), once) == 0
    assert run(once, twice) == 0
    assert once.read_bytes() == twice.read_bytes()
    assert read_rows(removed_path(twice)) == []


def test_options(tmp_path):
    source = write_rows(
        tmp_path / "rows.jsonl", [{"question": f"What is ${n}$ halves?", "result": n / 2} for n in range(1, 5)]
    )
    output = tmp_path / "prompts.jsonl"
    keys = ("--problem-key", "question", "--answer-key", "result", "--no-benchmarks")
    assert run(source, output, *keys, "--suffix", "", "--limit", "2") == 0
    # Numbers become text, and a row without an id stays without one.
    assert read_rows(output) == [
        {"problem": "What is $1$ halves?", "answer": "0.5"},
        {"problem": "What is $2$ halves?", "answer": "1.0"},
    ]


def test_whole_numbers_and_mixed_answers(tmp_path):
    rows = [{"problem": f"p{n}", "answer": answer} for n, answer in enumerate((7, r"\pi", [3], True))]
    output = tmp_path / "prompts.jsonl"
    assert run(write_rows(tmp_path / "rows.jsonl", rows), output) == 0
    assert [row["answer"] for row in read_rows(output)] == ["7", r"\pi"]
    assert [row["reason"] for row in read_rows(removed_path(output))] == [EMPTY_ANSWER, EMPTY_ANSWER]


def test_training_reads_the_prompt_set(tmp_path):
    from types import SimpleNamespace

    from openrlhf_swap.checks import load_rows

    output = tmp_path / "prompts.jsonl"
    assert run(write_rows(tmp_path / "rows.jsonl", ROWS), output) == 0
    data = SimpleNamespace(prompt_dataset=str(output), prompt_probs=None, max_samples=100, prompt_split="train")
    rows = load_rows(SimpleNamespace(data=data, train=SimpleNamespace(seed=1), use_ms=False))
    assert list(rows) == KEPT


def test_bad_input_is_one_line(tmp_path, capsys):
    good = write_rows(tmp_path / "rows.jsonl", ROWS)
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"problem": "p", "answer": "1"}\n{"problem": \n')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "rows.csv").write_text("problem,answer\np,1\n")
    useless = write_rows(tmp_path / "useless.jsonl", [{"problem": "p", "answer": ""}, {"problem": "", "answer": "1"}])
    output = tmp_path / "prompts.jsonl"
    none = "--no-benchmarks"
    cases = [
        ((tmp_path / "no.parquet", output), "which is no file, or an empty one"),
        ((tmp_path / "empty.json", output), "which is no file, or an empty one"),
        ((tmp_path / "rows.csv", output), "whose kind is unknown; give a file that ends in .json, .jsonl, .parquet"),
        ((tmp_path, output), "whose kind is unknown"),
        ((torn, output), "cannot be loaded (JSON parse error"),
        (("own/no-such-data-set", output), "--input is own/no-such-data-set, which cannot be loaded"),
        ((good, output, none, "--answer-key", "gold"), "its columns are: id, problem, answer, source"),
        ((good, output, none, "--problem-key", "text"), "--problem-key is text, but"),
        ((useless, output), f"no row can be used: 1 with {EMPTY_PROBLEM}, 1 with {EMPTY_ANSWER}"),
        ((good, output, none, "--limit", "0"), "--limit is 0; use at least 1"),
        ((good, tmp_path / "prompts.parquet"), "use .jsonl"),
        ((good, good), "which is the input"),
        ((good, good / "prompts.jsonl"), "cannot be written"),
        ((good, output, "--benchmarks", str(tmp_path)), "math500.jsonl cannot be read"),
        ((good, output, "--suffix", ""), "HuggingFaceH4/MATH-500 cannot be loaded"),
    ]
    for arguments, message in cases:
        assert run(*arguments) == 2, message
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert message in line
        assert not output.exists()
        assert not removed_path(output).exists()


def test_a_failed_run_leaves_the_earlier_files(tmp_path):
    output = tmp_path / "prompts.jsonl"
    assert run(write_rows(tmp_path / "rows.jsonl", ROWS), output) == 0
    before = {path: path.read_bytes() for path in (output, removed_path(output))}
    assert run(write_rows(tmp_path / "bad.jsonl", [{"problem": "", "answer": ""}]), output) == 2
    assert {path: path.read_bytes() for path in before} == before


def test_help_explains():
    shown = subprocess.run(
        [sys.executable, "-m", "openrlhf_swap.prepare", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for word in ("--benchmarks", "--no-benchmarks", "removed.jsonl", "agentica-org/DeepScaleR-Preview-Dataset"):
        assert word in "".join(shown.stdout.split())  # long names are broken at their hyphens


# Known from reading: what is in the benchmark as it stands, and what is reworded there or asked for another form of
# answer. One is another question about the same balloon (ds-math-3304).
POOLS = {
    "deepscaler_pool_aime": (
        "math500",
        {"ds-aime-1", "ds-aime-177", "ds-aime-302", "ds-aime-560", "ds-aime-725", "ds-aime-744", "ds-aime-786"},
        {"ds-aime-188", "ds-aime-326", "ds-aime-454"},
    ),
    "deepscaler_pool_math": ("olympiadbench", {"ds-math-4520", "ds-math-6844"}, {"ds-math-3304"}),
    "deepscaler_preview_partial": ("olympiadbench", {"dsrsub-708"}, {"dsr-13734"}),
    "gsm8k_train": (None, set(), set()),
}


@pytest.mark.skipif("BENCHMARK_DATA" not in os.environ, reason="BENCHMARK_DATA names no folder with local copies")
@pytest.mark.skipif("TRAIN_DATA" not in os.environ, reason="TRAIN_DATA names no folder with the training pools")
def test_the_real_pools():
    index = BenchmarkIndex(load_benchmarks(Path(os.environ["BENCHMARK_DATA"])))
    for name, (benchmark, same_ids, near_ids) in POOLS.items():
        rows = read_rows(Path(os.environ["TRAIN_DATA"]) / f"{name}.jsonl")
        matches = {row["id"]: index.find(read_text(row["problem"])) for row in rows}
        assert {row_id for row_id, match in matches.items() if match and match.exact} == same_ids
        assert {row_id for row_id, match in matches.items() if match and not match.exact} == near_ids
        assert all(matches[row_id].benchmark == benchmark for row_id in same_ids)
