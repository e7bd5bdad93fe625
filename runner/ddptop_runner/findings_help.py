"""What each alert means and what to do about it, at length."""

from __future__ import annotations


def explain(finding_id: str) -> str:
    """Help on an alert: what it means, what usually causes it, what to do; "" for an unknown one.

    `finding_id` is `Alert.id`; a number at its end (the device) makes no difference.
    """
    return ""
