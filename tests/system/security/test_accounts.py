"""The fixtures themselves: an account that were root's would make every other test here blind."""

from __future__ import annotations

import os

from tests.support.accounts import Account


def test_accounts_are_two_users_without_roots_rights(attacker: Account, victim: Account) -> None:
    seen = {account.run(["id", "-u"]).stdout.strip() for account in (attacker, victim)}
    assert seen == {str(attacker.uid), str(victim.uid)}
    assert os.geteuid() not in {attacker.uid, victim.uid}
    assert attacker.run(["ls", "/root"]).returncode != 0


def test_an_account_runs_this_checkout(victim: Account) -> None:
    listed = victim.ddptop("ls", "--json")
    assert listed.returncode == 0, listed.stderr
