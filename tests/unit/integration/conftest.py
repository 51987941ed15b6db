"""Importing the integration prepares a process for OpenRLHF, which a test may import first."""

import openrlhf_swap.integration  # noqa: F401
