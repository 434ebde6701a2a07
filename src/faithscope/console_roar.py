"""What people see of ROAR runs in a terminal: RACU, how the models do, what to be careful with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from faithscope.console import MARKS, STYLES, plain_table, say, show

if TYPE_CHECKING:
    from faithscope.results import RoarComparison
    from faithscope.retrain.result import RoarResult


def show_roar(result: RoarResult) -> None:
    """Print what was run, the RACU of every measure, how the models do, warnings, the headline."""
    from faithscope.report.roar_rows import ends_sentence, headline, is_relative

    model, data = (result.manifest[key]["name"] for key in ("model", "data"))
    seeds = f"{len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}"
    unit = "%" if is_relative(result) else "tokens"
    say(f"{model} on {data}, {seeds}")
    say(f"{', '.join(map(str, result.levels))} {unit} masked")
    say()
    if is_relative(result):
        _show_racu(result)
    say(ends_sentence(result))
    for warning in result.warnings():
        say(warning, "yellow")
    say(f"\n{headline(result)}", "bold")


def _show_racu(result: RoarResult) -> None:
    from faithscope.report.roar_rows import PROCEDURES, racu_rows

    rows = racu_rows({"": result})
    table = plain_table()
    table.add_column("RACU in %")
    shown = [name for name in PROCEDURES if name in result.procedures]
    for name in shown:
        table.add_column(PROCEDURES[name], justify="right")
    for measure in (name for name in result.measures if name != "random"):
        cells = {row["procedure"]: row for row in rows if row["measure"] == measure}
        table.add_row(Text(measure), *(_racu(cells[name]) for name in shown))
    show(table)
    say(
        "Area between the curves of a measure and of random masking, relative to the most it could "
        "be: mean over seeds with the distances to the ends of its 95 % interval; * better, † "
        "worse than random masking.",
        "dim",
    )
    say()


def _racu(row: dict[str, Any]) -> Text:
    from faithscope.report.roar_tables import racu

    mark = MARKS.get(row["verdict"], "  ")
    return Text(f"{racu(row)}{mark}", STYLES.get(row["verdict"], ""))


def show_roar_comparison(comparison: RoarComparison) -> None:
    """Print what differs between two ROAR runs, the table of differences, the verdict in words."""
    for place, result in (("first", comparison.first), ("second", comparison.second)):
        model, data = (result.manifest[key]["name"] for key in ("model", "data"))
        say(f"{place:<9}{model} on {data}")
    say(f"differs  {'; '.join(comparison.differs) or 'nothing'}")
    say(f"shared   {comparison.shared} seed{'s' * (comparison.shared > 1)}")
    if comparison.lone_methods:
        say(f"in only one run, left out: {', '.join(comparison.lone_methods)}.", "yellow")
    say()
    table = plain_table()
    for name in ("measure", "metric"):
        table.add_column(name)
    for name in ("first", "second", "second - first", "95 % interval"):
        table.add_column(name, justify="right")
    for row in comparison.rows:
        mark = MARKS.get(row["verdict"], "  ")
        known = row["ci_low"] == row["ci_low"]
        table.add_row(
            Text(row["method"]),
            f"{row['metric']} {'↑' if comparison.up(row['metric']) else '↓'}",
            f"{row['first']:.3f}",
            f"{row['second']:.3f}",
            Text(f"{row['difference']:+.3f}{mark}", STYLES.get(row["verdict"], "")),
            f"[{row['ci_low']:+.3f}, {row['ci_high']:+.3f}]" if known else "—",
        )
    show(table)
    say(
        "Means over shared seeds and their paired difference (BCa interval over seeds); * better, "
        "† worse where the interval leaves out 0, not adjusted for the number of rows. ↑ more is "
        "better, ↓ less is; area is the mean performance over the levels.",
        "dim",
    )
    say(f"\n{comparison.headline()}", "bold")
    for sentence in comparison.sentences():
        say(f"  • {sentence}")
