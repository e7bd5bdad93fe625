"""The agent's link: it asks each supervisor once, until one has answered."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.programs import piped

AGENT = """
import sys
from ddptop_runner.agent.link import SupervisorLink
hello = {"type": "agent_hello"}
link = SupervisorLink(sys.argv[1], lambda: hello, lambda message: print(message["order"]))
link.start()
print(link.ask({"kind": "failing"})["question"])
link.report({"type": "rank_exited"})
sys.stdin.read()
"""
ANSWERS = b'{"type": "tell_agent", "order": "stopping"}\n{"type": "answer_agent", "question": 1}\n'


def test_question_survives_a_supervisor_that_died_mid_line(tmp_path: Path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(60)
        agent = piped(sys.executable, "-W", "error", "-c", AGENT, path, stderr=subprocess.PIPE)
        heard = []
        for reply in (b'{"type": "te', ANSWERS):
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as reader:
                heard.append([json.loads(reader.readline()) for _ in range(2)])
                connection.sendall(reply)
                if reply.endswith(b"\n"):
                    heard.append([json.loads(reader.readline())])
        out, err = agent.communicate(timeout=60)
    question = {"type": "agent_asked", "kind": "failing", "question": 1}
    asked = [{"type": "agent_hello"}, question]
    assert heard == [asked, asked, [{"type": "rank_exited"}]]
    assert (out, err) == ("stopping\n1\n", "")
