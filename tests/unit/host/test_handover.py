"""How the environment reaches the guardian: read once, and by nobody else."""

from __future__ import annotations

import json
import os
import resource
import sys

import pytest
from tests.support.programs import captured

from ddptop_runner.host import handover

ODD = b"\xff\n=\x01".decode("utf-8", "surrogateescape")


@pytest.fixture
def given(monkeypatch) -> handover.Handover:
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("ODD", ODD)
    return handover.capture({"CUDA_VISIBLE_DEVICES": "1"}, attempt=4)


def test_what_was_captured_arrives_and_the_file_is_gone(tmp_path, given):
    file = tmp_path / "handover.json"
    handover.write(file, given)
    assert file.stat().st_mode & 0o777 == 0o600
    taken = handover.take(file)
    assert taken == given
    assert (taken.env["SECRET"], taken.env["ODD"]) == ("s3cret", ODD)
    assert taken.job_env == {"CUDA_VISIBLE_DEVICES": "1"}
    assert taken.attempt == 4
    assert not file.exists()
    with pytest.raises(FileNotFoundError):
        handover.take(file)


def test_no_umask_opens_the_file(tmp_path, given):
    before = os.umask(0)
    try:
        handover.write(tmp_path / "h", given)
    finally:
        os.umask(before)
    assert (tmp_path / "h").stat().st_mode & 0o777 == 0o600


def test_a_file_or_link_laid_there_before_is_not_written_through(tmp_path, given):
    trap = tmp_path / "h"
    trap.symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError):
        handover.write(trap, given)
    assert not (tmp_path / "theirs").exists()
    (tmp_path / "old").write_text("")
    with pytest.raises(FileExistsError):
        handover.write(tmp_path / "old", given)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_umask_is_the_shells_and_stays(umask):
    before = os.umask(umask)
    try:
        assert handover.capture({}, 0).umask == umask
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"env": {}, "more": 1}', "null"])
def test_what_is_no_hand_over_is_refused_and_deleted(tmp_path, content):
    file = tmp_path / "h"
    file.write_text(content)
    with pytest.raises(ValueError):
        handover.take(file)
    assert not file.exists()


def test_a_job_launched_from_within_a_rank_does_not_inherit_what_makes_it_one(monkeypatch):
    for name in handover.OF_A_RANK:
        monkeypatch.setenv(name, "outer")
    monkeypatch.setenv("DDPTOP_HOME", "/kept")
    env = handover.capture({"DDPTOP_JOB_ID": "inner"}, 0).env
    assert not handover.OF_A_RANK & set(env)
    assert env["DDPTOP_HOME"] == "/kept"


LIMITS = """
import json, resource, sys
from ddptop_runner.host import handover
handover.apply_limits(json.loads(sys.argv[1]))
print(json.dumps([resource.getrlimit(getattr(resource, name))[0] for name in sys.argv[2:]]))
"""


def applied(limits: dict[str, int]) -> list[int]:
    """The environment of a new process after it applied them."""
    answer = captured(sys.executable, "-c", LIMITS, json.dumps(limits), *limits, check=True)
    return list(json.loads(answer.stdout))


def test_soft_limits_are_the_shells_as_far_as_the_hard_ones_allow():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    core_hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert applied({"RLIMIT_NOFILE": min(hard, 77), "RLIMIT_CORE": 0}) == [min(hard, 77), 0]
    beyond = [2**62, -1]
    for wish in beyond:
        (given,) = applied({"RLIMIT_NOFILE": wish})
        assert given == hard
    (given,) = applied({"RLIMIT_CORE": -1})
    assert given == core_hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
