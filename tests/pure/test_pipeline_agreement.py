"""Checkpoints, tables and definitions that do not belong together are refused before Spark loses or repeats rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import InputError, PipelineError
from penstock.pipelines.agreement import Refresh, Storage
from penstock.pipelines.registry import Definitions, ReplayRules
from penstock.spark.pipeline_replay import PipelineReplay


class Disk:
    """A storage as Spark leaves it: the table readings, and the sink alerts, which reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.warehouse = folder, folder / "warehouse"
        self.found = Definitions({"readings": None}, {"alerts": "ALERTS"})
        self.found.flows += [("readings", "readings"), ("alerts", "alerts")]
        self.table("readings", 2)
        self.checkpoint("spark_catalog/default/readings/readings", 2, 2)
        self.checkpoint("alerts/alerts", 2, 2, reads="readings")

    def table(self, name: str, last: int, place: Path | None = None) -> None:
        log = self.warehouse / name / "_spark_metadata"
        log.mkdir(parents=True, exist_ok=True)
        for number in range(last + 1):
            file = (place or self.warehouse) / name / f"part-{number}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            entry = {"path": file.as_uri(), "action": "add"}
            (log / (f"{number}.compact" if number == 9 else str(number))).write_text(f"v1\n{json.dumps(entry)}")

    def checkpoint(self, flow: str, planned: int, done: int, reads: str | None = None, version: int = 0) -> Path:
        place = self.folder / "_checkpoints" / flow / str(version)
        place.mkdir(parents=True, exist_ok=True)
        (place / "metadata").write_text('{"id":"c912885f"}')
        for name, last in (("offsets", planned), ("commits", done)):
            (place / name).mkdir(parents=True, exist_ok=True)
            for number in range(last + 1):
                (place / name / str(number)).touch()
        if reads is not None:
            log = place / "sources" / "0"
            log.mkdir(parents=True, exist_ok=True)
            for number in range(done + 1):
                file = (self.warehouse / reads / f"part-{number}.parquet").as_uri()
                (log / str(number)).write_text(f"v1\n{json.dumps({'path': file, 'batchId': number})}")
        return place

    def check(self, *refreshed: str, everything: bool = False, sure: bool = True) -> None:
        Storage(self.folder, self.warehouse, sure=sure).check(self.found, Refresh(refreshed, everything))

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        self.found.flows[self.found.flows.index(old)] = new


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "storage")


def test_what_belongs_together_is_in_order(disk: Disk):
    """After a run, after a kill at any moment of a batch, before the first run, and with a log that was compacted."""
    disk.check()
    assert Storage(disk.folder, disk.warehouse).beginning(disk.found) == {}
    disk.checkpoint("spark_catalog/default/readings/readings", 3, 2)
    disk.check()
    disk.table("readings", 3)
    disk.check()
    disk.table("readings", 10)
    disk.checkpoint("spark_catalog/default/readings/readings", 10, 10)
    disk.check()
    empty = Storage(disk.folder.parent / "none", disk.folder.parent / "none" / "warehouse")
    empty.check(disk.found, Refresh())
    assert empty.beginning(disk.found) == {"alerts": "ALERTS"}


def test_a_checkpoint_that_is_older_than_its_table_is_refused(disk: Disk):
    """Spark would skip batches whose numbers the table has: rows would be lost."""
    place = disk.folder / "_checkpoints" / "spark_catalog" / "default" / "readings" / "readings" / "0"
    for name in ("offsets", "commits"):
        (place / name / "2").unlink()
    with pytest.raises(PipelineError, match=r"readings has batches up to 2, .* ends at 1: .*--full-refresh readings"):
        disk.check()
    disk.found.sinks.clear()
    disk.found.flows.remove(("alerts", "alerts"))
    disk.check("readings")


def test_a_checkpoint_that_was_deleted_is_refused(disk: Disk):
    """A flow without a checkpoint begins with batch 0, which the table has."""
    disk.rename(("readings", "readings"), ("raw", "readings"))
    with pytest.raises(PipelineError, match=r"the checkpoint of its flow raw is not there: .*another name than before"):
        disk.check()


@pytest.mark.parametrize("left", [[], [0, 1]])
def test_a_table_that_is_older_than_its_checkpoint_is_refused(disk: Disk, left: Sequence[int]):
    """Spark would go on, and the rows of the batches between would be in no table."""
    log = disk.warehouse / "readings" / "_spark_metadata"
    for path in log.iterdir():
        if int(path.name) not in left:
            path.unlink()
    with pytest.raises(PipelineError, match=r"has batches up to 2, and its table readings (is not there|ends at 1)"):
        disk.check()
    if not left:
        disk.check(sure=False)


def test_a_full_refresh_that_others_would_read_again_is_refused(disk: Disk):
    """A flow that reads a table which begins anew reads all of it again, and repeats what it wrote."""
    again = r"alerts has read the table readings, which is to be computed anew: .* sink alerts a second time"
    for refreshed in ("readings", "default.Readings", "`spark_catalog`.default.readings"):
        with pytest.raises(PipelineError, match=again):
            disk.check(refreshed)
    with pytest.raises(PipelineError, match=r"alerts (a second time|has read)"):
        disk.check(everything=True)
    disk.found.streaming["copy"] = None
    disk.found.flows.append(("copy", "copy"))
    disk.table("copy", 2)
    disk.checkpoint("spark_catalog/default/copy/copy", 2, 2, reads="readings")
    disk.found.flows.remove(("alerts", "alerts"))
    with pytest.raises(PipelineError, match=r"Compute both anew: --full-refresh readings --full-refresh copy"):
        disk.check("readings")
    disk.check("readings", "copy")
    disk.check("copy")
    disk.check(everything=True)


def test_a_table_that_was_made_anew_is_refused_for_its_readers(disk: Disk):
    """Files that a flow has read are gone: somebody refreshed or restored the table without it."""
    (disk.warehouse / "readings" / "part-2.parquet").unlink()
    with pytest.raises(PipelineError, match="whose files are not those that it has read any more"):
        disk.check()


def test_a_table_that_was_renamed_is_refused_for_its_readers(disk: Disk):
    """The new table begins with the first message, and whoever reads it repeats every row; so with another database."""
    del disk.found.streaming["readings"]
    disk.found.streaming["raw"] = None
    disk.rename(("readings", "readings"), ("raw", "raw"))
    with pytest.raises(
        PipelineError, match="alerts has read the table readings, which the pipeline does not define any"
    ):
        disk.check()
    disk.check(sure=False)
    disk.found = Disk(disk.folder).found
    with pytest.raises(PipelineError, match="which the pipeline does not define any more"):
        Storage(disk.folder, disk.warehouse, "shop").check(disk.found, Refresh())


def test_the_flow_of_a_sink_that_was_renamed_is_refused(disk: Disk):
    """It would begin anew and repeat every row; another flow beside it, or one that is left out, is fine."""
    disk.rename(("alerts", "alerts"), ("alarms", "alerts"))
    what = r"alarms of the sink alerts is new .* flow alerts of the sink alerts is not defined any more"
    with pytest.raises(PipelineError, match=rf"{what}.*rename _checkpoints/alerts/alerts in"):
        disk.check()
    disk.found.flows.append(("alerts", "alerts"))
    disk.check()
    disk.found.flows.remove(("alarms", "alerts"))
    disk.check()
    disk.found.flows.remove(("alerts", "alerts"))
    disk.check()
    disk.found.sinks["other"] = "OTHER"
    disk.found.flows.append(("alerts", "other"))
    with pytest.raises(PipelineError, match=r"alerts of the sink other is new .*of the sink alerts is not defined"):
        disk.check()


def test_a_storage_that_was_copied_is_noticed_by_its_tables(disk: Disk, tmp_path: Path):
    """The log of a table has whole paths: Spark would read the files of the original."""
    disk.table("readings", 2, place=tmp_path / "original" / "warehouse")
    with pytest.raises(PipelineError, match=r"has its files in .*original/warehouse/readings: .*moved or copied"):
        disk.check()


def test_files_that_are_no_tables_of_ours_are_left_alone(disk: Disk):
    """A flow may read a folder elsewhere, whose files come and go; a broken log says nothing."""
    place = disk.checkpoint("alerts/alerts", 2, 2, reads="/srv/elsewhere")
    disk.check()
    for line in ("{", "[]", "5", '{"path": "//["}', '{"path": "\\u0000"}', '{"path": "\\ud800"}'):
        (place / "sources" / "0" / "2").write_text(f"v1\n{line}")
        disk.check()


# -- definitions -------------------------------------------------------------------------------------------------------


def test_two_flows_into_a_table_of_files_are_refused():
    """Spark would keep the rows of one of them; into a sink, or a table with a log of its own, they are fine."""
    found = Definitions({"both": None, "lake": "delta"}, {"alerts": "ALERTS"})
    found.flows += [(name, target) for target in ("alerts", "lake") for name in ("a", "b")]
    found.check()
    found.flows += [("a", "both")]
    found.check()
    found.flows += [("b", "both")]
    with pytest.raises(InputError, match="The table both has 2 flows, a and b, and Spark keeps the rows of one"):
        found.check()
    found.check("delta")


def test_sql_is_seen_by_its_first_words():
    """Tables and flows of SQL files count; comments, quotes and queries do not."""
    found = Definitions()
    found.add_sql(
        """-- CREATE STREAMING TABLE no AS SELECT 1;
        CREATE STREAMING TABLE revenue_minutes AS SELECT '; CREATE STREAMING TABLE neither AS SELECT 1' FROM STREAM o;
        create or refresh streaming table if not exists `shop`.`raw` USING delta;
        CREATE FLOW more AS INSERT INTO shop.raw BY NAME SELECT * FROM STREAM x;
        CREATE MATERIALIZED VIEW totals AS SELECT 1; /* CREATE STREAMING TABLE nor; */
        SET a = b;"""
    )
    assert found.streaming == {"revenue_minutes": None, "shop.raw": "delta"}
    assert found.flows == [("revenue_minutes", "revenue_minutes"), ("more", "shop.raw")]


# -- in a replay -------------------------------------------------------------------------------------------------------

REPLAY = PipelineReplay("101", {"ALERTS": "V2"})


@pytest.mark.parametrize("stream", ["ALERTS", "OTHER", "v2", ""])
def test_a_replay_writes_to_its_own_streams_alone(stream: str):
    """Whatever the files say: the stream of the live pipeline, or any other that --into does not name, is refused."""
    REPLAY.check_write("V2")
    REPLAY.check_write(None)
    with pytest.raises(InputError, match=rf"would write to {stream}, which is not one of its own streams.*target\("):
        REPLAY.check_write(stream)
    with pytest.raises(InputError, match="not one of its own"):
        PipelineReplay().check_write(stream)


def test_a_replay_does_not_release_what_others_read():
    """A source that releases messages would take them from the live pipeline, until it is the live one itself."""
    REPLAY.check_release("none")
    with pytest.raises(InputError, match="would release messages"):
        REPLAY.check_release("commit")
    PipelineReplay("101", {}, switched=True).check_release("commit")


def test_sinks_of_other_formats_are_refused_in_a_replay():
    """A folder, a topic, a database: the live pipeline writes there, too, unless the spec says otherwise."""
    rules = ReplayRules(REPLAY, ("files",))
    rules.check_sink("alerts", "nats", "V2")
    for kind in ("noop", "console", "memory"):
        rules.check_sink("any", kind, None)
    rules.check_sink("files", "parquet", None)
    with pytest.raises(InputError, match=r"the sink topic of the format kafka.*spark\.penstock\.replay\.sinks: topic"):
        rules.check_sink("topic", "kafka", None)
    with pytest.raises(InputError, match="would write to ALERTS"):
        rules.check_sink("files", "nats", "ALERTS")


def test_tables_of_the_live_pipeline_are_refused_in_a_replay():
    """Where both share a catalog, a name with a database leads to the live table, in Python and in SQL."""
    own, shared = ReplayRules(REPLAY), ReplayRules(REPLAY, shared=True)
    for rules in (own, shared):
        rules.check_table("orders")
        rules.check_sql("CREATE STREAMING TABLE orders AS SELECT 'USE x' FROM STREAM raw; -- USE y")
    own.check_table("shop.orders")
    own.check_sql("USE shop; CREATE MATERIALIZED VIEW shop.totals AS SELECT 1")
    with pytest.raises(InputError, match=r"table shop\.orders of the pipeline itself"):
        shared.check_table("shop.orders")
    with pytest.raises(InputError, match=r"table shop\.totals of the pipeline itself"):
        shared.check_sql("CREATE MATERIALIZED VIEW `shop`.totals AS SELECT 1")
    with pytest.raises(InputError, match="leave its own database: a file has USE DATABASE shop"):
        shared.check_sql("SELECT 1;\nUSE  DATABASE shop;")
