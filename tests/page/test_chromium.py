"""The live page in a real Chromium: answers, sizes, schemes, keyboard, accessibility."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from axe_playwright_python.async_playwright import Axe

from tests.page.looking import CHROMIUM, Looker, looking
from tests.page.made_up import ORDERS, SCENES, made_up_groups

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
    pytest.mark.timeout(120),
]
HEALTHY = SCENES["healthy"]


async def rights_are_known(looker: Looker) -> None:
    """Wait until the page knows that it may change things; it asks for that by itself."""
    await looker.page.wait_for_function(
        "() => document.querySelector('#caller').textContent.startsWith('may change')"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("scene", "at"),
    [
        ("healthy", "#group=payments-workers"),
        ("member-stuck", ""),
        ("kafka-away", ""),
        ("uneven", "#topic=orders"),
    ],
)
async def test_the_page_fits_and_is_accessible(scene, at, scheme) -> None:
    """On a phone and a screen, light and dark: no sideways scroll, no finding of axe-core."""
    async with looking(SCENES[scene], at=at, color_scheme=scheme) as looker:
        for width in (390, 1000, 1440):
            await looker.page.set_viewport_size({"width": width, "height": 900})
            await looker.page.reload()
            await looker.page.wait_for_selector("#answers li")
            # Each tile changes its colour with the first state, which may come after it.
            await looker.page.wait_for_selector("#node div", state="attached")
            await looker.page.evaluate(
                "() => document.querySelectorAll('details').forEach(one => { one.open = true; })"
            )
            # One that another colour has ended early is over as well.
            await looker.page.evaluate(
                "() => Promise.allSettled(document.getAnimations().map(one => one.finished))"
                ".then(() => null)"
            )
            wide = await looker.page.evaluate("document.documentElement.scrollWidth")
            found = await Axe().run(looker.page)

            assert wide <= width
            assert found.violations_count == 0, f"{width} px: {found.generate_report()}"


async def test_a_healthy_group_has_five_calm_answers() -> None:
    """No member is behind or stuck, the load is even, and the cluster is well."""
    async with looking(HEALTHY, at="#group=billing") as looker:
        answers = await looker.answers()

        assert list(answers) == ["behind", "stuck", "moved", "balance", "well"]
        assert answers["behind"][0] == "good"
        assert answers["behind"][1].startswith("No member: 1.")
        assert answers["stuck"][0] == "good"
        assert answers["stuck"][1].startswith("Nothing: last commit ")
        assert answers["moved"][1].endswith("Lane 12 of orders moved from billing-2 to billing-5.")
        assert answers["balance"] == ("good", "Even: busiest member: 1.1 \u00d7 mean")
        assert answers["well"][1] == "Well: 3 brokers and 2 nodes in reach, journal served"
        assert await looker.text("#link") == "✓ Cluster well"
        assert await looker.page.locator("#banners li").count() == 0


async def test_a_member_that_is_stuck_comes_first_in_words() -> None:
    """Its row is the first, with records, seconds, and the word; its lanes are marked."""
    async with looking(SCENES["member-stuck"]) as looker:
        answers = await looker.answers()
        row = looker.page.locator("#members tr").first
        # The lines of ten minutes are asked for behind the list of groups.
        await looker.page.wait_for_selector("#members svg[aria-label^='Lag in ten minutes']")
        # A card is drawn when the browser has found that it is in view.
        await looker.page.wait_for_selector(".topic-badge:not(:empty)")

        assert answers["behind"][0] == answers["stuck"][0] == "bad"
        assert answers["stuck"][1] == (
            "✕ billing-3: no progress for 4 min 12 s; ~35.6 k records wait"
        )
        assert await row.locator(".label").text_content() == "billing-3"
        assert await row.locator(".badge").text_content() == "stuck 4 min"
        assert (await row.locator("td").all_text_contents())[:4] == [
            "~35.6 k", "4 min 12 s", "", "0 /s"
        ]  # fmt: skip
        spark = await row.locator("svg").get_attribute("aria-label") or ""
        assert spark.startswith("Lag in ten minutes: now 35.6 k, at most ")
        assert await looker.text(".topic-badge") == "6 lanes in trouble"
        assert "✕ 1 member stuck" in await looker.text("#groups-box li.bad")


async def test_a_load_that_is_uneven_names_the_cure() -> None:
    """The busiest member, beside the mean, and what a rebalance would move."""
    async with looking(SCENES["uneven"]) as looker:
        await looker.page.wait_for_function(
            "() => document.querySelector('[data-answer=balance]').textContent.includes('move')"
        )

        grade, text = (await looker.answers())["balance"]

        assert grade == "warn"
        assert text.startswith("▲ 2.6 \u00d7 mean: billing-0 has ")
        assert text.endswith("a rebalance would move 5 lanes, to 1.1 \u00d7 mean")


@pytest.mark.parametrize(
    ("scene", "state", "text"),
    [
        ("broker-away", "✕ Broker away", "Broker 2 (kafka-2:9092) cannot be reached"),
        ("kafka-away", "✕ Kafka is away", "No broker of Kafka can be reached"),
    ],
)
async def test_a_dead_cluster_has_no_green_page(scene, state, text) -> None:
    """The header, the title, a banner and an answer say so, with since when."""
    async with looking(SCENES[scene]) as looker:
        banner = await looker.text("#banners li")

        assert await looker.text("#link") == state
        assert await looker.page.locator("#link.good").count() == 0
        assert (await looker.page.title()).startswith("✕ ")
        assert text in banner
        assert "since " in banner
        assert (await looker.answers())["well"][0] == "bad"


async def test_figures_without_kafka_are_marked_as_old() -> None:
    """They stay, grey, with the time that they are from."""
    async with looking(SCENES["kafka-away"]) as looker:
        answers = await looker.answers()

        assert await looker.page.locator("main.old").count() == 1
        assert await looker.page.locator("#members tr").count() == HEALTHY.members
        assert (await looker.text("#selected-state")).startswith("last known, from ")
        assert answers["behind"][0] == answers["stuck"][0] == "old"
        assert answers["behind"][1].startswith("No member: at ")


async def test_a_lost_connection_keeps_the_last_figures() -> None:
    """The header is red, the banner says since when, and changes are not offered."""
    async with looking(HEALTHY, at="#group=billing", expects_errors=True) as looker:
        await looker.lose_the_port()
        await looker.page.wait_for_selector("#link.bad")

        assert await looker.text("#link") == "✕ No connection"
        assert "No connection to keylane" in await looker.text("#banners li")
        assert "since " in await looker.text("#banners li .when")
        assert await looker.page.locator("#members tr").count() == HEALTHY.members
        assert await looker.page.locator("#rebalance").is_disabled()


async def test_a_further_state_replaces_the_last() -> None:
    """Figures change, rows stay, and so does what has the focus."""
    async with looking(HEALTHY, at="#group=billing") as looker:
        button = looker.page.locator("button.member", has_text="billing-2")
        await button.focus()
        await looker.page.keyboard.press("Enter")
        lag = await looker.text("[data-topic=orders] .figures")

        await looker.move_on()

        assert await looker.text("[data-topic=orders] .figures") != lag
        assert await button.get_attribute("aria-pressed") == "true"
        assert await button.evaluate("button => button === document.activeElement")


async def test_lanes_work_by_keyboard() -> None:
    """Arrow keys go from lane to lane and partition to partition."""
    async with looking(HEALTHY, at="#topic=orders") as looker:
        canvas = looker.page.locator("canvas")
        await canvas.focus()
        for key, index in (("ArrowRight", 3), ("ArrowDown", 4), ("End", 46), ("Home", 1)):
            await looker.page.keyboard.press(key)
            assert await canvas.get_attribute("aria-valuenow") == str(index)
            assert (await canvas.get_attribute("aria-valuetext") or "").startswith(f"Lane {index} ")
            assert (await looker.text(".lane")).startswith(f"Lane {index} ")


async def test_a_lane_is_found_by_pointing_at_it() -> None:
    """The lane under the pointer is shown with its range, member, load and lag."""
    async with looking(HEALTHY, at="#topic=orders") as looker:
        await rights_are_known(looker)  # a longer header may move what is below it
        box = await looker.page.locator("canvas").bounding_box()
        assert box is not None
        row = box["height"] / 3

        await looker.page.mouse.move(box["x"] + box["width"] * 0.999, box["y"] + 1.5 * row)

        text = await looker.text(".lane")
        assert text.startswith("Lane 46 (partition 1): billing-")
        assert text.endswith("to 9223372036854775807")


async def test_everything_is_reached_by_the_tab_key() -> None:
    """From the skip link to the last button, each with a focus that is seen."""
    async with looking(replace(HEALTHY, members=2, topics=ORDERS[:1], has_shares=False)) as looker:
        await rights_are_known(looker)  # before that some buttons are disabled
        seen: list[str] = []
        for _ in range(60):
            await looker.page.keyboard.press("Tab")
            name, outline = await looker.page.evaluate(
                "() => [document.activeElement.id || document.activeElement.className"
                " || document.activeElement.getAttribute('href')"
                " || document.activeElement.textContent,"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
            if name in seen[:1] or name.lstrip().startswith("To the answers"):
                break  # from the last one it goes to the browser's own buttons, and on to the first
            assert outline == "solid", name
            seen.append(name)

    for name in ("skip", "groups-tab", "search", "sort", "#group=billing", "rebalance", "member"):
        assert name in seen
    for name in ("behind", "events-all", "small", "switches"):
        assert name in seen


async def test_a_link_leads_to_its_group_or_topic() -> None:
    """A chosen group is in the address; a shared address leads there, and back works."""
    async with looking(HEALTHY, at="#topic=payments") as looker:
        assert await looker.text("#selected") == "payments"
        assert await looker.text("#selected-state") == "topic, read by 1 group"
        await looker.page.locator("#groups-tab").click()
        await looker.page.locator("#groups-box a", has_text="thumbnails").click()
        await looker.page.wait_for_function(
            "() => document.querySelector('#selected').textContent === 'thumbnails'"
        )
        assert looker.page.url.endswith("#group=thumbnails")

        await looker.page.go_back()

        await looker.page.wait_for_function(
            "() => document.querySelector('#selected').textContent === 'payments'"
        )


async def test_the_skip_link_keeps_what_is_selected() -> None:
    """It moves the focus alone: the address still names the topic."""
    async with looking(HEALTHY, at="#topic=orders") as looker:
        await looker.page.locator(".skip").focus()
        await looker.page.keyboard.press("Enter")
        focused = await looker.page.evaluate("document.activeElement.id")
        await looker.move_on()

        assert focused == "selected"
        assert looker.page.url.endswith("#topic=orders")
        assert await looker.text("#selected") == "orders"


async def test_a_plan_comes_with_its_group() -> None:
    """A group that is chosen has its plan at once; the group that was left is not asked for."""
    async with looking(SCENES["uneven"], at="#topic=orders") as looker:
        await looker.page.evaluate("location.hash = '#group=billing'")

        await looker.page.wait_for_function(
            "() => document.querySelector('[data-answer=balance]')?.textContent.includes('move')"
        )

        asked = [path for _, path, _ in looker.port.changes]
        assert set(asked) == {"/groups/billing/rebalance?dry_run=true"}


async def test_the_title_of_a_tab_in_the_background_says_what_is_wrong() -> None:
    """No frames come there, and the title is all that is seen of it."""
    async with looking(HEALTHY, at="#group=billing", expects_errors=True) as looker:
        await looker.page.evaluate(
            "() => { Object.defineProperty(document, 'hidden', { value: true });"
            " window.requestAnimationFrame = () => 0; }"
        )
        await looker.lose_the_port()

        await looker.page.wait_for_function("() => document.title.startsWith('\u2715 No conn')")


async def test_rights_that_could_not_be_had_are_asked_for_again() -> None:
    """A page that was opened as the node started is not read-only without end."""
    async with looking(HEALTHY, at="#group=billing", expects_errors=True) as looker:
        refused = 0

        async def refuse_once(route) -> None:
            nonlocal refused
            refused += 1
            await (route.fulfill(status=503, json={}) if refused == 1 else route.continue_())

        await looker.page.route("**/page/caller", refuse_once)
        await looker.page.reload()

        await rights_are_known(looker)
        assert refused == 2


async def test_an_older_answer_does_not_overtake_a_newer_one() -> None:
    """A list of groups that comes late is dropped: it would bring back what has gone."""
    async with looking(HEALTHY, at="#group=billing") as looker:
        asked = 0
        is_late = asyncio.Event()

        async def answer(route) -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                await is_late.wait()
                await route.fulfill(json={"groups": []})
            else:
                await route.fulfill(json=made_up_groups(replace(HEALTHY, group_count=9)))

        await looker.page.route("**/groups", answer)
        await looker.page.evaluate("location.hash = '#topic=orders'")
        await looker.page.wait_for_function(
            "() => document.querySelector('#selected').textContent === 'orders'"
        )
        await looker.page.evaluate("location.hash = '#group=billing'")
        # Nine groups, and two share groups: the newer answer is shown.
        await looker.page.wait_for_function(
            "() => document.querySelector('#groups-count').textContent === '11'"
        )
        async with looker.page.expect_response("**/groups"):
            is_late.set()
        await looker.move_on()

        assert await looker.text("#groups-count") == "11"


async def test_the_worst_group_is_chosen_once_states_are_known() -> None:
    """The list of groups may come before the first state, which shows that another one is stuck."""
    async with looking(replace(SCENES["member-stuck"], group_count=9)) as looker:
        may_begin = asyncio.Event()

        async def hold(route) -> None:
            await may_begin.wait()
            await route.continue_()

        await looker.page.route("**/page/events", hold)
        await looker.page.reload()
        await looker.page.wait_for_function(
            "() => document.querySelector('#selected').textContent.startsWith('team-')"
        )
        await rights_are_known(looker)
        assert await looker.page.locator("#rebalance").is_disabled()
        may_begin.set()

        await looker.page.wait_for_function(
            "() => document.querySelector('#selected').textContent === 'billing'"
        )


@pytest.mark.parametrize("at", ["#group=%", "#group=a%2Fb=c", "#nonsense"])
async def test_an_address_typed_by_hand_breaks_nothing(at) -> None:
    """An unknown group is named, and what is no address of ours is left out."""
    async with looking(replace(HEALTHY, has_shares=False), at=at, expects_errors=True) as looker:
        shown = await looker.text("#selected")

        assert shown == {"#group=%": "%", "#group=a%2Fb=c": "a/b=c"}.get(at, "billing")
        assert not [error for error in looker.errors if "Error" in error]


async def test_a_group_of_another_node_says_where_it_is() -> None:
    """Its members are not invented: the page names the node that has them, and offers no action."""
    async with looking(SCENES["many"], at="#group=team-097") as looker:
        await looker.page.wait_for_function(
            "() => document.querySelector('#no-members').textContent.includes('keylane-1:9100')"
        )
        assert await looker.page.locator("#members tr").count() == 0
        assert await looker.page.locator("#group-actions").is_hidden()


async def test_the_line_shows_what_happened_when() -> None:
    """The newest first, of one group or of all."""
    async with looking(SCENES["member-stuck"]) as looker:
        own = await looker.page.locator("#events li").all_inner_texts()
        await looker.page.locator("#events-all").check()
        await looker.page.wait_for_function(
            "() => document.querySelectorAll('#events li').length > 5"
        )
        everything = await looker.page.locator("#events li").all_inner_texts()

        assert "warning: billing-3 has made no progress for a minute" in own[0]
        assert not any("w-1" in text for text in own)
        assert any("team-001: 3 lanes moved from w-1 to w-2" in text for text in everything)


async def test_it_shows_what_holds_a_key_up() -> None:
    """Of an ordered share group: errors, the longest wait, the fullest window, the hottest keys."""
    async with looking(HEALTHY, at="#group=payments-workers") as looker:
        found = await looker.page.locator(".findings li").all_inner_texts()
        rows = await looker.page.locator(".partitions tbody tr").all_inner_texts()
        await looker.page.locator(".keys summary").click()
        await looker.move_on()

        assert found == [
            "Members of partition 3 of payments get the error CORRUPT_MESSAGE.",
            "Nothing of partition 1 of payments is handed out: earlier records may be missing.",
            "A record is held for 12 min 48 s: partition 0 of payments, offset 120400. 213 records "
            + "of its key wait behind it.",
            "The window of partition 0 of payments is 94 % full; one key soon holds up all others "
            + "there.",
        ]
        assert "540 behind their key" in rows[2]
        assert "1.6 k (3 %)" in rows[2]
        assert "at another node" in rows[4]
        assert await looker.page.locator(".keys").get_attribute("open") is not None
        assert await looker.page.locator(".keys tbody tr").count() == 3
        assert (await looker.answers())["stuck"] == ("bad", "✕ payments 3: CORRUPT_MESSAGE")


async def test_a_share_group_that_is_well_says_so() -> None:
    """One sentence, and no key is stuck."""
    async with looking(HEALTHY, at="#group=thumbnails") as looker:
        found = await looker.page.locator(".findings li").all_inner_texts()

        assert len(found) == 1
        assert found[0].startswith("No key is held up: the oldest record is here for 0.")
        assert not await looker.page.locator(".keys").is_visible()
        assert (await looker.answers())["stuck"][0] == "good"
        assert not await looker.page.locator("#members-section").is_visible()
