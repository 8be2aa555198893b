"""A TCP proxy with faults on demand: cuts, delays and silence at a moment that the test chooses.

Rule: a fault changes when or whether bytes arrive, never their content or order. After the `with` block no
thread and no socket is left. Why not a mock: a proxy in front of a real broker tests the client's *and* the
broker's view of a fault, but a mock only its author's beliefs. With `kafka=True` a fault can wait for one
kind of request (its API key), and `counts.requests` counts each kind. Leave it off for TLS and other
protocols.

A broker gives clients its own address, so let it advertise the proxy's address, or clients bypass the proxy:

    with FaultProxy() as proxy, LocalKafka(advertise={0: proxy.address}) as kafka:
        proxy.lead_to(("127.0.0.1", kafka.brokers[0].port))
        proxy.hold_answers()      # the broker hears us, we hear nothing
        proxy.pass_on()           # what was held arrives now
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar

Address = tuple[str, int]
Direction = Literal["requests", "answers", "both"]
_T = TypeVar("_T")

_PIECE_BYTES = 256 * 1024
_CONTROL_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault in the traffic. `api_keys` limits it to these requests and their answers."""

    kind: Literal["pass", "delay", "hold", "swallow", "cut"] = "pass"
    direction: Direction = "both"
    delay_ms: int = 0
    api_keys: frozenset[int] | None = None

    def meets(self, direction: Direction, api_key: int | None) -> bool:
        return self.direction in (direction, "both") and (self.api_keys is None or api_key in self.api_keys)


@dataclass(slots=True)
class ProxyCounts:
    """Counts of traffic. `connections` counts accepted ones; `requests` is by API key, with `kafka=True`."""

    connections: int = 0
    open: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0
    cuts: int = 0
    requests: Counter[int] = field(default_factory=Counter)


class FaultProxy:
    """A proxy that listens on a free loopback port (or `port`) and forwards to `target`."""

    def __init__(self, target: Address | None = None, *, port: int = 0, kafka: bool = False) -> None:
        self.counts = ProxyCounts()
        self.kafka = kafka
        self.fault = _Fault()
        self.changed = asyncio.Event()
        self.target = target
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._listening = False
        # Bound but not listening: the port is reserved, and a client that connects is refused.
        self._socket = _bind(port)
        self.address: Address = ("127.0.0.1", self._socket.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def port(self) -> int:
        return self.address[1]

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CONTROL_TIMEOUT_S)
        self._loop.close()

    def lead_to(self, target: Address) -> None:
        """Forward connections to this address, from the next one on."""
        self.target = target

    # --- faults -----------------------------------------------------------------------------------

    def pass_on(self) -> None:
        """End the fault. Held answers arrive; connections whose bytes were swallowed are cut."""
        self._switch(_Fault())

    def delay(
        self, delay_ms: int, *, direction: Direction = "both", api_keys: Collection[int] | None = None
    ) -> None:
        """Delay each piece and keep the order. A delayed request arrives even if its sender has left."""
        self._switch(_Fault("delay", direction, delay_ms, self._check_keys(api_keys)))

    def hold_answers(self, *, api_keys: Collection[int] | None = None) -> None:
        """Pass requests to the server, but hold its answers until the next fault or `pass_on`."""
        self._switch(_Fault("hold", "answers", 0, self._check_keys(api_keys)))

    def swallow(self) -> None:
        """Let nothing arrive in either direction and close no connection: a silent network."""
        self._switch(_Fault("swallow"))

    def cut_before_answer(self, *, api_keys: Collection[int] | None = None) -> None:
        """Cut one connection instead of passing the server's next answer (to these requests), then end the
        fault."""
        self._switch(_Fault("cut", "answers", 0, self._check_keys(api_keys)))

    def refuse(self) -> None:
        """Refuse new connections, as if no program were listening. Open ones continue; see `cut`."""
        self._call(self._stop_listening())

    def accept(self) -> None:
        """End `refuse`."""
        self._call(self._listen())

    def cut(self) -> int:
        """Close both sides of every open connection now, and return their number."""
        return self._call(self._cut_links(set(self._links)))

    def half_close(self) -> int:
        """Tell every client that the server sends nothing more, and return how many were told. What clients
        send still arrives."""
        return self._call(self._half_close())

    # --- on the proxy's own thread ------------------------------------------------------------------

    def _check_keys(self, api_keys: Collection[int] | None) -> frozenset[int] | None:
        if api_keys is None:
            return None
        if not self.kafka:
            raise ValueError("api_keys needs FaultProxy(..., kafka=True): only then are requests told apart")
        return frozenset(api_keys)

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CONTROL_TIMEOUT_S)

    def _switch(self, fault: _Fault) -> None:
        async def switch() -> None:
            self.set_fault(fault)
            await self._cut_links({link for link in self._links if link.lost_bytes})

        self._call(switch())

    def set_fault(self, fault: _Fault) -> None:
        self.fault = fault
        self.changed.set()  # wakes all that wait for a change; for the next one they get a fresh event
        self.changed = asyncio.Event()

    async def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._socket.listen(128)
            # Not asyncio.Server: closing it loses a connection that it has accepted but not yet announced.
            self._loop.add_reader(self._socket, self._accept_one)

    async def _stop_listening(self) -> None:
        if self._listening:
            self._close_listener()
            self._socket = _bind(self.port)

    def _close_listener(self) -> None:
        self._listening = False
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept_one(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):  # the client left first
            connection, _ = self._socket.accept()
            task = self._loop.create_task(self._serve(connection))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self.counts.connections += 1
        if self.target is None:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.wait_for(
                asyncio.open_connection(*self.target), _CONNECT_TIMEOUT_S
            )
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        link = _Link(self, writer, server_writer)
        self._links.add(link)
        self.counts.open += 1
        await link.run(reader, server_reader)
        self._links.discard(link)
        self.counts.open -= 1
        await link.close()

    async def _cut_links(self, links: set[_Link]) -> int:
        for link in links:
            self.cut_link(link)
        return len(links)

    def cut_link(self, link: _Link) -> None:
        self.counts.cuts += 1
        link.abort()
        link.stop()

    async def _half_close(self) -> int:
        for link in self._links:
            link.to_client.write_eof()
        return len(self._links)

    async def _close(self) -> None:
        self._close_listener()
        while self._serving:  # a just accepted one becomes a link, and is cut, in a later round
            await self._cut_links(set(self._links))
            await asyncio.wait(self._serving, timeout=0.1)


class _Link:
    """One client's connection and the proxy's to the server, with a queue for each direction."""

    def __init__(self, proxy: FaultProxy, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter):
        self.proxy = proxy
        self.to_client = to_client
        self.to_server = to_server
        self.lost_bytes = False
        self._api_keys: dict[int, int] = {}  # by correlation id, of requests without a delivered answer
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, from_client: asyncio.StreamReader, from_server: asyncio.StreamReader) -> None:
        self._tasks = [
            asyncio.create_task(self._move(from_client, self.to_server, "requests")),
            asyncio.create_task(self._move(from_server, self.to_client, "answers")),
        ]
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def abort(self) -> None:
        self.to_client.transport.abort()
        self.to_server.transport.abort()

    async def close(self) -> None:
        self.abort()
        for writer in (self.to_client, self.to_server):
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _move(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Read pieces and note when each is due. A second task delivers: delays do not limit the rate."""
        queue: asyncio.Queue[tuple[float, bytes, int | None]] = asyncio.Queue(maxsize=1024)
        delivery = asyncio.create_task(self._deliver(queue, sink, direction))
        self._tasks.append(delivery)
        try:
            while piece := await self._read(source):
                api_key = self._note(piece, direction)
                due = asyncio.get_running_loop().time()
                fault = self.proxy.fault
                if fault.kind == "delay" and fault.meets(direction, api_key):
                    due += fault.delay_ms / 1000
                await queue.put((due, piece, api_key))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        await queue.put((0.0, b"", None))
        await delivery

    async def _read(self, source: asyncio.StreamReader) -> bytes:
        if not self.proxy.kafka:
            return await source.read(_PIECE_BYTES)
        try:
            head = await source.readexactly(4)
        except asyncio.IncompleteReadError as error:
            return error.partial
        return head + await source.readexactly(struct.unpack(">I", head)[0])

    def _note(self, piece: bytes, direction: Direction) -> int | None:
        if not self.proxy.kafka or len(piece) < 8:
            return None
        if direction == "answers":
            return self._api_keys.get(_correlation_of(piece))
        api_key, _, correlation_id = struct.unpack_from(">hhi", piece.ljust(12, b"\0"), 4)
        self._api_keys[correlation_id] = api_key
        self.proxy.counts.requests[api_key] += 1
        return int(api_key)

    async def _deliver(
        self,
        queue: asyncio.Queue[tuple[float, bytes, int | None]],
        sink: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        proxy = self.proxy
        while True:
            due, piece, api_key = await queue.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            while proxy.fault.kind == "hold" and proxy.fault.meets(direction, api_key):
                await proxy.changed.wait()
            if proxy.fault.kind == "swallow":
                # An end is swallowed, too: the other side must not learn that the sender has left.
                self.lost_bytes = True
                if not piece:
                    return
                continue
            if not piece:
                with contextlib.suppress(OSError):
                    sink.write_eof()
                return
            if proxy.fault.kind == "cut" and proxy.fault.meets(direction, api_key):
                proxy.set_fault(_Fault())
                proxy.cut_link(self)
                return
            if direction == "requests":
                proxy.counts.bytes_to_server += len(piece)
            else:
                proxy.counts.bytes_to_client += len(piece)
                if api_key is not None:
                    # Forget the request only now: the client still waits for an answer that is held.
                    self._api_keys.pop(_correlation_of(piece), None)
            # A receiver that has left does not stop the other direction: a delayed request must still arrive.
            with contextlib.suppress(ConnectionError):
                sink.write(piece)
                await sink.drain()


def _correlation_of(answer: bytes) -> int:
    return int(struct.unpack_from(">i", answer, 4)[0])


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    listener.bind(("127.0.0.1", port))
    return listener
