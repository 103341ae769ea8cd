"""What a task awaits if it is to be run on within the callback that wakes it."""

from __future__ import annotations

import asyncio
import contextvars
import selectors

import pytest

from penstock.connection.waiter import Lookout, Waiter

NAME = contextvars.ContextVar("NAME", default="nobody")


def in_a_callback(work):
    """Run something as the event loop runs what reads a socket: outside of any task."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def call():
        done.set_result(work())

    loop.call_soon(call)
    return done


async def begun(waiter, seen):
    """Give a task that waits, and notes what it sees when it goes on."""

    async def wait():
        NAME.set("the task")
        await waiter
        seen.append((NAME.get(), asyncio.current_task()))

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    return task


async def test_a_task_runs_on_before_who_wakes_it_goes_on():
    """From a callback the task runs at once, as itself, in its own context."""
    waiter, seen = Waiter(asyncio.get_running_loop()), []
    task = await begun(waiter, seen)

    def wake():
        waiter.wake_now()
        return list(seen), NAME.get()

    assert await in_a_callback(wake) == ([("the task", task)], "nobody")
    await task


async def test_a_task_does_not_run_within_another():
    """While a task runs, the one that is woken has its turn later."""
    waiter, seen = Waiter(asyncio.get_running_loop()), []
    task = await begun(waiter, seen)
    waiter.wake_now()
    assert seen == []
    assert waiter.done()
    await task
    assert seen == [("the task", task)]


async def test_waking_later_is_a_turn_of_the_loop():
    """`wake` never runs the task itself."""
    waiter, seen = Waiter(asyncio.get_running_loop()), []
    task = await begun(waiter, seen)

    def wake():
        waiter.wake()
        waiter.wake_now()  # it was woken already
        return list(seen)

    assert await in_a_callback(wake) == []
    await task
    assert len(seen) == 1


async def test_who_was_woken_before_does_not_wait():
    """A waiter that was woken lets its task pass."""
    waiter = Waiter(asyncio.get_running_loop())
    waiter.wake()
    async with asyncio.timeout(10):
        await waiter


@pytest.mark.parametrize("message", [None, "enough"])
async def test_a_cancelled_task_hears_of_it(message):
    """A cancellation reaches the task with its message, and nobody can wake it any more."""
    waiter, seen = Waiter(asyncio.get_running_loop()), []
    task = await begun(waiter, seen)
    task.cancel(message)
    assert waiter.cancelled()
    assert not waiter.cancel()
    waiter.wake_now()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.args == (() if message is None else (message,))
    assert seen == []


async def test_a_timeout_ends_the_wait():
    """What asyncio does to futures works: here, a time that is over."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await Waiter(asyncio.get_running_loop())


async def test_what_the_task_raises_is_its_own():
    """An error of the task stays in the task: who wakes it does not see it."""
    waiter = Waiter(asyncio.get_running_loop())

    async def fail():
        await waiter
        raise ValueError("mine")

    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    assert await in_a_callback(waiter.wake_now) is None
    with pytest.raises(ValueError, match="mine"):
        await task


async def test_an_error_reaches_the_task():
    """Who waits can be woken with an error, in the next turn of the loop."""
    waiter, seen = Waiter(asyncio.get_running_loop()), []
    task = await begun(waiter, seen)
    waiter.set_exception(ValueError("no answer"))
    with pytest.raises(ValueError, match="no answer"):
        await task
    assert isinstance(waiter.exception(), ValueError)
    assert seen == []


async def test_two_tasks_cannot_share_one():
    """A second task that awaits it is told so."""
    waiter = Waiter(asyncio.get_running_loop())
    first = await begun(waiter, [])
    with pytest.raises(RuntimeError):
        await waiter
    waiter.wake()
    await first


class Sleeping(selectors.DefaultSelector):
    """Notes for how long the loop would sleep, each time that it looks at its sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float | None] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.asked.append(timeout)
        return super().select(timeout)


def slept(selector: Sleeping, *waits: float, soon: float = 5.0) -> list[bool]:
    """Wait as often as there are `waits`, each for so long, and tell which times the loop went to sleep."""

    async def body() -> list[bool]:
        loop, watch, found = asyncio.get_running_loop(), Lookout(soon), list[bool]()
        for seconds in waits:
            waiter = Waiter(loop)
            loop.call_later(seconds, waiter.wake_now)
            selector.asked.clear()
            await watch.wait(waiter)
            found.append(any(timeout is None or timeout > 0 for timeout in selector.asked))
        return found

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(body())


def test_the_loop_stays_awake_for_what_comes_soon():
    """It sleeps the first time, and no more while everything comes soon."""
    assert slept(Sleeping(), 0.02, 0.02, 0.02) == [True, False, False]


def test_the_loop_sleeps_if_the_last_one_came_late():
    """Who waits for long does so asleep: it is watched once, for a moment, after one that came soon."""
    assert slept(Sleeping(), 0.1, 0.1, soon=0.01) == [True, True]


def test_a_watch_ends_with_what_it_waits_for():
    """A wait that is cancelled, or whose time of watching is over, leaves nothing that keeps the loop awake."""
    selector = Sleeping()

    async def body() -> None:
        loop, watch = asyncio.get_running_loop(), Lookout(1000.0)
        first, waiter, brief = Waiter(loop), Waiter(loop), Waiter(loop)
        loop.call_soon(first.wake)
        await watch.wait(first)
        task = asyncio.create_task(watch.wait(waiter))
        await asyncio.sleep(0.01)
        assert not any(selector.asked[-3:]), "it watches"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        brief.watch(0.0)
        selector.asked.clear()
        await asyncio.sleep(0.01)
        assert any(selector.asked)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(body())
