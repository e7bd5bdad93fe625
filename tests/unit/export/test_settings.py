"""Where messages go, and how URLs are kept secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ddptop.export import settings

from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import config_file

SECRET = "tgram://123:abcSECRET/42"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config_file().parent.mkdir(parents=True)
    return config_file()


def test_settings_are_read(config: Path) -> None:
    assert settings.read_settings() == settings.Settings()
    config.write_text(
        '[interface]\nmouse = false\n[notify]\noff = ["finished"]\nquiet_hours = "22:00-07:30"\n'
        'most_per_hour = 3\n[hooks]\non_failed = "cat"\n'
    )
    found = settings.read_settings()
    assert found.notify.off == ("finished",)
    assert found.notify.most_per_hour == 3
    assert [f"{one:%H:%M}" for one in found.notify.quiet() or ()] == ["22:00", "07:30"]
    assert found.hooks == {"on_failed": "cat"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[notify]\noff = ["fnished"]', "fnished"),
        ('[notify]\nquiet_hours = "25:00-07:00"', "hour must be in 0..23"),
        ('[notify]\nquiet_hours = "night"', "quiet_hours"),
        ("[notify]\nmost_per_hour = 0", "most_per_hour"),
        ('[hooks]\non_fire = "cat"', "on_fire"),
        ("[notify", "config.toml"),
    ],
)
def test_invalid_settings_are_named(config: Path, text: str, named: str) -> None:
    config.write_text(text)
    with pytest.raises(UsageError, match=named):
        settings.read_settings()


def test_urls_that_others_could_read_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    assert settings.read_urls(file) == []
    file.write_text(f"{SECRET}\n\n")
    file.chmod(0o640)
    with pytest.raises(UsageError, match=r"is owned by \w+ \(mode 0640\)") as refused:
        settings.read_urls(file)
    assert "SECRET" not in str(refused.value)
    file.chmod(0o600)
    assert settings.read_urls(file) == [SECRET]
    if os.geteuid() == 0:  # only root can give a file away
        os.chown(file, 1234, -1)
        with pytest.raises(UsageError, match="is owned by uid 1234"):
            settings.read_urls(file)
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(UsageError, match="not a regular file"):
        settings.read_urls(file)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SECRET, "tgram://…"),
        ("https://me:SECRET@hooks.example.org/SECRET?k=SECRET", "https://hooks.example.org/…"),
        ("cmd:mail -s SECRET me", "cmd:mail …"),
    ],
)
def test_secrets_are_masked(url: str, shown: str) -> None:
    assert settings.masked(url) == shown


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing apprise
def test_urls_are_checked() -> None:
    for url in ("https://example.org/x", "cmd:cat", SECRET, "ntfy://localhost/topic"):
        settings.check_url(url)
    for url in ("", "example.org", "https://", "a://b", "https://x/\x1b[2J", "x" * 9999):
        with pytest.raises(UsageError):
            settings.check_url(url)
