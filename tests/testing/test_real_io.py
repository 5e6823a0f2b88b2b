"""Virtual time beside threads, sockets, processes and signals: who is awaited, who is named, who is ignored.

Some of these wait in real time, because the kit must: each says for what.
"""

import asyncio
import concurrent.futures
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

import anyio.to_thread
import pytest

from ratelimited_executor.testing import (
    DeadlockError,
    RealIOError,
    RealIOPolicy,
    VirtualEventLoop,
    run_virtual,
)

# Long enough that a clock which runs ahead of a thread would be seen, short enough to be run always.
REAL_SECONDS = 0.02
PATIENCE = 0.05


def _loop() -> VirtualEventLoop:
    return cast("VirtualEventLoop", asyncio.get_running_loop())


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets, closed at the end."""
    left, right = socket.socketpair()
    left.setblocking(False)
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a worker thread waits for, set at the end so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


async def _in_asyncio_thread(seconds: float) -> None:
    await asyncio.to_thread(time.sleep, seconds)


async def _in_anyio_thread(seconds: float) -> None:
    await anyio.to_thread.run_sync(time.sleep, seconds)


async def _in_own_pool(seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, time.sleep, seconds)


@pytest.mark.real_time("a worker thread takes real time, which is what must not move the clock")
@pytest.mark.parametrize("in_thread", [_in_asyncio_thread, _in_anyio_thread, _in_own_pool])
@pytest.mark.parametrize("policy", ["raise", "wait"])
def test_time_stands_still_while_a_worker_thread_runs(in_thread, policy: RealIOPolicy) -> None:  # type: ignore[no-untyped-def]  # a coroutine function
    """A thread ends at the virtual instant at which it began, however many timers wait, under both policies."""

    async def main() -> tuple[list[float], float]:
        instants: list[float] = []
        sleeper = asyncio.create_task(asyncio.sleep(1))
        for _ in range(3):
            await in_thread(REAL_SECONDS)
            instants.append(_loop().time())
        await sleeper
        return instants, _loop().time()

    assert ([0.0, 0.0, 0.0], 1.0) == run_virtual(main(), real_io=policy)


@pytest.mark.real_time("a worker thread takes real time")
def test_timeout_does_not_fire_over_a_thread_that_ends_by_itself() -> None:
    """A virtual timeout cannot expire while the thread that it guards is awaited in real time."""

    def work() -> str:
        time.sleep(REAL_SECONDS)
        return "done"

    assert "done" == run_virtual(asyncio.wait_for(asyncio.to_thread(work), 1e-6))


def test_idle_worker_threads_do_not_count() -> None:
    """Once their calls are done, pools of idle threads hold nothing up."""

    async def main() -> float:
        await asyncio.gather(*(asyncio.to_thread(int) for _ in range(3)))
        await asyncio.gather(*(anyio.to_thread.run_sync(int) for _ in range(3)))
        await asyncio.sleep(100)
        return _loop().time()

    assert 100.0 == run_virtual(main())


@pytest.mark.real_time("the patience with a thread that does not end is real")
@pytest.mark.parametrize("library", ["asyncio", "anyio"])
def test_a_thread_that_does_not_end_is_named(library: str, gate: threading.Event) -> None:
    """When patience runs out, the error names the function that the thread runs, and the seconds waited."""

    def never_ends() -> None:
        gate.wait()

    async def main() -> None:
        if library == "asyncio":
            await asyncio.to_thread(never_ends)
        else:
            await anyio.to_thread.run_sync(never_ends)

    loop = VirtualEventLoop(patience=PATIENCE)
    task = loop.create_task(main())
    with pytest.raises(RealIOError) as caught:
        loop.run_until_complete(task)
    gate.set()
    loop.run_until_complete(task)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

    assert (0.0, PATIENCE) == (caught.value.now, caught.value.waited)
    assert 1 == len(caught.value.outstanding)
    assert "never_ends" in caught.value.outstanding[0]
    assert "within 0.05 s of real time" in str(caught.value)


@pytest.mark.real_time("the thread is released only after the clock has moved")
def test_a_cancelled_call_no_longer_holds_time(gate: threading.Event) -> None:
    """Nobody waits for the thread of a cancelled call, so time passes over it."""

    async def main() -> float:
        call = _loop().run_in_executor(None, gate.wait)
        call.cancel()
        await asyncio.sleep(5)
        gate.set()
        return _loop().time()

    assert 5.0 == run_virtual(main())


@pytest.mark.real_time("the thread is released only after the clock has moved")
def test_ignore_lets_time_pass_over_a_thread(gate: threading.Event) -> None:
    """Under ``ignore`` a timeout does fire over a thread that blocks, as the caller has asked for."""

    async def main() -> float:
        call = asyncio.create_task(asyncio.to_thread(gate.wait))
        done, _ = await asyncio.wait([call], timeout=60)
        assert not done
        gate.set()
        await call
        return _loop().time()

    assert 60.0 == run_virtual(main(), real_io="ignore")


def test_executor_of_another_kind_may_need_virtual_time() -> None:
    """A call handed to an executor that itself waits on the loop's timers does not hold time."""

    class OnTheLoop(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as in the base class
            future: concurrent.futures.Future[object] = concurrent.futures.Future()
            _loop().call_later(3, lambda: future.set_result(fn(*args, **kwargs)))
            return future

    async def main() -> tuple[int, float]:
        return await _loop().run_in_executor(OnTheLoop(), int, "7"), _loop().time()

    assert (7, 3.0) == run_virtual(main())


@pytest.mark.real_time("a thread of our own takes real time")
def test_hold_makes_time_wait_for_a_thread_of_ones_own() -> None:
    """A thread announced by a hold is awaited; what it called in runs before time moves on."""

    async def main() -> tuple[str, float, float]:
        loop = _loop()
        answer = loop.create_future()
        hold = loop.hold("my thread")

        def work() -> None:
            with hold:
                time.sleep(REAL_SECONDS)
                loop.call_soon_threadsafe(answer.set_result, "from my thread")

        threading.Thread(target=work).start()
        sleeper = asyncio.create_task(asyncio.sleep(1))
        text = await answer
        answered = loop.time()
        await sleeper
        hold.release()  # a second release does nothing
        return text, answered, loop.time()

    assert ("from my thread", 0.0, 1.0) == run_virtual(main())


@pytest.mark.real_time("a thread of our own takes real time")
def test_a_hold_counts_under_ignore_too() -> None:
    """Somebody asked for it by name, so not even ``ignore`` passes over a hold."""

    async def main() -> float:
        loop = _loop()
        answer: asyncio.Future[float] = loop.create_future()
        hold = loop.hold("my thread")

        def work() -> None:
            with hold:
                time.sleep(REAL_SECONDS)
                loop.call_soon_threadsafe(lambda: answer.set_result(loop.time()))

        threading.Thread(target=work).start()
        await asyncio.sleep(1)
        return await answer

    assert 0.0 == run_virtual(main(), real_io="ignore")


@pytest.mark.real_time("the patience with a hold is real")
def test_a_hold_not_released_is_named() -> None:
    """A forgotten hold ends the run with an error that names it."""

    async def main() -> None:
        assert "<Hold 'forgotten' held>" == repr(_loop().hold("forgotten"))
        await asyncio.sleep(1)

    with pytest.raises(RealIOError, match="hold 'forgotten'"):
        run_virtual(main(), patience=PATIENCE)


def test_releasing_a_hold_after_the_loop_is_closed_is_harmless() -> None:
    """A thread that outlives its loop may still let go."""
    loop = VirtualEventLoop()
    hold = loop.hold("late")
    loop.close()

    hold.release()


@pytest.mark.real_time("a worker thread and the loop hand over in real time")
def test_thread_may_wait_for_the_loop_in_virtual_time() -> None:
    """A worker thread that waits for a coroutine of the loop lets time advance by exactly what the coroutine needs."""

    async def main() -> list[float]:
        loop = _loop()
        instants = []

        def work() -> None:
            for delay in (3, 4):
                future = asyncio.run_coroutine_threadsafe(asyncio.sleep(delay), loop)
                loop.result_in_thread(future)
                time.sleep(REAL_SECONDS / 4)  # the thread goes on: time must stand still again
                instants.append(loop.time())

        ticker = asyncio.create_task(asyncio.sleep(5.5))
        await asyncio.to_thread(work)
        await ticker
        return instants

    assert [3.0, 7.0] == run_virtual(main())


def test_result_in_thread_refuses_the_loop_itself() -> None:
    """On the loop's own thread it would wait for ever, so it raises."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="is for worker threads"):
            _loop().result_in_thread(concurrent.futures.Future[None]())

    run_virtual(main())


def test_socket_that_waits_for_the_world_is_an_error_that_names_it(pair: tuple[socket.socket, socket.socket]) -> None:
    """Time cannot pass a socket that is waited for; the error says which, and who waits."""

    async def main() -> None:
        await _loop().sock_recv(pair[0], 10)

    loop = VirtualEventLoop()
    task = loop.create_task(main())
    with pytest.raises(RealIOError) as caught:
        loop.run_until_complete(task)
    pair[1].send(b"at last")
    loop.run_until_complete(task)
    loop.close()

    assert (f"unix socket (pair) fd={pair[0].fileno()}, reading by") == caught.value.outstanding[0].rsplit(" ", 1)[0]
    assert "sock_recv" in caught.value.outstanding[0]
    assert 0.0 == caught.value.waited


def test_socket_with_data_is_no_obstacle(pair: tuple[socket.socket, socket.socket]) -> None:
    """Data that has arrived is received without moving time; afterwards time passes freely."""

    async def main() -> tuple[bytes, float, float]:
        pair[1].send(b"data")
        data = await _loop().sock_recv(pair[0], 10)
        received = _loop().time()
        await asyncio.sleep(1)
        return data, received, _loop().time()

    assert (b"data", 0.0, 1.0) == run_virtual(main())


def test_sockets_are_served_while_callbacks_keep_the_loop_busy(pair: tuple[socket.socket, socket.socket]) -> None:
    """A loop that never blocks still polls its sockets."""

    async def main() -> bytes:
        receiver = asyncio.create_task(_loop().sock_recv(pair[0], 10))
        for turn in range(100):
            if turn == 10:  # the socket is registered by now
                pair[1].send(b"data")
            await asyncio.sleep(0)
        assert receiver.done(), "the loop has not looked at its sockets in 90 turns"
        return receiver.result()

    assert b"data" == run_virtual(main())


def test_listening_socket_and_connection_are_named_by_address() -> None:
    """A server that waits for clients is named by its address, a connection by both of its ends."""

    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ports.append(port)
        async with server:
            await gate_future

    ports: list[int] = []
    loop = VirtualEventLoop()
    gate_future = loop.create_future()
    task = loop.create_task(main())
    with pytest.raises(RealIOError) as caught:
        loop.run_until_complete(task)
    gate_future.set_result(None)
    loop.run_until_complete(task)
    loop.close()

    assert caught.value.outstanding[0].startswith(f"listening socket 127.0.0.1:{ports[0]} fd=")


def test_connection_is_named_by_both_ends_and_what_is_awaited() -> None:
    """A TCP connection on which reading and writing are awaited is named with both addresses and both callbacks."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.setblocking(False)
        here, there = ("{}:{}".format(*address) for address in (client.getsockname(), client.getpeername()))

        async def main() -> None:
            _loop().add_reader(client, int)
            written = asyncio.Event()
            _loop().add_writer(client, written.set)
            await written.wait()
            _loop().remove_writer(client)
            await asyncio.sleep(1)

        with pytest.raises(RealIOError, match=rf"socket {here} -> {there} fd=\d+, reading by builtins.int"):
            run_virtual(main())


def test_bound_socket_is_named_by_its_own_address() -> None:
    """A datagram socket has no other end to name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)

        async def main() -> None:
            await _loop().sock_recv(receiver, 10)

        with pytest.raises(RealIOError, match=rf"socket 127.0.0.1:{receiver.getsockname()[1]} fd="):
            run_virtual(main())


def test_closed_file_is_named_as_such() -> None:
    """A pipe closed while it is still registered, a common mistake, is named as closed."""
    reading, writing = os.pipe()

    async def main() -> None:
        _loop().add_reader(reading, int)
        os.close(reading)
        await asyncio.sleep(1)

    try:
        with pytest.raises(RealIOError, match=rf"closed file fd={reading}"):
            run_virtual(main())
    finally:
        os.close(writing)


@pytest.mark.real_time("the other end of the socket answers in real time")
def test_wait_waits_for_a_socket_with_the_clock_standing_still(pair: tuple[socket.socket, socket.socket]) -> None:
    """Under ``wait`` the loop blocks until the socket reports; the virtual instant does not change."""

    async def main() -> tuple[bytes, float]:
        sleeper = asyncio.create_task(asyncio.sleep(1))
        data = await _loop().sock_recv(pair[0], 10)
        received = _loop().time()
        await sleeper
        return data, received

    timer = threading.Timer(REAL_SECONDS, pair[1].send, [b"late"])
    timer.start()

    assert (b"late", 0.0) == run_virtual(main(), real_io="wait")
    timer.join()


@pytest.mark.real_time("the patience with a silent socket is real")
def test_wait_has_patience_and_not_for_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    """Under ``wait`` a socket that stays silent ends the run when patience does."""

    async def main() -> None:
        await _loop().sock_recv(pair[0], 10)

    with pytest.raises(RealIOError, match=r"within 0.05 s of real time(.|\n)*unix socket"):
        run_virtual(main(), real_io="wait", patience=PATIENCE)


def test_ignore_lets_time_pass_over_a_silent_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    """Under ``ignore`` a timeout over a silent socket fires in virtual time."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_loop().sock_recv(pair[0], 10), 30)
        return _loop().time()

    assert 30.0 == run_virtual(main(), real_io="ignore")


@pytest.mark.real_time("the other end of the socket answers in real time")
def test_ignore_still_waits_when_there_is_no_timer(pair: tuple[socket.socket, socket.socket]) -> None:
    """With nothing scheduled there is nothing to advance to, so even ``ignore`` waits for the socket."""

    async def main() -> bytes:
        return await _loop().sock_recv(pair[0], 10)

    timer = threading.Timer(REAL_SECONDS, pair[1].send, [b"late"])
    timer.start()

    assert b"late" == run_virtual(main(), real_io="ignore")
    timer.join()


def test_policy_may_change_during_the_run(pair: tuple[socket.socket, socket.socket]) -> None:
    """A program may ignore a socket for a stretch, and not afterwards."""

    async def main() -> None:
        loop = _loop()
        receiver = asyncio.create_task(loop.sock_recv(pair[0], 10))
        loop.real_io = "ignore"
        await asyncio.sleep(10)
        loop.real_io = "raise"
        await receiver

    with pytest.raises(RealIOError, match="cannot pass 10 s"):
        run_virtual(main())


def test_pipe_is_named() -> None:
    """A pipe that is read counts, and is named as what it is."""
    reading, writing = os.pipe()

    async def main() -> None:
        _loop().add_reader(reading, int)
        try:
            await asyncio.sleep(1)
        finally:
            _loop().remove_reader(reading)

    try:
        with pytest.raises(RealIOError, match=rf"pipe fd={reading}, reading by builtins.int"):
            run_virtual(main())
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.real_time("a process takes real time")
def test_subprocess_is_named_and_can_be_awaited() -> None:
    """A process that runs is named by its number and command; under ``wait`` its end comes with the clock still."""

    async def main() -> tuple[int, float]:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
        ticker = asyncio.create_task(asyncio.sleep(1))
        code = await process.wait()
        ended = _loop().time()
        await ticker
        return code, ended

    loop = VirtualEventLoop()
    task = loop.create_task(main())
    with pytest.raises(RealIOError, match=r"subprocess \d+: .*-c pass"):
        loop.run_until_complete(task)
    loop.real_io = "wait"

    assert (0, 0.0) == loop.run_until_complete(task)
    loop.close()


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no signal handlers there")
def test_signal_handlers_do_not_hold_time_and_are_served() -> None:
    """Time passes with a handler installed, and a signal that arrives meanwhile is handled."""

    async def main() -> float:
        got = asyncio.Event()
        _loop().add_signal_handler(signal.SIGUSR1, got.set)
        await asyncio.sleep(100)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(got.wait(), 5)
        _loop().remove_signal_handler(signal.SIGUSR1)
        return _loop().time()

    assert 100.0 == run_virtual(main())


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no signal handlers there")
def test_waiting_for_a_signal_alone_is_a_deadlock() -> None:
    """With nothing but a signal to wait for, the error says what could be done."""

    async def main() -> None:
        _loop().add_signal_handler(signal.SIGUSR1, int)
        try:
            await asyncio.Event().wait()
        finally:
            _loop().remove_signal_handler(signal.SIGUSR1)

    with pytest.raises(DeadlockError, match="to wait for a signal in real time use real_io='wait'"):
        run_virtual(main())


@pytest.mark.real_time("a signal arrives in real time")
@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no signal handlers there")
def test_a_signal_can_be_awaited_in_real_time() -> None:
    """Under ``wait`` the loop blocks until the signal comes."""

    async def main() -> str:
        got = asyncio.Event()
        _loop().add_signal_handler(signal.SIGUSR1, got.set)
        await got.wait()
        _loop().remove_signal_handler(signal.SIGUSR1)
        return "got it"

    timer = threading.Timer(REAL_SECONDS, os.kill, [os.getpid(), signal.SIGUSR1])
    timer.start()

    assert "got it" == run_virtual(main(), real_io="wait")
    timer.join()


@pytest.mark.real_time("the patience with a signal is real")
@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no signal handlers there")
def test_patience_with_a_signal_ends(gate: threading.Event) -> None:
    """A signal that does not come ends the run when patience does, and is named."""

    async def main() -> None:
        _loop().add_signal_handler(signal.SIGUSR1, int)
        try:
            await asyncio.Event().wait()
        finally:
            _loop().remove_signal_handler(signal.SIGUSR1)

    with pytest.raises(RealIOError, match="a signal, for which a handler is installed"):
        run_virtual(main(), real_io="wait", patience=PATIENCE)


def test_a_call_that_arrives_while_the_loop_is_about_to_block_keeps_time_still() -> None:
    """A thread may call in after asyncio has seen nothing ready: the selector looks again before it moves time."""
    loop = VirtualEventLoop()
    loop.call_later(5, int)
    selector = loop._selector  # type: ignore[attr-defined]  # asyncio's; there is no other way between its two steps
    loop.call_soon_threadsafe(int)

    assert [] == selector.select(5.0)
    assert 0.0 == loop.time()
    loop.close()


def test_a_call_from_a_thread_that_has_ended_runs_before_time_moves() -> None:
    """What a joined thread called in is ready, and so runs at the instant at which it was called."""

    async def main() -> float:
        loop = _loop()
        instants: list[float] = []
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(lambda: instants.append(loop.time()),))
        thread.start()
        thread.join()
        await asyncio.sleep(1)
        return instants[0]

    assert 0.0 == run_virtual(main())
