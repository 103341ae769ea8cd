"""What the sink keeps in a stream for itself never shows in what the source reads."""

from __future__ import annotations

import pytest

from tests.spark.conftest import sequences


def marked(streams, name: str, subjects: list[str], **config) -> None:
    """Make a stream with markers between its messages: data has odd sequences, markers have even ones."""
    streams.make(name, subjects=[*subjects, f"$PENSTOCK.{name}.>"], **config)


def fill(streams, name: str, count: int) -> None:
    """Publish data and markers in turn."""
    for number in range(count):
        streams.fill(name, [("x", str(number).encode())])
        streams.fill(f"$PENSTOCK.{name}", [("q.head", b"{}")])


def test_markers_do_not_show(query, read, streams, unique):
    """Batches, counts, limits, lag and streams see the data alone; who names the markers sees them."""
    name = unique("marked")
    marked(streams, name, [f"{name}.>"])
    fill(streams, name, 6)
    data = [1, 3, 5, 7, 9, 11]
    assert sequences(read(name)) == data
    assert sequences(read(name, start="last")) == [11]
    assert sequences(read(name, minPartitions="3")) == data
    assert len(sequences(read(name, subjects=f"$PENSTOCK.{name}.>"))) == 6
    done = query.run(stream=name, maxMessagesPerTrigger="2")
    assert query.sequences() == data
    assert [len(range(low, high, 2)) for low, high in [(1, query.offsets()[0][name])]] == [2]
    assert done.recentProgress
    streams.fill(f"$PENSTOCK.{name}", [("q.head", b"{}")])
    batches = len(query.offsets())
    query.run(stream=name)
    assert len(query.offsets()) == batches  # a marker alone is no batch


def test_a_mirror_of_everything_hides_them(read, streams, unique, eventually):
    """Where no subject of the stream tells markers from data, rows are picked out one by one."""
    origin, copy = unique("origin"), unique("copy")
    marked(streams, origin, [f"{origin}.>"])
    fill(streams, origin, 3)
    streams.api(f"STREAM.CREATE.{copy}", {"name": copy, "mirror": {"name": origin}, "allow_direct": True})
    streams.made.insert(0, copy)
    frame = read(copy)
    eventually(lambda: streams.info(copy)["state"]["messages"] == 6)
    assert sequences(frame) == [1, 3, 5]


@pytest.mark.parametrize("allow_direct", [True, False])
def test_a_marker_at_the_head_hides_no_loss(query, streams, unique, allow_direct, eventually):
    """Where a marker stands at the head and the data behind it expired, the loss is noticed all the same."""
    name = unique("head")
    marked(streams, name, [f"{name}.>"], max_age=3_000_000_000, allow_msg_ttl=True, allow_direct=allow_direct)
    streams.fill(f"$PENSTOCK.{name}", [("origin", b"{}", {"Nats-TTL": "never"})])
    streams.fill(name, 5)
    query.run(stream=name, maxMessagesPerTrigger="2", failOnDataLoss="false", start="2")
    streams.fill(name, 4)
    eventually(lambda: streams.info(name)["state"]["messages"] == 1, 30)
    streams.fill(name, 1)
    assert streams.info(name)["state"]["first_seq"] == 1
    with pytest.raises(Exception, match=r"\[7, 11\) of the stream"):
        query.run(stream=name)
