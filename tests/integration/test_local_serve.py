"""The endpoint of `python -m local.serve` speaks AWS over the machine's own backends, and leaves nothing behind."""

import json
import threading
import time
import urllib.request
from pathlib import Path

import boto3
import pytest

from local import serve
from local.clock import RealClock
from local.machine import Machine
from local.processes import processes
from tests.integration.test_local_machine import SMALL

APP = """
import json, os
from stafette.aws.clients import sns
def handler(event, context):
    for record in event["Records"]:
        sns().publish(TopicArn=os.environ["TOPIC"], Message=record["body"])
"""

SLOW = """
import time
def handler(event, context):
    time.sleep(event["wait"])
    return "awake"
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "app.py").write_text(APP)
    (tmp_path / "template.yaml").write_text(SMALL)
    return tmp_path / "template.yaml"


def test_message_sent_over_http_is_worked_on_counted_and_told(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Machine(template, clock=RealClock()) as machine, serve.served(machine) as endpoint:
        serve.tell_of_notices(machine, tmp_path)
        machine.start()
        session = boto3.Session("k", "s", region_name="us-east-1")
        client = session.client("sqs", endpoint_url=endpoint)
        body = json.dumps({"job_id": "j1", "status": "done"})
        client.send_message(QueueUrl=machine.queue_url("work"), MessageBody=body)
        assert machine.wait_until_quiet(20)
        with urllib.request.urlopen(f"{endpoint}/_stafette/calls") as answer:
            assert json.load(answer) == {"aws": {"sns.Publish": 1}, "total": 1}
        client.close()
    assert json.loads((tmp_path / "ended" / "j1.json").read_text()) == json.loads(body)
    assert "j1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", 7, None])
def test_job_id_that_cannot_name_a_file_is_not_used(name: object) -> None:
    assert serve.job_id(json.dumps({"job_id": name})) is None


def test_run_writes_where_it_is_and_takes_it_away_at_the_end(tmp_path: Path) -> None:
    stopped = threading.Event()
    seen: list[dict[str, object]] = []

    def stop_once_up() -> None:
        here = tmp_path / "local.json"
        while not here.exists():
            time.sleep(0.02)
        seen.append(json.loads(here.read_text()))
        stopped.set()

    watcher = threading.Thread(target=stop_once_up, daemon=True)
    watcher.start()
    serve.run(0, stopped, {"ANTHROPIC_API_KEY": "k"}, tmp_path)
    watcher.join(10)
    assert str(seen[0]["endpoint"]).startswith("http://127.0.0.1:")
    assert seen[0]["model_base_url"] is None
    assert not (tmp_path / "local.json").exists()


def test_a_process_is_ended_at_the_limit_of_its_invocation_and_the_next_one_is_served(
    template: Path,
) -> None:
    (template.parent / "work" / "app.py").write_text(SLOW)
    with (
        Machine(template, clock=RealClock(speed=10)) as machine,
        serve.served(machine) as endpoint,
        processes(machine, endpoint, 1),
    ):
        with pytest.raises(TimeoutError, match="after 10 s"):
            machine.invoke("work", {"wait": 300})
        assert machine.invoke("work", {"wait": 0}) == "awake"
