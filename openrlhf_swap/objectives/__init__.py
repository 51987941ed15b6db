"""The objectives: what each rewards, what it changes before generation, and what it remembers.

`registry.py` names them; `base.py` says what an objective may do. A class names the code or paper that it follows;
docs/use/objectives.md says where these differ from each other, and where we differ from the code.
"""
