"""The books of the demo: what is drawn, what must follow from it, and how differences are counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from penstock.demo.audit import compare
from penstock.demo.charts import Line, bars, columns, lines
from penstock.demo.ledger import Document, Ledger, Volume

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
VOLUME = Volume(orders=500, documents=3, document_bytes=10_000)


def test_the_same_seed_draws_the_same_traffic():
    """Two drawings of the same volume are equal, and another seed gives another one."""
    one, two = Ledger.draw(VOLUME, START), Ledger.draw(VOLUME, START)
    assert one.orders == two.orders
    assert [item.content() for item in one.documents] == [item.content() for item in two.documents]
    assert one.orders != Ledger.draw(Volume(orders=500, seed=8), START).orders


def test_every_awkward_kind_is_there():
    """Orders come once, twice, unacknowledged and from old clients; some are broken in each way."""
    books = Ledger.draw(Volume(orders=5000), START)
    assert {order.way for order in books.orders} == {"once", "twice", "unacked", "legacy"}
    assert len({order.fault for order in books.orders}) == 5
    assert len({order.order_id for order in books.orders}) == 5001


def test_revenue_counts_every_whole_order_but_the_last():
    """The sums of closed minutes hold every whole order but the one that closes them."""
    books = Ledger.draw(VOLUME, START)
    sums = books.revenue()
    assert sum(orders for _, orders in sums.values()) == len(books.whole) - 1
    assert sum(cents for cents, _ in sums.values()) == sum(order.cents for order in books.whole[:-1])


def test_later_orders_catch_up_with_the_clock():
    """Orders that are drawn later are in the books, 20 s apart, and never later than now, so that minutes close."""
    books = Ledger.draw(VOLUME, START)
    last, drawn = books.orders[-1], []
    now = last.ordered + timedelta(seconds=90)
    for _ in range(10):
        drawn.append(books.draw_next(now))
        now += timedelta(seconds=1)
    assert books.orders[-10:] == drawn
    assert [order.order_id for order in drawn] == [f"o-{number:06}" for number in range(501, 511)]
    seconds = [(order.ordered - last.ordered).total_seconds() for order in drawn]
    assert seconds == [20, 40, 60, 80, 94, 95, 96, 97, 98, 99]
    assert books.draw_next(now) == Ledger(books.volume, START, orders=books.orders[:-1]).draw_next(now), (
        "it is repeatable"
    )


def test_documents_have_pages():
    """A document has the size that it says, and a form feed only at the end of each page."""
    content = Document("scan", 1, 1_000_000).content()
    assert len(content) == 1_000_000
    assert content.endswith(b"\x0c")
    assert 2 < content.count(b"\x0c") < 8


@pytest.mark.parametrize(
    ("found", "lost", "repeated"),
    [("abc", 0, 0), ("ab", 1, 0), ("abcc", 0, 1), ("abd", 1, 1), ("", 3, 0), ("bca", 0, 0)],
)
def test_differences_are_counted(found: str, lost: int, repeated: int):
    """A message that is dropped is lost, one that is doubled or strange is repeated, and a changed one is both."""
    stage = compare("x", "abc", found)
    assert (stage.expected, stage.found, stage.lost, stage.repeated) == (3, len(found), lost, repeated)
    assert stage.ok == (lost == repeated == 0)


def test_charts_are_well_formed():
    """Every chart is XML, also of nothing at all, and text in it is escaped."""
    drawn = [
        lines("t", [Line("a<b", [(0, 0), (1, 5000)], "red", fill=True)], [(0.2, 0.4, "killed & back")]),
        lines("t", [Line("a", [], "red")]),
        columns("t", ["1", "2"], {"north": [1, 2.5], "south": [0, 3]}, ["red", "blue"]),
        columns("t", [], {}, []),
        bars([("a & b", 3.0, "three")], "red"),
        bars([], "red"),
    ]
    for text in drawn:
        ElementTree.fromstring(f"<x>{text}</x>")
