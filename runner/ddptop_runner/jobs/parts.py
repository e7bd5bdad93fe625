"""Removes what a job on several machines has left on each of them."""

from __future__ import annotations

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.launch.ssh import is_here
from ddptop_runner.launch.survey import HostError, HostLink, at_once
from ddptop_runner.model.protocol import Forget
from ddptop_runner.model.spec import JobSpec, NodeSpec, Placement
from ddptop_runner.node import remote

LIMIT_S = 15.0
"""How long connecting to another machine may take, and deleting there."""


def remove_parts(spec: JobSpec, placement: Placement) -> str | None:
    """Delete a job's files on all its machines; returns where some remain, or None."""
    problems: dict[str, str] = {}

    def forget(part: tuple[int, NodeSpec]) -> None:
        index, node = part
        job_id = remote.node_job_id(spec.job_id, index)
        try:
            if remote.member_folder(job_id).path.is_dir():  # this machine, or a shared home
                remote.forget(job_id)
            elif is_by_ssh and not is_here(node.host):
                link = HostLink(node.host, LIMIT_S)
                try:
                    link.request(Forget(job_id=job_id), LIMIT_S)
                finally:
                    link.close()
        except HostError as error:
            problems[node.host] = error.why.problem
        except (DdptopError, OSError) as error:
            problems[node.host] = str(error)

    is_by_ssh = placement.by == "ssh"
    at_once(list(enumerate(placement.nodes)), forget)
    words = [f"{host} ({problems[host]})" for host in sorted(problems)]
    return f"its files remain on {', '.join(words)}" if words else None
