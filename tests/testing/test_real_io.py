"""Virtual time together with sockets, pipes, processes and signals: which are waited for, ignored or named in errors.

Some of these tests wait in real time, because the kit must; each says for what.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from ratelimited_executor.testing import (
    DeadlockError,
    RealIOError,
    VirtualEventLoop,
    run_virtual,
)

# Long enough that a clock which runs ahead of a thread would be noticed, short enough for every test run.
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


def test_socket_that_waits_for_the_world_is_an_error_that_names_it(pair: tuple[socket.socket, socket.socket]) -> None:
    """Time cannot pass while a socket is waited for; the error names the socket and the task that waits."""

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
    """A datagram socket has no peer, and so only its own address is named."""
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
    reading, writing = os.pipe()  # the process runs until its standard input ends

    async def main() -> tuple[int, float]:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "open(0).read()", stdin=reading)
        ticker = asyncio.create_task(asyncio.sleep(1))
        code = await process.wait()
        ended = _loop().time()
        await ticker
        return code, ended

    loop = VirtualEventLoop()
    task = loop.create_task(main())
    with pytest.raises(RealIOError, match=r"subprocess \d+: .*-c 'open"):
        loop.run_until_complete(task)
    os.close(reading)
    os.close(writing)
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
def test_patience_with_a_signal_ends() -> None:
    """A signal that does not come ends the run when patience does, and is named."""

    async def main() -> None:
        _loop().add_signal_handler(signal.SIGUSR1, int)
        try:
            await asyncio.Event().wait()
        finally:
            _loop().remove_signal_handler(signal.SIGUSR1)

    with pytest.raises(RealIOError, match="a signal, for which a handler is installed"):
        run_virtual(main(), real_io="wait", patience=PATIENCE)
