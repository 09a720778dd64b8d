//! What is on the screen: a head of three lines, the tables, and the keys.
//!
//! All three tables share the lines that there are; one alone has them all. A table that is too
//! wide loses columns at its end, and its first column takes what is left.

use std::time::Duration;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Widget};

use super::super::status::duration;
use super::rates::Picture;
use super::screen::{Link, Screen, View};
use super::tables::{
    Column, Kind, Row, Table, Tone, differs, number, printable, rules_of_asked, short,
};
use crate::admin::report::MemberState;
use crate::admin::snapshot::MemberRow;

/// Lines of a table besides its rows: title and head.
const HEAD_LINES: usize = 2;
/// Spaces between columns.
const GAP: usize = 2;
/// What the first column keeps before others are left out.
const FIRST_WIDTH_MIN: usize = 12;
/// The sizes of a text that is printed. Tables share the lines at the bound, and say how many rows
/// there are.
const TEXT_WIDTH_MAX: usize = 200;
const TEXT_LINES_MAX: usize = 1_000;

const KEYS: &str = "1 members  2 rules  3 keys  0 all  / filter  s sort  p pause  ? help  q quit";
const HELP: &[&str] = &[
    "1 2 3     members, rules, keys limited now; 0 all of them; Tab the next",
    "arrows    scroll, as j and k do; PgUp PgDn a page, Home End (g G) to the ends",
    "s         sort by the next column; the title of a table says by which",
    "/         filter: rows with this text; Enter keeps it, Esc clears it",
    "p space   pause: the picture stays until it is pressed again",
    "q Esc     quit, as Ctrl-C does; Esc first closes the help and clears the filter",
    "",
    "STATE     self is the node that was asked; ! marks other rules than its, and a",
    "          clock beyond cluster.max_skew",
    "ADM/S     hits admitted in a second, over all nodes; REF/S refused",
    "ALONE     checks without an answer of the owner, or without a lease",
    "ERROR     of an eventual rule: by how much used windows are over the limit",
    "KEY       #... is a hash: admin.show_keys = true on the nodes shows values.",
    "          Invisible characters are escaped. OR LESS: the rate may be too high",
    "          by that much",
];

/// Draws on `area` at `now`, and bounds how far it is scrolled.
pub(super) fn draw(
    screen: &mut Screen,
    now: Duration,
    has_colour: bool,
    buffer: &mut Buffer,
    area: Rect,
) {
    let look = Look { has_colour };
    let head = head(screen, now);
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Max(u16::try_from(head.len()).unwrap_or(u16::MAX)),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    for ((text, tone), line) in head.into_iter().zip(top.rows()) {
        Line::styled(text, look.of(tone)).render(line, buffer);
    }
    if screen.has_help {
        for (text, line) in HELP.iter().zip(middle.rows()) {
            Line::raw(*text).render(line, buffer);
        }
    } else {
        screen.scrolled = draw_tables(&tables(screen), screen.scrolled, look, buffer, middle);
    }
    Line::styled(foot(screen), Style::new().dim()).render(bottom, buffer);
}

/// The picture as lines of text, as wide and as long as it needs.
pub(super) fn lines(screen: &Screen) -> Vec<String> {
    let tables = tables(screen);
    let width = tables.iter().map(|table| width(&natural_widths(table)));
    let width = width.max().unwrap_or(0).min(TEXT_WIDTH_MAX);
    let rows: usize = tables.iter().map(lines_of).sum();
    let height = rows.min(TEXT_LINES_MAX);
    let size = |cells: usize| u16::try_from(cells).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, size(width), size(height));
    let mut buffer = Buffer::empty(area);
    draw_tables(&tables, 0, Look { has_colour: false }, &mut buffer, area);
    let is_live = |text: &String| text != LIVE;
    let head = head(screen, Duration::ZERO).into_iter().map(|(text, _)| text).filter(is_live);
    head.chain(texts(&buffer)).collect()
}

/// The lines of a buffer, without spaces at their ends.
pub(super) fn texts(buffer: &Buffer) -> Vec<String> {
    let text = |cells: &[Cell]| {
        // The cell behind a wide character holds nothing of its own.
        let mut covered = 0;
        let shown = cells.iter().filter(|cell| {
            let is_shown = covered == 0;
            covered = if is_shown {
                Span::raw(cell.symbol()).width().saturating_sub(1)
            } else {
                covered - 1
            };
            is_shown
        });
        let text: String = shown.map(Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    buffer.content.chunks(usize::from(buffer.area.width).max(1)).map(text).collect()
}

fn tables(screen: &Screen) -> Vec<Table> {
    let Some(picture) = screen.picture() else { return Vec::new() };
    let kinds = match screen.view {
        View::All => &Kind::ALL[..],
        View::One(kind) => &[kind],
    };
    let table = |kind: &Kind| kind.table(picture, screen.orders[*kind as usize], &screen.filter);
    kinds.iter().map(table).collect()
}

// === head and foot ===

const LIVE: &str = "live";

/// The first lines: cluster, numbers, and whether that is so now.
fn head(screen: &Screen, now: Duration) -> Vec<(String, Tone)> {
    let mut lines = Vec::new();
    if let Some(picture) = screen.picture() {
        lines.push((title(screen, picture), Tone::Plain));
        lines.push((numbers(picture), Tone::Plain));
    }
    let mut states = Vec::new();
    let is_lost = match &screen.link {
        Link::Connecting => {
            states.push("connecting ...".to_owned());
            false
        }
        Link::Live(_) => false,
        Link::Lost { last, since } => {
            let why = format!("{}: {}; trying again", printable(&last.url), printable(&last.why));
            states.push(match since {
                Some(since) => {
                    format!("STALE for {}: {why}", duration(now.saturating_sub(*since).as_secs()))
                }
                None => format!("no connection: {why}"),
            });
            true
        }
    };
    if screen.is_paused() {
        states.push("PAUSED (p goes on)".to_owned());
    }
    let problems = screen.picture().map(problems).unwrap_or_default();
    let tone = match (is_lost || !problems.is_empty(), states.is_empty()) {
        (true, _) => Tone::Bad,
        (false, false) => Tone::Unusual,
        (false, true) => Tone::Plain,
    };
    states.extend(problems);
    let text = if states.is_empty() { LIVE.to_owned() } else { states.join("; ") };
    lines.push((text, tone));
    lines
}

fn title(screen: &Screen, picture: &Picture) -> String {
    let snapshot = &picture.snapshot;
    let (cluster, node) = (printable(&snapshot.cluster), printable(&snapshot.node));
    let at = match &screen.link {
        Link::Live(url) => format!(" at {}", printable(url)),
        Link::Connecting | Link::Lost { .. } => String::new(),
    };
    let rules = printable(short(rules_of_asked(snapshot).unwrap_or("-")));
    format!("cluster {cluster}, seen by {node}{at}, rules {rules}")
}

fn numbers(picture: &Picture) -> String {
    let members = &picture.snapshot.members;
    let is_alive = |state| matches!(state, MemberState::This | MemberState::Up);
    let alive = members.iter().filter(|row| is_alive(row.member.state)).count();
    let rates = match &picture.rates {
        Some(rates) => format!(
            "{} checks/s, {} hits admitted/s, {} refused/s",
            number(rates.all.checks),
            number(rates.all.admitted),
            number(rates.all.refused),
        ),
        None => "rates in a second".to_owned(),
    };
    format!("members: {alive} of {} up; {rates}", members.len())
}

/// What an operator should know at once.
fn problems(picture: &Picture) -> Vec<String> {
    let mut problems = Vec::new();
    let rows = || picture.snapshot.members.iter();
    let is_down = |state: MemberState| state == MemberState::Down;
    let asked = rules_of_asked(&picture.snapshot);
    let differs = |row: &MemberRow| differs(row.member.rule_book.as_deref(), asked);
    let down = names(rows().filter(|row| is_down(row.member.state)));
    let others = names(rows().filter(|row| !is_down(row.member.state) && differs(row)));
    for (problem, ids) in [("down", down), ("other rules", others)] {
        if !ids.is_empty() {
            problems.push(format!("{problem}: {}", ids.join(", ")));
        }
    }
    for row in rows().filter(|row| !is_down(row.member.state)) {
        let Some(reported) = &row.reported else { continue };
        let id = printable(&row.member.id);
        if let Some(why) = &reported.not_ready {
            problems.push(format!("{id} is not ready: {}", printable(why)));
        }
        if let Some(error) = &reported.rule_book.last_error {
            problems.push(format!("{id}: {}", printable(error)));
        }
        if reported.store.shared > 0 || reported.store.refused > 0 {
            problems.push(format!("{id}: its store was full"));
        }
        if reported.store.in_full_domains > 0 {
            problems.push(format!("{id}: a domain had limits.domain_keys_max"));
        }
    }
    problems
}

fn names<'a>(rows: impl Iterator<Item = &'a MemberRow>) -> Vec<String> {
    rows.map(|row| printable(&row.member.id)).collect()
}

fn foot(screen: &Screen) -> String {
    let filter = printable(&screen.filter);
    if screen.is_filtering {
        return format!("filter: {filter}_  (Enter keeps it, Esc clears it)");
    }
    if filter.is_empty() {
        return KEYS.to_owned();
    }
    format!("filter: {filter} (Esc clears it)  {KEYS}")
}

// === tables ===

#[derive(Clone, Copy)]
struct Look {
    has_colour: bool,
}

impl Look {
    fn of(self, tone: Tone) -> Style {
        let colour = |style: Style, colour| if self.has_colour { style.fg(colour) } else { style };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Unusual => colour(Style::new(), Color::Yellow),
            Tone::Bad => colour(Style::new().bold(), Color::Red),
        }
    }
}

/// Draws them below each other; how far the longest is scrolled, of the rows that are asked for.
fn draw_tables(
    tables: &[Table],
    scrolled: usize,
    look: Look,
    buffer: &mut Buffer,
    area: Rect,
) -> usize {
    let needs: Vec<usize> = tables.iter().map(lines_of).collect();
    let mut top = area.y;
    let mut furthest = 0;
    for (table, height) in tables.iter().zip(share(usize::from(area.height), &needs)) {
        // At most the height of the area.
        let height = u16::try_from(height).unwrap_or(area.height);
        let place = Rect { y: top, height, ..area };
        let room = usize::from(height).saturating_sub(HEAD_LINES);
        let skipped = scrolled.min(table.rows.len().saturating_sub(room));
        draw_table(table, skipped, look, buffer, place);
        furthest = furthest.max(skipped);
        top += height;
    }
    furthest
}

/// The lines that a table needs: its title, its head, rows, and an empty line.
fn lines_of(table: &Table) -> usize {
    match table.rows.len() {
        0 => 1 + 1,
        rows => HEAD_LINES + rows + 1,
    }
}

/// The lines of each table: what it needs, if there is room for all; otherwise those that need less
/// than an equal part leave the rest to the others.
fn share(height: usize, needs: &[usize]) -> Vec<usize> {
    let mut given = vec![0; needs.len()];
    let mut left = height;
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|at| needs[*at]);
    for (done, at) in order.into_iter().enumerate() {
        given[at] = needs[at].min(left / (needs.len() - done));
        left -= given[at];
    }
    given
}

fn draw_table(table: &Table, skipped: usize, look: Look, buffer: &mut Buffer, area: Rect) {
    let [first, rest] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let rows = table.rows.len();
    let room = usize::from(rest.height).saturating_sub(1);
    let shown = if rows <= room {
        rows.to_string()
    } else {
        format!("{}-{} of {rows}", skipped + 1, (skipped + room).min(rows))
    };
    let title = format!("{} {shown}, by {}", table.title, table.order);
    Line::styled(title, Style::new().bold()).render(first, buffer);
    if rows == 0 {
        return;
    }
    let widths = fitted(natural_widths(table), usize::from(area.width));
    let shown = table.rows.iter().skip(skipped).take(room);
    let cells = |texts: Vec<&str>| {
        let cells = texts.into_iter().zip(&table.columns).take(widths.len());
        let cell = |(text, column): (&str, &Column)| {
            let line = Line::from(text.to_owned());
            if column.is_number { line.right_aligned() } else { line }
        };
        widgets::Row::new(cells.map(cell).collect::<Vec<_>>())
    };
    let body = shown.map(|Row { cells: texts, tone }| {
        cells(texts.iter().map(String::as_str).collect()).style(look.of(*tone))
    });
    let head = cells(table.columns.iter().map(|column| column.head).collect());
    let size = |width: &usize| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX));
    let drawn = widgets::Table::new(body, widths.iter().map(size))
        .header(head.style(Style::new().dim()))
        .column_spacing(u16::try_from(GAP).unwrap_or(1));
    Widget::render(drawn, rest, buffer);
}

/// The width of the widest cell of each column.
fn natural_widths(table: &Table) -> Vec<usize> {
    let cells = |at: usize| table.rows.iter().filter_map(move |row| row.cells.get(at));
    let widest = |(at, column): (usize, &Column)| {
        let widths = cells(at).map(|cell| Span::raw(cell).width());
        widths.chain([column.head.len()]).max().unwrap_or(0)
    };
    table.columns.iter().enumerate().map(widest).collect()
}

/// With the spaces between columns.
fn width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// The widths in a line of this length, of the columns that there is room for.
fn fitted(mut widths: Vec<usize>, length: usize) -> Vec<usize> {
    let [first, others @ ..] = &mut widths[..] else { return widths };
    // The other columns have most of the line together, and none more than a third.
    if *first + others.iter().map(|width| width + GAP).sum::<usize>() > length {
        for width in others {
            *width = (*width).min((length / 3).max(1));
        }
        *first = (*first).min(FIRST_WIDTH_MIN);
    }
    while widths.len() > 1 && width(&widths) > length {
        widths.pop();
    }
    let rest = width(&widths[1..]) + if widths.len() > 1 { GAP } else { 0 };
    widths[0] = length.saturating_sub(rest);
    widths
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tidegate_rules::stats::RuleCounts;

    use super::super::follow::{Lost, Told};
    use super::*;
    use crate::admin::report::{
        ClockReport, MemberReport, NodeReport, OwnershipReport, RuleReport,
    };
    use crate::admin::snapshot::{ClusterSnapshot, KeyRefusals, SelfReport};

    const URL: &str = "http://127.0.0.1:8082";

    fn member(id: &str, state: MemberState) -> MemberRow {
        let ownership = OwnershipReport { has_lease: true, ..OwnershipReport::default() };
        let node =
            NodeReport { id: id.to_owned(), role: "core".to_owned(), ..NodeReport::default() };
        let is_this = state == MemberState::This;
        MemberRow {
            member: MemberReport {
                id: id.to_owned(),
                region: "eu-central-1".to_owned(),
                state,
                rule_book: Some("a7b3c9d100000000".to_owned()),
                clock_offset_ms: Some(if is_this { 0 } else { -3 }),
                ring_share: 0.25,
                rtt_us: (!is_this).then_some(1_250),
                ..MemberReport::default()
            },
            reported: Some(SelfReport {
                node,
                ownership: Some(ownership),
                ..SelfReport::default()
            }),
            age_ms: Some(0),
        }
    }

    fn rule(name: &str, mode: &str, allowed: u64, denied: u64) -> RuleReport {
        let counts = RuleCounts { allowed, denied, local: allowed, ..RuleCounts::default() };
        RuleReport {
            rule: name.to_owned(),
            mode: Some(mode.to_owned()),
            error: (mode == "eventual").then_some(0.012),
            counts,
            ..RuleReport::default()
        }
    }

    /// After so many seconds.
    fn snapshot(seconds: u64) -> ClusterSnapshot {
        let key = |n: usize| KeyRefusals {
            rule: "edge.user".to_owned(),
            token: format!("{n:016x}"),
            key: (n == 0).then(|| "user=\u{1b}[31mann\n".to_owned()),
            per_second: 120.0 - f64::from(u32::try_from(n).unwrap()),
            error: if n == 1 { 2.5 } else { 0.0 },
        };
        let mut members = vec![
            member("n1", MemberState::Down),
            member("n2", MemberState::Up),
            member("n3", MemberState::This),
            member("n4", MemberState::Up),
        ];
        members[1].member.rule_book = Some("0badc0de00000000".to_owned());
        let slow = members[3].reported.as_mut().unwrap();
        slow.ownership = Some(OwnershipReport::default());
        slow.clock = ClockReport { median_ms: 900, is_skewed: true };
        ClusterSnapshot {
            node: "n3".to_owned(),
            cluster: "tide".to_owned(),
            unix_ms: 1_000 * seconds,
            members,
            rules: vec![
                rule("edge.page", "eventual", 70_000 * seconds, 0),
                rule("edge.user", "strict", 20 * seconds, 500 * seconds),
            ],
            refused_keys: (0..40).map(key).collect(),
            ..ClusterSnapshot::default()
        }
    }

    fn told(snapshot: ClusterSnapshot) -> Told {
        Told::Snapshot { url: URL.to_owned(), snapshot: Box::new(snapshot) }
    }

    fn live() -> Screen {
        let mut screen = Screen::default();
        screen.told(told(snapshot(1)), Duration::from_secs(1));
        screen.told(told(snapshot(3)), Duration::from_secs(3));
        screen
    }

    fn on(screen: &mut Screen, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let now = Duration::from_secs(15);
        terminal
            .draw(|frame| {
                let area = frame.area();
                draw(screen, now, true, frame.buffer_mut(), area);
            })
            .unwrap();
        terminal.backend().buffer().clone()
    }

    fn shown(screen: &mut Screen) -> String {
        texts(&on(screen, 80, 24)).join("\n")
    }

    fn press(screen: &mut Screen, codes: &[KeyCode]) -> bool {
        codes.iter().any(|code| screen.pressed(KeyEvent::new(*code, KeyModifiers::NONE)))
    }

    fn write(text: &str) -> Vec<KeyCode> {
        text.chars().map(KeyCode::Char).collect()
    }

    #[test]
    fn everything_is_there_at_80_by_24() {
        insta::assert_snapshot!(shown(&mut live()));
    }

    #[test]
    fn the_help_is_whole_at_80_by_24() {
        let mut screen = live();
        press(&mut screen, &[KeyCode::Char('?')]);
        insta::assert_snapshot!(shown(&mut screen));
        assert!(!press(&mut screen, &[KeyCode::Esc]), "it closes the help first");
        assert!(shown(&mut screen).contains("MEMBERS 4"));
    }

    #[test]
    fn a_text_has_every_row_and_no_escape_sequence() {
        let mut meter = super::super::rates::Meter::default();
        meter.add(snapshot(1));
        let screen = Screen::of(URL.to_owned(), meter.add(snapshot(3)));
        let text = lines(&screen).join("\n");
        assert!(text.contains("user=\\u{1b}[31mann\\n") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains(&format!("#{:016x}", 39)), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn what_is_wrong_is_said_in_words() {
        let text = shown(&mut live());
        // A node without a lease is up.
        let all = [
            "down: n1",
            "members: 3 of 4 up",
            "no lease",
            "0badc0de !",
            "-3ms !",
            "other rules: n2",
        ];
        for words in all {
            assert!(text.contains(words), "{words:?}: {text}");
        }
    }

    #[test]
    fn no_size_is_too_small_and_no_key_too_much() {
        let codes = [
            KeyCode::Char('G'),
            KeyCode::PageDown,
            KeyCode::Tab,
            KeyCode::Char('?'),
            KeyCode::Char('?'),
            KeyCode::Char('3'),
            KeyCode::End,
            KeyCode::Char('s'),
            KeyCode::Char('/'),
            KeyCode::Char('x'),
            KeyCode::Enter,
            KeyCode::Char('0'),
        ];
        let mut wide = snapshot(3);
        wide.members[1].member.id = "漢字\u{301}👩‍👩‍👧".repeat(40);
        wide.rules[0].rule = "long.".repeat(1_000);
        wide.rules[1].counts.local = u64::MAX;
        wide.rules[1].counts.allowed = u64::MAX;
        wide.refused_keys[0].per_second = f64::MAX;
        for width in 1..=90 {
            for height in (1..=12).chain([24, 60]) {
                let mut screen = Screen::default();
                on(&mut screen, width, height);
                screen.told(told(wide.clone()), Duration::ZERO);
                on(&mut screen, width, height);
                press(&mut screen, &[codes[usize::from(width + height) % codes.len()]]);
                on(&mut screen, width, height);
            }
        }
        let mut screen = live();
        for code in codes {
            press(&mut screen, &[code]);
            for (width, height) in [(1, 1), (2, 3), (79, 24), (80, 24), (500, 200)] {
                on(&mut screen, width, height);
            }
        }
    }

    #[test]
    fn one_table_is_shown_alone_and_scrolls_to_its_end() {
        let mut screen = live();
        press(&mut screen, &[KeyCode::Char('3')]);
        let text = shown(&mut screen);
        assert!(
            !text.contains("MEMBERS") && text.contains("KEYS LIMITED NOW 1-18 of 40"),
            "{text}"
        );
        let last = format!("#{:016x}", 39);
        assert!(!text.contains(&last));
        press(&mut screen, &[KeyCode::PageDown; 9]);
        assert!(shown(&mut screen).contains(&last));
        // It did not go further than what is there.
        press(&mut screen, &[KeyCode::Up]);
        assert!(!shown(&mut screen).contains(&last));
        press(&mut screen, &[KeyCode::Home]);
        assert!(shown(&mut screen).contains("user=\\u{1b}[31mann"));
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let mut screen = live();
        press(&mut screen, &[KeyCode::Char('2')]);
        let at = |text: &str, what: &str| text.find(what).unwrap();
        let text = shown(&mut screen);
        assert!(at(&text, "edge.user") < at(&text, "edge.page"), "by refusals: {text}");
        press(&mut screen, &[KeyCode::Char('s')]);
        let text = shown(&mut screen);
        assert!(text.contains("by checks/s"), "{text}");
        assert!(at(&text, "edge.page") < at(&text, "edge.user"), "{text}");
        press(&mut screen, &[KeyCode::Char('/')]);
        // What is typed does nothing else.
        assert!(!press(&mut screen, &write("USERq")));
        press(&mut screen, &[KeyCode::Backspace]);
        let text = shown(&mut screen);
        assert!(text.contains("filter: USER_") && !text.contains("edge.page"), "{text}");
        press(&mut screen, &[KeyCode::Enter]);
        assert!(shown(&mut screen).contains("RULES 1,"));
        assert!(!press(&mut screen, &[KeyCode::Esc]), "it clears the filter first");
        assert!(shown(&mut screen).contains("edge.page"));
        assert!(press(&mut screen, &[KeyCode::Esc]));
    }

    #[test]
    fn a_lost_connection_is_said_and_what_was_seen_stays() {
        let lost = |why: &str| Told::Lost(Lost { url: URL.to_owned(), why: why.to_owned() });
        let mut screen = Screen::default();
        assert!(shown(&mut screen).starts_with("connecting ..."));
        screen.told(lost("connection refused"), Duration::from_secs(1));
        assert!(shown(&mut screen).starts_with("no connection: http://127.0.0.1:8082: connection"));
        screen.told(told(snapshot(1)), Duration::from_secs(2));
        screen.told(lost("the node ended\u{7} the stream"), Duration::from_secs(3));
        screen.told(lost("connection refused"), Duration::from_secs(9));
        let text = shown(&mut screen);
        assert!(
            text.contains("STALE for 12s: http://127.0.0.1:8082: connection refused"),
            "{text}"
        );
        assert!(text.contains("edge.user"), "{text}");
        screen.told(told(snapshot(20)), Duration::from_secs(20));
        assert!(!shown(&mut screen).contains("STALE"));
    }

    #[test]
    fn a_pause_holds_the_picture_and_says_so() {
        let mut screen = live();
        press(&mut screen, &[KeyCode::Char('p')]);
        let mut later = snapshot(4);
        later.members[0].member.state = MemberState::Up;
        screen.told(told(later), Duration::from_secs(4));
        let text = shown(&mut screen);
        assert!(text.contains("PAUSED") && text.contains("down: n1"), "{text}");
        press(&mut screen, &[KeyCode::Char(' ')]);
        let text = shown(&mut screen);
        assert!(!text.contains("PAUSED") && !text.contains("down: n1"), "{text}");
    }

    #[test]
    fn colour_is_left_out_where_it_is_not_wanted() {
        let is_coloured = |buffer: &Buffer| {
            buffer.content.iter().any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset))
        };
        assert!(is_coloured(&on(&mut live(), 80, 24)));
        let area = Rect::new(0, 0, 80, 24);
        let mut buffer = Buffer::empty(area);
        draw(&mut live(), Duration::ZERO, false, &mut buffer, area);
        assert!(!is_coloured(&buffer));
    }

    #[test]
    fn room_goes_to_those_that_need_it() {
        assert_eq!(share(22, &[5, 3, 42]), [5, 3, 14]);
        assert_eq!(share(22, &[42, 42, 42]), [7, 7, 8]);
        assert_eq!(share(2, &[42, 42, 42]), [0, 1, 1]);
    }

    #[test]
    fn columns_at_the_end_go_first() {
        assert_eq!(fitted(vec![4, 5, 6], 40), [25, 5, 6]);
        assert_eq!(fitted(vec![40, 5, 6], 30), [15, 5, 6]);
        assert_eq!(fitted(vec![40, 5, 6], 20), [13, 5]);
        assert_eq!(fitted(vec![40, 5, 6], 3), [3]);
    }
}
