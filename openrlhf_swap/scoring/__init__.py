"""log p(answer | prefix) for every step end, with any Hugging Face causal model. No Ray, no
OpenRLHF.
"""
