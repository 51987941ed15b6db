"""Whether a text repeats itself, by the rule that the releases of GRPO-LEAD and AutoThink share."""

from __future__ import annotations

LONGEST_PHRASE, LEAST_TIMES, LONGEST_WORD = 30, 10, 120  # words, times in a row, characters


def is_degenerate(text: str) -> bool:
    """Whether a text says one phrase ten times in a row, or has a word of 120 characters.

    A phrase has at most 30 words; the text is cut into phrases of each length from its beginning, so a repetition is
    seen where it fits that grid. Words are what white space separates.
    """
    words = text.split()
    if any(len(word) >= LONGEST_WORD for word in words):
        return True
    return any(_longest_run(words, size) >= LEAST_TIMES for size in range(1, LONGEST_PHRASE + 1))


def _longest_run(words: list[str], size: int) -> int:
    """The most equal phrases of this many words in a row."""
    phrases = [words[start : start + size] for start in range(0, len(words) - size + 1, size)]
    longest = run = 0
    for number, phrase in enumerate(phrases):
        run = run + 1 if number and phrase == phrases[number - 1] else 1
        longest = max(longest, run)
    return longest
