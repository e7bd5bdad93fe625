"""The process behind one browser tab: the interface on stdin and stdout.

The server starts it with the size of the tab's terminal as arguments; it exits with its tab.
"""

from __future__ import annotations

import argparse
import gc
import os


def main(arguments: list[str] | None = None) -> int:
    """Show all jobs, or one, until the tab is closed; returns the exit status."""
    parser = argparse.ArgumentParser(prog="ddptop serve")
    parser.add_argument("--columns", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--actions", action="store_true")
    options = parser.parse_args(arguments)
    os.environ["TEXTUAL_COLOR_SYSTEM"] = "truecolor"  # read once, when Textual is imported
    gc.disable()  # until the first frame: it would take a tenth of that time in vain
    from ddptop.tui.app import DdptopApp
    from ddptop.tui.settings import read_settings
    from ddptop.tui.textual_gaps import TabDriver

    del os.environ["TEXTUAL_COLOR_SYSTEM"]  # must not be passed on to jobs launched from here

    settings = read_settings()
    letters = "utf-8" if settings.interface.ascii is True else None
    app = DdptopApp(
        tick_s=settings.interface.refresh_s,
        readonly=not options.actions,
        settings=settings,
        letters=letters,
    )
    app.driver_class = TabDriver
    app.run(mouse=settings.interface.mouse, size=(options.columns, options.rows))
    return app.return_code or 0


if __name__ == "__main__":
    raise SystemExit(main())
