"""The corpus that is written by hand: words that users write, and what only Spark or a proxy says."""

from __future__ import annotations

__all__ = ["WORDS"]

_TOKEN = b"a-token-that-nobody-guesses"
_WRITE = b"a-token-for-acting-that-nobody-guesses"
_FORM = b"content-type: application/x-www-form-urlencoded"

WORDS = {
    "complaints": [b'Permissions Violation for Publish to "a.b"', b"Authorization Violation", b"Slow Consumer"],
    "answers": [
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}',
        b'{"error":{"code":400,"err_code":10070,"description":"wrong last msg ID: a"},"stream":"S","seq":0}',
    ],
    "blake2": [bytes([40, 8]) + bytes(range(256)) * 2],
    "monitoring": [
        b"GET /streaming/channelsz?channel=foo&subs=1&limit=5 HTTP/1.1\r\nHost: 127.0.0.1:8222\r\n\r\n",
        b"GET /streaming/serverz HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost:9\r\nAuthorization: Bearer a-token\r\n\r\n",
        b"HEAD //127.0.0.1/varz HTTP/1.0\r\n\r\n",
    ],
    "socks": [b"\x05\x02\x01\x00\x05\x00\x00\x01\x7f\x00\x00\x01\x10\x7e", b"\x05\x00\x05\x00\x00\x03\x03abc\x00\x50"],
    "json-depth": [b'{"a":[1,2,{"b":null}]}'],
    "positions": [b"2m", b"2026-01-31T23:59:59Z", b"17", b"last"],
    "words": [
        b"1h30m",
        b"10GB",
        b"2026-01-31T23:59:59.5+01:00",
        b"foo.>:max_msgs=5",
        b"socks5://u:p@h:1",
        b"@every 5m",
        b"s3a://bucket/folder?token=x&endpoint_override=h:1",
        b"never",
    ],
    "spark-options": [
        b"url=nats://127.0.0.1:4222\nstream=ORDERS\nsubjects=a.>,b.*\nstart=2m\nbatchRows=5\ntoken=aaaaaaaaaaaa"
    ],
    "ddl": [
        b"id BIGINT, name STRING, inner STRUCT<a: INT, b: ARRAY<DOUBLE>>, d DECIMAL(10,2)",
        b'{"type":"struct","fields":[]}',
    ],
    "json-payloads": [
        b'{"id":1,"name":"a","price":1.5,"time":"2026-01-31T12:00:00Z","day":"2026-01-31","tags":["x"],"inner":{"a":1,"b":true},'
        b'"cost":"12.50"}\n{"id":2}\n[]\n{"id":"x"}',
    ],
    "digests": [bytes(range(64))],
    "query-progress": [
        b'{"id":"q","name":"n","timestamp":"2026-01-31T12:00:00.000Z","batchId":3,"durationMs":{"triggerExecution":5},'
        b'"sources":[{"numInputRows":2,"endOffset":"{}"}],"sink":{"numOutputRows":2}}'
    ],
    "event-log": [
        b'{"Event":"org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent","id":"q","name":"n"}\n'
        b'{"Event":"SparkListenerTaskEnd","Stage ID":1,"Task End Reason":{"Reason":"Success"}}\n'
    ],
    "topology": [
        b'[streams.S]\nsubjects = ["s.*"]\nmax_age = "7d"\n[streams.S.consumers.C]\nack_wait = "30s"\n',
        b'{"streams":{"S":{"subjects":["s.*"],"consumers":{"C":{"ack_wait":"30s"}}}}}',
        b"streams:\n  S:\n    subjects: [s.*]\n    max_bytes: 10GB\n",
    ],
    "project": [b"name: p\nstorage: storage\nlibraries:\n  - glob:\n      include: transformations/**\n"],
    "context": [
        b'{"description":"d","url":"nats://127.0.0.1:4222","token":"aaaaaaaaaaaaaaaa","user_jwt":"","nkey":""}'
    ],
    "secrets": [b"env://NAME", b"data:;base64,c2VjcmV0", b"plain"],
    "credentials": [b"eyJ0eXAiOiJKV1QifQ.eyJpc3MiOiJBQUFBIiwic3ViIjoiVSJ9.AAAA\n------END NATS USER JWT------\n"],
    "conf": [b'port: 4222\nauthorization { token: "x" }\njetstream { store_dir: "/s" }\nx: $NAME\n# note\n'],
    "old-settings": [
        b"-cid\ntest-cluster\n-store\nfile\n-mm\n5\n--max_age=1h",
        b"streaming: { cluster_id: c\n store: file }",
    ],
    "key-file": [b'{"version":1,"secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","map":{}}'],
    "checksums": [bytes(range(200))],
    "s2-block": [b"\x0c\x08abc\x01\x03\x05\x00\x00", b"\x05\x10hello"],
    "console": [
        b"GET /streams/ORDERS/messages?subject=a.b\nhost: localhost\nauthorization: Bearer " + _TOKEN,
        b"GET /?token=a-token-that-nobody-guesses&x=1\nhost: 127.0.0.1:8223",
        b"GET /streams/%00..%2f/messages/5.json\nhost: localhost\ncookie: penstock_console_8223=" + _TOKEN,
        b"POST /static/x\nhost: evil",
    ],
    "console-acts": [
        b"POST /act/stream-purge\nhost: localhost\nauthorization: Bearer " + _WRITE + b"\n" + _FORM + b"\n\n"
        b"stream=ORDERS&made=MADE&seal=SEAL&subject=orders.1&sequence=&keep=1&typed=ORDERS&step=do",
        b"POST /act/publish\nhost: localhost\nauthorization: Bearer " + _WRITE + b"\n" + _FORM + b"\n\n"
        b"stream=ORDERS&made=MADE&seal=SEAL&subject=orders.1&headers=A%3A+1%0D%0AB%3A+x&payload=hello+%C3%A9&step=do",
        b"POST /act/key-put\nhost: localhost\nauthorization: Bearer " + _WRITE + b"\n" + _FORM + b"\n\n"
        b"bucket=settings&key=rate&made=MADE&seal=SEAL&value=1&step=look",
        b"POST /act/stream-delete\nhost: localhost\nauthorization: Bearer " + _TOKEN + b"\n" + _FORM + b"\n\n"
        b"stream=ORDERS&made=MADE&seal=SEAL&typed=ORDERS&step=do",
        b"GET /act/consumer-add?stream=ORDERS\nhost: localhost\nauthorization: Bearer " + _WRITE,
    ],
    "console-payload": [b'{"a":[1,2]}', b"NATS/1.0\r\nAuthorization: x\r\n\r\n\x00\x01", "héllo".encode()],
    "info": [
        b'{"config":{"name":"S","subjects":["s"]},"created":"2026-01-31T12:00:00Z","state":{"messages":1,"lost":{"msgs":[3]},'
        b'"deleted":[2],"subjects":{"s":1}},"cluster":{"name":"c","leader":"n1","replicas":[{"name":"n2","current":true,'
        b'"active":5,"lag":1}]},"mirror":{"name":"O","lag":5,"active":-1,"external":{"api":"$JS.d.API"},"subject_transforms":'
        b'[{"src":"a","dest":"b"}]},"sources":[{"name":"P","filter_subject":"x"}],"alternates":[{"name":"M","cluster":"c"}]}',
        b'{"stream_name":"S","name":"c","created":"2026-01-31T12:00:00Z","config":{"durable_name":"c","ack_policy":'
        b'"explicit"},"delivered":{"consumer_seq":1,"stream_seq":2,"last_active":"2026-01-31T12:00:00Z"},"ack_floor":'
        b'{"consumer_seq":0,"stream_seq":0},"num_pending":5,"priority_groups":[{"group":"g","pinned_client_id":"x"}]}',
    ],
    "session": [
        b'INFO {"server_id":"x","headers":true,"max_payload":1048576}\r\nPONG\r\nPING\r\n'
        b"HMSG a 1 16 18\r\nNATS/1.0 503\r\n\r\nhi\r\n-ERR 'Stale Connection'\r\n",
        b'INFO {"server_id":"x","headers":true,"tls_required":true}\r\nPONG\r\nINFO {"ldm":true}\r\n',
    ],
}
