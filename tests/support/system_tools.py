"""Finds the tools that tests run.

On Debian, a user's PATH lacks /usr/sbin, where useradd, sshd, and ip are.
"""

from __future__ import annotations

import os
import shutil


def search_path() -> str:
    """PATH, and the folders of tools for administrators."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def find(name: str) -> str | None:
    return shutil.which(name, path=search_path())
