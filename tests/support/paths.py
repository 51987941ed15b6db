from pathlib import Path

ROOT = Path(__file__).parents[2]
WORLDS = ROOT / "examples" / "worlds"
POLICY = WORLDS / "policies" / "addition"
