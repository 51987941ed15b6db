"""How the graders judge cases whose right verdicts are known."""
