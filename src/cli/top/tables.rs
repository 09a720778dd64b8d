//! The three tables as texts: members, rules, keys that are limited now.
//!
//! What a cell shows came from the cluster, and a key's value from a client: everything that a
//! terminal could take for a command is escaped here, where all cells are made.

use std::cmp::Ordering;

use super::rates::{Picture, Rate, admitted};
use crate::admin::report::{MemberState, RuleReport};
use crate::admin::snapshot::{ClusterSnapshot, KeyRefusals, MemberRow};

/// Longest text of a cell, in characters; the rest is cut.
const CELL_CHARS_MAX: usize = 256;

/// Rows under a head, each with a cell for each column. The first column is the widest.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// By what the rows are sorted.
    pub(super) order: &'static str,
}

pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) is_number: bool,
}

pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) tone: Tone,
}

/// How a row looks. Its cells say the same in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// It passes, or needs a look.
    Unusual,
    Bad,
}

/// A table by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Members,
    Rules,
    Keys,
}

/// A rule, and its rate if there is one.
struct Measured {
    rule: RuleReport,
    rate: Option<Rate>,
}

/// An order of rows: its name, and how two of them compare.
type Order<T> = (&'static str, fn(&T, &T) -> Ordering);

const MEMBER_ORDERS: [Order<MemberRow>; 4] = [
    ("region", |a, b| (&a.member.region, &a.member.id).cmp(&(&b.member.region, &b.member.id))),
    ("state", |a, b| state(b).1.rank().cmp(&state(a).1.rank())),
    ("ring share", |a, b| b.member.ring_share.total_cmp(&a.member.ring_share)),
    ("round trip", |a, b| b.member.rtt_us.cmp(&a.member.rtt_us)),
];
const RULE_ORDERS: [Order<Measured>; 3] = [
    ("refused/s", |a, b| {
        let refused = |it: &Measured| it.rate.unwrap_or_default().refused;
        refused(b).total_cmp(&refused(a)).then(b.rule.counts.denied.cmp(&a.rule.counts.denied))
    }),
    ("checks/s", |a, b| {
        let checks = |it: &Measured| it.rate.unwrap_or_default().checks;
        checks(b).total_cmp(&checks(a)).then(b.rule.counts.checks().cmp(&a.rule.counts.checks()))
    }),
    ("name", |a, b| a.rule.rule.cmp(&b.rule.rule)),
];
const KEY_ORDERS: [Order<KeyRefusals>; 2] = [
    ("refused/s", |a, b| b.per_second.total_cmp(&a.per_second)),
    ("rule", |a, b| (&a.rule, &a.key, &a.token).cmp(&(&b.rule, &b.key, &b.token))),
];

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Members, Self::Rules, Self::Keys];

    /// The rows in which `filter` is, in the order of this number, which wraps around.
    pub(super) fn table(self, picture: &Picture, order: usize, filter: &str) -> Table {
        let mut table = match self {
            Self::Members => members(&picture.snapshot, order),
            Self::Rules => rules(picture, order),
            Self::Keys => keys(&picture.snapshot, order),
        };
        let filter = filter.to_lowercase();
        let matches = |cell: &String| cell.to_lowercase().contains(&filter);
        table.rows.retain(|row| row.cells.iter().any(matches));
        table
    }
}

impl Tone {
    fn rank(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Unusual => 1,
            Self::Bad => 2,
        }
    }
}

fn members(snapshot: &ClusterSnapshot, order: usize) -> Table {
    let asked = rules_of_asked(snapshot);
    let mut rows: Vec<&MemberRow> = snapshot.members.iter().collect();
    let order = sort(&mut rows, &MEMBER_ORDERS, order);
    let row = |row: &&MemberRow| {
        let MemberRow { member, reported, .. } = row;
        let is_down = member.state == MemberState::Down;
        let differs = differs(member.rule_book.as_deref(), asked);
        let mark = if differs { " !" } else { "" };
        let rules = member.rule_book.as_ref().map(|book| format!("{}{mark}", short(book)));
        let rtt = member.rtt_us.filter(|_| !is_down);
        let clock = member.clock_offset_ms.filter(|_| !is_down);
        let is_skewed = reported.as_ref().is_some_and(|it| it.clock.is_skewed);
        let skew = if is_skewed { " !" } else { "" };
        let (state, tone) = state(row);
        let tone = match tone {
            Tone::Plain if differs || is_skewed => Tone::Unusual,
            tone => tone,
        };
        let cells = [
            member.id.clone(),
            state.to_owned(),
            member.region.clone(),
            or_dash(reported.as_ref().map(|it| it.node.role.clone())),
            format!("{:.1}%", member.ring_share * 100.0),
            or_dash(rtt.map(|us| format!("{}.{}ms", us / 1_000, us % 1_000 / 100))),
            or_dash(clock.map(|ms| format!("{ms:+}ms{skew}"))),
            or_dash(rules),
        ];
        Row::new(&cells, tone)
    };
    Table {
        title: "MEMBERS",
        columns: vec![
            text("NODE"),
            text("STATE"),
            text("REGION"),
            text("ROLE"),
            number_of("RING"),
            number_of("RTT"),
            number_of("CLOCK"),
            text("RULES"),
        ],
        rows: rows.iter().map(row).collect(),
        order,
    }
}

/// In a word or two, with what it means for the cluster.
fn state(row: &MemberRow) -> (&'static str, Tone) {
    let state = row.member.state;
    let reported = row.reported.as_ref();
    let has_lease = reported.and_then(|it| it.ownership.as_ref()).is_none_or(|it| it.has_lease);
    match state {
        MemberState::Down => (state.name(), Tone::Bad),
        MemberState::Draining | MemberState::Joining => (state.name(), Tone::Unusual),
        _ if reported.is_some_and(|it| it.not_ready.is_some()) => ("not ready", Tone::Bad),
        _ if !has_lease => ("no lease", Tone::Bad),
        _ if reported.is_some_and(|it| !it.transferring_to.is_empty()) => {
            ("handing over", Tone::Unusual)
        }
        MemberState::This | MemberState::Up => (state.name(), Tone::Plain),
    }
}

fn rules(picture: &Picture, order: usize) -> Table {
    let rates = picture.rates.as_ref();
    let measured = |rule: &RuleReport| Measured {
        rate: rates.and_then(|rates| rates.rules.get(&rule.rule)).copied(),
        rule: rule.clone(),
    };
    let measured: Vec<Measured> = picture.snapshot.rules.iter().map(measured).collect();
    let mut rows: Vec<&Measured> = measured.iter().collect();
    let order = sort(&mut rows, &RULE_ORDERS, order);
    let row = |Measured { rule, rate }: &Measured| {
        let counts = &rule.counts;
        let undecided = counts.unavailable.saturating_add(counts.alone);
        let cells = [
            rule.rule.clone(),
            or_dash(rule.mode.clone()),
            or_dash(rate.map(|rate| number(rate.admitted))),
            or_dash(rate.map(|rate| number(rate.refused))),
            admitted(counts).to_string(),
            counts.denied.to_string(),
            undecided.to_string(),
            or_dash(rule.error.map(|error| format!("{:+.1}%", error * 100.0))),
        ];
        Row::new(&cells, Tone::Plain)
    };
    Table {
        title: "RULES",
        columns: vec![
            text("RULE"),
            text("MODE"),
            number_of("ADM/S"),
            number_of("REF/S"),
            number_of("ADMITTED"),
            number_of("REFUSED"),
            number_of("ALONE"),
            number_of("ERROR"),
        ],
        rows: rows.into_iter().map(row).collect(),
        order,
    }
}

fn keys(snapshot: &ClusterSnapshot, order: usize) -> Table {
    let mut rows: Vec<&KeyRefusals> = snapshot.refused_keys.iter().collect();
    let order = sort(&mut rows, &KEY_ORDERS, order);
    let row = |key: &&KeyRefusals| {
        let error = Some(key.error).filter(|error| *error >= 0.1);
        let cells = [
            key.key.clone().unwrap_or_else(|| format!("#{}", key.token)),
            key.rule.clone(),
            number(key.per_second),
            error.map_or_else(String::new, |error| format!("-{}", number(error))),
        ];
        Row::new(&cells, Tone::Plain)
    };
    Table {
        title: "KEYS LIMITED NOW",
        columns: vec![text("KEY"), text("RULE"), number_of("REF/S"), number_of("OR LESS")],
        rows: rows.iter().map(row).collect(),
        order,
    }
}

/// Sorts by the order of this number, which wraps around; its name.
fn sort<T>(rows: &mut [&T], orders: &[Order<T>], order: usize) -> &'static str {
    let (name, compare) = orders[order % orders.len()];
    rows.sort_by(|a, b| compare(a, b));
    name
}

/// Whether a member has other rules than the node that was asked: not known of an edge, which is no
/// member.
pub(super) fn differs(rules: Option<&str>, of_asked: Option<&str>) -> bool {
    rules.is_some() && of_asked.is_some() && rules != of_asked
}

/// The fingerprint of the rules of the node that was asked.
pub(super) fn rules_of_asked(snapshot: &ClusterSnapshot) -> Option<&str> {
    let asked = snapshot.members.iter().find(|row| row.member.state == MemberState::This);
    asked.and_then(|row| row.member.rule_book.as_deref())
}

impl Row {
    fn new(cells: &[String], tone: Tone) -> Self {
        Self { cells: cells.iter().map(|cell| printable(cell)).collect(), tone }
    }
}

fn text(head: &'static str) -> Column {
    Column { head, is_number: false }
}

fn number_of(head: &'static str) -> Column {
    Column { head, is_number: true }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// The first eight digits are enough to compare by eye.
pub(super) fn short(fingerprint: &str) -> &str {
    fingerprint.get(..8).unwrap_or(fingerprint)
}

/// A count or a rate in at most six characters, below a billion.
pub(super) fn number(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{:.1}M", value / 1e6),
        _ if value >= 1e4 => format!("{:.1}k", value / 1e3),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

/// The text with control and other invisible characters escaped as in Rust: `\u{1b}` is ESC, `\\` a
/// backslash. Cut after [`CELL_CHARS_MAX`] characters.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(CELL_CHARS_MAX));
    for (at, c) in text.chars().enumerate() {
        match c {
            _ if at == CELL_CHARS_MAX => {
                shown.push('…');
                break;
            }
            '"' | '\'' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let hostile = "a\u{1b}[2J\u{9b}31m\u{7}\r\n\u{202e}\u{200b}\u{feff}\0é\"x\"\\漢";
        assert_eq!(
            printable(hostile),
            "a\\u{1b}[2J\\u{9b}31m\\u{7}\\r\\n\\u{202e}\\u{200b}\\u{feff}\\0é\"x\"\\\\漢"
        );
        for c in '\0'..=char::MAX {
            let shown = printable(&c.to_string());
            assert!(!shown.contains(char::is_control) && !shown.is_empty(), "{c:?}");
        }
        let long = printable(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), CELL_CHARS_MAX + 1);
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 3.0, 0.25, 9_999.5, 12_345.0, 1_234_567.0].map(number);
        assert_eq!(texts, ["0", "3", "0.2", "9999.5", "12.3k", "1.2M"]);
    }
}
