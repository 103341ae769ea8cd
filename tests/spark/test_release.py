"""Work-queue and interest streams: kept until Spark's checkpoint has it, released after."""

from __future__ import annotations

import pytest

ACK = {"ack": "commit", "consumer": "spark"}


def held(streams, name: str) -> tuple[int, int]:
    """The first sequence that a stream holds, and how many messages."""
    state = streams.info(name)["state"]
    return state["first_seq"], state["messages"]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_released_one_batch_late(query, streams, unique, retention, eventually):
    """Messages go once a later batch is planned, so that any replay still finds its own."""
    name = streams.make(unique("queue"), retention=retention)
    query.run(stream=name, **ACK)  # takes its place: an interest stream keeps nothing before that
    streams.fill(name, 100)
    query.run(stream=name, maxMessagesPerTrigger="40", **ACK)
    assert query.sequences() == list(range(1, 101))
    # The last batch, and what Spark committed last before it, stay until there is a next one.
    eventually(lambda: held(streams, name) == (81, 20))
    streams.fill(name, 10)
    query.run(stream=name, **ACK)
    assert query.sequences() == list(range(1, 111))
    eventually(lambda: held(streams, name)[0] in (81, 101))
    query.forget_last()
    query.run(stream=name, **ACK)  # a replay of the last batch
    assert query.sequences() == list(range(1, 111))
