"""The words of the old server: every flag of its command line, every key of its configuration, and what becomes of it.

A word is understood, has no effect here, which is told, or is refused with what to do instead. None is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FLAGS", "KEYS", "SERVER_KEYS", "Word"]

_SLICES = "JetStream lays out its files by itself"
_LOG = "Penstock logs to standard error"
_RAFT = "JetStream replicates by itself"
_REDIRECT = "Redirect standard error, 2>FILE, or let the service manager keep it."
_ROUTES = (
    "An embedded server stands alone. Run the NATS servers by themselves, with JetStream, and give their "
    "addresses: -ns nats://a:4222,nats://b:4222."
)
_SQL = "Messages are kept in JetStream. Use -store FILE -dir DIR, or -ns with the address of a NATS server."


@dataclass(frozen=True)
class Word:
    """A flag or a key: its names, the kind of its value, and what it sets."""

    names: tuple[str, ...]
    kind: str
    """text, secret, int, size, duration, switch or list."""
    setting: str = ""
    """What it sets; empty if it has no effect, or is refused."""
    nothing: str = ""
    """Why it has no effect here."""
    refused: str = ""
    """What to do instead."""


def _words(kind: str, lines: str, **fate: str) -> Iterator[Word]:
    """Read lines of names; the first one is the setting, unless a fate is given."""
    for line in lines.strip().splitlines():
        names = tuple(line.split())
        yield Word(names, kind, "" if fate else names[0], **fate)


FLAGS = (
    *_words(
        "text",
        """
        cluster_id cid
        store st
        dir
        nats_server ns
        stan_config sc
        config c
        addr a net
        ft_group
        cluster_peers
        encryption_cipher
        tls_client_key
        tls_client_cert
        tls_client_cacert
        pid P
        user
        tlscert
        tlskey
        tlscacert
        """,
    ),
    *_words("secret", "pass\nauth\nencryption_key"),
    *_words("int", "max_channels mc\nmax_subs msu\nmax_msgs mm\nhb_fail_count hbf\nport p\nhttp_port m\n"),
    *_words("size", "max_bytes mb"),
    *_words(
        "duration",
        "max_age ma\nmax_inactivity mi\nhb_interval hbi\nhb_timeout hbt\nfile_auto_sync",
    ),
    *_words(
        "switch",
        "replace_durable\nclustered\nencrypt\nfile_sync\ntls\ntlsverify\nversion v\nhelp h\nhelp_tls",
    ),
    # -- without effect
    *_words("switch", "file_compact_enabled\nfile_crc\nfile_truncate_bad_eof", nothing=_SLICES),
    *_words(
        "int",
        "file_compact_frag\nfile_compact_interval\nfile_crc_poly\nfile_slice_max_msgs\nfile_fds_limit\n"
        "file_parallel_recovery",
        nothing=_SLICES,
    ),
    *_words(
        "size",
        "file_compact_min_size\nfile_buffer_size\nfile_read_buffer_size\nfile_slice_max_bytes",
        nothing=_SLICES,
    ),
    *_words("duration", "file_slice_max_age", nothing=_SLICES),
    *_words("int", "io_batch_size\nio_sleep_time", nothing="publishes are stored as they come"),
    *_words("text", "cluster_node_id\ncluster_log_path", nothing=_RAFT),
    *_words("int", "cluster_log_cache_size\ncluster_log_snapshots\ncluster_trailing_logs", nothing=_RAFT),
    *_words(
        "switch",
        "cluster_bootstrap\ncluster_sync\ncluster_raft_logging\ncluster_proceed_on_restore_failure\n"
        "cluster_allow_add_remove_node",
        nothing=_RAFT,
    ),
    *_words(
        "switch",
        "SD stan_debug\nSV stan_trace\nSDV\nT logtime\nlogtime_utc\nD debug\nV trace\nDV\nVV\nDVV",
        nothing=_LOG,
    ),
    *_words("int", "log_size_limit\nmax_traced_msg_len", nothing=_LOG),
    *_words("text", "syslog_name", nothing=_LOG),
    *_words("text", "name n server_name", nothing="the embedded server has a name of its own"),
    # -- refused
    *_words("text", "file_slice_archive_script", refused="There are no slices to archive: back streams up."),
    *_words("text", "sql_driver", refused=_SQL),
    *_words("secret", "sql_source", refused=_SQL),
    *_words("int", "sql_max_open_conns\nsql_bulk_insert_limit", refused=_SQL),
    *_words("switch", "sql_no_caching", refused=_SQL),
    *_words("switch", "secure", refused="A server is always verified: give -tls_client_cacert FILE."),
    *_words("text", "signal sl", refused="Send SIGTERM to the process: kill PID."),
    *_words("text", "log l", refused=_REDIRECT),
    *_words("switch", "syslog s", refused=_REDIRECT),
    *_words("text", "remote_syslog r", refused=_REDIRECT),
    *_words("int", "https_port ms", refused="The pages are plain HTTP: use -m, behind a proxy that speaks TLS."),
    *_words("int", "profile", refused="There is no such page. Leave it out."),
    *_words("text", "routes\ncluster cluster_listen\ncluster_name\ncluster_advertise", refused=_ROUTES),
    *_words("int", "connect_retries", refused=_ROUTES),
    *_words("switch", "no_advertise", refused=_ROUTES),
    *_words("text", "client_advertise\nports_file_dir", refused="Run nats-server by itself, and give -ns."),
    *_words("switch", "jetstream js\nt", refused="Leave it out."),
    *_words("text", "store_dir sd", refused="Use -store FILE -dir DIR."),
)

KEYS: dict[str, tuple[Word, ...]] = {
    "": (
        *_words(
            "text",
            """
            cluster_id id cid
            discover_prefix
            store st store_type storetype
            dir datastore
            nats_server ns nats_server_url
            credentials
            ft_group ft_group_name
            encryption_cipher
            nats_user username user
            nats_nkey nkey_seed_file
            """,
        ),
        *_words("secret", "nats_password password pass\nnats_token token\nencryption_key"),
        *_words(
            "duration",
            "hb_interval hbi server_to_client_hb_interval\nhb_timeout hbt server_to_client_hb_timeout",
        ),
        *_words("int", "hb_fail_count hbf server_to_client_hb_fail_count"),
        *_words(
            "switch",
            "encrypt\nreplace_durable replace_durables replace_duplicate_durable replace_duplicate_durables",
        ),
        *_words("switch", "sd stan_debug\nsv stan_trace", nothing=_LOG),
        *_words("text", "syslog_name", nothing=_LOG),
        *_words("switch", "secure", refused="A server is always verified: give tls { client_ca: FILE }."),
        *_words("switch", "partitioning", refused="There is no partitioning: use a cluster id for each part."),
    ),
    "limits": (
        *_words(
            "int",
            """
            max_channels mc maxchannels
            max_subs msu max_subscriptions maxsubscriptions
            max_msgs mm maxmsgs max_count maxcount
            """,
        ),
        *_words("size", "max_bytes mb maxbytes"),
        *_words("duration", "max_age ma maxage\nmax_inactivity mi maxinactivity"),
    ),
    "tls": (
        *_words("text", "tls_client_cert client_cert\ntls_client_key client_key"),
        *_words("text", "tls_client_cacert client_ca client_cacert\ntls_server_name server_name server_hostname"),
        *_words("switch", "skip_verify insecure", refused="A server is always verified: give client_ca."),
    ),
    "file": (
        *_words("switch", "file_sync sync do_sync sync_on_flush"),
        *_words("duration", "file_auto_sync auto_sync"),
        *_words("switch", "compact compact_enabled\ncrc do_crc\ncache", nothing=_SLICES),
        *_words(
            "int",
            """
            compact_frag compact_fragmentation
            compact_interval
            crc_poly
            slice_max_msgs slice_max_count slice_msgs slice_count
            file_descriptors_limit fds_limit
            parallel_recovery
            """,
            nothing=_SLICES,
        ),
        *_words(
            "size",
            """
            compact_min_size
            buffer_size
            slice_max_bytes slice_max_size slice_bytes slice_size
            read_buffer_size file_read_buffer_size
            """,
            nothing=_SLICES,
        ),
        *_words("duration", "slice_max_age slice_age slice_max_time slice_time_limit", nothing=_SLICES),
        *_words(
            "text",
            "slice_archive_script slice_archive slice_script",
            refused="There are no slices to archive: back streams up.",
        ),
    ),
    "cluster": (
        *_words("list", "cluster_peers peers"),
        *_words("text", "node_id\nlog_path", nothing=_RAFT),
        *_words("int", "log_cache_size\nlog_snapshots\ntrailing_logs", nothing=_RAFT),
        *_words(
            "switch",
            "bootstrap\nsync\nproceed_on_restore_failure\nallow_add_remove_node\nraft_logging\n"
            "bolt_free_list_sync\nbolt_free_list_map\nnodes_connections",
            nothing=_RAFT,
        ),
        *_words(
            "duration",
            "raft_heartbeat_timeout\nraft_election_timeout\nraft_lease_timeout\nraft_commit_timeout",
            nothing=_RAFT,
        ),
    ),
}
"""The keys of the `streaming` block, and of the blocks in it: `store_limits`, `tls`, `file`, `cluster`."""

SERVER_KEYS = (
    *_words("text", "listen\naddr host net\npid pid_file pidfile"),
    *_words("int", "port"),
    *_words("text", "http\nhttp_port monitor_port"),
    *_words("switch", "debug\ntrace\ntrace_verbose\nlogtime\nlogtime_utc", nothing=_LOG),
    *_words("size", "logfile_size_limit log_size_limit\nlogfile_max_num log_max_num\nmax_traced_msg_len", nothing=_LOG),
    *_words("text", "server_name", nothing="the embedded server has a name of its own"),
    *_words("text", "https\nhttps_port", refused="The pages are plain HTTP: use http_port, behind a proxy."),
    *_words("text", "log_file logfile\nsyslog\nremote_syslog", refused=_REDIRECT),
    *_words("text", "cluster\ngateway\nleafnodes leafnode leaf", refused=_ROUTES),
    *_words("text", "jetstream", refused="JetStream is always on. Leave it out, and use store and dir."),
    *_words("text", "ports_file_dir\nhttp_base_path", refused="Run nats-server by itself, and use nats_server."),
    *_words("int", "prof_port profile", refused="There is no such page. Leave it out."),
)
"""Those keys outside of it that are not left to nats-server."""
