"""template.yaml becomes resolved data, by the SAM translator; what cannot be played is an error."""

from pathlib import Path

import pytest

from local.intrinsics import TemplateError
from local.template import Template, load

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Stage: {Type: String, Default: dev}
  Days: {Type: Number, Default: 30}
Conditions:
  Live: !Equals [!Ref Stage, prod]
Globals: {Function: {Runtime: python3.13, Handler: app.handler}}
Resources:
  JobQueue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 60
      RedrivePolicy: {deadLetterTargetArn: !GetAtt DeadQueue.Arn, maxReceiveCount: 3}
  DeadQueue: {Type: AWS::SQS::Queue, Properties: {QueueName: dead}}
  Ordered: {Type: AWS::SQS::Queue, Properties: {FifoQueue: true}}
  OnlyLive: {Type: AWS::SQS::Queue, Condition: Live}
  Store: {Type: AWS::S3::Bucket}
  Ended: {Type: AWS::SNS::Topic}
  Work:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/do_work/
      Timeout: 7
      MemorySize: 256
      ReservedConcurrentExecutions: 3
      Environment:
        Variables:
          QUEUE: !Ref JobQueue
          ARN: !GetAtt JobQueue.Arn
          DAYS: !Ref Days
          TEXT: !Sub "${Stage}/${Store.Arn}/${!Kept}/${AWS::Region}"
          LISTED: !Join ["-", [!Ref Stage, !Select [1, [a, b]]]]
          CHOSEN: !If [Live, live, !Ref Stage]
          LEFT_OUT: !If [Live, live, !Ref AWS::NoValue]
      Events:
        Messages:
          Type: SQS
          Properties:
            Queue: !GetAtt JobQueue.Arn
            BatchSize: 4
            MaximumBatchingWindowInSeconds: 5
            FunctionResponseTypes: [ReportBatchItemFailures]
            ScalingConfig: {MaximumConcurrency: 8}
        Often: {Type: ScheduleV2, Properties: {ScheduleExpression: rate(2 minutes)}}
        Daily: {Type: Schedule, Properties: {Schedule: rate(1 day)}}
Outputs:
  Url: {Value: !Ref JobQueue}
  Topic: {Value: !Ref Ended}
"""


def write(tmp_path: Path, text: str = TEMPLATE) -> Path:
    path = tmp_path / "template.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return load(write(tmp_path))


def test_queue_has_name_url_and_attributes_as_they_are_created(template: Template) -> None:
    queue = template.queues["JobQueue"]
    assert queue.url == "https://sqs.us-east-1.amazonaws.com/123456789012/stafette-local-JobQueue"
    assert queue.attributes["VisibilityTimeout"] == "60"
    assert queue.dead_letters == template.queues["DeadQueue"].arn
    assert template.queues["DeadQueue"].name == "dead"
    assert template.queues["Ordered"].name == "stafette-local-Ordered.fifo"


def test_function_has_its_folder_limits_and_resolved_environment(
    template: Template, tmp_path: Path
) -> None:
    function = template.functions["Work"]
    assert (function.name, function.folder) == ("do_work", tmp_path / "functions" / "do_work")
    assert (function.timeout, function.memory, function.reserved) == (7, 256, 3)
    assert function.variables == {
        "QUEUE": template.queues["JobQueue"].url,
        "ARN": template.queues["JobQueue"].arn,
        "DAYS": "30",
        "TEXT": "dev/arn:aws:s3:::stafette-local-store/${Kept}/us-east-1",
        "LISTED": "dev-b",
        "CHOSEN": "dev",
    }


def test_event_source_and_schedules_are_read_from_what_the_translator_made(
    template: Template,
) -> None:
    [source] = template.sources
    assert (source.function, source.queue) == ("Work", "JobQueue")
    assert (source.batch_size, source.window, source.concurrency) == (4, 5, 8)
    assert source.partial
    assert sorted((s.every, s.source) for s in template.schedules) == [
        (120, "aws.scheduler"),
        (86_400, "aws.events"),
    ]


def test_outputs_are_resolved(template: Template) -> None:
    assert template.outputs == {
        "Url": template.queues["JobQueue"].url,
        "Topic": "arn:aws:sns:us-east-1:123456789012:stafette-local-Ended",
    }


def test_parameters_decide_conditions(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "OnlyLive" not in load(path).queues
    live = load(path, {"Stage": "prod"})
    assert "OnlyLive" in live.queues
    assert live.functions["Work"].variables["LEFT_OUT"] == "live"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rate(2 minutes)", "'cron(0 8 * * ? *)'"),
        ("!Ref Stage, !Select", "!Ref Stagee, !Select"),
        ("!If [Live, live, !Ref Stage]", "!ImportValue other"),
    ],
)
def test_what_cannot_be_played_is_an_error(tmp_path: Path, old: str, new: str) -> None:
    assert old in TEMPLATE
    with pytest.raises(TemplateError):
        load(write(tmp_path, TEMPLATE.replace(old, new)))


def test_filter_is_an_error_rather_than_ignored(tmp_path: Path) -> None:
    text = TEMPLATE.replace(
        "BatchSize: 4", "BatchSize: 4\n            FilterCriteria: {Filters: [{Pattern: '{}'}]}"
    )
    with pytest.raises(TemplateError, match="filter"):
        load(write(tmp_path, text))


def test_event_whose_id_is_taken_by_a_resource_does_not_load(tmp_path: Path) -> None:
    """Function `Work` with event `Queue` would be `WorkQueue`: it would not deploy, so it does not run."""
    from samtranslator.model.exceptions import InvalidDocumentException

    text = TEMPLATE.replace("JobQueue", "WorkQueue").replace("Messages:", "Queue:")
    with pytest.raises(InvalidDocumentException) as caught:
        load(write(tmp_path, text))
    assert "WorkQueue" in str(caught.value.causes[0].message)
