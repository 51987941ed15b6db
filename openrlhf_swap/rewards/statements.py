r"""What a response states as its answer: in a box, in an announcement, or by being nothing else.

One list of announcements serves numbers and the letters of a choice. The verifier `multiple_choice`
reads a letter from the last `\boxed{}`, from the last "Answer: C" or "the answer is (C)", or from a
response that is nothing else. A box may hold an option's text instead, if the row has a column
`options`. Standard library only.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Metadata, Verdict

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OPTIONS = "options"  # the column with the options' texts, in order

_PROSE = re.compile(  # two words in a row, "Step 3", "5 make 41"
    r"(?<!\\)\b(?:[A-Za-z]{2,}\s+[A-Za-z]{2,}\b|[A-Z][a-z]{2,}\s+\d|\d\s+(?!or\b|and\b)[a-z]{2,}\s+\S)"
)
_LONGEST_BARE = 200  # characters of a response that may be nothing but an answer
_BOX = r"\\(?:boxed|fbox|framebox)"
_BRACES = re.compile(rf"{_BOX}\s*\{{|\{{|\}}")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$&]|\\[()\[\],;:\\]|\\q?quad|\\text\s*\{[^{}]*\}|\band\b|\bor\b)*"
)  # one answer
_HOLDS_NOTHING = r"\s*(?:(?:\.{3}|…|\\l?dots|\?)\s*)?\}"  # it quotes the instruction
_BARE_BOX = re.compile(rf"{_BOX}(?:\s*(\d[\d.,]*(?<!\D))|\s+([A-Za-z])(?![A-Za-z]))")
_FILLED_BOX = re.compile(rf"{_BOX}\s*(?:\{{(?!{_HOLDS_NOTHING})|\Z)")
# How a response announces its answer: by a sentence, a heading, a tag or GSM8K's mark; for numbers
# and letters alike.
_COPULA = (
    r"(?:\b(?:is|are|was|were|equals|comes\s+(?:out\s+)?to(?:\s+be)?|turns\s+out\s+to\s+be"
    r"|(?:would|must|should|will|could|might|may|has\s+to)(?:\s+\w+)?\s+be"
    r"|ist|lautet|beträgt|est|es|è|é|to(?!\s+be\b)|là|adalah|är|er|je|on|este|είναι|это|рав(?:ен|на|но)|هي|היא)(?!\w)\s*[:\uff1a]?)"
)
_IS = (
    rf"{_COPULA}|[:\uff1a=→⇒]|->|(?<=\s)[-\u2013\u2014](?=\s)|是|为|為|は|은|는|คือ"
    r"|(?=can(?:not|['\u2019]t)\b|isn['\u2019]t\b|exceeds\b|!=|≠|[^.\n]{0,60}\bis\s+(?:wrong|incorrect|false)\b)"
)
_ANSWER = (
    r"(?<![^\W_])(?:final\s+)?(?:answers?|ans(?=\s*[:=]))|\bfinal\s+result|\b(?:correct|right|best)\s+(?:option|choice)"
    r"|\bmy\s+(?:final\s+)?choice|\bAntwort|\br[ée]ponse|\brespuesta|\brisposta|\bresposta|\b\u043e\u0442\u0432\u0435\u0442|\b\u0432\u0456\u0434\u043f\u043e\u0432\u0456\u0434\u044c"
    r"|\bodpowiedź|\bodpověď|\bodpoveď|\bcevap|\bantwoord|\bsvar|\bjawaban|\bvastaus|\brăspuns|\bválasz|\b\u03b1\u03c0\u03ac\u03bd\u03c4\u03b7\u03c3\u03b7"
    r"|\bđáp\s+(?:án|số)|\bcâu\s+trả\s+lời|答案|答え|回答|答|正解|정답|해답|답|उत्तर|উত্তর|பதில்|సమాధానం|คำตอบ|پاسخ|الجواب|جواب|الإجابة|תשובה"
)
_WHICH = (  # "to this", ", as computed,", an ending, an adjective
    r"(?:\s+(?:to|for|of|you|we|I|that)\s[^.:\n]{1,60}?|,[^,.:\n]{1,40},"
    r"|[^\W不]{0,4}(?:\s+(?!não|nicht|never)[^\W\d_]{3,12})?)?"
)
_ANNOUNCED = re.compile(
    rf"(?im)(?:(?:{_ANSWER}){_WHICH}[\s*_`\"'.]*(?:{_IS})|\bfinal\s+answer\b(?!\W*\Z)"
    rf"|\bans\.|####|^A:|[<\[](?:final_?)?(?:answer|ans)[>\]]|<final>"
    rf"|\b(?:I|we)\s+(?:choose|select|pick)\b|[故应應]?[选選](?:[择擇])?(?=[\s:\uff1a]*[(\uff08]?[A-Z])"
    rf"|^[^\w\n</]*(?:(?:the|our|my)\s+)?(?:{_ANSWER})(?:[^\w\n>]*$|\s+(?=[-+\d$(\[\\]))|^[^\w\n]*(?-i:ANSWER)\s)"
    r"(?:\s*\b(?:therefore|thus|then|simply|just|indeed|now|donc|also|daher|somit|entonces|então|quindi)\b)?"
    r"[\s*_`\"':\uff1a]*"
)
_ANNOUNCEMENT = re.compile(
    r"(?s)\$\$.*?\$\$|\\\[.*?\\\]|.*?(?=[<\[]/|\n|\Z|[.!?](?:\s|\Z|</)|[。।]"
    r"|,\s(?:not|rather|i\.e|it|they|there|we|which)\b|,?\s(?:because|since|(?:and|but)\s+not)\b"
    r"|\s*(?:です|である|입니다|이다|है)(?:\W|\Z))"
)
_TERM = r"[^\s\d!-/:-@\[-`{-~\uff1a]+"  # a word of any script, whose vowel signs are no letters
_LABEL = re.compile(  # "Resultado: 5", "The sum is 5"
    rf"[^\w\n<]*(?:{_TERM}(?:\s{_TERM}){{0,3}}\s*[*_`]*[:\uff1a]|\w[^\n:=$\d]{{0,60}}?{_COPULA})[\s*_`]*(?=\S)"
)
# What is compared with a number, or denied, is not stated: one list for announcements and for
# prose.
_COMPARED = (
    r"not|can\s?not|never|neither|nor|none|nobody|unlikely|unlike|hardly|nearly|almost|less|more|fewer|greater|larger|smaller"
    r"|bigger|lower|higher|below|above|under|over|exceeds?|at\s+(?:most|least)|up\s+to|(?:close|nothing|far)\s+(?:to|like|from)"
    r"|within|between|either|one\s+of|other\s+than|anything\s+but|different|differs?|divisible|multiple|wrong|incorrect"
    r"|false|rule[sd]?\s+out|exclude[sd]?|except|besides|doubt|no\s+(?:longer|such)|fails?|too\s+\w+|we\s+have\s+no"
    r"|twice|thrice|double|triple|half\s+of|no\s+es|n['\u2019]est(?:\s+pas)?|nicht|não\s+[eé]|не|niet|inte"
    r"|ikke|nie|bukan|không\s+phải"
)
_NOT = rf"(?:(?<!\\)\b(?:{_COMPARED})\b|n['\u2019]t\b)"
_NEGATED = r"不是|ではあり|でな[いく]|じゃな[いく]|아니|아닙|değil"
_COMPARISON = r"(?:\\(?:ne|neq|neg|lnot|not|le|leq|lt|ge|geq|gt)(?![A-Za-z])|[<>≠≤≥¬]|!=)"
_WRONG = r"(?:wrong|incorrect|false|excluded|ruled\s+out)\b"
DENIED = re.compile(  # before any number: "less than 42", "never 42", "wrong: 42"; or after it
    rf"(?i)[^\d\n]{{0,40}}?{_NOT}|[^\n]{{0,80}}?(?:{_NEGATED})"
    rf"|(?:[\s$*:]|\\[(\[])*{_COMPARISON}|[^\n]{{0,80}}\b(?:is|be|are)\s+{_WRONG}"
)
_DENYING = re.compile(rf"(?i){_NOT}|{_NEGATED}|\?\s*\Z")
_DENIED_BOX = re.compile(  # right before it or after it; \0 stands for the box
    rf"(?i)(?:\b(?:not|never|cannot\s+be|not\s+equal\s+to|other\s+than|anything\s+but)|n['\u2019]t(?:\s+be)?|{_COMPARISON})"
    rf"[\s$:*(]*\0|\0[\s$*)]*(?:\?|(?:is|are|was|would\s+be|cannot\s+be)\s+(?:\w+\s+)?(?:not\b|{_WRONG})|isn['\u2019]t\b)"
)
# What takes an answer back, or names another one: "3. Or 4", "3, but it could be 4", "3 (or maybe
# 4)".
_TAKEN_BACK = re.compile(
    r"(?i)\W{0,9}(?:no\W+)?(?:or\b(?!\s+(?:in\s+other|equivalent|simply))|but\b[^.\n]{0,40}\d[^.\n]{0,20}\b(?:also|possible)"
    r"|(?:actually|wait|sorry|hmm|correction|alternatively|maybe|perhaps|possibly)\b|no[,.!]\s)"
)
_NOT_ASSERTED = re.compile(  # right before an announcement
    r"(?i)(?:\b(?:or|if|suppos(?:e|ing)|assum(?:e|ing)|doubt|whether|false|not\s+(?:true|think|believe|the\s+case))"
    r"|n['\u2019]t\s+(?:think|believe))(?:\s+that)?\W*(?:(?:the|our|my)\W*)?\Z"
)
_GAVE_UP = re.compile(
    r"(?i)\b(?:(?:do\s+not|don['\u2019]t)\s+know|(?:have|has|is|there['\u2019]s)\s+no\s+(?:final\s+)?answer|ran\s+out\s+of)\b"
)
# In prose: a sentence, of which only what does not deny, ask or waver can be an answer.
_SENTENCE = re.compile(r"[^\n]+?(?:[.!?]+(?=\s|\Z)|(?=\n)|\Z)")
_NOT_SO = re.compile(
    r"(?i)(?:,\s*(?:and\s+)?not|,?\s(?:rather\s+than|instead\s+of|unlike))\s[^,;]*\Z"
)
_LAST_OF_SEVERAL = re.compile(
    r"(?i)\b(?:or|unless|maybe|perhaps|possibly|could\s+be|might\s+be)\b[^\d\n]{0,15}\d[\d.,]*\W*\Z"
)
_HEADING = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore) )?(?:(?:the|our|my) )?(?:final )?answer(?: is)?"
)
_SENTENCE_END = re.compile(r"[.!?]\s+")
_MARKS = " *_`\"'\t"
# Tokens that families put around an answer, and at its end: `<|im_end|>`, R1's with its own bars,
# `<turn|>`, `</s>`.
_MARK = r"<([|\uff5c])[^<>|\uff5c\s]+\1>"
_MARKS_BEFORE = re.compile(rf"(?:{_MARK}\s*)+")
_MARK_AFTER = re.compile(rf"(?:{_MARK}|<\w+\|>|</s>|<(?:eos|eot|end|end_of_turn|seed:eos)>)\Z")
_LONGEST_MARK = 40  # characters
_WRAPPED = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|mathrm|mathbf|mathsf|mbox|operatorname|boldsymbol|bm)\s*"
    r"\{((?:[^{}]|\{[^{}]*\})*)\}"
)
# "A is wrong. So B.", at the end: what is left is all that a person would say.
_CONCLUSION = re.compile(
    r"(?i)(?:\A|[.!?\n])[\s*_]*(?:so|thus|hence|therefore)\b[,:]?\s+([^\n]{1,20})\s*\Z"
)
# "A" and "I" are words, too, so what follows a letter must end it or explain it.
_LETTER = re.compile(
    r"(?i)(?:[\s*_$`\"']|\\[(\[])*(?:(?:option|choice|la)\s+)?"
    r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Za-z])\)|((?-i:[A-Z]))(?=[.:,;](?:\s|$)|\s*(?:\u2013|\u2014|-[-\s])"
    r"|\s+(?:\((?![A-Za-z]\)|or\b|maybe\b)|(?:because|since|as|for|which|is\s+(?:the\s+)?(?:correct|right|best))\b))"
    r"|([A-Za-z])(?=(?:[.:](?:\s|$)|[\s*_$`\"']|\\[)\]])*$))"
)
_ANOTHER = re.compile(  # "or B" after a letter: whoever names two has not chosen
    r"(?:[\s*_$.)]|\\[)\]])*(?:(?:[/&,;-]|\b(?:or|and)\b)(?:[\s*_$(]|\\[(\[])*"
    r"(?:(?:or|and|maybe|perhaps|possibly|option)\s+)*(?:\([A-Za-z]\)|[A-HJ-Z](?![\w'\u2019]))"
    r"|\([A-Za-z]\)|[A-Z][.)]?\s*\Z)"
)


def text_after_thought(response: str, end_of_thought: str) -> str:
    """The text after the first end of the thought, or all of it without one, less the special
    tokens around it.
    """
    _, closed, rest = response.partition(end_of_thought)
    visible = (rest if closed else response).strip()
    while mark := _MARK_AFTER.search(visible, max(0, len(visible) - _LONGEST_MARK)):
        visible = visible[: mark.start()].rstrip()
    return visible[before.end() :] if (before := _MARKS_BEFORE.match(visible)) else visible


def is_balanced(text: str) -> bool:
    """Whether every brace is closed by a later one: `a}{b` inside a wrapper is two expressions, not
    one.
    """
    depths = [*accumulate((character == "{") - (character == "}") for character in text)]
    return min(depths) >= 0 and depths[-1] == 0


def last_boxed(text: str) -> str | None:
    r"""The contents of the last complete `\boxed{...}`, braces matched; None if there is none."""
    boxes = _boxes(text)
    return text[slice(*boxes[-1][1:])] if boxes else None


def _boxes(text: str) -> list[tuple[int, int, int]]:
    r"""Where every complete box begins, and its contents begin and end, in order.

    Linear in the length of the text: a model that repeats an unfinished `\boxed{` must not stall
    the grading.
    """
    open_braces: list[re.Match[str]] = []
    boxes = []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace)
        elif open_braces and len((opened := open_braces.pop())[0]) > 1:
            boxes.append((opened.start(), opened.end(), brace.start()))
    return sorted(boxes)


def last_boxes(text: str) -> str | None:
    r"""The contents of the last box, and of those right before it: `\boxed{1}, \boxed{2}` is one
    answer.
    """
    boxes = _boxes(text)
    first = len(boxes) - 1
    while first > 0:
        end, start = boxes[first - 1][2] + 1, boxes[first][0]
        if not 0 <= start - end <= _LONGEST_BARE or not _BETWEEN_BOXES.fullmatch(text, end, start):
            break
        first -= 1
    return ", ".join(text[start:end] for _, start, end in boxes[first:]) if boxes else None


def stated_answer(text: str, closed: bool = True) -> str | None:
    r"""The answer that a response states; None if it states none, or takes it back.

    It stands in the last `\boxed{}` that holds something, unless this was cut off, or else in the
    last announcement ("the answer is"), or is all of the text. After a closed thought also a last
    line, perhaps with a label, states it.
    """
    plain = remove_empty_boxes(text)
    if _FILLED_BOX.search(plain):
        if is_torn(plain):
            return None
        start, _, end = _boxes(plain)[-1]
        around = f"{plain[max(0, start - 40) : start]}\0{plain[end + 1 : end + 81]}"
        return None if _DENIED_BOX.search(around) else last_boxes(plain)
    if place := last_announcement(plain):
        return place[1]
    if not closed:
        return _only_answer(text)
    line = text.rstrip().rpartition("\n")[2]
    if label := _LABEL.match(line):
        line = (
            ""
            if _DENYING.search(label[0])
            else _NOT_SO.sub("", line[label.end() :].removesuffix("."))
        )
    return _only_answer(line)


def _only_answer(text: str) -> str | None:
    alone = text.strip(_MARKS + "\n")
    if (
        len(alone) > _LONGEST_BARE
        or "\n" in alone
        or "\\boxed" in alone
        or alone.endswith((":", "?"))
    ):
        return None
    return (
        None
        if _PROSE.search(alone) or DENIED.match(alone) or not any(map(str.isalnum, alone))
        else alone
    )


def prose_answer(text: str) -> str:
    """What is left of prose after a thought, in which a number may be the answer: no denials,
    questions or hedges.
    """
    return "" if _GAVE_UP.search(text) else _SENTENCE.sub(_assert, text)


def _assert(sentence: re.Match[str]) -> str:
    kept = []
    for clause in re.split(
        r"\b(?:but|so|hence|thus|therefore|(?<=\d )it['\u2019]s)\b|;", sentence[0]
    ):
        plain = clause.rstrip(".! ")
        asserted = _NOT_SO.sub("", plain)
        is_denied = _DENYING.search(asserted) or (
            "$" not in asserted and re.search(_COMPARISON, asserted)
        )
        last = _LAST_OF_SEVERAL.search(asserted)
        if not is_denied and not (last and re.search(r"\d", asserted[: last.start()])):
            kept.append(asserted + clause[len(plain) :])
    return " ".join(kept)


def is_torn(text: str) -> bool:
    r"""Whether the last `\boxed{` that holds something was cut off before its end."""
    boxes = list(_FILLED_BOX.finditer(text))
    return bool(boxes) and last_boxed(text[boxes[-1].start() :]) is None


def last_announcement(text: str) -> tuple[int, str | None] | None:
    """Where the last announcement of an answer begins, and what it says: None if it denies,
    compares or wavers.
    """
    if not (places := list(_ANNOUNCED.finditer(text))):
        return None
    place = places[-1]
    announced = _ANNOUNCEMENT.match(text, place.end())
    answer = announced[0].strip(_MARKS) if announced else ""
    if answer and not is_balanced(answer):  # {"answer": "42"}
        answer = answer.strip("}").strip(_MARKS)
    end = (announced or place).end()
    is_taken_back = text[end : end + 1] == "?" or _TAKEN_BACK.match(text, end)
    is_second = _NOT_ASSERTED.search(text[max(0, place.start() - 40) : place.start()])
    wavers = re.search(r"(?i)\bbut\b[^\n]{0,80}\b(?:also|could|might|may|possible)\b", answer)
    is_answer = answer and not (is_taken_back or is_second or wavers or DENIED.match(answer))
    return place.start(), answer if is_answer else None


def final_statement(text: str, closed: bool = False) -> str | None:
    r"""The part of a response that can be graded: what follows a closed thought; None if it states
    no answer.

    An open thought counts if it has a box, but not half a one, or is nothing but an answer, and
    else from where it announces one, so that no number of the thought is taken for it. `\boxed 7`
    is made `\boxed{7}`, which TeX shows.
    """
    text = _BARE_BOX.sub(lambda box: rf"\boxed{{{box[1] or box[2]}}}", text)
    if closed:
        return text
    if _FILLED_BOX.search(text):
        return None if is_torn(text) else text
    start = answer_start(text)
    return text[start:] if start is not None else text if _only_answer(text) is not None else None


def remove_empty_boxes(text: str) -> str:
    r"""The text less every `\boxed{}`, which quotes the instruction rather than answers."""
    return re.sub(rf"\\boxed\s*\{{{_HOLDS_NOTHING}", "", text)


def answer_start(text: str) -> int | None:
    r"""Where a response that never closed its thought begins to state its final answer; None if it
    does not.

    That is the sentence with its last `\boxed{` that holds something, or else the last line: from
    the sentence that announces an answer ("the answer is", "####", but not "the answer is not"), or
    all of it below a heading that does. Headings right above ("**Final Answer**") and lines without
    a word belong to it.
    """
    boxes = [box.start() for box in _FILLED_BOX.finditer(text)]
    place = boxes[-1] if boxes else len(text.rstrip())
    line = text.rfind("\n", 0, place) + 1
    if not boxes:
        above = _above_headings(text, line)
        said = last_announcement(text[above:place])
        if said is None or said[1] is None:
            return None
        place = max(above + said[0], line)
    start = max((end.end() for end in _SENTENCE_END.finditer(text, line, place)), default=line)
    if start == line:
        start = _above_headings(text, line)
    return start + len(text[start:]) - len(text[start:].lstrip())


def _above_headings(text: str, line: int) -> int:
    """Where the headings begin, and the lines without a word, that stand right above the line at
    `line`.
    """
    while line > 0:
        above = text.rfind("\n", 0, line - 1) + 1
        words = " ".join(re.findall(r"\w+", text[above:line]))
        if words and not _HEADING.fullmatch(words):
            break
        line = above
    return line


def verify_choice(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    text = final_statement(response, metadata.get(THOUGHT_CLOSED, True))
    stated = stated_letter(text or "", metadata.get(OPTIONS) or ())
    if stated is None:
        return NO_ANSWER
    return Verdict(float(stated == answer.strip().upper()), why=f"read {stated}", stated=stated)


def _find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer must be one letter, of an option if those are known."""
    letter, options = answer.strip().upper(), metadata.get(OPTIONS) or ()
    if len(letter) != 1 or letter not in LETTERS:
        return "an answer that is not a letter"
    if options and LETTERS.index(letter) >= len(options):
        return "an answer that is no option's letter"
    return None


def stated_letter(text: str, options: Sequence[str] = ()) -> str | None:
    """The letter that a text states as its answer, in upper case; None if there is none."""
    boxed = None if is_torn(text) else last_boxes(remove_empty_boxes(text))
    letter = None
    if boxed and not (letter := find_letter(boxed)):
        same = [
            name
            for name, option in zip(LETTERS, options, strict=False)
            if _plain(option) == _plain(boxed)
        ]
        letter = same[0] if len(same) == 1 else None
    if letter is None and (
        place := last_announcement(text if boxed is None else text.rpartition(boxed)[2])
    ):
        letter = find_letter(place[1] or "")
    elif letter is None and (concluded := _CONCLUSION.search(text)):
        letter = find_letter(concluded[1])
    elif letter is None and "\n" not in text.strip():
        letter = find_letter(text)
    return letter and letter.upper()


def find_letter(text: str) -> str | None:
    """The letter with which a text begins, as it is written; None if it begins otherwise or names
    another one.
    """
    plain = unicodedata.normalize("NFKC", unwrap_text(text))
    letter = _LETTER.match(plain)
    return (
        None
        if letter is None or _ANOTHER.match(plain, letter.end())
        else letter[letter.lastindex or 0]
    )


def _plain(text: str) -> str:
    return "".join(unwrap_text(text).replace("$", "").split()).lower()


def unwrap_text(text: str) -> str:
    return _WRAPPED.sub(r"\1", text)


verify_choice.find_fault = _find_fault  # type: ignore[attr-defined]
