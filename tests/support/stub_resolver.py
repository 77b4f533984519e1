"""Name server of a network without a way out: it answers what the test says, and notes what is questions."""

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

#: Types of records by the version of their address.
_TYPES = {4: 1, 6: 28}
_NO_NAME = 3


@dataclass
class StubResolver:
    """Addresses of each name, which a test may change; no record may be kept."""

    addresses: dict[str, list[str]]
    #: Names in the order of the questions; each is asked for once with every type of record.
    questions: list[str] = field(default_factory=list)


@contextmanager
def stub_resolver(addresses: Mapping[str, list[str]]) -> Iterator[StubResolver]:
    """Answer on port 53 of 127.0.0.1 while the block runs; the network must be the test's own."""
    resolver = StubResolver(dict(addresses))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 53))

        def serve() -> None:
            with suppress(OSError):
                while True:
                    question, sender = datagrams.recvfrom(2_048)
                    datagrams.sendto(_answer(resolver, question), sender)

        threading.Thread(target=serve, daemon=True).start()
        yield resolver


def _answer(resolver: StubResolver, question: bytes) -> bytes:
    labels, position = [], 12
    while size := question[position]:
        labels.append(question[position + 1 : position + 1 + size].decode("latin-1"))
        position += 1 + size
    end = position + 5
    (kind,) = struct.unpack_from(">H", question, position + 1)
    name = ".".join(labels).lower()
    resolver.questions.append(name)
    known = resolver.addresses.get(name)
    answers = [address for text in known or () if _TYPES[(address := ip_address(text)).version] == kind]
    records = [
        b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(address.packed)) + address.packed
        for address in answers
    ]
    status = 0 if known is not None else _NO_NAME
    head = question[:2] + struct.pack(">HHHHH", 0x8180 | status, 1, len(records), 0, 0)
    return head + question[12:end] + b"".join(records)
