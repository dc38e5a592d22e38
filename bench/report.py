"""What was found, as tables of Markdown that read well in a terminal too."""

import statistics


def percentiles(values: list[float]) -> tuple[float, float, float]:
    """The tenth, fiftieth and ninety-ninth hundredth."""
    if len(values) < 2:
        return (values[0],) * 3
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[9], cuts[49], cuts[98]


def p50(values: list[float]) -> float:
    return percentiles(values)[1]


def short(value: float) -> str:
    """Two or three figures, which is all that a measurement has."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(value: float) -> str:
    return f"1/{1 / value:.0f}" if 0 < value < 0.1 else short(value)


def table(rows: list[list[str]]) -> str:
    """Columns of equal width; all but the first to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return f"| {' | '.join(cells)} |"

    rule = "|" + "|".join("-" * (width + 1) + ("-" if n == 0 else ":") for n, width in enumerate(widths)) + "|"
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


class Report:
    def __init__(self):
        self.parts: list[str] = []
        self.targets: list[list[str]] = []
        self.skipped: list[str] = []
        self.errors: list[str] = []

    def say(self, text: str):
        self.parts.append(text)
        print(f"\n{text}", flush=True)

    def heading(self, text: str):
        self.say(f"## {text}")

    def times(self, unit: str, rows: dict[str, list[float]], columns: dict | None = None):
        """A table of distributions; a further column is a heading and a function of a row's name and its p50."""
        columns = columns or {}
        found = [[unit, "n", "p10", "p50", "p99", *columns]]
        for name, values in rows.items():
            figures = [short(value) for value in percentiles(values)]
            more = [column(name, p50(values)) for column in columns.values()]
            found.append([name, str(len(values)), *figures, *more])
        self.say(table(found))

    def at_most(self, what: str, found: float, limit: float, aim: float | None = None, quiet: float | None = None):
        aimed = f" (aim {ratio(aim)})" if aim else ""
        verdict = "met" if found <= limit else "missed"
        floor = "" if quiet is None else ratio(quiet)
        self.targets.append([what, ratio(found), floor, f"at most {ratio(limit)}{aimed}", verdict])

    def faster(self, what: str, ours: list[float], theirs: list[float], limit: float, aim: float | None = None):
        """A ratio of times: judged at p50, and given at p10, where what else the machine does weighs least."""
        quiet, found, _ = (mine / other for mine, other in zip(percentiles(ours), percentiles(theirs), strict=True))
        self.at_most(what, found, limit, aim, quiet)

    def at_least(self, what: str, found: float, limit: float):
        verdict = "met" if found >= limit else "missed"
        self.targets.append([what, ratio(found), "", f"at least {ratio(limit)}", verdict])

    def skip(self, what: str, why: str):
        self.skipped.append(f"- {what}: {why}")
        print(f"SKIPPED: {what}: {why}", flush=True)

    def error(self, what: str):
        self.errors.append(f"- {what}")
        print(f"ERROR: {what}", flush=True)

    def target_table(self) -> str:
        return table([["target", "measured", "at p10", "wanted", ""], *self.targets])

    def markdown(self, introduction: str) -> str:
        parts = [introduction, "## Targets", self.target_table(), *self.parts]
        if self.skipped:
            parts += ["## Skipped", "\n".join(self.skipped)]
        if self.errors:
            parts += ["## Errors", "\n".join(self.errors)]
        return "\n\n".join(parts) + "\n"
