"""A command's own changes of tags count at once, though EC2 may show them only later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clusterctl.ec2 import tags

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_CREATE, _DELETE = "ec2.CreateTags", "ec2.DeleteTags"


@contextmanager
def own_tags_count(client: EC2Client) -> Iterator[None]:
    """Let DescribeInstances show all tags that this client has set and removed since.

    EC2 is eventually consistent (EC2's developer guide, "Eventual consistency"): for some seconds
    after CreateTags, a read may show the tags of before, also after another read that showed the
    new ones. A command that decides by tags that it has just written would decide by the old ones.
    """
    # Instance id -> key -> value; None for a tag that was removed.
    written: dict[str, dict[str, str | None]] = {}

    def begin(params: Any, context: dict[str, Any], **_: Any) -> None:
        """Forget these tags: without a response, only EC2 knows whether they have changed."""
        keys = {tag["Key"] for tag in params["Tags"]}
        before = {id: dict(written.get(id, {})) for id in params["Resources"]}
        for id, labels in before.items():
            written[id] = {key: value for key, value in labels.items() if key not in keys}
        context["own_tags"] = params, before

    def note(
        parsed: Any, context: dict[str, Any], http_response: Any, event_name: str, **_: Any
    ) -> None:
        params, before = context.pop("own_tags")
        if "Error" in parsed:
            if http_response.status_code < 500:
                written.update(before)
            return
        keep = event_name.endswith(_CREATE)
        labels = {tag["Key"]: tag.get("Value", "") if keep else None for tag in params["Tags"]}
        for id in params["Resources"]:
            written.setdefault(id, {}).update(labels)

    def show(parsed: Any, **_: Any) -> None:
        for reservation in parsed.get("Reservations", ()):
            for instance in reservation["Instances"]:
                if own := written.get(instance["InstanceId"]):
                    shown = tags.tag_dict(instance.get("Tags")) | own
                    kept = {key: value for key, value in shown.items() if value is not None}
                    instance["Tags"] = tags.tag_list(kept)

    handlers: list[tuple[str, Callable[..., None]]] = [
        *((f"before-parameter-build.{event}", begin) for event in (_CREATE, _DELETE)),
        *((f"after-call.{event}", note) for event in (_CREATE, _DELETE)),
        ("after-call.ec2.DescribeInstances", show),
    ]
    events = client.meta.events
    for event, handler in handlers:
        events.register_last(event, handler)
    try:
        yield
    finally:
        for event, handler in handlers:
            events.unregister(event, handler)
