"""Answers as text: taking wrappers off, finding them in a response, one spelling for mathematics.

The grader reads LaTeX in ASCII. `write_latex` writes Unicode that way, in reference answers and responses alike;
`canonical` also settles what LaTeX itself spells in several ways, for comparisons only. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate, groupby

END_OF_THOUGHT = "</think>"  # R1's; `rollouts.families` knows the others

# How R1-style models are asked, in training and in evaluation.
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."

_WRAPPER = re.compile(
    r"\$\$(.+)\$\$|\$([^$]+)\$|\\boxed\s*\{(.+)\}|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL
)
_PROSE = re.compile(r"(?<!\\)\b(?:[A-Za-z]{2,}\s+[A-Za-z]{2,}\b|[A-Z][a-z]{2,}\s+\d)")  # two words in a row, "Step 3"
LONGEST_BARE_ANSWER = 200  # characters of a response that may be nothing but an answer
_BRACES = re.compile(r"\\boxed\s*\{|\{|\}")
_BETWEEN_BOXES = re.compile(r"(?:[\s,;$&]|\\[()\[\],;:\\]|\\q?quad|\\text\s*\{[^{}]*\}|\band\b|\bor\b)*")  # one answer
_HOLDS_NOTHING = r"\s*(?:(?:\.{3}|…|\\l?dots|\?)\s*)?\}"  # it quotes the instruction
_EMPTY_BOX = re.compile(rf"\\boxed\s*\{{{_HOLDS_NOTHING}")
_FILLED_BOX = re.compile(rf"\\boxed\s*\{{(?!{_HOLDS_NOTHING})")
# How a response announces its answer: by a sentence, a heading, a tag or GSM8K's mark; for numbers and letters alike.
_IS = (
    r"(?:is|are|was|equals|(?:would|must|should|will|could|might|may)\s+be|ist|lautet|est|es|è|é|to|это|هي)(?!\w)"
    r"\s*[:\uff1a]?|[:\uff1a=]|是|为|為|は|은|는|(?=can(?:not|['\u2019]t)\b|isn['\u2019]t\b"
    r"|[^.\n]{0,60}\bis\s+(?:wrong|incorrect|false)\b)"
)
_ANSWER = (
    r"\b(?:final\s+)?answers?|\b(?:correct|right|best)\s+(?:option|choice)|\bAntwort|\br[ée]ponse|\brespuesta|\brisposta"
    r"|\bresposta|\b\u043e\u0442\u0432\u0435\u0442|\bodpowiedź|\bcevap|\bantwoord|\bsvar|\bjawaban|\bđáp\s+án"
    r"|答案|答え|答|정답|답|उत्तर|الجواب|الإجابة"
)
_ANNOUNCED = re.compile(
    rf"(?:(?:{_ANSWER})(?:\s+(?:to|for|of)\s[^.:\n]{{1,60}}?)?[\s*_`]*(?:{_IS})|\bfinal\s+answer\b|####|^A:"
    r"|<(?:final_)?answer>|^[^\w\n</]*(?:(?:the|our|my)\s+)?answer[^\w\n>]*$)[\s*_`:\uff1a]*",
    re.IGNORECASE | re.MULTILINE,
)
_ANNOUNCEMENT = re.compile(
    r"\$\$.*?\$\$|\\\[.*?\\\]|.*?(?=</|\n|\Z|[.!?](?:\s|\Z|</)|。|,\s(?:not|rather|i\.e)\b|,?\s(?:because|since)\b)",
    re.DOTALL,
)
DENIED = re.compile(  # before any number: "less than 42", "never 42", "wrong: 42"; or after it
    r"[^\d\n]{0,40}?(?:(?<!\\)\b(?:not|cannot|never|neither|unlikely|hardly|less|more|fewer|greater|larger|smaller|bigger"
    r"|lower|higher|below|above|under|over|at\s+(?:most|least)|up\s+to|(?:close|nothing|far)\s+(?:to|like|from)|within"
    r"|between|either|one\s+of|other\s+than|anything\s+but|different|divisible|multiple|wrong|incorrect|false)\b|n['\u2019]t\b)"
    r"|(?:[\s$*:]|\\[(\[])*(?:\\(?:ne|neq|not|le|leq|lt|ge|geq|gt)(?![A-Za-z])|[<>≠≤≥]|!=)"
    r"|[^\n]{0,80}\b(?:is|be|are)\s+(?:wrong|incorrect|false)\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?:(?:so|thus|hence|therefore) )?(?:(?:the|our|my) )?(?:final )?answer(?: is)?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]\s+")
# Tokens that families put around an answer, and at its end: `<|im_end|>`, R1's with its own bars, `<turn|>`, `</s>`.
_MARK = r"<([|\uff5c])[^<>|\uff5c\s]+\1>"
_MARKS_BEFORE = re.compile(rf"(?:{_MARK}\s*)+")
_MARK_AFTER = re.compile(rf"(?:{_MARK}|<\w+\|>|</s>|<(?:eos|eot|end|end_of_turn|seed:eos)>)\Z")
_LONGEST_MARK = 40  # characters

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_FORMS = {"<super>": "^{%s}", "<sub>": "_{%s}", "<wide>": "%s", "<narrow>": "%s", "<font>": "%s"}
_SYMBOLS = {
    **{"\u2212": "-", "°": r"^{\circ}", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "},
    **{"\u00d7": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∈": r"\in "},
    **{"\u222a": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⌊": r"\lfloor ", "⌋": r"\rfloor "},
}
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]|(?=\{)))")
_GROUP = r"(?:\\[,;: ]|\{,\}|[~\u00a0\u2009\u202f])"  # what may stand between groups of three digits
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)")
_GROUP_MARK = re.compile(_GROUP)
_WITH_COMMAS = re.compile(  # 1,234 outside brackets, in which a comma separates: (1,234) is a point
    r"(?<!\\)[(\[][^()\[\]]{0,200}[)\]]|\\\{.{0,200}?\\\}|\\langle.{0,200}?\\rangle"
    r"|(?<![\d,.])([1-9]\d{0,2}(?:,(?:\\!\s*)?\d{3})+)(?!\d|,\d)"
)
_COMMA = re.compile(r",(?:\\!\s*)?")
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar)(?:\{(\d{1,20})\}| ?(\d))")
_SPACE = r"(?:\\[ ,;:]|~|[^\S\n])"
_MIXED = re.compile(  # 8 1/2, unless it stands in a row of numbers or a date
    rf"(?<![\w./^])(?<!\d[^\S\n])([1-9]\d{{0,2}}(?:,\d{{3}}){{1,2}}|[1-9]\d{{0,8}}){_SPACE}{{1,4}}"
    rf"([1-9]\d{{0,2}})/([1-9]\d{{0,2}})(?![\w/]|\^(?!\{{?\\circ)|[.,]\d|{_SPACE}{{0,4}}\d)"
)
_STOP = r"(?<=[\w!%|})\]])(?<!\\right)\."  # `\right.` is a delimiter
_LAST_STOP = re.compile(rf"{_STOP}\Z")
_FULL_STOP = re.compile(rf"{_STOP}(?=\s*\$?\s*\}}|\s*\$\s*\Z)|(?<=[\d}})\]])\.(?=\s*\Z)")
_IMAGINARY = re.compile(r"(?<=\d)i(?![A-Za-z])|\\(?:mathrm|text)\{i\}|\\imath\b")
_UPRIGHT_E = re.compile(r"\\(?:mathrm|text|textrm|mathit|mathsf|operatorname)\s*\{\s*e\s*\}|\{\s*\\rm\s+e\s*\}")
_FUNCTION = re.compile(
    r"\\(?:operatorname\*?|mathrm|text|textrm)\s*\{\s*\\?((?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp)\s*\}"
    r"(?=[\s\d({\\_^A-Za-z]|\Z)"
)
_OF_DEGREES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])[^=,;<>]*")
_DEGREES = re.compile(
    r"(\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\)|\\[a-z]+(?=\s*\^))\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree)"
)
_COLOR = re.compile(r"\\(?:text)?color(?:\[\w+\])?\{[^{}]*\}")
_MONEY = re.compile(r"\\(?:text|mathrm|mbox)\s?\{\s?(?:\\?(\$)|([€£¥₹]))\s?\}")
_BOLD = r"\\(?:boldsymbol|mathbf|bm)(?![A-Za-z])\s*"
_BOLD_WORDS = re.compile(rf"{_BOLD}(?=\{{[A-Za-z]{{2}}[A-Za-z\s]*\}})")
_BOLD_OR_BRACE = re.compile(rf"({_BOLD}\{{?|(?<!\\)[{{}}])")


def strip_answer(answer: str) -> str:
    r"""The bare answer, without surrounding white space, `$`, `$$` and `\boxed{}`."""
    stripped = answer.strip()
    match = _WRAPPER.fullmatch(stripped)
    inside = match[match.lastindex or 0] if match else ""
    return strip_answer(inside) if inside and _is_balanced(inside) else stripped


def answer_text(answer: object) -> str:
    """The text of an answer; empty if it is neither text nor a number."""
    return "" if isinstance(answer, bool) or not isinstance(answer, str | int | float) else str(answer)


def text_after_thought(response: str, end_of_thought: str) -> str:
    """The text after the first end of the thought, or all of it without one, less the special tokens around it."""
    _, closed, rest = response.partition(end_of_thought)
    visible = (rest if closed else response).strip()
    while mark := _MARK_AFTER.search(visible, max(0, len(visible) - _LONGEST_MARK)):
        visible = visible[: mark.start()].rstrip()
    return visible[before.end() :] if (before := _MARKS_BEFORE.match(visible)) else visible


def last_boxed(text: str) -> str | None:
    r"""The contents of the last complete `\boxed{...}`, braces matched; None if there is none.

    Linear in the length of the text: a model that repeats an unfinished `\boxed{` must not stall the grading.
    """
    boxes = _boxes(text)
    return text[slice(*boxes[-1][1:])] if boxes else None


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """Where every complete box begins, and its contents begin and end, in order."""
    open_braces: list[re.Match[str]] = []
    boxes = []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace)
        elif open_braces and len((opened := open_braces.pop())[0]) > 1:
            boxes.append((opened.start(), opened.end(), brace.start()))
    return sorted(boxes)


def last_boxes(text: str) -> str | None:
    r"""The contents of the last box, and of those right before it: `\boxed{1}, \boxed{2}` is one answer."""
    boxes = _boxes(text)
    first = len(boxes) - 1
    while first > 0:
        end, start = boxes[first - 1][2] + 1, boxes[first][0]
        if not 0 <= start - end <= LONGEST_BARE_ANSWER or not _BETWEEN_BOXES.fullmatch(text, end, start):
            break
        first -= 1
    return ", ".join(text[start:end] for _, start, end in boxes[first:]) if boxes else None


def stated_answer(text: str) -> str | None:
    r"""The answer that a response states; None if it states none.

    That is the contents of its last `\boxed{}` that holds something, and nothing if this box was cut off. Without a
    box it is what the last announcement says ("the answer is"), or all of a text that is nothing but an answer.
    """
    plain = remove_empty_boxes(text)
    if _FILLED_BOX.search(plain):
        return None if is_torn(plain) else last_boxes(plain)
    if place := last_announcement(plain):
        return place[1]
    return _only_answer(text)


def _only_answer(text: str) -> str | None:
    """All of a text that is nothing but an answer; None for any other."""
    alone = text.strip()
    is_answer = "\n" not in alone and len(alone) <= LONGEST_BARE_ANSWER and _PROSE.search(alone) is None
    return alone if alone and is_answer and "\\boxed" not in alone and not DENIED.match(alone) else None


def is_torn(text: str) -> bool:
    r"""Whether the last `\boxed{` that holds something was cut off before its end."""
    boxes = list(_FILLED_BOX.finditer(text))
    return bool(boxes) and last_boxed(text[boxes[-1].start() :]) is None


def last_announcement(text: str) -> tuple[int, str | None] | None:
    """Where the last announcement of an answer begins, and what it says: None if it denies or compares."""
    if not (places := list(_ANNOUNCED.finditer(text))):
        return None
    said = _ANNOUNCEMENT.match(text, places[-1].end())
    answer = said[0].strip(" *_`\"'\t") if said else ""
    is_asked = said is not None and text[said.end() : said.end() + 1] == "?"
    return places[-1].start(), None if not answer or is_asked or DENIED.match(answer) else answer


def final_statement(text: str) -> str | None:
    r"""The part of a response that never closed its thought that can be graded; None if it states no answer.

    All of it if it has a box or is nothing but an answer. Otherwise it begins where the answer is announced, so that
    no number of the thought is taken for the answer. A box that was cut off holds half an answer: it does not count.
    """
    if _FILLED_BOX.search(text):
        return None if is_torn(text) else text
    start = answer_start(text)
    return text[start:] if start is not None else text if _only_answer(text) is not None else None


def remove_empty_boxes(text: str) -> str:
    r"""The text less every `\boxed{}`, which quotes the instruction rather than answers."""
    return _EMPTY_BOX.sub("", text)


def answer_start(text: str) -> int | None:
    r"""Where a response that never closed its thought begins to state its final answer; None if it does not.

    That is the sentence with its last `\boxed{` that holds something. Without one it is the last line: from the
    sentence that announces an answer ("the answer is", "Answer:", "####", but not "the answer is not"), or all of it
    below a heading that does. Headings right above ("**Final Answer**") and lines without a word belong to it.
    """
    boxes = [box.start() for box in _FILLED_BOX.finditer(text)]
    place = boxes[-1] if boxes else _announcement(text)
    if place is None:
        return None
    line = text.rfind("\n", 0, place) + 1
    start = max((end.end() for end in _SENTENCE_END.finditer(text, line, place)), default=line)
    if start == line:
        start = _above_headings(text, line)
    return start + len(text[start:]) - len(text[start:].lstrip())


def _announcement(text: str) -> int | None:
    """Where the last line announces an answer, or begins below a heading that does."""
    end = len(text.rstrip())
    line = text.rfind("\n", 0, end) + 1
    start = _above_headings(text, line)
    place = last_announcement(text[start:end])
    if place is None or place[1] is None:
        return None
    return max(start + place[0], line)


def _above_headings(text: str, line: int) -> int:
    """Where the headings begin, and the lines without a word, that stand right above the line at `line`."""
    while line > 0:
        above = text.rfind("\n", 0, line - 1) + 1
        words = " ".join(re.findall(r"\w+", text[above:line]))
        if words and not _HEADING.fullmatch(words):
            break
        line = above
    return line


def _is_balanced(text: str) -> bool:
    """Whether every brace is closed by a later one: `a}{b` inside a wrapper is two expressions, not one."""
    depths = [*accumulate((character == "{") - (character == "}") for character in text)]
    return min(depths) >= 0 and depths[-1] == 0


def write_latex(text: str) -> str:
    """The text with Unicode's mathematics as LaTeX or ASCII: ¾, x², √2, 90°, full-width digits. Idempotent."""
    if text.isascii():
        return text
    spelled = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}" if root[1] or root[2] else r"\sqrt", text)
    return _NOT_ASCII.sub(lambda part: "".join(_spelled(*run) for run in groupby(part[0], _kind)), spelled)


def canonical(text: str) -> str:
    r"""The text as `write_latex` has it, less spellings that the parser does not know.

    Colours, bold type and a full stop at the end of an answer are taken off, digits are joined over `\,`, `{,}` and
    the like, a repeating decimal or a mixed number (8 1/2, which the parser takes for 9/2) becomes a fraction, and the
    i of 2i stands apart: the parser takes it for a variable otherwise. Upright names are written as usual, and degrees
    inside of a trigonometric function, which the parser drops, as radians.
    """
    plain = _remove_bold(_COLOR.sub("", text)).replace(r"\varnothing", r"\emptyset")
    plain = _MONEY.sub(lambda mark: r"\$" if mark[1] else mark[2], plain)
    plain = _GROUPED.sub(lambda number: _GROUP_MARK.sub("", number[0]), plain)
    plain = _MIXED.sub(_make_improper, _REPEATING.sub(_make_fraction, write_latex(plain)))
    plain = _FUNCTION.sub(r"\\\1 ", _UPRIGHT_E.sub(" e", plain))
    plain = _OF_DEGREES.sub(lambda part: _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", part[0]), plain)
    return _IMAGINARY.sub(" i", _FULL_STOP.sub("", plain))


def join_thousands(text: str) -> str:
    """The text with 1234 for 1,234, unless it stands in brackets."""
    return _WITH_COMMAS.sub(lambda match: _COMMA.sub("", match[0]) if match[1] else match[0], text)


def strip_full_stop(answer: str) -> str:
    """An answer less the full stop at its end. In a text, `canonical` leaves a sentence its own."""
    return _LAST_STOP.sub("", answer)


def _kind(character: str) -> str:
    """How a character stands for others, in Unicode's words; empty for one that stands for itself."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return kind if kind.startswith("<") else ""


def _spelled(kind: str, characters: Iterator[str]) -> str:
    """Characters of one kind as LaTeX or ASCII."""
    run = "".join(characters)
    if kind == "<fraction>":
        numbers = (unicodedata.normalize("NFKC", character).split("\u2044") for character in run)
        return "".join(f"\\frac{{{above}}}{{{below}}}" for above, below in numbers)
    plain = unicodedata.normalize("NFKC", run) if kind in _FORMS else run
    return _FORMS.get(kind, "%s") % "".join(_SYMBOLS.get(character, character) for character in plain)


def _remove_bold(text: str) -> str:
    r"""The text less `\mathbf`, `\boldsymbol` and `\bm`; words become `\text`, as which the parser knows them.

    Their braces go, too, because the parser takes `{42}` for a set; not after `^`, `_` or a letter (`2^\bm{10}`).
    """
    pieces = _BOLD_OR_BRACE.split(_BOLD_WORDS.sub(r"\\text", text))
    kept: list[bool] = []  # of each brace that is open
    for i in range(1, len(pieces), 2):
        if pieces[i] == "}":
            pieces[i] = "}" if not kept or kept.pop() else ""
        elif pieces[i].endswith("{"):
            before = pieces[i - 1].rstrip()[-1:]
            kept.append(pieces[i] == "{" or before.isalpha() or before in ("^", "_"))
            pieces[i] = "{" if kept[-1] else ""
        else:
            pieces[i] = " "
    return "".join(pieces)


def _make_fraction(number: re.Match[str]) -> str:
    whole, fixed, period = number[1], number[2], number[3] or number[4]
    above = int(whole + fixed + period) - int((whole + fixed) or "0")
    return f"\\frac{{{above}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _make_improper(number: re.Match[str]) -> str:
    """A whole number and a proper fraction as one fraction; anything else as it stands."""
    whole, above, below = (int(part.replace(",", "")) for part in number.groups())
    return f"\\frac{{{whole * below + above}}}{{{below}}}" if above < below else number[0]
