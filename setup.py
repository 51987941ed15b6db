"""Puts the quickstart's programs and its policy into the wheel, laid out as in a checkout."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# What `openrlhf-swap quickstart` runs: openrlhf_swap/quickstart.py finds it here or in a checkout.
PROGRAMS = (
    "addition",
    "before_after",
    "evaluate",
    "idea",
    "make_data",
    "quickstart",
    "report",
    "world",
)
CARRIED = (
    "examples/leash.py",
    *(f"examples/worlds/{name}.py" for name in PROGRAMS),
    "examples/worlds/policies/addition/*",
    "scripts/train_swap_laptop.yaml",
)


class BuildWithQuickstart(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        carried = Path(self.build_lib, "openrlhf_swap", "checkout")
        for pattern in CARRIED:
            for file in ROOT.glob(pattern):
                target = carried / file.relative_to(ROOT)
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithQuickstart})
