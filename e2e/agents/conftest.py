"""The table of all agents and cases, at the end."""

from agents.cases import HEAD, TABLE


def pytest_terminal_summary(terminalreporter):
    if TABLE:
        terminalreporter.section("agents")
        for line in [HEAD, *(row.line() for row in TABLE)]:
            terminalreporter.write_line(line)
