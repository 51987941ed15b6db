from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples" / "worlds" / "policies" / "addition"
