"""One file for each objective: what it rewards, what it changes before generation, what it remembers.

`registry.py` names them; `base.py` says what an objective may do.
"""
