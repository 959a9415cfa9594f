"""The pages of a gate: whatever names hold, they are shown and never spoken; in a browser, the page works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as xml

import msgspec
import pytest

from equivcheck.coverage import Coverage
from equivcheck.engine.counts import Counts, TensorCounts, TypeCounts
from equivcheck.engine.events import (
    AnyEvent,
    CaseCompared,
    CaseRerun,
    Collected,
    FaultTried,
    FindingReplayed,
    Finished,
    Planned,
    SliceFinished,
    Started,
)
from equivcheck.engine.failures import Told
from equivcheck.facts_of_case import facts
from equivcheck.gate.gather import gather
from equivcheck.gate.orders import key_of
from equivcheck.gate.result import Result
from equivcheck.report.github import lines_of
from equivcheck.report.html import as_html
from equivcheck.report.junit import as_junit
from equivcheck.report.markdown import as_markdown
from equivcheck.verdict import Status
from tests.selftest.test_gate import SUMS

HOSTILE = "</pre><script>window.spoken=1</script>\"'><img src=x onerror=window.spoken=1>&amp;{{7*7}}`|x\n::error::x\x07"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """
<script>
addEventListener("load", () => {
  const seen = () => document.querySelectorAll(".failure:not(.hidden)").length;
  const filter = document.getElementById("filter"), source = document.getElementById("source");
  const found = {all: seen()};
  filter.value = "no such text"; filter.dispatchEvent(new Event("input")); found.none = seen();
  filter.value = "second"; filter.dispatchEvent(new Event("input")); found.filtered = seen();
  filter.value = ""; filter.dispatchEvent(new Event("input"));
  source.selectedIndex = 1; source.dispatchEvent(new Event("change")); found.source = seen();
  found.links = [...document.querySelectorAll("nav a")].every(a => document.querySelector(a.getAttribute("href")));
  found.wide = document.documentElement.scrollWidth - innerWidth;
  found.over = [...document.querySelectorAll("main *")].filter(it => !it.closest(".scroll")
    && it.getBoundingClientRect().right > innerWidth + 1).map(it => it.outerHTML.slice(0, 90)).slice(0, 5);
  found.spoken = window.spoken || 0;
  found.foreign = document.querySelectorAll("img, iframe, link[rel=stylesheet], script[src]").length;
  document.documentElement.dataset.probe = JSON.stringify(found);
});
</script>
"""


def hostile() -> Result:
    """A result in which every text that is not ours holds what no page may run."""
    coverage = Coverage()
    coverage.add(facts(SUMS), paths=(HOSTILE,))
    counts = Counts(
        {"passed": 30, "mistrusted": 2, "known": 1, "unsupported": 4},
        {HOSTILE: 4},
        tensors={"output": TensorCounts(100, 40, 100, 0, 0.75)},
        types={"fp32": TypeCounts({"passed": 30}, [9, *range(14)])},
        ulps={HOSTILE: {"0": 90, "1": 9, "over 1024": 1}},
    )
    counts.share(HOSTILE, 1, 3)
    told = [Told(f"{name}{HOSTILE}", Status.FAILED, f"{name}<b>.json", "w", "replay", name + HOSTILE) for name in "ab"]
    second = Told("second", Status.CRASHED, "second.json", "second.json", HOSTILE, HOSTILE)
    events: list[AnyEvent] = [
        Started({}, {"torch": HOSTILE}, HOSTILE, HOSTILE, "2026-11-30T00:00:00+00:00"),
        Collected(1, (HOSTILE,), (HOSTILE,), {HOSTILE: {HOSTILE: HOSTILE}}),
        SliceFinished(HOSTILE, HOSTILE, 0, "failed", 1, counts, tuple(told), coverage=coverage.to_builtins()),
        SliceFinished("other", HOSTILE, 0, "failed", 1, Counts({"crashed": 1}), (second,)),
        CaseRerun("saved", HOSTILE, HOSTILE, Status.PASSED, reason=HOSTILE, recorded="failed"),
        CaseCompared(HOSTILE, HOSTILE, "within bounds", 10, 9, 1, {"0": 9, "1": 1}, reason=HOSTILE),
        FindingReplayed(HOSTILE, HOSTILE, "different", HOSTILE),
        FaultTried(HOSTILE, HOSTILE, HOSTILE, True, 2, HOSTILE),
        Finished(1, 3.5),
    ]
    keys = tuple(key for event in events if (key := key_of(event)))
    events.insert(
        2, Planned({"subject": HOSTILE, HOSTILE: HOSTILE, "baseline": "x"}, (*keys, HOSTILE), (*keys, HOSTILE))
    )
    found = gather(events, Path("nowhere"))
    found.failures[-1] = msgspec.structs.replace(found.failures[-1], script="scripts/a.py")
    return found


def page() -> str:
    return as_html(hostile(), {"scripts/a.py": HOSTILE})


def test_html_holds_no_text_that_is_not_escaped() -> None:
    text = page()
    assert text.count("<script>") == 1, "the page's own"
    assert "<img" not in text
    assert "onerror=window" in text, "shown"
    assert "&lt;script&gt;" in text
    assert "{{7*7}}" in text
    assert "&amp;amp;49" not in text


def test_html_asks_nobody() -> None:
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page()) == []
    assert "default-src 'none'" in page()


def test_html_of_nothing_is_a_page() -> None:
    text = as_html(gather([], Path("nowhere")), {})
    assert "no test was collected" in text
    assert text.rstrip().endswith("</html>")


def test_junit_is_xml_whatever_it_holds() -> None:
    root = xml.fromstring(as_junit(hostile()))
    assert int(root.get("failures", "")) >= 3
    messages = [element.get("message", "") for element in root.iter("failure")]
    assert any("<script>" in message for message in messages)


def test_markdown_is_no_html_and_no_table_of_its_own() -> None:
    text = as_markdown(hostile())
    outside = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", text)
    assert "<script" not in outside
    assert "<img" not in outside
    widths = {line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("| ")}
    assert len(widths) == 1, "every row has as many cells"


def test_annotations_are_one_line_each() -> None:
    lines = lines_of(hostile())
    assert all("\n" not in line and line.startswith(("::error title=", "::warning title=")) for line in lines)
    assert lines[-1].startswith("::error title=equivcheck gate::WRONG")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; apt-get install chromium brings one")
@pytest.mark.parametrize("width", [1280, 500], ids=["desktop", "phone"])
def test_the_page_works_in_a_browser(tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    file = tmp_path / "report.html"
    file.write_text(page().replace("</body>", PROBE + "</body>"), encoding="utf-8", errors="replace")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    probe = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert probe is not None
    found = msgspec.json.decode(probe[1].replace("&quot;", '"').encode())
    assert found["spoken"] == 0
    assert found["foreign"] == 0
    assert (found["all"], found["none"], found["filtered"], found["source"]) == (3, 0, 1, 2)
    assert found["links"]
    assert (found["over"], found["wide"] <= 0) == ([], True), "nothing but tables and charts scrolls sideways"
    picture = tmp_path / "page.png"
    shot = [part for part in command if part not in ("--dump-dom", "--enable-logging=stderr")]
    subprocess.run([*shot[:-1], f"--screenshot={picture}", shot[-1]], capture_output=True, timeout=120, check=True)
    assert picture.stat().st_size > 20_000, "something was drawn"
