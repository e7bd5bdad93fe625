"""The rank screen: what a rank is doing, and since when it deviates."""

from __future__ import annotations

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Horizontal

from ddptop.charts.curves import Curves
from ddptop.charts.plots import figures_of
from ddptop.draw.ranks import fact_lines
from ddptop.job.help import explain_rank, glossary, guilty
from ddptop.job.keys import SCREENS, key
from ddptop.job.ranks import device_of, device_uuid, find_rank, sentence, step_parts
from ddptop.job.record import Job
from ddptop.job.series import whose_loss
from ddptop.sources.job import RankAnswer, RankQuery
from ddptop.sources.query import Followed
from ddptop.style import Span
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import JobBound
from ddptop.tui.widgets.bars import Pages
from ddptop.tui.widgets.charts import FigureChart, LossChart
from ddptop.tui.widgets.job import AlertsPanel, RankHead
from ddptop.tui.widgets.logs import LogPane
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import Alert, NodeSnapshot

TITLES = (
    ("main", "loss"),
    ("split", "step time"),
    ("load", "load"),
    ("log", "log"),
)
"""Name and title of each page, for screens that have room for only one."""

_NOTHING = RankDeviation()
_OUTSIDE = "n/a: ddptop did not start this job, so step times are not measured"
_UNSEEN = "n/a: the device is unknown, and ddptop does not record this job's history"


class RankScreen(JobBound[RankAnswer]):
    """A sentence, figures, loss, step time, load, and the last log lines of one rank."""

    DEFAULT_CSS = """
    RankScreen {
        overflow: hidden;
        #upper, #lower { height: 1fr; }
        #chart, #split, #load, #log { width: 1fr; height: 100%; }
        #split, #log { margin: 0 0 0 1; }
        #pages { display: none; }
    }
    RankScreen.-narrow #pages, RankScreen.-short #pages { display: block; }
    RankScreen.-narrow.-page-main #lower, RankScreen.-short.-page-main #lower { display: none; }
    RankScreen.-narrow.-page-main #split, RankScreen.-short.-page-main #split { display: none; }
    RankScreen.-page-split #lower, RankScreen.-page-split #chart { display: none; }
    RankScreen.-page-load #upper, RankScreen.-page-load #log { display: none; }
    RankScreen.-page-log #upper, RankScreen.-page-log #load { display: none; }
    RankScreen.-page-split #split, RankScreen.-page-log #log { margin: 0; }
    """

    KEYS = "a rank"
    PAGES = {"split": "#split", "load": "#load", "log": "LogPager"}
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(
        self, job: str, rank: int, *, foreign: bool = False, readonly: bool = False
    ) -> None:
        """Show `rank` of `job`; `foreign` means that ddptop did not launch it."""
        super().__init__(job, Pages(TITLES), readonly=readonly)
        self.rank, self.foreign = rank, foreign
        self._head = RankHead()
        self._alerts = AlertsPanel()
        self._chart = LossChart()
        self._split = FigureChart("step time", id="split")
        self._load = FigureChart("load and memory", id="load")
        self.charts = (self._chart, self._split, self._load)
        self.log_view = LogPane()
        """The log of the rank."""

    @property
    def subject(self) -> tuple[object, ...]:
        """The rank."""
        return (self.job, self.rank, self.foreign)

    def compose(self) -> ComposeResult:
        """All panels; the stylesheet decides which are visible."""
        yield from (self._title, self._head, self._alerts, self._pages)
        with Horizontal(id="upper"):
            yield from (self._chart, self._split)
        with Horizontal(id="lower"):
            yield from (self._load, self.log_view)
        yield self._keys

    def on_mount(self) -> None:
        """Focus the loss chart, which compares the rank with the median."""
        self._chart.set_options(mode="rank", rank=self.rank)
        self.focus_main()

    @property
    def chosen_rank(self) -> int | None:
        """The rank shown."""
        return self.rank

    @property
    def profiled(self) -> tuple[int, ...]:
        """The rank shown."""
        return (self.rank,)

    def needs(self) -> RankQuery:
        """The job with its losses, the rank's history, and its log."""
        query = RankQuery(
            job=self.job,
            rank=self.rank,
            chart=self.chart_query(max(60, self.app.size.width), self.rank),
        )
        if not self.foreign:
            return query
        device = None if self.view is None else device_uuid(self.view.snapshot, self.rank)
        followed = Followed(self.job, self.rank)
        return replace(query, devices=True, foreign=True, followed=followed, device=device)

    def show(self, answer: RankAnswer) -> None:
        """Update every panel."""
        view, now = answer.view, answer.look.taken_at
        self._title.show(f"{self.job}  rank {self.rank}", self.place(answer.look))
        if view is None:
            self._head.show((f"{self.job} no longer exists", "dim"), [], [])
            return
        state = view.snapshot
        self._keys.show(view)
        self._pages.show(self.page)
        rank = find_rank(state, self.rank)
        alerts = self._alerts_of(view, answer.trouble)
        height = self.size.height
        self._alerts.show(alerts, now, 4 if height >= 32 else 3 if height >= 24 else 1)
        if rank is None or state is None:
            self._head.show(self._missing(state), [], [])
        else:
            apart = answer.deviations.get(self.rank, _NOTHING)
            facts = fact_lines(rank, apart, state, now, view.is_live)
            about = explain_rank(rank, apart, now, view.is_live)
            rows = 3 if height >= 32 else 2 if height >= 20 else 1
            self._head.show(sentence(rank, view, apart, now), facts[:rows], about)
        self._show_charts(answer, view)
        self.log_view.show(view, self.rank, guilty(view))

    def _alerts_of(self, view: Job, trouble: str | None) -> list[Alert]:
        """Alerts for the rank and its device, and one for what could not be read."""
        gpu = device_of(view.snapshot, self.rank)
        return [
            alert
            for alert in self.alerts(view, trouble)
            if alert.id == "files"
            or self.rank in alert.ranks
            or (gpu is not None and gpu.index in alert.gpus and alert.host in (None, gpu.host))
        ]

    def _missing(self, state: NodeSnapshot | None) -> Span:
        ranks = [] if state is None else state.ranks
        if not ranks:
            return f"rank {self.rank} has not started yet", "busy"
        return (
            f"no rank {self.rank}; press {key('rank.previous')} or {key('rank.next')} to step "
            f"through the {len(ranks)} ranks",
            "dim",
        )

    def _show_charts(self, answer: RankAnswer, view: Job) -> None:
        self._chart.show_job(answer.chart, whose_loss(view.snapshot), self.rank)
        history = answer.history
        if history is not None and history.rank == self.rank:
            self._split.show(history.steps, step_parts(find_rank(view.snapshot, self.rank)))
            self._load.show(history.load)
        elif view.is_foreign:
            device, seen = device_of(view.snapshot, self.rank), answer.device_history
            self._split.show(Curves(empty=_OUTSIDE))
            if device is not None and seen is not None and seen.device == device.uuid:
                self._load.show(figures_of(device, seen))
            else:
                self._load.show(Curves(empty=_UNSEEN))

    # --- actions ---------------------------------------------------------------------------------

    def focus_main(self) -> None:
        """Focus the loss chart."""
        self._chart.focus()

    def action_rank(self, step: int) -> None:
        """Show the next or previous rank."""
        state = None if self.view is None else self.view.snapshot
        numbers = [] if state is None else [rank.rank for rank in state.ranks]
        if not numbers or self.answer is None:
            return
        place = (
            numbers.index(self.rank) if self.rank in numbers else 0 if step > 0 else len(numbers)
        )
        self.rank = numbers[min(len(numbers) - 1, max(0, place + step))]
        self._split.show(Curves(empty="reading history..."))
        self._load.show(Curves(empty="reading history..."))
        self.show(self.answer)
        self.post_message(QueryChanged())

    def explain(self) -> list[tuple[str, str]]:
        """Explain the sentence, then the item under the cursor."""
        return [*self._head.explain(), *super().explain(), *glossary("data wait", "sync")]
