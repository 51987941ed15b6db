"""Answers as text: taking wrappers off, one spelling for mathematics, and reference answers that
cannot be used.

The grader reads LaTeX in ASCII. `write_latex` writes Unicode that way, in reference answers and
responses alike; `canonical` also settles what LaTeX itself spells in several ways, for comparisons
only. Standard library only.
"""

import ast
import html
import math
import re
import unicodedata
from contextlib import suppress
from decimal import Decimal
from itertools import groupby

from openrlhf_swap.rewards.statements import is_balanced, last_boxes
from openrlhf_swap.rewards.verifiers import answer_text

END_OF_THOUGHT = "</think>"  # R1's; `rollouts.families` knows the others

# How R1-style models are asked, in training and in evaluation.
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."

_WRAPPER = re.compile(
    r"\$\$(.+)\$\$|\$([^$]+)\$|\\boxed\s*\{(.+)\}|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]",
    re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]{3,}")  # a word, though it may have a π in it
_FORMS = {"<super>": "^{%s}", "<sub>": "_{%s}", "<wide>": "%s", "<narrow>": "%s", "<font>": "%s"}
_NAMES = "pi infty le ge ne times cdot cdot div pm in langle rangle cup cap emptyset lfloor rfloor"
_SYMBOLS = {
    sign: rf"\{name} "
    for sign, name in zip("π∞≤≥≠\u00d7·⋅÷±∈⟨⟩\u222a∩∅⌊⌋", _NAMES.split(), strict=True)
}
_SYMBOLS |= {
    letter: rf"\mathbb{{{unicodedata.normalize('NFKC', letter)}}}"
    for letter in "\u211d\u2124\u211a"
}
_SYMBOLS |= {"\u2212": "-", "°": r"^{\circ}", "µ": "μ"}
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]|(?=\{)))")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_GROUP = (
    r"(?:\\[,;: ]|\{,\}|[~\u00a0\u2009\u202f])"  # what may stand between groups of three digits
)
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)")
_WITH_COMMAS = re.compile(  # 1,234 outside brackets, in which a comma separates: (1,234) is a point
    r"(?<!\\)[(\[][^()\[\]]{0,200}[)\]]|\\\{.{0,200}?\\\}|\\langle.{0,200}?\\rangle"
    r"|(?<![\d,.])([1-9]\d{0,2}(?:,(?:\\!\s*)?\d{3})+)(?!\d|,\d)"
)
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar)(?:\{(\d{1,20})\}| ?(\d))")
_SPACE = r"(?:\\[ ,;:]|~|[^\S\n])"
_MIXED = re.compile(  # 8 1/2, unless it stands in a row of numbers or a date
    rf"(?<![\w./^])(?<!\d[^\S\n])([1-9]\d{{0,2}}(?:,\d{{3}}){{1,2}}|[1-9]\d{{0,8}}){_SPACE}{{1,4}}"
    rf"([1-9]\d{{0,2}})/([1-9]\d{{0,2}})(?![\w/]|\^(?!\{{?\\circ)|[.,]\d|{_SPACE}{{0,4}}\d)"
)
_STOP = r"(?<=[\w!%|})\]])(?<!\\right)\."  # `\right.` is a delimiter
_OR = re.compile(r"(?<=[\d)\]}$])\s+or\s+(?=[-+\d\\$(]|[A-Za-z]\s*=)")
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_LAST_STOP = re.compile(rf"{_STOP}\Z")
_FULL_STOP = re.compile(rf"{_STOP}(?=\s*\$?\s*\}}|\s*\$\s*\Z)|(?<=[\d}})\]])\.(?=\s*\Z)")
_IMAGINARY = re.compile(r"(?<=\d)i(?![A-Za-z])|\\(?:mathrm|text)\{i\}|\\imath\b")
_UPRIGHT_E = re.compile(
    r"\\(?:mathrm|text|textrm|textnormal|textup|mathup|operatorname)\s*\{\s*e\s*\}|\{\s*\\rm\s+e\s*\}|\\rm\s+e(?![A-Za-z])"
)
_STYLED = re.compile(r"\\(?:mathit|mathsf|mathtt|textit|textsf)\s*\{([A-Za-z])\}")
_NUMBER_SET = re.compile(r"\\mathbb\s*([A-Z])(?![A-Za-z])|\\([CNQRZ])(?![A-Za-z])")
_DASH = re.compile(r"(?<![\w)}\]\s])\u2013(?=[\d\\.])")  # as a minus sign
_FUNCTION = re.compile(
    r"\\(?:operatorname\*?|mathrm|text|textrm)\s*\{\s*\\?((?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|lg|log|exp)\s*\}"
    r"(?=[\s\d({\\_^A-Za-z]|\Z)"
)
_OF_DEGREES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])[^=,;<>]*")
_DEGREES = re.compile(
    r"(\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\)|\\[a-z]+(?=\s*\^))\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)"
)
_O = r"(?:o(?![A-Za-z])|\\text\s*\{\s*o\s*\})"
_DEGREE = re.compile(rf"\\degree(?![A-Za-z])|(?<=\d)\s*\^\s*(?:\{{\s*{_O}\s*\}}|{_O})")
_POWER_OF_TEN = re.compile(r"(?<![\w.])(\d+\.\d+)[eE]([-+]?)0*(\d{1,3})(?!\w)")
_BOLD = r"\\(?:boldsymbol|mathbf|bm)(?![A-Za-z])\s*"
_BOLD_WORDS = re.compile(rf"{_BOLD}(?=\{{[A-Za-z]{{2}}[A-Za-z\s]*\}})")
_BOLD_GROUP = re.compile(
    rf"([A-Za-z^_])?{_BOLD}\{{((?:[^{{}}]|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})*)\}}"
)

EMPTY_ANSWER = "an empty answer, or one that is neither text nor a number"
LONG_ANSWER = "an answer of more than 200 characters, such as a whole solution"
PROSE_ANSWER = "a sentence as its answer"
PLACEHOLDER_ANSWER = "a placeholder as its answer, such as 'proof' or 'N/A'"
UNPARSABLE_ANSWER = "an answer that cannot be parsed"

LONGEST = 200  # characters; the longest answer of the benchmarks has 198
MOST_WORDS = 5  # of an answer such as "7 minutes and 5 seconds"
NUMBER = re.compile(r"([+-]?)(\d+)(?:\.0+|(\.\d+))?", re.ASCII)
_QUOTED = re.compile("\\s*(?:\"([^\"]*)\"|'([^']*)'|`([^`]*)`|\u201c([^\u201d]*)\u201d)\\s*")
_BACKSLASHES = re.compile(r"\\+")
_LONE_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\(?![\\\"']|u[0-9a-fA-F]{4})")
# Placeholders are made of these words and of those around them; "no solution", "undefined" and
# "true" are answers.
_TELLING = """
answer answers solution solutions proof proofs explanation explanations response prove proved proven show shown omitted
required needed desired missing found given provided applicable available specified known unknown unanswered
unavailable exercise apply tba none see refer vary varies various sample determined completed added reader ended
problem question essay pending blank placeholder image attached attachment tbd todo nil null nan
"""
_AROUND = """
a an the this does your final full no not is are be to may will can as hence please left free open statement here it
that above below text figure diagram graph picture table
"""
_WHOLE = re.compile(  # of the letters alone, without spaces
    r"na|qed|notfound|asabove|(?:需|[请請]?[详詳]?|略|开放)(?:答案?|解[答析]?|[证證証]明?|[题題])*(?:省?略|[毕畢]|不唯?一|暂?[无無](?:答案|解析)?"
    r"|なし|[见見參参].{0,4}|同上)?|不[适適]用|증명|정답없음|생략|(?:풀이|해설)참조|preuve|prueba|prova|bewijs|dowód"
    r"|d[eé]monstration|dimostrazione|demostrar|доказать|証明せよ|증명생략|voir(?:la)?solution"
    r"|demostración|ver(?:la)?solución|(?:ohne)?beweis|siehe(?:die)?lösung|доказательство|доказано|смрешение|нетответа"
)
_MARKS = re.compile(r"\\(?:black)?square|\\Box|\\qed|[-\u2013\u2014?_.\s\[\]{}*…□■∎]")
_OF_SENTENCES = re.compile(
    r"\b(is|are|was|were|has|have|the|he|she|it|they|we|so|therefore|because|thus|answer)\b"
)


def strip_answer(answer: str) -> str:
    r"""The bare answer, without surrounding white space, `$`, `$$` and `\boxed{}`."""
    stripped = answer.strip()
    match = _WRAPPER.fullmatch(stripped)
    inside = match[match.lastindex or 0] if match else ""
    return strip_answer(inside) if inside and is_balanced(inside) else stripped


def write_latex(text: str) -> str:
    """The text with Unicode's mathematics as LaTeX or ASCII: ¾, x², √2, 90°, full-width digits.
    Idempotent.
    """
    if text.isascii():
        return text
    while (rooted := _ROOT.sub(_write_root, text)) != text:  # roots of roots
        text = rooted
    text = re.sub(r"(?<=[\d)}])π", r"\\pi ", text)  # before a unit in other letters, too
    return re.sub(r"[^\x00-\x7f]+", _spell, text)


def canonical(text: str) -> str:
    r"""The text as `write_latex` has it, less spellings that the parser does not know.

    Colours, bold type and an answer's full stop are taken off, digits are joined over `\,`, `{,}`
    and the like, and a repeating decimal or a mixed number (8 1/2, which the parser takes for 9/2)
    becomes a fraction. The i of 2i stands apart, upright names are as usual, and degrees inside of
    a function, which the parser drops, become radians.
    """
    plain = _remove_style(text).replace(r"\varnothing", r"\emptyset")
    plain = _GROUPED.sub(lambda number: re.sub(_GROUP, "", number[0]), plain)
    plain = _MIXED.sub(
        _make_improper, _REPEATING.sub(_make_fraction, write_latex(_DASH.sub("-", plain)))
    )
    plain = _FUNCTION.sub(r"\\\1 ", _UPRIGHT_E.sub(" e", _STYLED.sub(r" \1", plain)))
    plain = _POWER_OF_TEN.sub(r"\1 \\cdot 10^{\2\3}", _DEGREE.sub(r"^{\\circ}", plain))
    plain = _NUMBER_SET.sub(lambda name: rf"\mathbb{{{name[1] or name[2]}}}", plain)
    plain = _OF_DEGREES.sub(
        lambda part: _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", part[0]), plain
    )
    return _IMAGINARY.sub(" i", _FULL_STOP.sub("", plain))


def join_thousands(text: str) -> str:
    """The text with 1234 for 1,234, unless it stands in brackets."""
    return _WITH_COMMAS.sub(
        lambda match: re.sub(r",(?:\\!\s*)?", "", match[0]) if match[1] else match[0], text
    )


def bare_answer(answer: str) -> str:
    """An answer less wrappers and the full stop at its end, its parts joined by commas, its digits
    over spaces.
    """
    bare = _OR.sub(", ", _LAST_STOP.sub("", strip_answer(answer)))
    return bare.replace(" ", "") if _SPACED.fullmatch(bare) else bare


def _write_root(root: re.Match[str]) -> str:
    inside = root[2] or root[3]
    return _ROOTS[root[1]] + (f"{{{inside}}}" if inside else "")


def _spell(part: re.Match[str]) -> str:
    """What is not ASCII as LaTeX or ASCII, but for a word; a digit of any script is one of ours."""
    if _WORD.fullmatch(part[0]):
        return part[0]

    def kind_of(character: str) -> str:  # how it stands for others, in Unicode's words
        return (
            ""
            if character in _SYMBOLS
            else re.sub(r"(<\w+>)?.*", r"\1", unicodedata.decomposition(character))
        )

    spelled = ""
    for kind, characters in groupby(part[0], kind_of):
        run = "".join(characters)
        if kind == "<fraction>":
            for above, below in (
                unicodedata.normalize("NFKC", character).split("\u2044") for character in run
            ):
                spelled += rf"\frac{{{above}}}{{{below}}}"
        else:
            plain = unicodedata.normalize("NFKC", run) if kind in _FORMS else run
            signs = (_SYMBOLS.get(sign) or str(unicodedata.decimal(sign, sign)) for sign in plain)
            spelled += _FORMS.get(kind, "%s") % "".join(signs)
    return spelled


def _remove_style(text: str) -> str:
    r"""The text less colours, `\mathbf`, `\boldsymbol` and `\bm`; words become `\text`, which the
    parser knows.

    Their braces go, too, because the parser takes `{42}` for a set; not after `^`, `_` or a letter
    (`2^\bm{10}`).
    """
    plain = _BOLD_WORDS.sub(r"\\text", re.sub(r"\\(?:text)?color(?:\[\w+\])?\{[^{}]*\}", "", text))
    while (
        lighter := _BOLD_GROUP.sub(
            lambda bold: f"{bold[1]}{{{bold[2]}}}" if bold[1] else bold[2], plain
        )
    ) != plain:
        plain = lighter
    return re.sub(_BOLD, " ", plain)


def _make_fraction(number: re.Match[str]) -> str:
    whole, fixed, period = number[1], number[2], number[3] or number[4]
    above = int(whole + fixed + period) - int((whole + fixed) or "0")
    return f"\\frac{{{above}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _make_improper(number: re.Match[str]) -> str:
    """A whole number and a proper fraction as one fraction; anything else as it stands."""
    whole, above, below = (int(part.replace(",", "")) for part in number.groups())
    return f"\\frac{{{whole * below + above}}}{{{below}}}" if above < below else number[0]


def normal_answer(value: object) -> str:
    r"""An answer as it is graded and scored; empty for what is neither text, a number nor a list of
    these.

    Of a whole solution the answer alone: what follows the last `####`, or stands in the last
    `\boxed{}`. A number has no leading zeros, a whole one no decimals (a column of integers with
    holes is read as floats), a float no exponent; full-width digits, ¾ and x² are written as the
    grader knows them. A list, also one written as text, is its items with commas between them.
    Doubled backslashes are halved; escapes of JSON and HTML, and quotes, are taken off.
    """
    if isinstance(value, list | tuple):
        items = [normal_answer(item) for item in value]
        return (
            items[0]
            if len(items) == 1
            else ", ".join(map(strip_answer, items))
            if all(items)
            else ""
        )
    text = answer_text(value)
    if isinstance(
        value, float
    ):  # the grader finds 1e-05 equal to itself, but to no other spelling of the number
        text = format(Decimal(text), "f") if math.isfinite(value) else ""
    if (listed := _listed(text)) is not None:
        return normal_answer(listed)
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text).replace(
        "\\/", "/"
    )
    text = html.unescape(text) if re.search(r"&(?:[A-Za-z]{2,6}\d{0,2}|#\d+);", text) else text
    if quoted := _QUOTED.fullmatch(text):
        text = quoted[quoted.lastindex or 0]
    while (runs := _BACKSLASHES.findall(text)) and all(len(run) % 2 == 0 for run in runs):
        text = _BACKSLASHES.sub(lambda run: run[0][::2], text)
    _, mark, after = write_latex(text).rpartition("####")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", after) if mark else last_boxes(after) or after
    bare = strip_answer(text)
    if number := NUMBER.fullmatch(bare):
        sign, whole, decimals = number.groups(default="")
        text = text.replace(bare, f"{sign}{whole.lstrip('0') or 0}{decimals}")
    return text.strip()


def _listed(text: str) -> list[object] | None:
    r"""The items of a list of texts that JSON or Python wrote, such as `["165"]`; None for any
    other text.

    LaTeX in it may have been escaped or not: `\f` is the beginning of `\frac` rather than a form
    feed.
    """
    if re.match(r"\s*[\[(]\s*[\"']", text):
        if _LONE_BACKSLASH.search(text):
            text = re.sub(r"\\(?![\"'])", r"\\\\", text)
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            items = ast.literal_eval(text.strip())
            return list(items) if isinstance(items, list | tuple) else None
    return None


def visible_fault(answer: str, keeps_placeholders: bool = False) -> str | None:
    bare = strip_answer(answer)
    if not bare:
        return EMPTY_ANSWER
    if len(bare) > LONGEST:
        return LONG_ANSWER
    if _is_placeholder(bare):
        return None if keeps_placeholders else PLACEHOLDER_ANSWER
    plain = re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}", " ", bare)
    words = len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", plain))
    is_sentence = words > MOST_WORDS or (words > 1 and _OF_SENTENCES.search(plain.lower()))
    return PROSE_ANSWER if is_sentence else None


def _is_placeholder(bare: str) -> bool:
    words = re.findall(r"\w+", re.sub(r"\\[A-Za-z]+|\bby [a-z]+|_", " ", bare))
    lower = {word if word == "A" else word.casefold() for word in words}  # "Answer: A" is an answer
    whole = "".join(words).casefold()
    telling = lower & {*_TELLING.split()}
    if telling and lower - telling <= {*_AROUND.split()}:
        return whole not in ("nosolution", "nosolutions")
    return bool(whole and _WHOLE.fullmatch(whole)) or not _MARKS.sub("", bare)
