"""The command line of a training: its flags, defaults and rules. Nothing here imports torch or
OpenRLHF.
"""
