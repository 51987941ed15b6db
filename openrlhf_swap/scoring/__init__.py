"""Numbers of the steps of a response, read with any Hugging Face causal model.

No Ray, no OpenRLHF.
"""
