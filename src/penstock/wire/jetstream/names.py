"""The names that JetStream has given things: headers, subjects and methods of its API. Pure."""

from __future__ import annotations

from collections.abc import Callable

from penstock.asset_names import checked

__all__ = [
    "ACK",
    "ADVISORY",
    "BATCH_COMMIT",
    "BATCH_ID",
    "BATCH_PREFIX",
    "BATCH_SEQUENCE",
    "CONDITION_FAILED",
    "CONSUMER_STALLED",
    "COUNTER_SOURCES",
    "DUPLICATE_IN_BATCH",
    "EXPECTED_LAST_ID",
    "EXPECTED_LAST_SEQUENCE",
    "EXPECTED_LAST_SUBJECT_SEQUENCE",
    "EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT",
    "EXPECTED_PREFIX",
    "EXPECTED_STREAM",
    "FAST_INGEST",
    "HEADER_PREFIX",
    "ID_IN_PROCESS",
    "INCOMPLETE_BATCH",
    "INCREMENT",
    "LAST_CONSUMER",
    "LAST_SEQUENCE",
    "MARKER_REASON",
    "MAX_DELIVERIES",
    "METRIC_ACK",
    "MSG_ID",
    "MSG_SIZE",
    "NOT_A_COUNTER",
    "NO_MESSAGE",
    "NUM_PENDING",
    "PIN_ID",
    "ROLLUP",
    "SCHEDULE",
    "SCHEDULE_ROLLUP",
    "SCHEDULE_SOURCE",
    "SCHEDULE_TARGET",
    "SCHEDULE_TTL",
    "SCHEDULE_ZONE",
    "SEQUENCE",
    "SEQUENCE_IN_DOUBT",
    "SERVICE_ERROR",
    "SERVICE_ERROR_CODE",
    "STREAM",
    "STREAM_NOT_FOUND",
    "SUBJECT",
    "SUBJECTS_OVERLAP",
    "TIME",
    "TTL",
    "WRONG_LAST_ID",
    "WRONG_LAST_SEQUENCE",
    "check_name",
    "consumer_create",
    "consumer_delete",
    "consumer_evacuate",
    "consumer_info",
    "consumer_next",
    "consumer_pause",
    "consumer_reset",
    "consumer_step_down",
    "consumer_unpin",
    "direct_get",
    "message_delete",
    "message_get",
    "stream_create",
    "stream_delete",
    "stream_info",
    "stream_purge",
    "stream_update",
]

# -- error codes: refusals of which whoever asked knows what they mean ------------------------------------------------

NO_MESSAGE = 10037
SUBJECTS_OVERLAP = 10065
ID_IN_PROCESS = 10158  # a message with this id is under way; or was, and the leader did not hear that it is lost
WRONG_LAST_ID = 10070
STREAM_NOT_FOUND = 10059
WRONG_LAST_SEQUENCE = 10071
SEQUENCE_IN_DOUBT = 10164  # another write of the subject is under way, so that nobody can tell yet
CONDITION_FAILED = frozenset({WRONG_LAST_SEQUENCE, SEQUENCE_IN_DOUBT})
NOT_A_COUNTER = 10168  # the stream counts nothing
INCOMPLETE_BATCH = 10176
DUPLICATE_IN_BATCH = 10201

# -- headers ---------------------------------------------------------------------------------------------------------

HEADER_PREFIX = "Nats-"  # a header that begins so is for the server, or from it

# what a publisher says of a message
MSG_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"
EXPECTED_PREFIX = "Nats-Expected-"
EXPECTED_STREAM = "Nats-Expected-Stream"
EXPECTED_LAST_ID = "Nats-Expected-Last-Msg-Id"
EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
SCHEDULE = "Nats-Schedule"  # when; what all of these begin with
SCHEDULE_TARGET = "Nats-Schedule-Target"
SCHEDULE_SOURCE = "Nats-Schedule-Source"
SCHEDULE_TTL = "Nats-Schedule-TTL"
SCHEDULE_ZONE = "Nats-Schedule-Time-Zone"
SCHEDULE_ROLLUP = "Nats-Schedule-Rollup"
ROLLUP = "Nats-Rollup"
INCREMENT = "Nats-Incr"  # what a message adds to the counter that its subject is
BATCH_PREFIX = "Nats-Batch-"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"

# what the server says of a message that it stored, got or delivered
STREAM = "Nats-Stream"
SUBJECT = "Nats-Subject"
SEQUENCE = "Nats-Sequence"
TIME = "Nats-Time-Stamp"
NUM_PENDING = "Nats-Num-Pending"
LAST_SEQUENCE = "Nats-Last-Sequence"
MSG_SIZE = "Nats-Msg-Size"
COUNTER_SOURCES = "Nats-Counter-Sources"  # by stream and subject, what a counter has from others
MARKER_REASON = "Nats-Marker-Reason"  # of a message that says that the last one of its subject is gone

# what the server says in a status
PIN_ID = "Nats-Pin-Id"
CONSUMER_STALLED = "Nats-Consumer-Stalled"
LAST_CONSUMER = "Nats-Last-Consumer"  # how many messages a push consumer has sent

# what a service says in place of an answer
SERVICE_ERROR = "Nats-Service-Error"
SERVICE_ERROR_CODE = "Nats-Service-Error-Code"

# -- subjects --------------------------------------------------------------------------------------------------------

ACK = "$JS.ACK"  # .<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<time>.<pending>
FAST_INGEST = "$FI"  # the last token of the reply subject of a message of fast ingest
METRIC_ACK = "$JS.EVENT.METRIC.CONSUMER.ACK"
ADVISORY = "$JS.EVENT.ADVISORY"
MAX_DELIVERIES = f"{ADVISORY}.CONSUMER.MAX_DELIVERIES"


check_name = checked


# -- methods: what follows the prefix --------------------------------------------------------------------------------


def _method(method: str) -> Callable[..., str]:
    """Make the function that gives a method for names of a stream and a consumer, which are checked."""

    def named(*names: str) -> str:
        for name in names:
            check_name(name)
        return ".".join((method, *names))

    return named


stream_info = _method("STREAM.INFO")  # with the configuration and state of a stream
stream_create = _method("STREAM.CREATE")
stream_update = _method("STREAM.UPDATE")
stream_delete = _method("STREAM.DELETE")
stream_purge = _method("STREAM.PURGE")
message_get = _method("STREAM.MSG.GET")  # one message, from the leader
message_delete = _method("STREAM.MSG.DELETE")
direct_get = _method("DIRECT.GET")  # messages, from any replica
consumer_info = _method("CONSUMER.INFO")
consumer_delete = _method("CONSUMER.DELETE")
consumer_evacuate = _method("CONSUMER.PEER.EVACUATE")  # moves it away from a server
consumer_pause = _method("CONSUMER.PAUSE")  # until a time; without one it goes on
consumer_reset = _method("CONSUMER.RESET")  # to its ack floor, or to a sequence
consumer_step_down = _method("CONSUMER.LEADER.STEPDOWN")
consumer_unpin = _method("CONSUMER.UNPIN")  # takes the pin from the client that holds it
consumer_next = _method("CONSUMER.MSG.NEXT")  # pulls messages


def consumer_create(stream: str, consumer: str = "", subject: str = "") -> str:
    """Make or change a consumer; with one filter, its subject is part of the method, so that permissions can see it."""
    for name in (stream, consumer):
        if name:
            check_name(name)
    return ".".join(part for part in ("CONSUMER.CREATE", stream, consumer, subject if consumer else "") if part)
