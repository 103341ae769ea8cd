"""Gone data: never silent. An error that names the range, or a counted skip where that is asked for."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException


def fails(query, words: str, **options):
    """The query ends with an error that holds the words."""
    with pytest.raises(StreamingQueryException, match=words):
        query.run(**options)


def skipped(query, name: str) -> int:
    """What the checkpoint counts as skipped."""
    files = sorted((query.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return json.loads(files[-1].read_text().splitlines()[-1])["streams"][name]["skipped"]


def test_a_purge_before_the_read(query, streams, unique):
    """Purged messages stop the query, their range named; where the loss is allowed, they are skipped and counted."""
    name = streams.make(unique("purge"))
    streams.fill(name, 50)
    query.run(stream=name, maxMessagesPerTrigger="50")
    streams.fill(name, 50)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 81})
    fails(query, r"\[51, 81\) of the stream .* are gone", stream=name)
    query.run(stream=name, failOnDataLoss="false")
    assert query.sequences() == [*range(1, 51), *range(81, 101)]
    assert skipped(query, name) == 30


def test_a_stream_that_was_made_anew(query, streams, unique):
    """A stream of the same name is another stream: noticed, and read from its first message where that is allowed."""
    name = streams.make(unique("anew"))
    streams.fill(name, 20)
    query.run(stream=name)
    streams.api(f"STREAM.DELETE.{name}")
    fails(query, "does not exist|is gone", stream=name)
    streams.make(name)
    streams.fill(name, 30)
    fails(query, "deleted and made again", stream=name)
    query.run(stream=name, failOnDataLoss="false")
    assert query.sequences() == sorted([*range(1, 21), *range(1, 31)])


def test_a_batch_that_was_planned_before_the_loss(query, streams, unique):
    """A replay whose messages are gone stops; it does not commit fewer rows in silence."""
    name = streams.make(unique("replay"))
    streams.fill(name, 50)
    query.run(stream=name, maxMessagesPerTrigger="25")
    query.forget_last()
    streams.api(f"STREAM.PURGE.{name}", {"seq": 31})
    fails(query, r"\[26, 31\) of the stream", stream=name)


def test_a_batch_read_of_what_is_gone(read, streams, unique):
    """A batch read that asks for gone messages says so, or gives the rest."""
    name = streams.make(unique("batch"))
    streams.fill(name, 50)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 21})
    with pytest.raises(Exception, match=r"\[5, 21\) of the stream"):
        read(name, start="5").collect()
    assert read(name, start="5", failOnDataLoss="false").count() == 30
    assert read(name).count() == 30
