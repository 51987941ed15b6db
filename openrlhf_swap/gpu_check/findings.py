"""What the checks found, and how it is reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from tabulate import tabulate


@dataclass
class Findings:
    """Rows of the table (check, found, wanted), and a line with a remedy for everything that is wrong."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, found: str, wanted: str, remedy: str | None) -> None:
        """Note a finding; `remedy` says what to do about it, and is None where it is as wanted."""
        self.rows.append((what, found, wanted))
        if remedy is not None:
            self.wrong.append(f"{what}: {found}; {remedy}")

    def report(self) -> int:
        """Print the table and what is wrong; returns the exit status."""
        print(tabulate(self.rows, ["check", "found", "wanted"], disable_numparse=True))
        for line in self.wrong:
            print(f"wrong: {line}")
        print("[gpu_check] see above" if self.wrong else "[gpu_check] all is as it should be")
        return 1 if self.wrong else 0
