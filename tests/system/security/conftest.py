"""Two real unprivileged users."""

from tests.support.accounts import attacker, victim

__all__ = ["attacker", "victim"]
