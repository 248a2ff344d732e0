"""The dashboard of a live cluster, in a real browser against a real controller."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import AXE, HOSTILE, Berth, Looker, axe_rules

from berth.testing.up import until

pytestmark = pytest.mark.slow

WHERE_IS = """id => {
  const map = document.querySelector('.map .over').getBoundingClientRect();
  const state = berth.state, job = state.jobs[state.byId.get(id)];
  const [machine, , numbers] = state.attempts[job.attempt].seats[0];
  return {machine, number: numbers[0], left: map.left, top: map.top};
}"""
PICTURE = (
    """() => [...(berth.present?.owners() ?? [])].map(at => at < 0 ? null : berth.present.jobs[at].id)"""
)
VIEWS = ("#/", "#/jobs", "#/machines", "#/trends", "#/what-if")


def text(page: Any, selector: str) -> str:
    return " ".join(page.locator(selector).all_inner_texts())


def go(page: Any, hash_: str) -> None:
    page.evaluate("hash => { location.hash = hash }", hash_)


def sees(page: Any, selector: str, words: str) -> None:
    page.locator(selector).filter(has_text=words).first.wait_for()


def was_told(page: Any, words: str) -> None:
    until(lambda: any(words in one for one in page.evaluate("window.toasts")))


def fill(berth: Berth) -> None:
    """A job on every device, so that all others wait."""
    job = berth.put("all", 16)
    until(lambda: berth.state_of(job) == "running")


def devices(berth: Berth) -> list[str | None]:
    """Who is on which device, as the controller says."""
    machines = berth.ask("GET", "cluster")["machines"]
    return [one["jobs"].get(str(number)) for one in machines for number in range(one["size"])]


def test_the_token_is_taken_from_the_address_and_wiped_from_it(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    sees(page, "nav", "Cluster")
    assert page.url == f"{berth.url}/#/"
    stored = page.evaluate("sessionStorage.getItem('berth.token')")
    assert stored not in page.url
    assert berth.ask("GET", "me", token=stored)["role"] == "admin"  # traded for the code in the address
    assert page.evaluate("Object.keys(localStorage)") in ([], ["berth.theme"])


def test_without_a_token_the_page_asks_for_one(berth: Berth, look: Looker) -> None:
    page = look.open(berth.url)
    page.fill("input[name=token]", "wrong")
    page.click("button[type=submit]")
    sees(page, "form", "does not know this token")
    page.fill("input[name=token]", berth.token)
    page.click("button[type=submit]")
    sees(page, ".stats", "devices in use")
    look.complaints.remove(
        "error: Failed to load resource: the server responded with a status of 401 (Unauthorized)"
    )
    look.complaints[:] = [one for one in look.complaints if "401" not in one]


def test_an_address_with_a_token_may_be_given_to_a_page_that_asks_for_one(berth: Berth, look: Looker) -> None:
    page = look.open(berth.url)
    sees(page, "form", "needs a token")
    go(page, f"#token={berth.token}")
    sees(page, ".stats", "devices in use")
    assert page.url == f"{berth.url}/#/"


def test_gangs_beside_each_other_have_different_colours(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    for number in range(16):
        berth.put(f"one-{number}", 1)
    sees(page, ".stats .use", "16 of 16")
    colours = page.evaluate(
        """async () => {
          await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
          const map = document.querySelector('.map canvas'), found = new Set();
          const pixels = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
          const {layOut} = await import('/web/layout.js');
          const measure = document.createElement('canvas').getContext('2d');
          measure.font = '12px system-ui, sans-serif';
          const {cluster} = berth.me, sizes = berth.state.sizes, ratio = window.devicePixelRatio || 1;
          const made = layOut(cluster, sizes, map.clientWidth, 560, text => measure.measureText(text).width);
          made.boxes.forEach((box, i) => { for (let n = 0; n < sizes[i]; n++) {
            const [x, y] = [box.x + n * made.pitch + 3, box.y + 3].map(value => Math.round(value * ratio));
            found.add(pixels.slice(4 * (y * map.width + x), 4 * (y * map.width + x) + 4).join());
          } });
          return found.size;
        }"""
    )
    assert colours == 16


def test_the_map_shows_who_is_where_as_the_controller_has_it(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    sees(page, ".stats .use", "0 of 16")
    first, second = berth.put("near", 4), berth.put("wide", 8)
    sees(page, ".stats .use", "12 of 16")
    assert page.evaluate(PICTURE) == devices(berth)
    assert page.evaluate(PICTURE).count(second) == 8
    empty = "() => document.querySelector('.map canvas').toDataURL()"
    by_job = page.evaluate(empty)
    page.check("input[value=tier]")
    sees(page, ".legend", "within one rack")
    until(lambda: page.evaluate(empty) != by_job)
    berth.ask("POST", f"jobs/{first}/cancel")
    sees(page, ".stats .use", "8 of 16")
    assert page.evaluate(PICTURE) == devices(berth)


def test_pointing_names_a_job_and_clicking_opens_it(berth: Berth, look: Looker) -> None:
    job = berth.put(HOSTILE[0], 4)
    page = look.open(berth.address)
    until(lambda: job in page.evaluate(PICTURE))
    place = page.evaluate(WHERE_IS, job)
    found = page.evaluate(
        """async ({machine, number}) => {
          const {layOut} = await import('/web/layout.js');
          const pen = document.createElement('canvas').getContext('2d');
          pen.font = '12px system-ui, sans-serif';
          const width = document.querySelector('.map').clientWidth;
          const made = layOut(berth.state.cluster, berth.state.sizes, width, 560, t => pen.measureText(t).width);
          return [made.boxes[machine].x + number * made.pitch + made.cell / 2, made.boxes[machine].y + made.cell / 2];
        }""",
        place,
    )
    x, y = place["left"] + found[0], place["top"] + found[1]
    page.mouse.move(x, y)
    sees(page, ".tip", HOSTILE[0])
    look.keep(page, "tip")
    page.mouse.click(x, y)
    sees(page, "h1", HOSTILE[0])
    assert page.url.endswith(f"#/job/{job}")


def test_the_queue_shows_position_reason_and_expected_start(berth: Berth, look: Looker) -> None:
    fill(berth)
    waiting = [berth.put("small", 2), berth.put("big", 16)]
    page = look.open(berth.address)
    rows = page.locator(".queue .row:visible")
    until(lambda: rows.count() == 2)
    sees(page, ".queue .row .why", "needs 2 devices")
    until(lambda: "in " in text(page, ".queue .row .starts"))
    until(lambda: any("starts when" in row for row in page.locator(".queue .row .why").all_inner_texts()))
    assert not any("starts in" in row for row in page.locator(".queue .row .why").all_inner_texts())
    order = berth.ask("GET", "queue")["order"]
    assert sorted(order) == sorted(waiting)
    until(
        lambda: page.locator(".row:visible .name .id").all_inner_texts() == order,
    )
    until(lambda: page.locator(".row:visible .place").all_inner_texts() == ["1", "2"])
    look_back = "async () => { await berth.readPast(); berth.look(berth.clock); }"
    page.evaluate(look_back)  # the journal has no order of the queue: no row states a place
    until(lambda: page.locator(".row .place:visible").count() == 0)
    assert page.locator(".row:visible").count() == 2
    page.locator(".heads .place").wait_for(state="hidden")
    page.evaluate("() => berth.look(null)")
    go(page, f"#/job/{waiting[0]}")
    sees(page, ".reason", "It needs 2 devices")
    assert page.locator(".log").count() == 0  # it never ran


def test_jobs_are_searched_and_walked_by_keyboard(berth: Berth, look: Looker) -> None:
    fill(berth)
    names = ["apple", "pear", "apple tart"]
    ids = [berth.put(name, 1) for name in names]
    page = look.open(berth.address)
    sees(page, ".queue .row", ids[2])
    page.keyboard.press("/")
    page.wait_for_url("**/#/jobs")
    until(lambda: page.evaluate("document.activeElement.id") == "search")
    page.keyboard.type("apple")
    until(lambda: page.locator(".row:visible").count() == 2)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    sees(page, ".row.selected", ids[2])
    page.keyboard.press("Enter")
    sees(page, "h1", "apple tart")
    page.keyboard.press("Escape")
    page.wait_for_url("**/#/jobs")
    page.keyboard.press("?")
    sees(page, "dialog", "next and previous row")
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    page.keyboard.press("3")
    page.wait_for_url("**/#/machines")


def test_a_job_page_has_facts_attempts_events_and_the_log_as_it_grows(berth: Berth, look: Looker) -> None:
    job = berth.put("talker", 8)
    page = look.open(berth.address)
    go(page, f"#/job/{job}")
    sees(page, "h1", "talker")
    sees(page, ".log", "line 3 of rank 0")
    sees(page, ".events", "started")
    assert "within one rack" in text(page, ".events")
    sees(page, "table", "r0-m0:4, r0-m1:4")
    assert "still there" in text(page, "table")
    sees(page, ".reason", "Why there: it fits within one rack. It should end in ")  # once there is a forecast
    sees(page, "section", "step (modelled)")
    page.fill("#rank", "1")
    page.locator("#rank").press("Tab")
    sees(page, ".log", "line 1 of rank 1")
    assert "of rank 0" not in text(page, ".log")
    assert "sleep 0.2" in text(page, ".facts")
    look.keep(page, "job")


def test_what_needs_attention_is_first_and_leads_to_it(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    sees(page, ".stats .use", "0 of 16")
    before = berth.ask("GET", "attention")["failed"]["count"]
    lines = "i=1; while [ $i -le 30 ]; do echo line $i.; i=$((i+1)); done; exit 3"
    job = berth.submit(lines, name="broken", gpus=2, per="machine", restarts=0)
    until(lambda: berth.state_of(job) == "failed")
    berth.ask("POST", "machines/r1-m1/drain")
    try:
        sees(page, ".attention .bad", f"{before + 1} failed")
        sees(page, ".attention .bad", "broken: its command exited with an error")
        sees(page, ".attention .warn", "r1-m1 drained")
        sees(page, ".attention .warn", "by admin")
        look.keep(page, "attention")
        page.locator(".attention .warn").filter(has_text="drained").click()
        until(lambda: page.locator(".machine.row:visible").count() == 1)
    finally:
        berth.ask("POST", "machines/r1-m1/undrain")
    go(page, "#/")
    page.locator(".attention .bad").click()
    assert page.url.endswith("#/jobs?show=failed")
    page.locator(".row:visible a").filter(has_text="broken").first.click()
    sees(page, ".pill", "failed")
    sees(page, ".reason", "its command exited with an error, exit code 3.")
    assert text(page, ".tail .log").split("\n") == [f"line {i}." for i in range(11, 31)]
    page.click("#resubmit")
    page.click("dialog button.primary")
    was_told(page, "submitted as j")
    until(lambda: page.url.split("/")[-1] not in (job, ""))
    again = page.url.split("/")[-1]
    until(lambda: berth.state_of(again) == "failed")
    assert berth.ask("GET", f"jobs/{again}")["spec"] == berth.ask("GET", f"jobs/{job}")["spec"]


def test_a_new_job_has_a_colour_unlike_all_others(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    sees(page, ".stats .use", "0 of 16")
    chosen = page.evaluate(
        """async () => {
          const {farthest} = await import('/web/map.js'), hues = 18, used = new Uint16Array(2 * hues), chosen = [];
          for (let job = 0; job < 5; job++) {  // each beside the one before it
            const colour = farthest(7 * job, used, chosen.slice(-1));
            used[colour]++;
            chosen.push(colour);
          }
          return chosen.map((colour) => colour % hues);
        }"""
    )
    apart = [min((a - b) % 18, (b - a) % 18) for i, a in enumerate(chosen) for b in chosen[:i]]
    assert min(apart) >= 2, chosen  # 40 degrees of hue between any two
    assert min(min((a - b) % 18, (b - a) % 18) for a, b in pairwise(chosen)) >= 4, chosen


def test_colours_and_labels_of_gangs_stay_after_a_reload(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    jobs = [berth.put(f"gang-{number}", 4) for number in range(4)]
    until(lambda: all(berth.state_of(job) == "running" for job in jobs))
    sees(page, ".stats .use", "16 of 16")
    until(
        lambda: page.evaluate("Object.keys(JSON.parse(sessionStorage['berth.colours'] || '{}')).length") >= 4
    )
    picture = "() => document.querySelector('.map canvas').toDataURL()"
    before = page.evaluate(picture)
    page.reload()
    sees(page, ".stats .use", "16 of 16")
    until(lambda: page.evaluate(picture) == before)
    kept = page.evaluate("JSON.parse(sessionStorage['berth.colours'])")
    assert len({kept[job] for job in jobs}) == 4


def test_curves_are_still_there_after_a_restart(berth: Berth, look: Looker) -> None:
    job = berth.put("old", 8)
    until(lambda: berth.state_of(job) == "running")
    berth.stop()
    berth.start()
    page = look.open(berth.address)
    until(lambda: page.evaluate("berth.series?.complete"))
    began = page.evaluate("berth.series.time[0]")
    assert began < berth.ask("GET", f"jobs/{job}")["began"] + 120.0
    assert 8 in page.evaluate("berth.series.busy")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_no_view_has_a_fault_that_axe_finds(berth: Berth, look: Looker, width: int, scheme: str) -> None:
    fill(berth)
    job = berth.submit("exit 1", name="broken", gpus=1, restarts=0)
    waits = berth.put("waits", 2)
    page = look.open(berth.address, width=width, scheme=scheme, bypass_csp=True)
    sees(page, ".stats .use", "16 of 16")
    page.evaluate(axe_rules())
    jobs = ("#/jobs?show=running", f"#/job/{waits}", f"#/job/{job}")
    for hash_ in (*VIEWS, *jobs):
        go(page, hash_)
        page.wait_for_timeout(300)
        assert page.evaluate(AXE) == [], hash_
    go(page, f"#/job/{waits}")
    page.click("#cancel")
    sees(page, "dialog", "Cancel")
    assert page.evaluate(AXE) == [], "dialog"
    page.click("dialog button[type=button]")
    go(page, "#/what-if")
    page.fill("input[name=racks]", "2")
    page.click("button.primary")
    sees(page, "h2", "sooner, ")
    assert page.evaluate(AXE) == [], "an answer"
    page.fill("#moment", "9000")
    sees(page, ".banner", "This is the cluster at")
    for hash_ in (*VIEWS, *jobs):
        go(page, hash_)
        page.wait_for_timeout(300)
        assert page.evaluate(AXE) == [], f"{hash_} of the past"


def test_an_evicted_job_shows_the_preempting_job_and_the_cost(tmp_path: Path, look: Looker) -> None:
    berth = Berth(tmp_path / "state", "1x1x2:H100", "--policy", "srtf")
    berth.start()
    try:
        long = berth.put("long", 2)
        until(lambda: berth.state_of(long) == "running")
        quick = berth.submit("true", name="quick", gpus=2, duration="1s")
        until(lambda: berth.state_of(quick) == "finished" and berth.state_of(long) == "running")
        page = look.open(berth.address)
        go(page, f"#/job/{long}")
        sees(page, "table", f"outranked by {quick}")
        sees(page, "table", "of GPU time")
        look.keep(page, "evicted")
        page.close()
    finally:
        berth.empty()
        berth.stop()


def test_what_a_job_runs_is_shown_to_its_owner_only(berth: Berth, look: Looker) -> None:
    job = berth.put("secret", 1, run="sleep 600; echo hush")
    token = berth.berth("token", "add", "ana").stdout.split()[-1]
    page = look.open(f"{berth.url}/#token={token}")
    go(page, f"#/job/{job}")
    sees(page, ".jobhead", "secret")
    sees(page, ".events", "submitted")
    assert "hush" not in page.content()
    assert page.locator("#cancel").count() == 0
    assert page.locator(".log").count() == 0
    reported = berth.ask("GET", "journal?limit=20000", token=token)
    assert any(record["job"] == job for record in reported["records"])
    assert "hush" not in json.dumps(reported)


def test_a_job_is_cancelled_after_a_question(berth: Berth, look: Looker) -> None:
    job = berth.put("victim", 2)
    until(lambda: berth.state_of(job) == "running")
    page = look.open(berth.address)
    go(page, f"#/job/{job}")
    page.click("#cancel")
    sees(page, "dialog", f"Cancel {job}?")
    page.click("dialog button[type=button]")
    page.locator("dialog").wait_for(state="detached")
    assert berth.state_of(job) == "running"
    page.click("#cancel")
    page.click("dialog button.danger")
    was_told(page, f"{job} cancelled")
    sees(page, ".jobhead", "cancelled")
    until(lambda: berth.state_of(job) == "cancelled")


def test_an_action_that_fails_says_why(berth: Berth, look: Looker) -> None:
    job = berth.put("gone", 1)
    page = look.open(berth.address)
    go(page, f"#/job/{job}")
    page.click("#priority")
    berth.ask("POST", f"jobs/{job}/cancel")
    until(lambda: berth.state_of(job) == "cancelled")
    page.fill("dialog input", "5")
    page.click("dialog button.primary")
    sees(page, ".toast.bad", f"job {job} is over: cancelled")
    look.complaints[:] = [one for one in look.complaints if "409" not in one]


def test_priority_moves_a_job_up_the_queue(berth: Berth, look: Looker) -> None:
    fill(berth)
    ids = [berth.put("first", 4), berth.put("second", 4)]
    page = look.open(berth.address)
    go(page, f"#/job/{ids[1]}")
    page.click("#priority")
    page.fill("dialog input", "50")
    page.click("dialog button.primary")
    was_told(page, f"{ids[1]} has priority 50")
    sees(page, ".facts", "50")


def test_a_machine_is_drained_and_undrained(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    go(page, "#/machines")
    row = page.locator(".machine.row").filter(has_text="r1-m0")
    row.locator("button").click()
    sees(page, "dialog", "Drain r1-m0?")
    page.click("dialog button.primary")
    sees(page, ".machine.row", "drained")
    assert berth.ask("GET", "cluster")["machines"][2]["unavailable"] == ["drained"]
    go(page, "#/")
    sees(page, ".stats .use", "4 unavailable")
    look.keep(page, "drained")
    go(page, "#/machines")
    row.locator("button").click()
    page.click("dialog button.primary")
    until(lambda: berth.ask("GET", "cluster")["machines"][2]["unavailable"] == [])
    until(lambda: "drained" not in text(page, ".machine.row"))


def test_a_phone_shows_the_whole_name_of_a_drained_machine(berth: Berth, look: Looker) -> None:
    berth.ask("POST", "machines/r0-m1/drain")
    try:
        page = look.open(berth.address, width=390, height=844)
        sees(page, "nav", "Machines")
        go(page, "#/machines")
        sees(page, ".machine .state", "drained")
        sees(page, ".machine .state", " by ")
        assert page.title() == "Machines – berth"
        cut = "rows => rows.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
        assert page.locator(".machine .name").evaluate_all(cut) == []
    finally:
        berth.ask("POST", "machines/r0-m1/undrain")


def test_trends_have_curves_and_links_their_load(berth: Berth, look: Looker) -> None:
    spread = berth.put("spread", 12)
    until(lambda: berth.state_of(spread) == "running")
    page = look.open(berth.address)
    go(page, "#/trends")
    shown = ["Devices", "Jobs", "Waits", "Links", "Cost per hour"]  # no timers: this policy has none
    until(lambda: page.locator("h2:visible").all_inner_texts() == shown)
    until(lambda: page.locator(".chart canvas").count() == 4)
    sees(page, ".links", "1 job, 8 devices")
    sees(page, ".links", "1 job, 4 devices")
    usd = page.evaluate("berth.series.usd_per_hour.at(-1)")
    price = berth.ask("GET", "me")["cluster"]["device_types"][0]["usd_per_hour"]
    assert usd == pytest.approx(12 * price)
    assert page.evaluate("berth.series.busy.at(-1)") == 12
    look.keep(page, "trends")


def test_what_if_answers_with_a_small_table(berth: Berth, look: Looker) -> None:
    for _ in range(3):
        berth.put("long", 16)
    page = look.open(berth.address)
    go(page, "#/what-if")
    page.click("button.primary")
    sees(page, ".wide", "Nothing would change")
    page.fill("input[name=racks]", "2")
    page.click("button.primary")
    sees(page, "table", "2 more racks")
    sees(page, "table", "(modelled)")
    sees(page, "table", "−")
    sees(page, "h2", "2 sooner, 0 later, 1 at the same time")
    assert page.locator("td .sooner").count() == 2
    assert page.locator("td a").first.get_attribute("href").startswith("#/job/j")
    look.keep(page, "what-if")


def test_time_can_be_walked_back_and_forth(berth: Berth, look: Looker) -> None:
    first = berth.put("early", 4)
    until(lambda: berth.state_of(first) == "running")
    page = look.open(berth.address)
    sees(page, ".stats .use", "4 of 16")
    berth.ask("POST", f"jobs/{first}/cancel")
    sees(page, ".stats .use", "0 of 16")
    go(page, f"#/job/{first}")
    page.locator(".attempts button.link").click()  # the moment at which it was placed
    sees(page, ".banner", "This is the cluster at")
    sees(page, ".pill", "starting")  # not "cancelled": the page of a job shows that moment, too
    sees(page, ".reason", "Last before that:")
    assert "cancelled" not in text(page, ".events")
    assert page.locator("#resubmit").count() == 0  # actions are of now
    until(lambda: "?at=" in page.url)
    go(page, "#/")
    sees(page, ".stats .use", "4 of 16")
    until(lambda: "?at=" in page.url)
    page.reload()  # the address has the moment
    sees(page, ".stats .use", "4 of 16")
    page.fill("#moment", "0")
    sees(page, ".stats .use", "0 of 16")
    later = berth.put("late", 8)
    page.click("#live")
    sees(page, ".stats .use", "8 of 16")
    assert page.locator(".banner").is_hidden()
    go(page, f"#/job/{later}")
    page.locator(".attempts button.link").click()  # after what was read of the journal before
    sees(page, ".banner", "This is the cluster at")
    go(page, "#/")
    sees(page, ".stats .use", "8 of 16")
    page.keyboard.press("l")
    page.locator(".banner").wait_for(state="hidden")
    page.evaluate("async () => { await berth.readPast(); berth.past.toEnd(); }")
    ends = "state => [...state.owners()].map(at => at < 0 ? null : state.jobs[at].id)"
    assert page.evaluate(f"({ends})(berth.past)") == page.evaluate(f"({ends})(berth.present)")
    assert later in page.evaluate(PICTURE)


def test_a_page_finds_its_controller_again_after_a_restart(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address, bypass_csp=True)
    before = berth.put("survivor", 4)
    sees(page, ".stats .use", "4 of 16")
    wide, urgent = berth.put("wide", 16), berth.put("urgent", 16)
    berth.ask("POST", f"jobs/{urgent}/priority", {"priority": 5})
    until(lambda: page.locator(".row:visible .name .id").all_inner_texts() == [urgent, wide])
    until(lambda: page.locator(".row:visible .place").all_inner_texts() == ["1", "2"])
    until(
        lambda: all("needs 16 devices" in one for one in page.locator(".row:visible .why").all_inner_texts())
    )
    berth.stop()
    sees(page, ".banner", "does not answer since")
    look.keep(page, "lost")
    page.evaluate(axe_rules())
    assert page.evaluate(AXE) == []
    go(page, f"#/job/{wide}")
    sees(page, ".reason", "this is what the page had read before. The job needs 16 devices")
    go(page, f"#/job/{before}")
    sees(page, ".pill", "running")
    sees(page, ".reason", "The controller does not answer: this is what the page had read before.")
    sees(page, ".attempts td", ":4")
    assert page.locator(".buttons button").all_inner_texts() == ["Copy id"]
    assert page.evaluate(AXE) == []
    go(page, "#/what-if")
    page.fill("input[name=racks]", "1")
    page.click("button.primary")
    sees(page, "p.bad", "the controller does not answer")
    go(page, f"#/job/{before}")
    page.go_back()  # to what-if
    go(page, "#/")
    assert not page.evaluate("document.getElementById('live').classList.contains('on')")
    # as it was then
    until(lambda: page.locator(".row:visible .name .id").all_inner_texts() == [urgent, wide])
    stopped = page.evaluate("berth.time")  # nothing is known of later, so nothing ticks
    page.wait_for_timeout(1100)
    assert page.evaluate("berth.time") == stopped
    berth.options = (*berth.options, "--policy", "fifo")
    berth.start()
    sees(page, ".about", "fifo")
    page.locator(".banner").wait_for(state="hidden")
    assert before in page.evaluate(PICTURE)
    for job in (wide, urgent):
        berth.ask("POST", f"jobs/{job}/cancel")
    after = berth.put("newcomer", 8)
    sees(page, ".stats .use", "12 of 16")
    assert page.evaluate(PICTURE) == devices(berth)
    assert after in page.evaluate(PICTURE)
    look.complaints[:] = [one for one in look.complaints if "ERR_" not in one]


def test_a_page_that_has_no_answer_goes_from_a_past_moment_to_now(berth: Berth, look: Looker) -> None:
    first, next_ = berth.put("first", 16), berth.put("next", 16)
    until(lambda: berth.state_of(first) == "running")
    page = look.open(berth.address)
    sees(page, ".queue .row .why", "needs 16 devices")
    until(lambda: page.evaluate("id => berth.reasons.get(id)?.sentence ?? ''", next_))
    page.evaluate("async () => { window.then = berth.clock; await berth.readPast(); }")
    berth.ask("POST", f"jobs/{first}/cancel")
    until(lambda: page.evaluate("id => berth.present.jobs[berth.present.byId.get(id)].state", next_) == 3)
    assert page.evaluate("[...berth.reasons.keys()]") == []  # those of waiting jobs only
    page.evaluate("async () => { await berth.readPast(); berth.look(window.then); }")
    page.route("**/api/v1/jobs/**", lambda route: route.abort())
    go(page, f"#/job/{next_}")
    sees(page, ".pill", "queued")
    sees(page, ".attempts", "It was not running.")
    page.click("#live")
    sees(page, ".pill", "running")
    sees(page, ".attempts td", ":4")
    assert text(page, ".reason") == "The controller does not answer: this is what the page had read before."
    page.evaluate("berth.look(window.then)")
    sees(page, ".pill", "queued")
    go(page, "#/job/unknown")
    sees(page, "main p", "this page has not read the job before")
    page.unroute("**/api/v1/jobs/**")
    go(page, f"#/job/{next_}")
    page.evaluate("berth.look(null)")
    sees(page, ".reason", "Why there:")
    sees(page, ".events", "submitted")
    look.complaints[:] = [one for one in look.complaints if "ERR_" not in one]


@pytest.mark.parametrize(
    "answer", ["{}", "<html>"], ids=["a history that can't be drawn", "an answer that is not JSON"]
)
def test_an_error_of_the_page_is_not_an_outage(answer: str, berth: Berth, look: Looker) -> None:
    job = berth.put("any", 4)
    page = look.open(berth.address)
    page.route("**/history", lambda route: route.fulfill(body=answer, content_type="application/json"))
    go(page, f"#/job/{job}")
    sees(page, "main p", "This page can't show the job")
    until(lambda: any(one.startswith("error: ") for one in look.complaints))  # the console has it, too
    assert "does not answer" not in text(page, "main")
    page.unroute("**/history")
    sees(page, "h1", "any")  # the next reading
    look.complaints.clear()


def test_hostile_names_are_only_ever_text(berth: Berth, look: Looker) -> None:
    ids = [berth.put(name, 4) for name in HOSTILE]
    until(lambda: all(berth.state_of(job) == "running" for job in ids))
    ids.append(berth.put(HOSTILE[1], 16, run=f"echo '{HOSTILE[0]}'; sleep 600"))
    page = look.open(berth.address)
    sees(page, ".queue .row", HOSTILE[1])
    for hash_ in (*VIEWS, *(f"#/job/{job}" for job in ids)):
        go(page, hash_)
        page.wait_for_timeout(250)
        assert page.evaluate("window.pwned") is None, hash_
        assert page.locator("main img, main script, footer img, header img").count() == 0, hash_
    sees(page, "h1", HOSTILE[1])
    page.click("#cancel")
    sees(page, "dialog", HOSTILE[1])
    page.click("dialog button[type=button]")
    assert page.evaluate("window.pwned") is None


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_every_view_fits_its_window_and_holds_still(
    berth: Berth, look: Looker, width: int, scheme: str
) -> None:
    jobs = [berth.put("resnet", 8), berth.put("bert", 2)]
    until(lambda: all(berth.state_of(job) == "running" for job in jobs))
    berth.put("dlrm-with-a-long-name" * 6, 16)
    page = look.open(berth.address, width=width, height=844, scheme=scheme)
    sees(page, ".stats .use", "10 of 16")
    page.evaluate(
        "() => { window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(one => {"
        "if (!one.hadRecentInput) window.shift += one.value; })).observe({type: 'layout-shift', buffered: true}); }"
    )
    for number, hash_ in enumerate((*VIEWS, f"#/job/{jobs[0]}")):
        go(page, hash_)
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, hash_
        beyond = "rows => rows.filter(one => !one.closest('.row').hidden && one.scrollWidth > one.clientWidth).length"
        assert page.locator(".job.row .id, .job.row .name").evaluate_all(beyond) == 0, hash_  # ids are whole
        look.keep(page, f"view-{number}-{width}-{scheme}")
    assert page.evaluate("window.shift") < 0.1  # the bound of "good" in Core Web Vitals, 2024


def test_the_theme_is_switched_and_kept(berth: Berth, look: Looker) -> None:
    page = look.open(berth.address)
    sees(page, ".stats", "devices")
    page.wait_for_timeout(100)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.reload()
    sees(page, ".stats", "devices")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_the_journal_of_a_page_is_paged_without_holes(berth: Berth) -> None:
    berth.put("one", 1)
    whole = berth.ask("GET", "journal?limit=20000")
    assert whole["whole"]
    pages, after = [], 0
    while True:
        page = berth.ask("GET", f"journal?after={after}&limit=3")
        pages += page["records"]
        after = page["last"]
        if page["whole"]:
            break
    assert pages[: len(whole["records"])] == whole["records"]


def test_nothing_is_served_without_a_token(berth: Berth) -> None:
    for path in ("me", "now", "journal", "series", "queue", "reasons"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{berth.url}/api/v1/{path}")
        assert refused.value.code == 401, path
        refused.value.close()
