"""Says how many odd inputs were tried."""

import fuzzing


def pytest_terminal_summary(terminalreporter: object) -> None:
    terminalreporter.write_line(f"{fuzzing.tried:,} odd inputs were tried")
