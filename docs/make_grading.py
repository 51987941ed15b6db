"""Write the page on grading: the rules, and the tables of forms that the grader reads.

python docs/make_grading.py > docs/use/grading.md
"""

import unicodedata

from tabulate import tabulate

from openrlhf_swap.rewards.forms import TABLES

PAGE = r"""# What the grader reads

Made by `python docs/make_grading.py > docs/use/grading.md`: edit `openrlhf_swap/rewards/forms.yaml`, not this file.

The verifier `math` has one principle: **what is not understood is compared, never dropped.** An answer is read into
values and the words that stand beside them. Only what both sides share, or what a table of this page names as
meaningless, may go: a unit that one side lacks, spaces, sizes of brackets, markup. `3 dozen` is 36 and not 3, `R-r` is
not 0, `2:3:4` is not `2:4:3`, and `5% increase` is not `5% decrease`. Numbers are compared exactly where both are exact,
and to six decimals where one is a decimal. Capital letters, primes, dots and the order of letters count.

## Where the answer stands

1. The last complete `\boxed{{}}` after the thought states the answer. Prose cannot deny it. Boxes side by side are one
   answer; a box that was begun later and cut off says that no answer was reached. A sign right before the box in one
   formula belongs to it: `$x > \boxed{{12}}$` does not state 12.
2. Without a box, the last announcement does, in English or Chinese:

{announcements}

3. Without either, a response that is nothing but an answer.
4. After a closed thought only, the last line: by its one formula, or by what follows one of these words directly:
   {verbs}.

Anything else states no answer: `swap/grader_no_answer` counts it. A thought that was never closed announces its answer
in its last line only. Prose has no denials: "I doubt that it is 42." states 42. Ask for a box.

## How answers are compared

* **Lists** have no order, unless their items have names (`a=1, b=2`) or stand in brackets. `±` is two values.
* **Names** may be missing on one side: `x=5` is 5, but not `y=5`.
* **Units** may be missing on one side, and the names of what is counted: `7\text{{ cm}}` and `7 apples` are 7, and
  `7\text{{ cm}}` is not `7\text{{ m}}`. Units are not converted. Other words must agree.
* **Ratios** of three and more are compared in proportion, **bases** by their digits.
* **Intervals**, inequalities and sets by a condition are compared as sets: `[0,1)` is `0 \le x < 1`.
* **Chains** of equations count if they are true: `2+3=5` is 5, `3=5` is not.
* **Percentages** equal the number with and without the sign: `25%` is 25 and 0.25.
* Answers of more than 1,000 characters, and what the parser (math-verify's) does not know, are compared as they stand.

## Forms

Applied in this order to both sides.

{forms}

## Commands that are another's spelling, or say nothing

{commands}

## Units

{units}

What is counted may be missing, too: {counted}, and plurals, but not {not_counted}. Words that say nothing: {aside}.
Multipliers: {magnitudes}.
"""


def code(text: str) -> str:
    """The text as code in a table's cell."""
    seen = "".join(
        f"\\u{ord(one):04x}" if unicodedata.category(one) in ("Cf", "Mn") else one for one in text
    )
    return "`` {} ``".format(seen.replace("|", "\\|")) if text.strip() else "nothing"


def table(rows: list[list[str]], *names: str) -> str:
    """Rows as a Markdown table."""
    return tabulate(rows, names, tablefmt="pipe", disable_numparse=True)


def main() -> None:
    """Print the page."""
    announced = [[code(name), code(pattern)] for name, pattern in TABLES["announcements"].items()]
    forms = [
        [
            form["what"],
            code(form["from"]),
            code(form.get("to") or form.get("by", "")),
            form["why"].replace("|", "\\|"),
        ]
        for form in TABLES["forms"]
    ]
    spellings = [
        [code(name), " ".join(others.split())] for name, others in TABLES["commands"].items()
    ]
    units = [[name, others] for name, others in TABLES["units"].items()]
    multipliers = " ".join(TABLES["magnitudes"].values())
    lists = {
        name: " ".join(TABLES[name].split())
        for name in ("verbs", "counted", "not_counted", "aside")
    }
    page = PAGE.format(
        announcements=table(announced, "announcement", "pattern"),
        forms=table(forms, "what", "from", "to", "why"),
        commands=table(spellings, "written as", "commands"),
        units=table(units, "unit", "other names"),
        magnitudes=multipliers,
        **lists,
    )
    print(page, end="")


if __name__ == "__main__":
    main()
