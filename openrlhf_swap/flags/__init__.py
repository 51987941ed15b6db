"""The command line of a training, read without torch or OpenRLHF: flags, defaults and rules."""
