"""The command line and the configuration of the old server: each word understood, without effect, or refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.channels import ChannelLimits
from penstock.channels.limits import PAYLOAD
from penstock.channels.old_server import KEY_VARIABLE, plan_old_server
from penstock.channels.old_settings import read_settings
from penstock.channels.old_words import FLAGS, KEYS, SERVER_KEYS
from penstock.conf_file import read_conf_text
from penstock.errors import InputError, OptionError
from tests.old_store import GOLDEN

OLD = shutil.which("nats-streaming-server")
# The flags that the old server's own help lists, version 0.25.6.
HELP = """
cid cluster_id st store dir mc max_channels msu max_subs mm max_msgs mb max_bytes ma max_age mi max_inactivity ns
nats_server sc stan_config hbi hb_interval hbt hb_timeout hbf hb_fail_count ft_group sl signal encrypt
encryption_cipher encryption_key replace_durable clustered cluster_node_id cluster_bootstrap cluster_peers
cluster_log_path cluster_log_cache_size cluster_log_snapshots cluster_trailing_logs cluster_sync cluster_raft_logging
cluster_allow_add_remove_node file_compact_enabled file_compact_frag file_compact_interval file_compact_min_size
file_buffer_size file_crc file_crc_poly file_sync file_slice_max_msgs file_slice_max_bytes file_slice_max_age
file_slice_archive_script file_fds_limit file_parallel_recovery file_truncate_bad_eof file_read_buffer_size
file_auto_sync sql_driver sql_source sql_no_caching sql_max_open_conns sql_bulk_insert_limit secure tls_client_key
tls_client_cert tls_client_cacert SD stan_debug SV stan_trace SDV syslog_name a addr p port P pid m http_port ms
https_port c config l log T logtime s syslog r remote_syslog D debug V trace DV user pass auth tls tlscert tlskey
tlsverify tlscacert routes cluster h help v version help_tls
"""
SAMPLES = {"text": "x", "secret": "x", "int": "7", "size": "7KB", "duration": "7s", "switch": "true"}


def plan(*arguments: str, **environment: str):
    return plan_old_server(arguments, environment)


def test_every_flag_is_known():
    """There is a word for every flag that the old server lists, and no flag has two."""
    names = [name for word in FLAGS for name in word.names]
    assert set(HELP.split()) <= set(names)
    assert len(names) == len(set(names))
    for block in (*KEYS.values(), SERVER_KEYS):
        listed = [name for word in block for name in word.names]
        assert len(listed) == len(set(listed))


@pytest.mark.skipif(OLD is None, reason="nats-streaming-server is not installed")
def test_the_flags_of_the_real_server():
    """The list above is that of the real server's help."""
    shown = subprocess.run([OLD, "-h"], capture_output=True, text=True, timeout=20).stdout
    found = {name for line in shown.splitlines() for name in re.findall(r"(?<![\w-])--?(\w+)", line[:36])}
    assert found == set(HELP.split())


@pytest.mark.parametrize("word", FLAGS, ids=lambda word: word.names[0])
def test_no_flag_is_passed_over(word):
    """Under each of its names, a flag sets something, is noted as without effect, or is refused with a remedy."""
    for name in word.names:
        flags = [f"-{name}={SAMPLES[word.kind]}"]
        if word.refused:
            with pytest.raises(OptionError, match=f"-{name} cannot be used here") as error:
                read_settings(flags, {})
            assert error.value.remedy == word.refused
        elif word.nothing:
            assert read_settings(flags, {}).notes == [f"-{name} has no effect: {word.nothing}."]
        elif name not in ("c", "config", "sc", "stan_config"):
            assert list(read_settings(flags, {}).given) == [word.setting]


@pytest.mark.parametrize("block", KEYS)
def test_no_key_is_passed_over(block, tmp_path):
    """The same holds for the keys of the configuration."""
    samples = {**SAMPLES, "list": "[a, b]", "duration": '"7s"'}
    path = tmp_path / "old.conf"
    for word in KEYS[block]:
        for name in word.names:
            line = f"{name}: {samples[word.kind]}"
            path.write_text(f"streaming {{ {block} {{ {line} }} }}" if block else f"streaming {{ {line} }}")
            if word.refused:
                with pytest.raises(InputError, match=f"sets {name}, which cannot be used here"):
                    read_settings(["-c", str(path)], {})
                continue
            made = read_settings(["-c", str(path)], {})
            if word.nothing:
                assert made.notes == [f"{name} has no effect: {word.nothing}."]
            else:
                assert word.setting in made.given


def test_flags_are_written_as_in_go():
    """One dash or two, a value behind = or as the next word, switches alone or with =false."""
    made = read_settings(["--cluster_id", "a", "-mm=5", "-replace_durable", "--encrypt=false", "-mb", "2MB"], {})
    assert made.given == {
        "cluster_id": "a",
        "max_msgs": 5,
        "replace_durable": True,
        "encrypt": False,
        "max_bytes": 2 << 20,
    }
    assert read_settings(["-ma", "1.5h", "-hbi", "-1s", "-mi", "0"], {}).given == {
        "max_age": 5400.0,
        "hb_interval": -1.0,
        "max_inactivity": 0.0,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-clustered", "true"), "'true' is neither a flag"),
        (("serve",), "'serve' is neither a flag"),
        (("-",), "neither a flag"),
        (("-storage", "x"), "no flag -storage. Did you mean -store"),
        (("-p",), "-p has no value"),
        (("-mm", "many"), "which is not a number"),
        (("-mb", "1 MB"), "not a number|value must end"),
        (("-ma", "1d"), "not a duration"),
        (("-encrypt=maybe",), "neither on nor off"),
        (("-store", "SQL"), "SQL cannot be used here"),
        (("-store", "TAPE"), "TAPE cannot be used here"),
        (("-store", "FILE"), "needs a folder"),
        (("-ft_group", "g"), "-ft_group cannot be used with an embedded server.*-ns"),
        (("-clustered",), "-clustered cannot be used with an embedded server.*-ns"),
        (("-encrypt",), f"needs a key.*{KEY_VARIABLE}"),
        (("-encrypt", "-encryption_key", "k", "-encryption_cipher", "ROT13"), "neither AES nor CHACHA"),
        (("-encrypt", "-ns", "nats://x:4222"), "cannot be used with -ns"),
        (("-tls",), "without a certificate"),
        (("-tlscert", "/nowhere.pem", "-tlskey", "/nowhere.key"), "cannot be read"),
        (("-tls_client_cacert", "/nowhere.pem"), "cannot be read"),
        (("-c", "/nowhere.conf"), "cannot be read"),
        (("-store", "FILE", "-dir", str(GOLDEN)), "holds the channels of a NATS Streaming server.*--from-store"),
    ],
)
def test_wrong_command_lines(arguments, words):
    """What cannot be is said in a sentence, before anything is started."""
    with pytest.raises(InputError, match=words):
        plan(*arguments)


def test_nobody_is_let_in_by_default():
    """Without a login only this machine is let in, and it is told; with one, or asked to, everybody is, as before."""
    made = plan()
    assert (made.server["host"], made.server["port"], made.server["store"]) == ("127.0.0.1", 4222, None)
    assert "only this machine" in made.notes[0]
    made = plan("-user", "me", "-pass", "secret")
    assert (made.server["host"], made.notes) == ("0.0.0.0", ())
    assert made.login == {"user": "me", "password": "secret"}
    assert read_conf_text(made.server["config"]).values == {"authorization": {"user": "me", "password": "secret"}}
    assert "secret" not in repr(made)
    made = plan("-auth", "tok", "-a", "127.0.0.1")
    assert (made.server["host"], made.login, made.notes) == ("127.0.0.1", {"token": "tok"}, ())
    made = plan("-a", "0.0.0.0")
    assert made.server["host"] == "0.0.0.0"
    assert "Anybody who reaches 0.0.0.0" in made.notes[0]


def test_the_gateway_syncs_what_it_knows_the_place_of(tmp_path):
    """A file store is synced before an ack, as ever: by the gateway, or by the server if accounts are told apart."""
    store = ("-store", "FILE", "-dir", str(tmp_path / "store"))
    made = plan(*store)
    assert (made.syncs, made.server["sync"]) == (True, "2m")
    made = plan(*store, "-file_sync=false")
    assert (made.syncs, made.server["sync"]) == (False, "60s")
    assert not plan().syncs
    file = tmp_path / "accounts.conf"
    file.write_text("accounts: { A: { jetstream: enabled, users: [ { user: a, password: p } ] } }\n")
    made = plan(*store, "-c", str(file), "-user", "a", "-pass", "p")
    assert (made.syncs, made.server["sync"]) == (False, "always")


def test_a_whole_command_line(tmp_path):
    """Limits, heartbeats, store, syncing and monitoring mean what they did."""
    made = plan(
        *(
            "-cid",
            "c",
            "-store",
            "file",
            "-dir",
            str(tmp_path),
            "-p",
            "0",
            "-m",
            "8222",
            "-P",
            "pid",
            "-file_sync=false",
        ),
        *(
            "-mc",
            "1",
            "-msu",
            "2",
            "-mm",
            "3",
            "-mb",
            "4",
            "-ma",
            "5s",
            "-mi",
            "6s",
            "-hbi",
            "7s",
            "-hbt",
            "8s",
            "-hbf",
            "9",
        ),
        *("-replace_durable", "-file_auto_sync", "10s", "-a", "127.0.0.1", "-encrypt", "-encryption_key", "k"),
    )
    limits = made.gateway.pop("limits")
    assert (limits.channels, limits.default) == (1, ChannelLimits(3, 4, 5.0, 2, 6.0))
    assert made.gateway == {
        **{"cluster_id": "c", "hb_interval": 7.0, "hb_timeout": 8.0, "hb_fail_count": 9, "replace_durable": True},
        "monitor": "127.0.0.1:8222",
    }
    assert (made.server["store"], made.server["port"], made.server["sync"]) == (tmp_path, 4222, "10s")
    assert read_conf_text(made.server["config"]).values["jetstream"] == {"cipher": "aes", "key": "k"}
    assert (made.pid_file, made.url) == (Path("pid"), None)
    assert made.server["max_payload"] == PAYLOAD
    made = plan("-encrypt", "-encryption_cipher", "chacha", **{KEY_VARIABLE: "from outside"})
    assert read_conf_text(made.server["config"]).values["jetstream"] == {"cipher": "chacha", "key": "from outside"}


def test_another_nats_server():
    """With -ns the login is for that server, the store is its own, and a group of servers stands by for one another."""
    made = plan("-ns", "nats://a:4222, nats://b:4222", "-user", "me", "-pass", "p", "-store", "FILE", "-dir", "d")
    assert (made.url, made.login, made.server) == ("nats://a:4222, nats://b:4222", {"user": "me", "password": "p"}, {})
    assert made.notes == ("-store, -dir: no effect, as the JetStream of the other server keeps the messages.",)
    made = plan("-ns", "nats://x:y@a:4222", "-clustered", "-cluster_peers", "a,b,c,d", "-cluster_node_id", "e")
    assert (made.gateway["standby"], made.gateway["replicas"], made.login) == (True, 5, {})
    assert [note.split()[0] for note in made.notes] == ["-cluster_node_id", "Clustered:"]
    made = plan("-ns", "nats://a:4222", "-ft_group", "g", "-m", "8222")
    assert (made.gateway["standby"], made.gateway["monitor"]) == (True, "0.0.0.0:8222")


def test_the_configuration_of_its_documentation(tmp_path):
    """A file with both servers' parts: ours is taken, the NATS server's is left to it, and flags count more."""
    for name in ("cert", "key", "client"):
        (tmp_path / name).touch()
    path = tmp_path / "old.conf"
    path.write_text(f"""
        # for the NATS server
        listen: localhost:5222
        http: 127.0.0.1:8233
        SECRET: "pa ss"
        max_payload: 2MB
        write_deadline: "3s"
        authorization {{ user: me, password: $SECRET }}
        tls: {{ cert_file: "{tmp_path}/cert", key_file: "{tmp_path}/key", verify: true, timeout: 2 }}
        # for NATS Streaming
        streaming: {{
            cluster_id: my_cluster
            hb_interval: 5s
            tls {{ client_cert: "{tmp_path}/client", client_key: "{tmp_path}/client", server_name: here }}
            store_limits {{
                max_channels: 10
                max_msgs: 20
                channels {{
                    "foo.>": {{ max_msgs: 0, max_age: "1h" }}
                    bar: {{ max_bytes: 1MB }}
                }}
            }}
            file {{ sync: false, buffer_size: 4MB }}
            discover_prefix: disc
        }}
    """)
    made = plan("-c", str(path), "-hbi", "6s")
    assert (made.server["host"], made.server["port"], made.gateway["monitor"]) == ("localhost", 5222, "127.0.0.1:8233")
    assert (made.gateway["cluster_id"], made.gateway["hb_interval"]) == ("my_cluster", 6.0)
    assert made.gateway["discover_prefix"] == "disc"
    limits = made.gateway["limits"]
    assert (limits.channels, limits.of("x").max_msgs, limits.of("foo.a").max_msgs) == (10, 20, 0)
    assert (limits.of("foo.a").max_age, limits.of("bar").max_bytes, limits.of("bar").max_msgs) == (3600.0, 1 << 20, 20)
    config = read_conf_text(made.server["config"]).values
    assert (config["max_payload"], config["write_deadline"], "SECRET" in config) == (2 << 20, "3s", False)
    assert made.server["max_payload"] is None, "the file says it"
    assert config["tls"]["verify"] is True
    client = str(tmp_path / "client")
    assert made.login == {
        **{"user": "me", "password": "pa ss", "tls_cert": client, "tls_key": client, "tls_hostname": "here"}
    }
    assert made.notes == ("buffer_size has no effect: JetStream lays out its files by itself.",)


def test_two_files_and_none_with_a_block(tmp_path):
    """One file each with -c and -sc; a file without a streaming block is all of it NATS Streaming's, as it was."""
    (tmp_path / "nats.conf").write_text("port: 5000\nauthorization { token: t }")
    (tmp_path / "stan.conf").write_text(
        'id: two\nst: file\ndir: d\ncluster { node_id: a, peers: ["b"] }\nns: "nats://x:1"'
    )
    made = plan("-c", str(tmp_path / "nats.conf"), "-sc", str(tmp_path / "stan.conf"))
    assert (made.url, made.gateway["cluster_id"], made.gateway["standby"]) == ("nats://x:1", "two", True)
    assert made.login == {"token": "t"}
    (tmp_path / "one.conf").write_text("id: one\nport: 5000\nmax_connections: 7\nlimits { max_msgs: 3 }")
    made = plan("-sc", str(tmp_path / "one.conf"))
    assert (made.gateway["cluster_id"], made.gateway["limits"].default.max_msgs) == ("one", 3)
    assert read_conf_text(made.server["config"]).values == {"max_connections": 7}
    (tmp_path / "stan.conf").write_text("id: two\nnot_a_key: 1")
    with pytest.raises(InputError, match="sets not_a_key"):
        plan("-c", str(tmp_path / "nats.conf"), "-sc", str(tmp_path / "stan.conf"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("streaming: on", "not as a block"),
        ("streaming { store_limit { } }", "store_limit, which NATS Streaming does not know. Did you mean store"),
        ("streaming { file { bufer_size: 1 } }", r"streaming.file.bufer_size.*buffer_size"),
        ("streaming { limits { channels { a { max_channels: 1 } } } }", "limits a by max_channels"),
        ("streaming { hb_interval: 5 }", 'something else than a duration such as "10s"'),
        ("streaming { hb_fail_count: yes }", "something else than a number"),
        ("streaming { encrypt: 1 }", "something else than true or false"),
        ("streaming { sql { driver: mysql } }", "sets sql, which cannot"),
        ("streaming { partitioning: true }", "no partitioning"),
        ("cluster { listen: 0.0.0.0:6222 }\nstreaming { }", "sets cluster.*-ns"),
        ("log_file: x\nstreaming { }", "sets log_file.*standard error"),
        ("https: 8443\nstreaming { }", "sets https"),
        ("listen: here:there\nstreaming { }", "port 'there'"),
    ],
)
def test_wrong_configurations(text, words, tmp_path):
    """What a file cannot say here is refused, with its name and what to do."""
    path = tmp_path / "old.conf"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        plan("-c", str(path))


def test_version_and_help():
    """-v and -h ask, and start nothing."""
    assert [plan(flag).asks for flag in ("-v", "--version", "version", "-h", "help", "-help_tls")] == [
        *("version", "version", "version", "help", "help", "help"),
    ]
