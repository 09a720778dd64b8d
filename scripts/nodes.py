"""Nodes, load and waiting for the scripts that check the files in deploy/.

A script is a sequence of statements that fail with a sentence: `check` and `fail` end it with exit
code 1, `skip` with 77 and a line that begins with SKIPPED. Everything that was started ends with it.
"""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77


def binary():
    """The binary under test: TIDEGATE_BIN, by default target/debug/tidegate."""
    path = Path(os.environ.get("TIDEGATE_BIN", ROOT / "target/debug/tidegate")).resolve()
    if not os.access(path, os.X_OK):
        fail(f"no binary at {path}; cargo build, or set TIDEGATE_BIN")
    return path


def fail(text):
    print(f"FAILED: {text}", flush=True)
    sys.exit(1)


def check(holds, text):
    if not holds:
        fail(text)
    print(f"ok: {text}", flush=True)


def skip(text):
    print(f"SKIPPED: {text}", flush=True)
    sys.exit(SKIPPED)


def install(program, *packages):
    """Installs Debian packages unless `program` is there; skips where that is not possible."""
    if shutil.which(program):
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        try:
            run = subprocess.run([*sudo, *command], env=environment, capture_output=True, text=True)
        except FileNotFoundError as error:
            skip(f"{program} is not installed, and {error.filename} is not there to install it")
        if run.returncode != 0:
            skip(f"{program} is not installed: apt-get install {' '.join(packages)}\n{run.stderr}")
    if not shutil.which(program):
        skip(f"{program} is not in {' '.join(packages)}")


def work_folder(name):
    """An empty folder below target/."""
    folder = ROOT / "target" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def debian_base():
    """The folder of a Debian system with systemd, made once."""
    folder = ROOT / "target/debian-bookworm"
    if not (folder / "done").exists():
        install("debootstrap", "debootstrap")
        shutil.rmtree(folder, ignore_errors=True)
        include = "--include=systemd,systemd-sysv,dbus,man-db,ca-certificates"
        command = ["debootstrap", "--variant=minbase", include, "bookworm", str(folder)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            skip(f"debootstrap made no Debian system: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        (folder / "done").touch()
    return folder


def in_own_network():
    """Goes on in a network namespace, as root: nothing that is started there touches this machine's."""
    mark = "IN_NETWORK_OF_ITS_OWN"
    if os.environ.pop(mark, None) is None:
        own = ["unshare", "--net", "--mount", "--", sys.executable, *sys.argv]
        sys.exit(subprocess.run(own, env=dict(os.environ, **{mark: "1"})).returncode)
    call("ip", "link", "set", "lo", "up")


def clean_environment():
    """The environment without variables that a node would take for keys of its configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


def free_port(kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, seconds, condition):
    """Waits for `condition`, which returns something, or raises OSError while it cannot tell."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = condition()
            if found:
                return found
        except OSError:
            pass
        time.sleep(0.1)
    fail(f"{what}: not within {seconds} s")


def get(url):
    """Status and text of a response."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def call(*command, **more):
    """Runs a command to its end and returns its output; a failure ends the script."""
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if run.returncode != 0:
        fail(f"{' '.join(map(str, command))}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout


class Process:
    """A process whose output goes to a file, and which ends with the script."""

    started = []

    def __init__(self, log, command, environment=None):
        self.log = Path(log)
        with open(self.log, "ab") as out:
            self.child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=clean_environment() if environment is None else environment,
            )
        Process.started.append(self)

    def stop(self, seconds=60):
        """SIGTERM; returns the exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.ended(seconds)

    def ended(self, seconds):
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            fail(f"still running after {seconds} s, see {self.log}")

    @classmethod
    def kill_all(cls):
        for process in cls.started:
            if process.child.poll() is None:
                process.child.kill()
                process.child.wait()


atexit.register(Process.kill_all)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Node:
    """A node on free ports of the loopback."""

    def __init__(self, folder, name, keys=(), config=None):
        """`config` is a file for what cannot be said with --set."""
        self.folder, self.name, self.config = Path(folder), name, config
        self.http, self.admin = free_port(), free_port()
        self.mesh = free_port(socket.SOCK_DGRAM)
        self.keys = dict(keys)
        self.process = None

    def start(self, seeds, founders):
        pki = self.folder / "pki"
        keys = {
            "node.id": self.name,
            "node.threads": 1,
            "node.data_dir": self.folder / f"data-{self.name}",
            "cluster.listen": f"127.0.0.1:{self.mesh}",
            "cluster.seeds": ",".join(f"127.0.0.1:{port}" for port in seeds),
            "cluster.founders": ",".join(founders),
            "tls.ca": pki / "ca.pem",
            "tls.cert": pki / f"{self.name}.pem",
            "tls.key": pki / f"{self.name}.key",
            "tls.secret": pki / "cluster.secret",
            "http.listen": f"127.0.0.1:{self.http}",
            "grpc.listen": f"127.0.0.1:{free_port()}",
            "resp.listen": f"127.0.0.1:{free_port()}",
            "admin.listen": f"127.0.0.1:{self.admin}",
            "rules.path": ROOT / "rules",
            **self.keys,
        }
        sets = [
            word for key, value in keys.items() if value is not None for word in ("--set", f"{key}={value}")
        ]
        config = ["--config", self.config] if self.config else []
        self.process = Process(self.folder / f"{self.name}.log", [binary(), "serve", *config, *sets])

    def is_ready(self):
        return get(f"http://127.0.0.1:{self.admin}/readyz")[0] == 200


def cluster(folder, names=("node-1", "node-2", "node-3"), keys=()):
    """Certificates and running nodes that are ready."""
    call(binary(), "ca", "init", "--dir", folder / "pki")
    for name in names:
        call(binary(), "ca", "issue", "--dir", folder / "pki", "--node", name)
    nodes = [Node(folder, name, keys) for name in names]
    for node in nodes:
        node.start([node.mesh for node in nodes], names)
    for node in nodes:
        until(f"{node.name} is ready (see {folder}/{node.name}.log)", 60, node.is_ready)
    return nodes


def post_check(port, domain, entries, hits=1, host="127.0.0.1"):
    """The status of a check over a connection of its own; OSError without a response."""
    body = {
        "domain": domain,
        "descriptors": [{"entries": [{"key": k, "value": v} for k, v in entries.items()]}],
        "hitsAddend": hits,
    }
    request = urllib.request.Request(
        f"http://{host}:{port}/v1/check",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


class Load:
    """Checks from several threads until `stop`; `send()` returns a status or raises OSError."""

    def __init__(self, send, threads=2, pause=0.005):
        self.send, self.pause = send, pause
        self.answers, self.errors = {}, []
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stopped.is_set():
            try:
                status = self.send()
                with self.lock:
                    self.answers[status] = self.answers.get(status, 0) + 1
            except OSError as error:
                with self.lock:
                    self.errors.append(f"{time.strftime('%H:%M:%S')} {error}")
            time.sleep(self.pause)

    def stop(self):
        """Waits for the requests in flight."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()
