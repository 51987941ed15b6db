"""What a command does to its own process: console, Ctrl-C, locks and a Ray of its own."""
