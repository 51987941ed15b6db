from pathlib import Path

ROOT = Path(__file__).parents[2]
WORLDS = ROOT / "examples" / "worlds"
STUDIES = ROOT / "examples" / "studies"
POLICY = WORLDS / "policies" / "addition"
