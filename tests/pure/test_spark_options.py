"""Options of the format nats: read, checked, refused with a remedy, before any I/O."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from penstock.errors import InputError, OptionError
from penstock.spark.options import CONNECTION, connection_fields, refuse_unknown
from penstock.spark.positions import Position, parse_position
from penstock.spark.provider import NatsDataSource
from penstock.spark.source_options import SOURCE, SourceOptions

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse({"stream": "ORDERS", **given})


def test_defaults_are_safe():
    """A read that says nothing reads all, stops at a loss and acknowledges nothing."""
    options = parse()
    assert options.fail_on_data_loss
    assert options.include_headers
    assert options.ack == "none"
    assert options.position("start", "ORDERS", "all").kind == "all"
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_case_insensitive():
    """Spark hands over names in lower case."""
    assert SourceOptions.parse({"STREAM": "A", "maxmessagespertrigger": "5"}).max_messages_per_trigger == 5


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"subjects": "a.>, b.*"}, "subjects", ("a.>", "b.*")),
        ({"includeHeaders": "FALSE"}, "include_headers", False),
        ({"minPartitions": "8"}, "min_partitions", 8),
        ({"maxBytesPerTrigger": "64m"}, "max_bytes_per_trigger", 64 * 2**20),
        ({"maxBytesPerTrigger": "1 GiB"}, "max_bytes_per_trigger", 2**30),
        ({"maxTriggerDelay": "30s"}, "max_trigger_delay", 30.0),
        ({"start": "17"}, "start", {"*": Position("sequence", sequence=17)}),
        ({"start": "2m"}, "start", {"*": Position("ago", ago=120.0)}),
        (
            {"start": '{"ORDERS": 5, "*": "new"}'},
            "start",
            {"ORDERS": Position("sequence", sequence=5), "*": Position("new")},
        ),
        ({"end": "LAST"}, "end", {"*": Position("last")}),
        ({"subjects": "a.>,a.b"}, "subjects", ("a.>",)),
    ],
)
def test_values(given: dict[str, str], field: str, value: object):
    """Text becomes values with a type."""
    assert getattr(parse(**given), field) == value


def test_a_time_is_a_place():
    """RFC 3339 times keep their zone."""
    found = parse_position("2026-01-31T12:00:00+01:00", option="start")
    assert found.time == datetime(2026, 1, 31, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stream": ""}, "not a name of a stream"),
        ({"stream": "a.b"}, "not a name of a stream"),
        ({"streams": "A,B"}, "together"),
        ({"channel": "orders"}, "together"),
        ({"subjects": "a..b"}, "not a subject"),
        ({"subjects": "a.>.b"}, "not a subject"),
        ({"subjects": ", ,"}, "is empty"),
        ({"subjects": "a.*,*.b"}, "overlap"),
        ({"start": "soon"}, "not a place in a stream"),
        ({"start": "0"}, "not a place in a stream"),
        ({"start": "-5"}, "not a place in a stream"),
        ({"start": "2026-01-31T12:00:00"}, "zone"),
        ({"start": "{"}, "not JSON"),
        ({"start": '{"ORDERS": true}'}, "else than positions"),
        ({"start": '{"OTHER": 5}'}, "which is not read"),
        ({"end": "all"}, "where a stream begins"),
        ({"startStrategy": "guess"}, "latest, error"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"minPartitions": "0"}, "above zero"),
        ({"minPartitions": "1.5"}, "above zero"),
        ({"maxBytesPerTrigger": "5 parsecs"}, "number of bytes"),
        ({"maxTriggerDelay": "5"}, "not a duration"),
        ({"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}, "Swap"),
        ({"ack": "commit"}, "belong together"),
        ({"consumer": "me"}, "belong together"),
        ({"maxMesagesPerTrigger": "5"}, "Did you mean maxMessagesPerTrigger"),
        ({"path": "ORDERS"}, "Name the stream"),
        ({"user": "me"}, "password"),
        ({"tlsCert": "a.pem"}, "tlsKey"),
        ({"url": "http://x"}, "unknown scheme"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], words: str):
    """Bad input is an OptionError or InputError that says what to do, and Spark takes it for a ValueError."""
    with pytest.raises(InputError, match=words) as caught:
        parse(**given)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("former", ["outageTimeout", "retrytimeout"])
def test_former_names_are_taken(former: str):
    """An option that was renamed is read under its old name, by Spark's source too, but not under both."""
    assert parse(**{former: "5s"}).patience == 5.0
    NatsDataSource({"stream": "ORDERS", former: "5s"})
    with pytest.raises(OptionError, match="are one"):
        parse(**{former: "5s", "patience": "6s"})


def test_no_stream_at_all():
    """A read must say what it reads."""
    with pytest.raises(OptionError, match="No stream is named"):
        SourceOptions.parse({})


@pytest.mark.parametrize(
    "given",
    [
        {"token": "s3cret-token", "password": "s3cret-pass"},
        {"url": "nats://s3cret-user:s3cret-pass@host:bad"},
        {"nkey": SEED[:-1]},
        {"credentials": "s3cret\ns3cret"},
        {"password": "s3cret-pass"},
        {"user": "u", "password": "s3cret-pass", "nkey": SEED},
    ],
)
def test_a_secret_never_stands_in_an_error(given: dict[str, str]):
    """Whatever is wrong with a login, the error does not show it."""
    with pytest.raises(InputError) as caught:
        connection_fields(given)
    shown = f"{caught.value} {caught.value!r} {caught.value.facts}"
    assert "s3cret" not in shown
    assert SEED[:20] not in shown


def test_options_belong_to_batch_or_stream():
    """What makes no sense in a batch, or in a stream, is refused there."""
    for given in ({"maxMessagesPerTrigger": "5"}, {"maxBytesPerTrigger": "5"}, {"minMessagesPerTrigger": "5"}):
        with pytest.raises(OptionError, match="A batch has no triggers"):
            parse(**given).check_batch()
    with pytest.raises(OptionError, match="when its rows are safe"):
        parse(ack="commit", consumer="me").check_batch()
    with pytest.raises(OptionError, match="A stream has no end"):
        parse(end="5").check_stream()
    parse(end="5").check_batch()
    parse(maxMessagesPerTrigger="5").check_stream()


def test_the_tables_are_whole():
    """Every option has a field, a sentence with an end, and a name of its own."""
    fields = SourceOptions.__dataclass_fields__
    for option in (*CONNECTION, *SOURCE):
        assert option.sentence.endswith(".")
    for option in SOURCE:
        default = fields[option.field].default
        assert default == option.default, option.name
    assert {option.field for option in SOURCE} == set(fields)
    known = [option.name.lower() for option in (*CONNECTION, *SOURCE)]
    assert len(known) == len(set(known))
    refuse_unknown(known, (*CONNECTION, *SOURCE))
