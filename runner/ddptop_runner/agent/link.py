"""The agent's connection to the supervisor: JSON lines over the job's control socket.

The supervisor may die and come back at the same path at any time, so the link reconnects, sends a
hello with everything that the agent knows, and repeats any open question.
"""

import json
import os
import queue
import selectors
import socket
import threading
import time

RECONNECT_S = 0.2


class SupervisorLink:
    """Messages to and from the supervisor (`model/protocol.py`); safe to use from several threads.

    Args:
        path: the control socket.
        hello: called for each connection; returns a message with all that the agent knows.
        on_command: called in the link's thread with each message that is not an answer.
    """

    def __init__(self, path, hello, on_command):
        self._path = path
        self._hello = hello
        self._on_command = on_command
        self._lock = threading.Lock()
        self._connection = None
        self._question = None
        self._question_id = 0
        self._answers = queue.Queue()  # type: queue.Queue
        self._thread = threading.Thread(target=self._serve, name="ddptop-link", daemon=True)

    def start(self):
        """Connect, and reconnect until the process ends."""
        self._thread.start()

    def report(self, message):
        """Send a message; without a connection, the next hello repeats its contents."""
        with self._lock:
            self._send(message)

    def _send(self, message):
        if self._connection is None:
            return
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._connection = None

    def ask(self, question):
        """Send a question and wait indefinitely for the answer: a supervisor will come back."""
        with self._lock:
            self._question_id += 1
            question = dict(question, type="agent_asked", question=self._question_id)
            self._question = question
            self._send(question)  # at once: a connection made in the meantime would also send it
        while True:
            answer = self._answers.get()
            if answer["question"] == question["question"]:
                with self._lock:
                    self._question = None
                return answer

    def _serve(self):
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(self._path)
                    self._greet(connection)
                    with connection.makefile("rb") as reader:
                        self._read(reader)
            except OSError:
                time.sleep(RECONNECT_S)
            with self._lock:
                self._connection = None

    def _greet(self, connection):
        with self._lock:
            hello, question = self._hello(), self._question
            messages = [hello] if question is None else [hello, question]
            connection.sendall(b"".join(json.dumps(m).encode() + b"\n" for m in messages))
            self._connection = connection

    def _read(self, reader):
        while True:
            line = reader.readline()
            if not line.endswith(
                b"\n"
            ):  # the end; the supervisor may have died while writing a line
                return
            message = json.loads(line)
            if message["type"] == "answer_agent":
                self._answers.put(message)
            else:
                self._on_command(message)


class ExitWatch:
    """Watches ranks die in their true order, by pidfd if available.

    Args:
        on_exit: called in the watch's thread with the handle (`subprocess.Popen`) of each process
            that ended, right after its return code was read, and with its `about` from `add`.
    """

    POLL_S = 0.05
    """Without pidfd (Linux before 5.3, Python before 3.9), the order of deaths is approximate."""

    def __init__(self, on_exit):
        self._on_exit = on_exit
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._added = queue.Queue()  # type: queue.Queue
        self._polled = []
        threading.Thread(target=self._serve, name="ddptop-exits", daemon=True).start()

    def add(self, process, about):
        """Watch a process from now on; `about` identifies it."""
        self._added.put((process, about))
        os.write(self._wake_write, b"+")

    def _serve(self):
        while True:
            ready = self._selector.select(self.POLL_S if self._polled else None)
            for key, _ in ready:
                if key.data is None:
                    os.read(self._wake_read, 64)
                else:
                    self._selector.unregister(key.fileobj)
                    os.close(key.fd)
                    self._ended(key.data)
            while not self._added.empty():
                self._watch(self._added.get())
            for watched in [watched for watched in self._polled if watched[0].poll() is not None]:
                self._polled.remove(watched)
                self._ended(watched)

    def _watch(self, watched):
        try:
            fd = os.pidfd_open(watched[0].pid)  # type: ignore[attr-defined,unused-ignore]
        except (AttributeError, OSError):  # old kernel or Python, or already reaped
            self._polled.append(watched)
            return
        self._selector.register(fd, selectors.EVENT_READ, watched)

    def _ended(self, watched):
        process, about = watched
        while process.poll() is None:  # the pidfd is ready a moment before the status is available
            time.sleep(0.001)
        self._on_exit(process, about)
