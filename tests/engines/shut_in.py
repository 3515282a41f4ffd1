"""Run a server that would listen on every interface in a network of its own, with one door on loopback.

    python shut_in.py DOOR INSIDE COMMAND...

The door is 127.0.0.1:DOOR of this machine; whoever comes in is led to port INSIDE of the server, which sees nothing
but a loopback interface. Prints the server's process id, and ends with it; the server ends with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG = 1
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

libc = ctypes.CDLL(None, use_errno=True)


def own_network() -> None:
    """Leave the machine's network for an empty one; its loopback interface is switched on."""
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags):
        raise SystemExit(
            f"No network namespace: {os.strerror(ctypes.get_errno())}. Milvus 2.3 listens on every interface, so it is "
            "not started without one. Leave these tests out: pytest -m 'not engines'"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def lead(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 18):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def keep_door(door: socket.socket, inside: int) -> None:
    while True:
        visitor, _ = door.accept()
        try:
            room = socket.create_connection(("127.0.0.1", inside))
        except OSError:
            visitor.close()
            continue
        for end in (visitor, room):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=lead, args=(visitor, room), daemon=True).start()
        threading.Thread(target=lead, args=(room, visitor), daemon=True).start()


def main() -> int:
    port, inside, *command = sys.argv[1:]
    die_with_parent()
    door = socket.create_server(("127.0.0.1", int(port)))  # of the network that is left below
    own_network()
    server = subprocess.Popen(command, preexec_fn=die_with_parent, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=keep_door, args=(door, int(inside)), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
