"""Write the page on grading: the rules, and the tables of forms that the grader reads.

python docs/make_grading.py > docs/use/grading.md
"""

import unicodedata

from tabulate import tabulate

from openrlhf_swap.rewards.forms import TABLES

PAGE = r"""# What the grader reads

Made by `python docs/make_grading.py > docs/use/grading.md`: edit the tables
(`openrlhf_swap/rewards/forms.yaml`), not this file.

The verifier `math` has one principle: **what is not understood is compared, never dropped.** An
answer is read into values and the words beside them. Only what a table names as meaningless may be
dropped: a unit that one side lacks, spaces, sizes of brackets, markup. "3 dozen" is 36 and not 3, "R-r" is not 0, "2:3:4" is not "2:4:3", and
"5% increase" is not "5% decrease". Numbers are compared exactly where both are exact, and to six
decimals where one is a decimal. Capital letters, primes, dots and the order of letters count.

## Where the answer stands

1. The last complete box after the thought states the answer, and prose cannot deny it. Boxes side
   by side are one answer. A box that was begun later and cut off says that no answer was reached. A
   sign right before the box in one formula belongs to it: "$x >$ box of 12" does not state 12.
2. Without a box, the last announcement states it, in English, Chinese, or a few words of German,
   French, Spanish, Italian, Portuguese, Russian, Japanese and Korean (below).
3. Without either, a response that is nothing but an answer states it.
4. After a closed thought only, the last line states it: by its one formula, or by what follows one
   of these words directly: {verbs}.

Anything else states no answer: `swap/grader_no_answer` counts it. A thought that was never closed
announces its answer in its last line only. Prose has no denials: "I doubt that it is 42." states
42. Ask for a box.

```
{announcements}
```

## How answers are compared

* **Lists** have no order, unless their items have names (a=1, b=2) or stand in brackets. A sign ±
  is two values.
* **Names** may be missing on one side: x=5 is 5, but not y=5. Labels are names: (a) 5 (b) 6 is not
  (a) 6 (b) 5.
* **Units** may be missing on one side, and the names of what is counted: 7 cm and 7 apples are 7,
  and 7 cm is not 7 m. Units are not converted. Other words must agree.
* **Ratios** of three and more are compared in proportion, **bases** by their digits. Hours and
  minutes that could be shortened, as 4:30, are a time and no ratio.
* **Intervals**, inequalities and sets by a condition are compared as sets, for the same variable.
* **Chains** of equations count if they are true: 2+3=5 is 5, and 3=5 is not.
* **Percentages** equal the number with and without the sign: 25% is 25 and 0.25.
* Answers of more than 1,000 characters, and what the parser (math-verify's) does not know, are
  compared as they stand.
* A reference answer that is broken off, such as x^ or one with an open brace, is refused.

## Forms

Applied in this order to both sides. In the column `to`, a name in angle brackets is a table of this
page or a function of `forms.py` or `quantities.py` in `openrlhf_swap/rewards`.

```
{forms}
```

Applied in this order to what the forms left. Words stand in ⟦marks⟧ then.

```
{word_forms}
```

## Commands that another one spells, or that say nothing

```
{commands}
```

## Units

```
{units}
```

What is counted may be missing, too: {counted}, and plurals, but not {not_counted}. Words that say
nothing: {aside}. Multipliers: {magnitudes} {denominators}.
"""


def seen(text: str) -> str:
    """The text with characters that nobody sees as their numbers."""
    return "".join(
        f"\\u{ord(one):04x}" if unicodedata.category(one) in ("Cf", "Mn") else one for one in text
    )


def table(rows: list[list[str]], *names: str) -> str:
    """Rows as plain text."""
    return tabulate(rows, names, tablefmt="simple", disable_numparse=True)


def table_of_forms(name: str) -> str:
    """The rows of one of the two tables of forms."""
    rows = []
    for form in TABLES[name]:
        becomes = f"<{form['by']}>" if "by" in form else form["to"]
        rows.append([form["what"], form["why"], becomes, seen(form["from"])])
    return table(rows, "what", "why", "to", "from")


def main() -> None:
    """Print the page."""
    commands = [[name, " ".join(others.split())] for name, others in TABLES["commands"].items()]
    lists = ("verbs", "counted", "not_counted", "aside")
    page = PAGE.format(
        announcements=table([[*row] for row in TABLES["announcements"].items()], "what", "pattern"),
        forms=table_of_forms("forms"),
        word_forms=table_of_forms("word_forms"),
        commands=table(commands, "written as", "commands"),
        units=table([[*row] for row in TABLES["units"].items()], "unit", "other names"),
        magnitudes=" ".join(TABLES["magnitudes"].values()),
        denominators=" ".join(TABLES["denominators"].values()),
        **{name: " ".join(TABLES[name].split()) for name in lists},
    )
    print(page, end="")


if __name__ == "__main__":
    main()
