"""One file a method: what it rewards, what it changes before generation, what it remembers.

`registry.py` names them; `base.py` says what a method may do.
"""
