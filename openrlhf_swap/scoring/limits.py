"""Limits on the memory of scoring, with which the sizes of a run are computed, too."""

MASK_ELEMENTS = 2**24  # of the attention mask of a call: 32 MiB in bfloat16
HIDDEN_TOKENS = 2**13  # of branches in a pass without steps, unless one branch has more
