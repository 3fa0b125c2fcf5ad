"""`make bench`: figures that take minutes, as tables. Exit code 1 when something was not as it must be.

python -m tests.bench [fan-out] [effects] [killed] [router] [scatter]
"""

import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from math import nan
from multiprocessing import get_context
from statistics import median

from rich.console import Console

from cli.report import rows_of
from local.show import grid
from tests.bench import effects, fan_out, killed, router, scatter

SEED = 1
WIDTHS = (100, 1_000, 10_000)
EFFECTS, CHUNK = 10_000, 250
JOBS, KILLED, WORKERS = 50, 0.15, 8
SCATTERED, IN_TURN = 5, 3


def pool() -> ProcessPoolExecutor:
    """A process for each processor: each has a machine of its own."""
    return ProcessPoolExecutor(os.cpu_count(), get_context("spawn"))


def fan_outs(out: Console) -> list[str]:
    """A fan-out at each width, undisturbed and with everything that goes wrong."""
    with pool() as runs:
        # The long ones first, so that no process is left alone with one at the end.
        asked = [(parts, seed) for parts in reversed(WIDTHS) for seed in (SEED, None)]
        waiting = [runs.submit(fan_out.run, *each) for each in asked]
        reports = [each.result() for each in reversed(waiting)]
    costs = grid(
        *("parts", "disturbed", ">W a part", ">R a part", ">sends a part", ">failed", ">joins"),
        *(">calls at most", ">longest", ">limit", ">KB a batch", ">KB the join", ">seconds"),
    )
    for r in reports:
        each = (f"{n / r.parts:.3f}" for n in (r.writes, r.reads, r.sends))
        costs.add_row(
            f"{r.parts:,}",
            "no" if r.seed is None else f"seed {r.seed}",
            *each,
            *(str(r.failed), str(r.joins)),
            f"{max(r.calls.values())}",
            f"{max(r.longest.values()):.1f} s",
            f"{r.limit:.0f} s",
            f"{r.memory['work']:.0f}",
            f"{r.memory['join']:.0f}",
            f"{r.seconds:.0f}",
        )
    out.print(costs)
    widest = reports[-1] if reports[-1].seed is not None else reports[-2]
    out.print(f"\nWhat went wrong with the {widest.parts:,} parts:")
    for what, times in sorted(widest.faults.items()):
        out.print(f"  {times:5} {what}")
    judged = grid("policy, when all had ended", "the job")
    for name, went, _ in widest.policies:
        judged.add_row(name, went)
    out.print(judged)
    return [wrong for report in reports for wrong in report.wrong]


def in_doubt(out: Console) -> list[str]:
    """Effects on an outside that is as unkind as one can be."""
    began = time.monotonic()
    rows = {kind: effects.Row(kind) for kind in effects.KINDS}
    met: Counter[str] = Counter()
    chunks = [range(start, start + CHUNK) for start in range(0, EFFECTS, CHUNK)]
    with pool() as runs:
        for found, faults in runs.map(effects.run, chunks, [SEED] * len(chunks)):
            met += faults
            for row in found:
                rows[row.kind].add(row)
    table = grid(
        *("in doubt", ">runs", ">tries", ">died", ">met", ">doubts", ">settled"),
        *(">waiting", ">twice", ">missing"),
    )
    for row in rows.values():
        counts = (row.runs, row.tries, row.died, row.met, row.doubts, row.settled)
        table.add_row(row.kind, *map(str, (*counts, row.waiting, row.twice, row.missing)))
    out.print(table)
    out.print(", ".join(f"{times} {what}" for what, times in sorted(met.items())))
    out.print(f"{time.monotonic() - began:.0f} s; seed {SEED}")
    return [
        wrong
        for row in rows.values()
        for wrong in (*row.wrong, *(["twice"] * row.twice), *(["missing"] * row.missing))
    ]


def kills(out: Console) -> list[str]:
    """Jobs whose workers are killed."""
    r = killed.run(JOBS, KILLED, SEED, WORKERS)
    table = grid(
        *("workers", ">jobs", ">done", ">kills", ">actions", ">twice", ">missing", ">refused"),
        ">seconds",
    )
    counts = (r.jobs, r.done, r.kills, r.effects, r.twice, r.missing, r.refused)
    table.add_row(f"{WORKERS} processes", *map(str, counts), f"{r.seconds:.0f}")
    out.print(table)
    out.print("\nFrom a kill until what the worker held was done:")
    times = grid("function", ">kills", ">lease at most", ">hidden for", ">median", ">longest")
    for each in r.recoveries:
        limits = (f"{each.limit} s", f"{each.visibility} s")
        took = each.seconds or [nan]
        found = (f"{median(took):.0f} s", f"{max(took):.0f} s")
        times.add_row(each.function, str(each.kills), *limits, *found)
    out.print(times)
    out.print(
        f"The clock ran {killed.SPEED:.0f} times as fast; seed {SEED}. Nobody started anything again."
    )
    return [*r.wrong, *(["twice"] * r.twice), *(["missing"] * r.missing)]


def routes(out: Console) -> list[str]:
    """The router on labelled requests, beside a plain classifier."""
    if not router.DATA.exists():
        out.print(
            f"no data: clinc150 and banking77 are looked for in {router.DATA.relative_to(router.ROOT.parent)}"
        )
        return []
    began = time.monotonic()
    with pool() as runs:
        waiting = [runs.submit(router.run_named, name, SEED) for name in router.LIMITS]
        reports = [each.result() for each in waiting]
    for r in reports:
        drawn = f"{r.lines:,} of {r.of:,} lines, drawn" if r.lines < r.of else f"{r.lines:,} lines"
        out.print(
            f"\n{r.name}: {drawn}; {r.labels} agents; thresholds are chosen on one half, "
            f"figures are of the other ({r.measured:,} lines)"
        )
        out.print(f"Model: {r.model}" + ("; it is not a language model" if r.offline else ""))
        out.print(rows_of([(row.who, row.threshold, row.figures) for row in r.rows]))
    out.print(
        f"\nCosts are list prices of one decision, without what the provider caches; the router's latency is that "
        f"of its model, several at once; {time.monotonic() - began:.0f} s; seed {SEED}"
    )
    return [f"{r.name}: a decision failed" for r in reports for x in r.rows if x.figures.failed]


def scattered(out: Console) -> list[str]:
    """Three agents at once and a report of what they say, beside the same work one after the other."""
    rows = [
        ("at once", scatter.IDEAL, scatter.taken(SCATTERED, at_once=True)),
        ("one after the other", scatter.IDEAL_SERIAL, scatter.taken(IN_TURN, at_once=False)),
    ]
    table = grid(
        *("three agents and a report", ">runs", ">ideal", ">median", ">worst", ">of the ideal"),
        *(">before", ">between", ">whole job"),
    )
    for name, ideal, took in rows:
        middle = median(each.gathering for each in took)
        shown = (
            *(ideal, middle, max(each.gathering for each in took)),
            *(median(each.before for each in took), median(each.between for each in took)),
            median(each.whole for each in took),
        )
        seconds = [f"{each:.2f} s" for each in shown]
        table.add_row(name, str(len(took)), *seconds[:3], f"{middle / ideal:.0%}", *seconds[3:])
    out.print(table)
    limit = scatter.MOST * scatter.IDEAL
    slow = ", ".join(f"{seconds} s for {name}" for name, seconds in scatter.SECONDS.items())
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    out.print(
        "From when the stage that scatters begins its work until the report is written, with every queue, claim, guard",
        "and record on the way; `before` the first call, `between` the last answer and the request for the report.",
        f"`whole job`: from the request's being sent until it is done. The model takes {slow}.",
        f"The clock is the wall's: it counts what else this machine does ({load}).",
        sep="\n",
    )
    middle = median(each.gathering for each in rows[0][2])
    return [] if middle <= limit else [f"the median is {middle:.2f} s, over {limit:.3f} s"]


BENCHES = {
    "fan-out": fan_outs,
    "effects": in_doubt,
    "killed": kills,
    "router": routes,
    "scatter": scattered,
}


def main() -> int:
    """The command."""
    out = Console(width=160 if not sys.stdout.isatty() else None)
    wrong: list[str] = []
    for name in sys.argv[1:] or BENCHES:
        if name not in BENCHES:
            out.print(f"there is no bench {name}: there are {', '.join(BENCHES)}")
            return 2
        out.print(f"\n{name}", style="bold")
        wrong += BENCHES[name](out)
    for each in wrong[:20]:
        out.print(f"wrong: {each}", style="red")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
