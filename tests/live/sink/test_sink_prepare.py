"""What a stream must have before it is written to, and the commands that the refusals name."""

from __future__ import annotations

import re
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest
import typer.main

from penstock.cli.app import app
from penstock.errors import InputError, UnreachableError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import marker_filter, origin_subject
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions
from tests.live.command import Command


def test_the_command_of_a_refusal_makes_the_stream_ready(server, bulk, unique, tmp_path):
    """The refusal names a command; run as it stands, it makes the stream ready."""
    name = unique("PLAIN")
    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "max_age": 3600 * 10**9})
    options = SinkOptions(stream=name)
    with pytest.raises(InputError) as caught:
        prepare(bulk, options)
    command = re.search(r"Run: (penstock .+?)\. Or", caught.value.remedy)
    assert command
    words = shlex.split(command.group(1))
    root = typer.main.get_command(app)
    assert words[2] in root.commands[words[1]].commands
    done = Command(tmp_path, server.url)(*words[1:])
    assert done.returncode == 0, done.stderr
    ready = prepare(bulk, options)
    assert ready.keep
    assert ready.subjects == (f"{name}.>",)


def test_prepare_adds_what_is_missing_and_nothing_else(bulk, unique):
    """With consent the stream gets what it lacks; the rest of its configuration stays."""
    name = unique("PLAIN")
    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "max_bytes": 10**7, "discard": "new"})
    before = bulk.api(f"STREAM.INFO.{name}")["config"]
    prepare(bulk, SinkOptions(stream=name, prepare=True))
    after = bulk.api(f"STREAM.INFO.{name}")["config"]
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed <= {"allow_atomic", "subjects", "metadata"}
    assert after["subjects"] == [f"{name}.>", marker_filter(name)]
    assert after["allow_atomic"]


def test_the_first_sequence_of_a_stream_stays(bulk, unique):
    """An empty stream gets an origin once, so that purged markers do not look like lost messages."""
    name = unique("PLAIN")
    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    for _ in range(2):
        prepare(bulk, SinkOptions(stream=name, prepare=True))
    state = bulk.api(f"STREAM.INFO.{name}", {"subjects_filter": ">"})["state"]
    assert state["subjects"] == {origin_subject(name): 1}


def test_a_mirror_takes_no_rows(bulk, unique):
    """A mirror is refused for either guarantee; a stream with sources takes rows, unless markers come with them."""
    origin, name = unique("ORIGIN"), unique("PLAIN")
    bulk.api(f"STREAM.CREATE.{origin}", {"name": origin, "subjects": [f"{origin}.>"]})
    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": origin}})
    for guarantee in ("exactly-once", "at-least-once"):
        with pytest.raises(InputError, match="is a mirror"):
            prepare(bulk, SinkOptions(stream=name, prepare=True, guarantee=guarantee))
    for number, source in enumerate(({"name": origin}, {"name": "", "external": {"api": "$JS.far.API"}})):
        joined = f"{name}_{number}"
        sources = [{**source, "name": source["name"] or joined}]
        bulk.api(f"STREAM.CREATE.{joined}", {"name": joined, "subjects": [f"{joined}.>"], "sources": sources})
        if number == 0:
            assert prepare(bulk, SinkOptions(stream=joined, prepare=True)).stream == joined
        else:
            with pytest.raises(InputError, match="sources a stream of the same name"):
                prepare(bulk, SinkOptions(stream=joined, prepare=True))


def test_at_least_once_is_refused_where_rows_would_be_lost(bulk, unique):
    """A stream that sends no acks, or drops what no consumer wants and has none, takes no rows at least once."""
    options = SinkOptions(stream=unique("PLAIN"), guarantee="at-least-once")
    name = options.stream
    config = {"name": name, "subjects": [f"{name}.>"], "retention": "interest"}
    bulk.api(f"STREAM.CREATE.{name}", config)
    with pytest.raises(InputError, match="has no consumer: it would drop every row at once"):
        prepare(bulk, options)
    consumer = {"durable_name": "c", "ack_policy": "explicit"}
    bulk.api(f"CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": consumer})
    assert prepare(bulk, options).stream == name
    bulk.api(f"STREAM.UPDATE.{name}", {**config, "no_ack": True})
    with pytest.raises(InputError, match="sends no acks"):
        prepare(bulk, options)


def test_an_old_server_is_refused(bulk, unique, monkeypatch):
    """A server without atomic batches cannot be written to exactly once, and that is the reason given."""
    name = unique("PLAIN")
    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    monkeypatch.setattr(TaskConnection, "version", "2.11.9")
    with pytest.raises(InputError, match=r"nats-server 2\.11\.9, and atomic batches came with 2\.12"):
        prepare(bulk, SinkOptions(stream=name, prepare=True))
    assert prepare(bulk, SinkOptions(stream=name, guarantee="at-least-once")).stream == name


def test_times_to_live_need_their_switch_for_either_guarantee(bulk, unique):
    """A write with a time to live is refused where the stream does not allow it."""
    name = unique("PLAIN")
    bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    for guarantee in ("exactly-once", "at-least-once"):
        with pytest.raises(InputError, match="allow_msg_ttl"):
            prepare(bulk, SinkOptions(stream=name, ttl="1h0m0s", guarantee=guarantee))


def stream_writer(url, name):
    """Make what Spark makes on the driver at the beginning of each micro-batch."""
    from pyspark.sql.types import StringType, StructField, StructType

    from penstock.spark.writers import NatsStreamWriter

    schema = StructType([StructField("subject", StringType()), StructField("data", StringType())])
    return NatsStreamWriter(ConnectionOptions(url), SinkOptions(stream=name, prepare=True), schema, False)


def test_a_query_outlives_a_server_that_is_away_between_batches(unique):
    """A connection that died since the last batch is made again, and a server that is away is waited for."""
    name = unique("PLAIN")
    with Server(sync="2m") as server:
        bulk = TaskConnection(ConnectionOptions(server.url))
        bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
        bulk.close()
        first = stream_writer(server.url, name)
        server.nodes[0].kill()
        server.nodes[0].start()
        assert stream_writer(server.url, name).prepared == first.prepared
        server.nodes[0].kill()
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(stream_writer, server.url, name)
            with pytest.raises(TimeoutError):
                later.result(0.5)  # it waits
            server.nodes[0].start()
            assert later.result(60).prepared == first.prepared


def test_a_batch_write_says_at_once_that_nobody_answers(unique):
    """Whoever waits for a write learns that the address is wrong, not after a minute of trying."""
    from pyspark.sql.types import StringType, StructField, StructType

    from penstock.spark.writers import NatsWriter

    schema = StructType([StructField("data", StringType())])
    with Server() as server:
        url = server.url
    with pytest.raises(UnreachableError):
        NatsWriter(ConnectionOptions(url), SinkOptions(stream=unique("NONE"), subject="x"), schema, False)
