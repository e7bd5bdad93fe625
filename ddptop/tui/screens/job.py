"""The job screen: is it alive, how far is it, is it learning, and which rank is the outlier."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from ddptop.draw.panels import about, cause_lines, setback_lines
from ddptop.job.figures.ranks import RANK_WORDS, imbalance_note, ranks_that_match
from ddptop.job.filter import RANK_EXAMPLES, Filter, parse
from ddptop.job.help import guilty
from ddptop.job.keys import SCREENS, key
from ddptop.job.series import whose_loss
from ddptop.job.status import SET_BACK, alerts_of, setback
from ddptop.sources.job import JobAnswer, JobDetail, JobQuery
from ddptop.sources.query import Followed
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import JobBound
from ddptop.tui.widgets.bars import FilterBar
from ddptop.tui.widgets.charts import LossChart
from ddptop.tui.widgets.devices import DevicesTable
from ddptop.tui.widgets.job import AlertsPanel, CausePanel, EventsTable, JobHeader
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.logs import LogPane
from ddptop.tui.widgets.ranks import RankPanel

TOP_SHARE = {"cards": 0.42, "table": 0.42, "heat": 0.62}
"""Maximum share of the height for ranks and devices, by shape."""

LEAST_CHART = 6
"""Rows reserved for the chart; with fewer, a map hides it."""

SMALL_CHART = 4
"""Minimum height of a chart."""

MAP_ONLY = 32
"""On screens with fewer rows, a map replaces the chart."""


class JobScreen(JobBound[JobAnswer]):
    """Header, ranks as cards, a table, or a map, losses, events, and the selected rank's log."""

    DEFAULT_CSS = Path(__file__).with_name("job.tcss").read_text(encoding="utf-8")

    KEYS = "a job"
    PAGES = {"events": "#events", "log": "LogPager", "devices": "#devices"}
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(self, job: str, *, foreign: bool = False, readonly: bool = False) -> None:
        """Show `job`; `foreign` means that ddptop did not launch it."""
        super().__init__(job, readonly=readonly)
        self.foreign = foreign
        self._job_id: str | None = None
        self._own_choice: int | None = None
        """The rank that was selected automatically; if another one is, the user selected it."""
        self._cause = CausePanel()
        self._header = JobHeader()
        self._alerts = AlertsPanel()
        self._setback = CausePanel()
        self._devices = DevicesTable(cursor_needs_focus=True)
        self._chart = LossChart()
        self.charts = (self._chart,)
        self._events = EventsTable()
        self._filter = FilterBar(RANK_EXAMPLES)
        self._wanted = Filter()
        self.ranks = RankPanel()
        """The ranks."""
        self.log_view = LogPane()
        """The selected rank's log."""

    @property
    def subject(self) -> tuple[object, ...]:
        """The job."""
        return (self.job, self.foreign)

    def compose(self) -> ComposeResult:
        """All panels, the cause of a failure first; the stylesheet decides which are visible."""
        yield from (self._title, self._cause, self._header, self._alerts, self._setback)
        yield self._pages
        with Horizontal(id="top"):
            yield from (self.ranks, self._devices)
        yield self._chart
        with Horizontal(id="bottom"):
            yield from (self._events, self.log_view)
        yield from (self._filter, self._keys)

    def on_mount(self) -> None:
        """Focus the ranks."""
        self.focus_main()

    @property
    def detail(self) -> JobDetail | None:
        """The latest details of the job; None before the first answer, and if the job is gone."""
        return None if self.answer is None else self.answer.detail

    @property
    def chosen_rank(self) -> int | None:
        """The rank under the cursor."""
        return self.ranks.rank

    def needs(self) -> JobQuery:
        """This job, its chart at the drawn width, and the selected rank's log."""
        rank = self.ranks.rank
        return JobQuery(
            job=self.job,
            chart=self.chart_query(max(60, 2 * self.app.size.width), rank),
            devices=self.foreign,
            foreign=self.foreign,
            followed=Followed(self.job, rank) if self.foreign else None,
        )

    def show(self, answer: JobAnswer) -> None:
        """Update every panel."""
        detail, now = answer.detail, answer.now
        right = self.place(answer.look)
        self._header.display = detail is not None  # the values below are the last known
        if detail is None:
            self._title.show(f"{self.job} no longer exists", right)
            self._keys.show(None, foreign=self.foreign)
            return
        view = detail.view
        if view.job_id != self._job_id:  # an earlier job had this name
            self._job_id, self._own_choice = view.job_id, None
        self._title.show(self.job, right, about(view) if view.is_foreign else "")
        self._header.show(view, now, detail.recent.trend)
        alerts = self.alerts(view, detail.trouble)
        height = self.size.height
        self._alerts.show(alerts, now, 5 if height >= 32 else 4 if height >= 24 else 2)
        self._show_cause(detail)
        self._pages.show(self.page)
        self._keys.show(view)
        note, reason = imbalance_note(view.snapshot), view.snapshot.device_note
        self._devices.show(view.snapshot.gpus, answer.look, reason=reason, note=note)
        self._show_ranks(detail, now)
        self._select_guilty(detail)
        self._show_chart(detail)
        self._events.show(detail.events)
        self._show_log(detail)

    def _select_guilty(self, detail: JobDetail) -> None:
        """Select the rank that failed or that an alert names, unless the user selected one."""
        known, selected = {rank.rank for rank in detail.ranks}, self.ranks.rank
        if self._own_choice not in known:
            self._own_choice = selected
        found = guilty(detail.view)
        named = [a.ranks[0] for a in alerts_of(detail.view) if a.ranks and a.severity != "info"]
        wanted = next(iter(named), None) if found is None else found.rank
        if wanted in known and wanted != selected == self._own_choice:
            self._own_choice = wanted
            self.call_after_refresh(lambda: self.ranks.shown.move_to(str(wanted)))

    def _show_log(self, detail: JobDetail) -> None:
        """Show the log of the selected rank."""
        self.log_view.show(detail.view, self.ranks.rank, guilty(detail.view))

    def _show_cause(self, detail: JobDetail) -> None:
        """Show why the job ended, or why its previous attempt failed."""
        view, state = detail.view, detail.view.snapshot
        rows = max(4, min(11, self.size.height // 3))
        last = setback(view, view.read_at) if view.is_live else None
        if last is None:
            self._setback.fit(None)
        else:
            is_over = state.cause is None and state.attempt is not None
            attempt = (state.attempt or 0) - 1 if is_over else state.attempt
            rows = min(rows, 4) if view.state in SET_BACK else 2
            self._setback.fit(lambda cells: setback_lines(attempt, last, cells, rows))
        if state.cause is None or view.is_live:
            self._cause.fit(None)
        else:
            from ddptop.draw import story  # needed only for a failed job

            said = view.state, state.cause, detail.cause_tail
            now = "" if view.is_foreign else story.what_now(state.cause, view.state, is_last=True)
            self._cause.fit(lambda cells: cause_lines(*said, cells, rows, now))

    def _show_ranks(self, detail: JobDetail, now: dt.datetime) -> None:
        """Give ranks and devices the rows they need, up to a share of the screen."""
        if (state := detail.view.snapshot) is not None and self._wanted:
            detail = replace(detail, only=ranks_that_match(state, self._wanted))
        self._show_matches(detail)
        narrow = self.has_class("-narrow") or self.has_class("-short")
        width, height = self.size
        fixed = (self._header, self._alerts, self._cause, self._setback)
        below = self.rows_below() + self._filter.display
        rest = height - 2 - narrow - below - sum(map(_rows_of, fixed))
        shape = self.ranks.usual(detail)
        most = max(5, min(rest - LEAST_CHART, int(height * TOP_SHARE[shape])))
        if shape == "heat" and height < MAP_ONLY:
            most = max(5, rest)
        beside = not narrow and has_devices_apart(detail)
        cells = 13 * width // 25 if beside else width
        wanted = self.ranks.show(detail, now, detail.recent, cells, most)
        self._devices.set_class(not beside, "-replaced")
        if beside:
            wanted = min(most, max(wanted, self._devices.rows_wanted()))
        least = LEAST_CHART if shape == "heat" else SMALL_CHART
        self._chart.set_class(rest - wanted < least, "-no-room")
        self.query_one("#top").styles.height = "1fr" if self.page == "devices" else wanted

    def _show_ranks_again(self) -> None:
        if (detail := self.detail) is not None and self.answer is not None:
            self._show_ranks(detail, self.answer.now)

    def rows_below(self) -> int:
        """Rows that a subclass needs below the panels."""
        return 0

    def _show_chart(self, detail: JobDetail) -> None:
        whose = whose_loss(detail.view.snapshot)
        self._chart.show_job(detail.chart, whose, self.ranks.rank or 0)

    def _show_matches(self, detail: JobDetail) -> None:
        """Show how many ranks match the filter, or what is wrong with it."""
        count = f"{len(detail.ranks)} of {len(detail.view.snapshot.ranks)}" if self._wanted else ""
        self._filter.show_matches(self._wanted, count)

    # --- actions ---------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Open the filter for ranks."""
        self._filter.open()
        self._show_ranks_again()

    @on(FilterBar.Changed)
    def _filter_by(self, event: FilterBar.Changed) -> None:
        self._wanted = parse(event.text, RANK_WORDS)
        self._show_ranks_again()

    @on(FilterBar.Closed)
    def _filter_kept(self) -> None:
        self._show_ranks_again()
        if self.page == "main":  # the ranks had the focus, perhaps in another shape
            self.focus_main()

    @on(RankPanel.Moved)
    def _rank_chosen(self) -> None:
        if (detail := self.detail) is not None:
            self._show_chart(detail)
            self._show_log(detail)
        self.post_message(QueryChanged())

    @on(RankPanel.Chosen)
    def action_open_rank(self) -> None:
        """Open the selected rank, or the launcher's log."""
        if self.ranks.rank is None:
            self.action_logs()
        else:
            self.open("rank", self.job, self.ranks.rank, foreign=self.foreign)

    def show_page(self) -> None:
        """Fit the ranks to the page."""
        self._show_ranks_again()

    def focus_main(self) -> None:
        """Focus the widget that has the keys on the main page."""
        self.ranks.shown.focus()

    def action_leave(self) -> None:
        """Go back, or quit if ddptop was opened on this job."""
        if self.page != "main":
            self.page = "main"
        elif self.is_first:
            self.app.exit()
        else:
            self.dismiss()

    def action_rank(self, step: int) -> None:
        """Select the next or previous rank, whatever has the focus."""
        self.ranks.shown.step(step)

    def action_shape(self) -> None:
        """Switch between cards, table, and map."""
        wanted = self.ranks.next_shape()
        self._show_ranks_again()
        if self.ranks.shape != wanted:
            why = "not enough room for cards"
            if wanted == "heat" and self._wanted:
                why = f"the map cannot be filtered ({key('view.back')} clears the filter)"
            self.notify(f"{why}; showing the table")

    def action_figure(self) -> None:
        """Show the next figure in the map."""
        if self.ranks.shape == "heat":
            self.ranks.heat.next_figure()
        else:
            self.notify(f"available only in the rank map; press {key('ranks.shape')} to show it")

    def action_sort(self) -> None:
        """Sort ranks by number, or worst first."""
        if self.ranks.shape == "table":
            self.ranks.table.next_order()
        else:
            self.notify(f"available only in the rank table; press {key('ranks.shape')} to show it")

    def explain(self) -> list[tuple[str, str]]:
        """Help on the item under the cursor and on the job's state."""
        return [*super().explain(), *self._header.explain()]


def has_devices_apart(detail: JobDetail) -> bool:
    """Whether the ranks' rows do not show all devices, so that these are shown beside them."""
    snapshot = detail.view.snapshot
    if not snapshot.ranks:
        return True
    return sum(gpu.parent_uuid is None for gpu in snapshot.gpus) > len(snapshot.ranks)


def _rows_of(widget: LinesView) -> int:
    """The current height of a widget that sets its own height."""
    height = widget.styles.height
    return 0 if not widget.display or height is None else int(height.value)
