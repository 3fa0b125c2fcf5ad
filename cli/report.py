"""How measured decisions look: tables for people. What strangers wrote is a clean line; who answered is said first."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from local import measure, tuning
from local.evaluate import Asking, Place
from local.measure import Decision, Figures
from local.result import Result
from local.show import grid, line, usd

# The matrix is shown whole up to so many labels; of more, the largest confusions are.
_MATRIX, _LARGEST, _FIRST = 12, 15, 10
OPEN = "(abstained)"
_ROWS = {
    "accuracy": "accuracy, right abstentions included",
    "coverage": "coverage: answered, of lines with a label",
    "precision": "right, of those answered",
    "abstained_right": "abstained, of lines to abstain from",
    "abstained_wrong": "abstained, of lines with a label",
    "failed": "failed: no decision",
    "calls": "model calls a decision",
    "cost_micro": "cost a decision",
    "latency_ms": "latency, median",
    "latency_ms_p95": "latency, 95th percentile",
}

Rivals = Sequence[tuple[str, Sequence[Decision]]]


def introduce(asked: Asking, lines: int, where: Place, out: Console) -> None:
    """Says what is measured and who answers."""
    out.print(f"{asked.agent}: {asked.field} of {lines} lines; {len(asked.labels)} labels")
    if where.offline:
        out.print("Model: offline: fixed rules, not a language model.")
        out.print(
            "Costs are what its tokens would cost at list price; its latency is this machine's."
        )
    else:
        out.print(f"Model: at {line(where.model)}")


def whole(decisions: Sequence[Decision], out: Console) -> None:
    """Figures, labels, confusions, and the first of what went wrong."""
    figures = measure.figures(decisions)
    table = grid("", f">{figures.lines} lines")
    for name, told in _ROWS.items():
        table.add_row(told, shown(name, getattr(figures, name)))
    out.print(table)
    _labels(decisions, out)
    _confusions(decisions, out)
    wrong = [each for each in decisions if not each.right]
    if wrong:
        out.print(Text(f"\n{len(wrong)} wrong, the first {min(_FIRST, len(wrong))}:", style="bold"))
    table = grid("line", "should be", "was", ">sure", "text")
    for each in wrong[:_FIRST]:
        was = f"failed: {each.failed}" if each.failed else _name(each.said)
        sure = "" if each.sure is None else f"{each.sure:.2f}"
        told = (_name(each.line.label), line(was, 60), sure, line(each.line.text, 70))
        table.add_row(str(each.line.number), *told)
    if wrong:
        out.print(table)


def failure(each: Decision) -> dict[str, Any]:
    """One decision that was not right, for a file."""
    return {
        "line": each.line.number,
        "label": each.line.label,
        "said": each.said,
        "confidence": each.sure,
        "failed": each.failed,
        "text": each.line.text,
    }


def beside(before: Result, now: Result, out: Console) -> None:
    """Two results of the same matter."""
    table = grid("", ">before", ">now", ">change")
    for name, told in _ROWS.items():
        old, new = before.figures.get(name), now.figures.get(name)
        change = "" if old is None or new is None else _change(name, new - old)
        table.add_row(told, shown(name, old), shown(name, new), change)
    out.print(Text("\nCompared with the recorded result", style="bold"), table, sep="\n")


def tuned(
    rivals: Rivals, halves: tuple[frozenset[int], frozenset[int]], wrong_costs: float, out: Console
) -> float:
    """Chooses a threshold for each on one half, and measures it on the other. Returns that of the first."""
    choosing, measuring = halves
    chosen = []
    for name, decisions in rivals:
        half = [each for n, each in enumerate(decisions) if n in choosing]
        best = tuning.choose(half, wrong_costs)
        chosen.append(best)
        table = grid("threshold", ">wrong", ">abstained, not rightly", ">cost a line", "")
        for point in tuning.table(half, best.threshold, wrong_costs):
            mark = "chosen" if point.threshold == best.threshold else ""
            counts = (str(point.wrong), str(point.abstained), f"{point.cost:.3f}")
            table.add_row(f"{point.threshold:.2f}", *counts, mark)
        out.print(Text(f"\n{name}: thresholds on {len(half)} lines", style="bold"), table, sep="\n")
    out.print(
        f"\nThe cost counts a wrong answer as {wrong_costs:g} abstentions, and a right abstention as nothing. "
        "The lowest threshold of those that cost least is chosen."
    )
    out.print(f"Measured on the other {len(measuring)} lines:")
    rows = []
    for (name, decisions), best in zip(rivals, chosen, strict=True):
        other = [each for n, each in enumerate(decisions) if n in measuring]
        rows.append((name, best.threshold, measure.figures(tuning.at(other, best.threshold))))
    out.print(rows_of(rows))
    return chosen[0].threshold


def rows_of(rows: Sequence[tuple[str, float | None, Figures]]) -> Any:
    """Who decides, each in a row, over the same lines."""
    table = grid(
        *("", ">threshold", ">accuracy", ">coverage", ">right of answered", ">abstained rightly"),
        *(">calls", ">cost", ">median", ">p95"),
    )
    names = ("accuracy", "coverage", "precision", "abstained_right", "calls", "cost_micro")
    for who, threshold, found in rows:
        told = [shown(name, getattr(found, name)) for name in names]
        times = [f"{ms:.1f} ms" for ms in (found.latency_ms, found.latency_ms_p95)]
        table.add_row(who, "" if threshold is None else f"{threshold:.2f}", *told, *times)
    return table


def shown(name: str, value: float | None) -> str:
    """A figure as people read it."""
    if value is None:
        return "-"
    match name:
        case "failed":
            return f"{value:.0f}"
        case "calls":
            return f"{value:.2f}"
        case "cost_micro":
            return usd(round(value))
        case "latency_ms" | "latency_ms_p95":
            return f"{value:.0f} ms"
    return f"{value:.1%}"


def _change(name: str, by: float) -> str:
    sign = "+" if by >= 0 else "-"
    return f"{sign}{shown(name, abs(by))}" if round(by, 6) else "0"


def _labels(decisions: Sequence[Decision], out: Console) -> None:
    table = grid("label", ">lines", ">precision", ">recall")
    for row in measure.per_label(decisions):
        shares = (shown("", row.precision), shown("", row.recall))
        table.add_row(line(row.label, 40), str(row.lines), *shares)
    out.print("", table, sep="\n")


def _confusions(decisions: Sequence[Decision], out: Console) -> None:
    counts = measure.confusions(decisions)
    names = sorted({name for pair in counts for name in pair}, key=lambda n: (n is None, n or ""))
    if len(names) <= _MATRIX:
        table = grid("should be \\ was", *(f">{line(_name(name), 20)}" for name in names))
        for label in names:
            cells = (str(counts[label, said] or ".") for said in names)
            table.add_row(line(_name(label), 20), *cells)
        out.print("", table, sep="\n")
        return
    table = grid("should be", "was", ">times")
    wrong = [each for each in counts.most_common() if each[0][0] != each[0][1]]
    for (label, said), times in wrong[:_LARGEST]:
        table.add_row(line(_name(label), 40), line(_name(said), 40), str(times))
    out.print(Text("\nThe largest confusions", style="bold"), table, sep="\n")


def _name(label: str | None) -> str:
    return OPEN if label is None else label
