"""Train the embedded policy on this machine, without a GPU, and show what it unlearned.

    openrlhf-swap quickstart [--output outputs/quickstart] [--steps 24]

Its programs and the policy lie in examples/worlds of a checkout; a wheel carries a copy of them.
"""

import sys
from importlib import import_module
from pathlib import Path

from openrlhf_swap.command import PROGRAM, run_command
from openrlhf_swap.errors import ConfigError

PACKAGE = Path(__file__).parent
CARRIED = PACKAGE / "checkout"  # in a wheel: setup.py puts it there


def main(argv: list[str]) -> None:
    sys.argv = [f"{PROGRAM} quickstart", *argv]
    sys.path.insert(0, str(worlds()))  # as for a script: its modules lie beside it
    import_module("quickstart").main()


def worlds() -> Path:
    """The folder with the quickstart's programs and policies, in the wheel or the checkout."""
    for checkout in (CARRIED, PACKAGE.parent):
        folder = checkout / "examples" / "worlds"
        if (folder / "quickstart.py").exists():
            return folder
    raise ConfigError(
        f"{PACKAGE} came without the quickstart's programs; install a wheel, or use a checkout"
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
