"""`python -m tests.golden.record`: writes down what the code of today stores and sends, at each moment of a run.

Run it for a version that is released, into a folder of its own. A recording that is there is never edited or written
again: it is what jobs that are under way look like when the next version comes.
"""

import json
from pathlib import Path
from typing import Any

from local.model import error
from local.prove.course import START, Scenario
from local.prove.faults import read as faults
from local.prove.prover import Prover, proving
from local.prove.runner import quiet
from stafette.core.messages import VERSION

HERE = Path(__file__).resolve().parent
# Besides the moments between two deliveries: workers that were cut off or turned away in the middle of their work.
CUT_OFF = {
    "classify-cut-off-before-its-model-call": "die-before:classify:3",
    "classify-cut-off-before-its-advance": "die-before:classify:6",
    "classify-cut-off-before-its-message": "die-before:classify:9",
    "parts-cut-off-after-the-first": "die-after:enrich_record:9",
    "act-cut-off-between-an-effect-and-its-record": "die-after:act:3",
    "act-cut-off-before-its-result": "die-before:act:8",
    # Waiting is state: a wake number, and a delayed message.
    "classify-waits-for-its-model": "throttle:classify:3",
    "a-part-waits-for-its-model": "throttle:enrich_record:6",
    "act-waits-for-an-effect-under-way": "lose-all:act:2",
}


def stored(prover: Prover) -> dict[str, Any]:
    """What tables, buckets and queues hold, as AWS would give it out."""
    s3 = prover.client("s3")
    items = prover.client("dynamodb").scan(TableName=prover.table)["Items"]
    keys = [o["Key"] for o in s3.list_objects_v2(Bucket=prover.bucket).get("Contents", [])]
    return {
        "now": prover.clock.now() - START,
        "items": sorted(items, key=lambda item: (item["pk"]["S"], item["sk"]["S"])),
        "objects": {
            key: s3.get_object(Bucket=prover.bucket, Key=key)["Body"].read().decode()
            for key in keys
        },
        "messages": {
            queue: [json.loads(message.body) for message in waiting]
            for queue, waiting in prover.backlog().items()
        },
    }


def record(folder: Path) -> None:
    """Writes the recordings of the urgent ticket."""
    request = json.loads((HERE.parent.parent / "events" / "urgent.json").read_text())
    folder.mkdir(exist_ok=True)
    with proving(Scenario("urgent", (request,))) as prover:
        prover.undisturbed()
        for n, moment in enumerate(prover.moments):
            prover.take_up(moment)
            held = stored(prover)
            waiting = "-and-".join(q.removesuffix("Queue").lower() for q in held["messages"])
            _write(folder / f"{n:02d}-{waiting or 'done'}.json", held)
        for name, fault in CUT_OFF.items():
            prover.cut_off(faults(fault))
            _write(folder / f"{name}.json", stored(prover))
        for function in ("classify", "draft"):
            prover.cut_off(faults(f"die-before:{function}:1"))
            prover.model.script(error(400, "invalid_request_error"))
            prover.run_until_quiet()
            _write(folder / f"{function}-failed.json", stored(prover))


def _write(file: Path, held: dict[str, Any]) -> None:
    if not file.exists():
        file.write_text(json.dumps(held, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    quiet()
    record(HERE / f"v{VERSION}")
