"""Payloads that grow in memory: right in any order, in memory once, and nothing held afterwards."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chunks import store as stores
from penstock.chunks.store import MemoryStore, SpoolStore, join


@pytest.fixture(autouse=True)
def _none_left():
    """Every test gives back the spans of addresses that its payloads took."""
    yield
    assert MemoryStore._spans == 0


def pieces(data: bytes, size: int) -> list[tuple[int, bytes]]:
    return [(offset, data[offset : offset + size]) for offset in range(0, len(data), size)]


@given(
    st.binary(min_size=1, max_size=400),
    st.integers(1, 40),
    st.integers(0, 60),
    st.integers(1, 500),
    st.integers(0, 2**32),
)
def test_a_payload_that_grows_is_right_in_any_order(data: bytes, size: int, large: int, span: int, seed: int):
    """Wherever a payload begins to count as large, and whether or not it outgrows its span, it is what was sent."""
    parts = pieces(data, size)
    random.Random(seed).shuffle(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "LARGE", large)
        patch.setattr(stores, "SPAN", span)
        store = MemoryStore()
        for place, (offset, body) in enumerate(parts):
            store.write(offset, memoryview(body), final=place == len(parts) - 1)
            assert store.same(offset, body)
            assert not store.same(offset, bytes(byte ^ 1 for byte in body))
        assert store.memory == len(data)
        assert store.take() == data
        store.close()


def test_where_addresses_are_rationed_a_payload_grows_step_by_step(monkeypatch):
    """A process that may not take so many addresses gets its payload all the same."""
    monkeypatch.setattr(stores, "SPAN", sys.maxsize // 2)
    store, data = MemoryStore(), random.Random(1).randbytes(1_500_000)
    for offset, body in pieces(data, 500_000):
        store.write(offset, body)
    assert store.take() == data


def test_only_so_many_payloads_take_a_span(monkeypatch):
    """The addresses that all payloads together take are bounded; those beyond it grow step by step."""
    monkeypatch.setattr(stores, "SPANS", 2)
    data = random.Random(1).randbytes(900_000)
    open_ones = [MemoryStore() for _ in range(4)]
    for offset, body in pieces(data, 300_000):
        for store in open_ones:
            store.write(offset, body)
    assert MemoryStore._spans == 2
    assert [store.take() for store in open_ones] == [data] * 4


def test_a_large_payload_moves_to_disk_without_what_it_never_filled():
    """What is spilled is what came, not the span that it had to grow in."""
    data = random.Random(1).randbytes(900_000)
    store, spool = MemoryStore(), SpoolStore(None)
    try:
        for offset, body in pieces(data, 300_000)[:2]:
            store.write(offset, body)
        store.spill(spool)
        spool.write(600_000, data[600_000:])
        assert spool.take().read() == data
        assert spool.disk == len(data)
    finally:
        spool.close()


async def test_joining_that_fails_gives_everything_back():
    """Pieces that end in an error leave nothing behind."""

    async def broken():
        for _ in range(3):
            yield bytes(300_000)
        raise OSError("the source broke")

    with pytest.raises(OSError, match="broke"):
        await join(broken())


PEAK = """
import sys
from pathlib import Path
from penstock.chunks.store import MemoryStore

def memory(field):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if field in line)

size, piece = 16 * 1024 * 1024, bytes(range(256)) * 2048
for turn in range(4):
    Path("/proc/self/clear_refs").write_text("5")
    if turn == 0:
        base = memory("VmRSS")
    store = MemoryStore()
    for offset in range(0, size, len(piece)):
        store.write(offset, memoryview(piece), final=offset + len(piece) == size)
    data = store.take()
    assert len(data) == size
    print((memory("VmHWM") - base) * 1024 / size)
    store.close()
    del data
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from Linux's /proc")
def test_a_payload_is_in_memory_once():
    """While payloads are put together, one after the other, a process needs little more than the bytes of one."""
    shown = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=60, check=True)
    ratios = [float(line) for line in shown.stdout.split()]
    assert len(ratios) == 4
    assert max(ratios) < 1.2
    assert min(ratios) > 0.9
