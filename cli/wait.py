"""Waits for the jobs that were sent, and sums up what they came to."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.inbox import Sent
from local import show, story
from stafette.aws import dead, store

REFUSED, MISSING = "refused", "not found"
# Jobs end about in the order they were sent in: a look goes on until so many in a row are still at work.
_AHEAD = 3
_EVERY = 0.5


@dataclass(slots=True)
class Waited:
    """How each job ended: its status, `refused`, or nothing while it is still under way."""

    seconds: float = 0.0
    ended: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    timed_out: bool = False


def wait(sent: Sequence[Sent], deadline: float, began: float, console: Console) -> Waited:
    """Looks at the jobs until all have ended or the deadline is over.

    Args:
        deadline: seconds after `began`, which is when sending began (`time.monotonic`).
    """
    waited = Waited()
    # The same request twice is one job.
    left = list({each.job_id: each for each in sent}.values())
    total = len(left)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with progress if console.is_terminal else nullcontext():
        task = progress.add_task("jobs ended", total=total)
        while left:
            left = _look(left, waited)
            progress.update(task, completed=total - len(left))
            waited.seconds = time.monotonic() - began
            if left and waited.seconds >= deadline:
                waited.timed_out = True
                break
            if left:
                time.sleep(_EVERY)
    return waited


def _look(left: list[Sent], waited: Waited) -> list[Sent]:
    """Those that are still under way."""
    still: list[Sent] = []
    busy = 0
    for n, each in enumerate(left):
        if busy == _AHEAD:
            return still + left[n:]
        head = store.head(each.job_id)
        if head is not None:
            waited.seen.add(each.job_id)
        refused = dead.find(each.message_id) if head is None else None
        if head is not None and head.status.ended:
            waited.ended[each.job_id] = head.status.value
            waited.reasons[each.job_id] = show.ending(head)
        elif refused is not None:
            waited.ended[each.job_id] = REFUSED
            why = f"{refused['reason']}: {refused['detail']}"
            waited.reasons[each.job_id] = show.line(why, 400)
        else:
            busy += 1
            still.append(each)
    return still


def summary(sent: Sequence[Sent], waited: Waited, aws_calls: int | None, console: Console) -> None:
    """Prints what the jobs came to; the AWS calls only where somebody counted them."""
    jobs = {each.job_id: each for each in sent}
    counts = Counter(waited.ended.values())
    open_ = [job for job in jobs if job not in waited.ended]
    missing = [job for job in open_ if job not in waited.seen]
    counts.update({"under way": len(open_) - len(missing), MISSING: len(missing)})
    told = [found for job in jobs if (found := story.read(job)) is not None]
    calls = sum(len(each.calls) for each in told)
    tokens = [each.tokens for each in told]
    many = max(1, len(told))
    for job, why in waited.reasons.items():
        if why:
            console.print(f"{job} {waited.ended[job]}: {why}")
    table = show.grid("", "")
    table.show_header = False
    table.add_row("jobs", ", ".join(f"{n} {name}" for name, n in counts.items() if n))
    ended = len(waited.ended)
    rate = ended / waited.seconds if waited.seconds else 0
    table.add_row("time", f"{waited.seconds:.1f} s, {rate:.1f} jobs per second")
    table.add_row("model calls", f"{calls}, {calls / many:.2f} per job")
    if aws_calls is not None:
        table.add_row("AWS calls", f"{aws_calls}, {aws_calls / many:.1f} per job")
    table.add_row("tokens", f"{sum(t[0] for t in tokens)} in, {sum(t[1] for t in tokens)} out")
    table.add_row("cost", f"{show.usd(sum(each.cost_micro for each in told))} at list price")
    console.print(table)
