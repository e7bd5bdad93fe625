"""Ports of processes, from the kernel's tables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from ddptop_runner.foreign.process_table import Ports, SocketReader, parse_tables, ports_of

HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid inode\n"
TCP = (
    HEAD + b"   0: 0100007F:73D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000"
    b"  1000        0 111 1 0000000000000000 100 0 0 10 0\n"
    b"   1: 0100007F:D431 0100007F:73D8 01 00000000:00000000 00:00000000 00000000"
    b"  1000        0 222 1 0000000000000000 20 4 30 10 -1\n"
    b"   2: 0100007F:D431 0100007F:73D8 06 00000000:00000000 00:00000000 00000000"
    b"  1000        0 0 1 0000000000000000 20 4 30 10 -1\n"
)
TCP6 = (
    HEAD + b"   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A"
    b" 00000000:00000000 00:00000000 00000000     0        0 333 1 0000000000000000 100 0 0 10 0\n"
)


def test_listening_and_established_sockets_are_kept():
    table = parse_tables(TCP, TCP6)
    assert table == {111: (True, 29656), 333: (True, 22), 222: (False, 29656)}


def test_a_process_has_the_ports_of_its_inodes():
    table = parse_tables(TCP, TCP6)
    assert ports_of([222, 333, 9], table) == Ports(frozenset({22}), frozenset({29656}))


def test_lines_of_another_shape_are_left_out():
    table = parse_tables(HEAD + b"garbage\n   0: zz:zz yy:yy 0A 0 0 0 0 0 x 1\n", b"")
    assert table == {}


def test_real_sockets_of_this_process():
    reader = SocketReader()
    with socket.socket() as server, socket.socket() as client, socket.socket(10) as six:
        server.bind(("127.0.0.1", 0))
        server.listen()
        six.bind(("::", 0))
        six.listen()
        port, port6 = server.getsockname()[1], six.getsockname()[1]
        client.connect(("127.0.0.1", port))
        ports, _ = reader.read(os.getpid())
        assert ports is not None
        assert {port, port6} <= ports.listens and port in ports.connected
        with socket.create_server(("127.0.0.1", 0)) as later:
            assert reader.read(os.getpid())[0] == ports  # of the same look
            reader.begin()
            assert reader.read(os.getpid())[0].listens - ports.listens == {later.getsockname()[1]}


def test_a_process_that_is_gone_has_none():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert SocketReader().read(child.pid) == (Ports(), 0)
