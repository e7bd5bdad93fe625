"""What the screens of a job and of a rank have in common: pages, one at a time in little room."""

from __future__ import annotations

from textual import on
from textual.reactive import var
from textual.widget import Widget

from ddptop.tui.screens.job_commands import JobCommands
from ddptop.tui.widgets.pages import Pages


class PagedScreen(JobCommands):
    """The stylesheet shows what belongs to the class `-page-NAME`; `main` is all that fits."""

    page: var[str] = var("main", init=False)
    """Which page is shown."""

    def __init__(self, pages: Pages, *, readonly: bool = False) -> None:
        """`pages` is the row with their names."""
        super().__init__(readonly=readonly)
        self._pages = pages
        self.add_class("-page-main", update=False)

    def page_widget(self, page: str) -> Widget | None:
        """What has the keys on a page; None is what has them while everything is shown."""
        raise NotImplementedError

    def focus_main(self) -> None:
        """Give the keys to what has them while everything is shown."""
        raise NotImplementedError

    def show_page(self) -> None:
        """Update what depends on the page."""

    def watch_page(self, page: str) -> None:
        """Show one page, and give it the keys."""
        for name in self._pages.names:
            self.set_class(name == page, f"-page-{name}")
        self._pages.show(page)
        self.show_page()
        if (target := self.page_widget(page)) is not None:
            target.focus()
        else:
            self.focus_main()

    @on(Pages.Picked)
    def _page_picked(self, message: Pages.Picked) -> None:
        self.page = message.page

    def action_page(self, page: str) -> None:
        """Show a page alone, or all again."""
        self.page = "main" if self.page == page else page

    def action_back(self) -> None:
        """Remove the chart's cursor, then show all pages, then go back to the previous screen."""
        if self.chart_escape():
            return
        if self.page != "main":
            self.page = "main"
        else:
            self.dismiss()
