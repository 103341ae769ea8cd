"""How Spark hands the filters of a batch query to a reader of ours, and whether they may be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql.datasource import DataSourceReader, Filter

__all__ = ["PushFilters", "scans_are_apart"]


def scans_are_apart() -> bool:
    """Tell whether this Spark keeps what a query pushed down to that query.

    Up to 4.3, Spark keeps the tasks that were planned with filters in the object that all queries of a loaded frame
    share: a later query without filters gets these tasks, and so does the other side of a union or of a join, and rows
    are missing in silence. No Python code runs then that could notice. The change that gave readers `pushLimit`
    (SPARK-58551) made Spark keep them with the scan.
    """
    return hasattr(DataSourceReader, "pushLimit")


class PushFilters:
    """What Spark calls with the filters of a query: a reader has one as its `pushFilters`.

    Spark refuses a reader whose class implements pushFilters while its push-down is switched off, which it is unless
    spark.sql.python.filterPushdown.enabled is set. It asks whose function `reader.pushFilters` is: this object says
    "the base class's", so a plain read works either way, and it is called if push-down is on.

    `wanted` is the option `pushDown`; `take` gets the filters, all of which hold together, and narrows the read. Spark
    applies them all the same.
    """

    def __init__(self, wanted: bool | None, take: Callable[[list[Filter]], None]) -> None:
        self.wanted = wanted
        self.take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        if scans_are_apart() if self.wanted is None else self.wanted:
            self.take(filters)
        return filters
