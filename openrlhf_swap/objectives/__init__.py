"""The objectives: `registry.py` names them, `base.py` says what one may do."""
