//! Which sources are blocked, and the transactions that make the kernel's sets hold them.
//!
//! # Rules
//!
//! - A source is blocked while any node names it, until the latest time that one gave. A node's
//!   picture replaces its earlier one; that of a node that is gone stays, and ends by its times.
//! - What overlaps an allowed network is never blocked: those of the options, loopback, link-local,
//!   and the nodes' own addresses.
//! - An entry of a set has a timeout of `timeout` at most, to the nearest second. It is renewed
//!   from half of it on, if the source is blocked for a second longer, by deleting and adding it in
//!   one transaction: adding alone leaves the time as it is.
//! - An entry that no node names any more is left to time out.
//! - The first transaction replaces the table, with whatever an earlier process left in it; so does
//!   the first one after a failure. It waits until all nodes have sent a picture, or for
//!   [`START_WAIT`] after the first did.
//!
//! # Example
//!
//! `timeout` 60 s. A node names a source for 90 s: it is added for 60. At 30 s the entry is half
//! over and the source is blocked for 60 more, so it is renewed for 60. It ends at 90 s.
//!
//! # Bounds
//!
//! A transaction has at most [`ELEMENTS_MAX`] elements, deleted and added: larger ones exceed the
//! buffers of netlink. A set has at most [`SET_SIZE`]; sources beyond are not blocked, and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_limiter::units::{Monotonic, NANOS_PER_SEC, Span};

use crate::admin::BlockedReport;
use crate::decide::{NEVER_BLOCKED, SourceNet};

/// Most elements of each of the two sets.
pub(super) const SET_SIZE: usize = 65_536;
/// Most elements of a transaction.
pub(super) const ELEMENTS_MAX: usize = 4_096;
/// How long the first transaction waits for the pictures of further nodes.
pub(super) const START_WAIT: Span = Span::from_secs(2);
/// What an entry must gain to be renewed: timeouts are in seconds.
const GAIN_MIN: Span = Span::from_secs(1);

#[derive(Debug)]
pub(super) struct Blocklist {
    allow: Vec<IpNet>,
    ipv6_prefix: u8,
    timeout: Span,
    nodes: Vec<Option<Picture>>,
    /// When the first picture came.
    first_picture: Option<Monotonic>,
    /// Whether the table is the one that this process wrote.
    has_table: bool,
    /// What the sets hold.
    entries: BTreeMap<SourceNet, Entry>,
    left_out: usize,
}

/// What a node says.
#[derive(Debug)]
struct Picture {
    /// Its own addresses and those of its peers.
    addresses: BTreeSet<SourceNet>,
    /// Until when each source is blocked.
    sources: BTreeMap<SourceNet, Monotonic>,
}

/// An entry of a set. The kernel's times are not later.
#[derive(Clone, Copy, Debug)]
struct Entry {
    written: Monotonic,
    ends: Monotonic,
}

/// Changes that the kernel makes all or none of. Times are in seconds from then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Transaction {
    /// Whether the table is replaced first.
    pub(super) takes_over: bool,
    pub(super) added: Vec<(SourceNet, u64)>,
    pub(super) renewed: Vec<(SourceNet, u64)>,
    pub(super) removed: Vec<SourceNet>,
}

impl Blocklist {
    /// For `nodes` nodes; nothing is known yet.
    pub(super) fn new(nodes: usize, allow: Vec<IpNet>, ipv6_prefix: u8, timeout: Span) -> Self {
        Self {
            allow: allow.into_iter().chain(NEVER_BLOCKED).collect(),
            ipv6_prefix,
            timeout,
            nodes: std::iter::repeat_with(|| None).take(nodes).collect(),
            first_picture: None,
            has_table: false,
            entries: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// The picture of the node in place `node`, which was reached at `addr`.
    pub(super) fn take(
        &mut self,
        node: usize,
        report: BlockedReport,
        addr: Option<IpAddr>,
        now: Monotonic,
    ) {
        let addresses = report.addresses.into_iter().chain(addr);
        let grouped = |addr: IpAddr| SourceNet::from(addr).grouped(self.ipv6_prefix);
        let addresses = addresses.filter_map(grouped).collect();
        let sources = report.sources.into_iter().filter_map(|it| {
            let source = it.source.grouped(self.ipv6_prefix)?;
            let is_allowed = self.allow.iter().any(|net| source.overlaps(net));
            let until = now.plus(Span::from_millis(it.expires_in_ms));
            (!is_allowed).then_some((source, until))
        });
        let mut latest: BTreeMap<SourceNet, Monotonic> = BTreeMap::new();
        for (source, until) in sources {
            // Prefixes of a node that are longer than ours may be one.
            let known = latest.entry(source).or_default();
            *known = until.max(*known);
        }
        self.first_picture.get_or_insert(now);
        if let Some(place) = self.nodes.get_mut(node) {
            *place = Some(Picture { addresses, sources: latest });
        }
    }

    /// The next transaction; none if there is nothing to do at `now`. Its outcome is to be told by
    /// [`Blocklist::applied`] or [`Blocklist::failed`] before the next call.
    pub(super) fn next(&mut self, now: Monotonic) -> Option<Transaction> {
        if !self.has_table && !self.may_begin(now) {
            return None;
        }
        self.entries.retain(|_, entry| entry.ends > now);
        let own = self.own_addresses();
        let mut transaction = Transaction { takes_over: !self.has_table, ..Transaction::default() };
        let mut room = ELEMENTS_MAX;
        for source in self.entries.keys().filter(|source| own.contains(source)).take(room) {
            transaction.removed.push(*source);
        }
        room -= transaction.removed.len();
        let mut free = self.free();
        self.left_out = 0;
        for (source, until) in self.wanted(&own, now) {
            let ends = until.min(now.plus(self.timeout));
            match self.entries.get(&source) {
                None if room > 0 => {
                    let free = &mut free[usize::from(matches!(source, SourceNet::V6(_)))];
                    if *free > 0 {
                        *free -= 1;
                        room -= 1;
                        transaction.added.push((source, seconds(ends.since(now))));
                    } else {
                        self.left_out += 1;
                    }
                }
                Some(entry) if room > 1 && entry.is_due(now) && entry.gains(ends) => {
                    room -= 2;
                    transaction.renewed.push((source, seconds(ends.since(now))));
                }
                _ => {}
            }
        }
        (transaction != Transaction::default()).then_some(transaction)
    }

    /// The kernel has carried out a transaction, before `now`.
    pub(super) fn applied(&mut self, transaction: &Transaction, now: Monotonic) {
        self.has_table = true;
        for source in &transaction.removed {
            self.entries.remove(source);
        }
        for (source, secs) in transaction.added.iter().chain(&transaction.renewed) {
            // Not before the kernel's: an entry must not be added before it is gone.
            let ends = now.plus(Span::from_secs(*secs));
            self.entries.insert(*source, Entry { written: now, ends });
        }
    }

    /// A transaction failed: something else has changed the table. It is written again.
    pub(super) fn failed(&mut self) {
        self.has_table = false;
        self.entries.clear();
    }

    /// When there may be something to do if no picture comes before; none if there is not.
    pub(super) fn wakes_at(&self, now: Monotonic) -> Option<Monotonic> {
        if !self.has_table {
            return self.first_picture.map(|first| first.plus(START_WAIT));
        }
        // An entry that is due has been renewed, or the source is not blocked for longer.
        self.entries.values().map(Entry::due).filter(|due| *due > now).min()
    }

    /// Entries of both sets.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sources that found no place in their set, at the last look.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    fn may_begin(&self, now: Monotonic) -> bool {
        let has_waited = || self.first_picture.is_some_and(|at| now.since(at) >= START_WAIT);
        self.nodes.iter().all(Option::is_some) || has_waited()
    }

    fn own_addresses(&self) -> BTreeSet<SourceNet> {
        self.nodes.iter().flatten().flat_map(|it| it.addresses.iter().copied()).collect()
    }

    /// The sources to block, with the latest time that a node gave.
    fn wanted(&self, own: &BTreeSet<SourceNet>, now: Monotonic) -> BTreeMap<SourceNet, Monotonic> {
        let mut wanted: BTreeMap<SourceNet, Monotonic> = BTreeMap::new();
        for (source, until) in self.nodes.iter().flatten().flat_map(|it| &it.sources) {
            if *until > now && !own.contains(source) {
                let known = wanted.entry(*source).or_default();
                *known = (*until).max(*known);
            }
        }
        wanted
    }

    /// Places left in each set.
    fn free(&self) -> [usize; 2] {
        let v6 = self.entries.keys().filter(|it| matches!(it, SourceNet::V6(_))).count();
        [self.entries.len() - v6, v6].map(|used| SET_SIZE.saturating_sub(used))
    }
}

impl Entry {
    /// When half of its time is over.
    fn due(&self) -> Monotonic {
        self.written.plus(Span::from_nanos(self.ends.since(self.written).as_nanos() / 2))
    }

    fn is_due(&self, now: Monotonic) -> bool {
        now >= self.due()
    }

    fn gains(&self, ends: Monotonic) -> bool {
        ends >= self.ends.plus(GAIN_MIN)
    }
}

/// To the nearest second, at least one: a timeout of zero is none.
fn seconds(span: Span) -> u64 {
    ((span.as_nanos() + NANOS_PER_SEC / 2) / NANOS_PER_SEC).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admin::BlockedSource;

    const TIMEOUT: Span = Span::from_secs(60);

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_nanos(millis * 1_000_000)
    }

    fn source(text: &str) -> SourceNet {
        text.parse().unwrap()
    }

    fn report(sources: &[(&str, u64)]) -> BlockedReport {
        let sources = sources.iter().map(|(text, expires_in_ms)| BlockedSource {
            source: source(text),
            rule: "r".to_owned(),
            expires_in_ms: *expires_in_ms,
        });
        BlockedReport { node: "n1".to_owned(), sources: sources.collect(), ..Default::default() }
    }

    /// A kernel that does as nftables does.
    #[derive(Debug, Default)]
    struct Kernel {
        entries: BTreeMap<SourceNet, Monotonic>,
    }

    impl Kernel {
        fn apply(&mut self, transaction: &Transaction, now: Monotonic) -> Result<(), String> {
            self.entries.retain(|_, ends| *ends > now);
            let Transaction { takes_over, added, renewed, removed } = transaction;
            assert!(added.len() + 2 * renewed.len() + removed.len() <= ELEMENTS_MAX);
            if *takes_over {
                self.entries.clear();
            }
            for source in renewed.iter().map(|(source, _)| source).chain(removed) {
                self.entries.remove(source).ok_or_else(|| format!("{source} is not there"))?;
            }
            for (source, secs) in renewed.iter().chain(added) {
                assert!(*secs > 0 && *secs <= 60, "{source} for {secs} s");
                // One that is there keeps its time.
                let ends = now.plus(Span::from_secs(*secs));
                self.entries.entry(*source).or_insert(ends);
            }
            Ok(())
        }

        fn names(&self, now: Monotonic) -> Vec<String> {
            let live = self.entries.iter().filter(|(_, ends)| **ends > now);
            live.map(|(source, _)| source.to_string()).collect()
        }
    }

    /// Carries out all that is to be done; how many transactions that took.
    fn settle(blocklist: &mut Blocklist, kernel: &mut Kernel, now: Monotonic) -> usize {
        let mut count = 0;
        while let Some(transaction) = blocklist.next(now) {
            match kernel.apply(&transaction, now) {
                Ok(()) => blocklist.applied(&transaction, now),
                Err(_) => blocklist.failed(),
            }
            count += 1;
            assert!(count < 1_000, "it does not end");
        }
        count
    }

    /// As the exporter does between pictures.
    fn pass(blocklist: &mut Blocklist, kernel: &mut Kernel, from: Monotonic, to: Monotonic) {
        let mut now = from;
        settle(blocklist, kernel, now);
        while let Some(next) = blocklist.wakes_at(now).filter(|next| *next <= to && *next > now) {
            now = next;
            settle(blocklist, kernel, now);
        }
        settle(blocklist, kernel, to);
    }

    fn one_node(allow: &[&str]) -> Blocklist {
        let allow = allow.iter().map(|net| net.parse().unwrap()).collect();
        Blocklist::new(1, allow, 64, TIMEOUT)
    }

    #[test]
    fn an_entry_is_renewed_at_half_of_its_time_and_ends_when_the_node_said() {
        let (mut blocklist, mut kernel) = (one_node(&[]), Kernel::default());
        blocklist.take(0, report(&[("203.0.113.7", 90_000)]), None, at(0));
        settle(&mut blocklist, &mut kernel, at(0));
        assert_eq!(kernel.entries[&source("203.0.113.7")], at(60_000));
        assert_eq!(blocklist.wakes_at(at(0)), Some(at(30_000)));
        assert_eq!(settle(&mut blocklist, &mut kernel, at(29_999)), 0);
        assert_eq!(settle(&mut blocklist, &mut kernel, at(30_000)), 1);
        assert_eq!(kernel.entries[&source("203.0.113.7")], at(90_000));
        pass(&mut blocklist, &mut kernel, at(30_000), at(90_000));
        assert_eq!(kernel.names(at(89_999)), ["203.0.113.7"]);
        assert_eq!(kernel.names(at(90_000)), [""; 0]);
        assert_eq!(blocklist.len(), 0);
    }

    #[test]
    fn what_any_node_names_is_blocked_for_the_longest_time() {
        let mut blocklist = Blocklist::new(2, Vec::new(), 64, TIMEOUT);
        let mut kernel = Kernel::default();
        blocklist.take(0, report(&[("203.0.113.7", 10_000), ("203.0.113.8", 10_000)]), None, at(0));
        // The pictures of both nodes belong into the table that replaces an earlier one.
        assert_eq!(blocklist.next(at(0)), None);
        let sources = [("203.0.113.7", 20_000), ("2001:db8::/64", 20_000)];
        blocklist.take(1, report(&sources), None, at(0));
        settle(&mut blocklist, &mut kernel, at(0));
        assert_eq!(kernel.names(at(9_999)), ["203.0.113.7", "203.0.113.8", "2001:db8::/64"]);
        assert_eq!(kernel.names(at(19_999)), ["203.0.113.7", "2001:db8::/64"]);
        // A node that does not answer is not waited for.
        let mut blocklist = Blocklist::new(2, Vec::new(), 64, TIMEOUT);
        blocklist.take(0, report(&[("203.0.113.7", 10_000)]), None, at(0));
        assert_eq!(blocklist.wakes_at(at(0)), Some(at(2_000)));
        assert!(blocklist.next(at(1_999)).is_none());
        assert!(blocklist.next(at(2_000)).is_some());
    }

    #[test]
    fn what_is_allowed_always_wins() {
        let allow = ["198.51.100.0/24", "2001:db8:1:2::7/128"];
        let (mut blocklist, mut kernel) = (one_node(&allow), Kernel::default());
        let sources = [
            "198.51.100.9",
            // One address of it is allowed.
            "2001:db8:1:2::/64",
            "2001:db8:1:3::/64",
            "127.0.0.1",
            "0.0.0.0",
            "::/64",
            "fe80::/64",
            // A node, its peer, and the address at which the node was reached.
            "192.0.2.1",
            "2001:db8:9::/64",
            "192.0.2.3",
            "203.0.113.7",
        ];
        let addresses = ["192.0.2.1", "2001:db8:9::5"].map(|addr| addr.parse().unwrap());
        let report = |addresses: &[IpAddr]| BlockedReport {
            addresses: addresses.to_vec(),
            ..report(&sources.map(|source| (source, 50_000)))
        };
        let reached = "192.0.2.3".parse().ok();
        blocklist.take(0, report(&addresses), reached, at(0));
        settle(&mut blocklist, &mut kernel, at(0));
        assert_eq!(kernel.names(at(0)), ["203.0.113.7", "2001:db8:1:3::/64"]);
        // A node that joins is let through at once.
        blocklist.take(0, report(&["203.0.113.7".parse().unwrap()]), reached, at(1_000));
        settle(&mut blocklist, &mut kernel, at(1_000));
        assert!(!kernel.names(at(1_000)).contains(&"203.0.113.7".to_owned()));
    }

    #[test]
    fn ten_thousand_sources_take_three_transactions() {
        let texts: Vec<String> =
            (0..10_000).map(|n| format!("10.1.{}.{}", n / 256, n % 256)).collect();
        let sources: Vec<(&str, u64)> = texts.iter().map(|text| (&**text, 600_000)).collect();
        let (mut blocklist, mut kernel) = (one_node(&[]), Kernel::default());
        blocklist.take(0, report(&sources), None, at(0));
        assert_eq!(settle(&mut blocklist, &mut kernel, at(0)), 3);
        assert_eq!(kernel.entries.len(), 10_000);
        // Each counts twice: it is deleted and added.
        assert_eq!(settle(&mut blocklist, &mut kernel, at(30_000)), 5);
    }

    #[test]
    fn sources_beyond_the_size_of_a_set_are_left_out() {
        let texts: Vec<String> =
            (0..70_000).map(|n| format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255)).collect();
        let mut sources: Vec<(&str, u64)> = texts.iter().map(|text| (&**text, 600_000)).collect();
        sources.push(("2001:db8::/64", 600_000));
        let (mut blocklist, mut kernel) = (one_node(&[]), Kernel::default());
        blocklist.take(0, report(&sources), None, at(0));
        settle(&mut blocklist, &mut kernel, at(0));
        assert_eq!(kernel.entries.len(), SET_SIZE + 1);
        assert_eq!(blocklist.left_out(), 70_000 - SET_SIZE);
    }

    #[test]
    fn prefixes_are_of_one_length() {
        let (mut blocklist, mut kernel) = (one_node(&[]), Kernel::default());
        let sources = [
            ("2001:db8:0:1::7", 10_000),
            ("2001:db8:0:1::/80", 20_000),
            // It would be more than is exported, or less than was asked for.
            ("2001:db8::/48", 10_000),
        ];
        blocklist.take(0, report(&sources), None, at(0));
        settle(&mut blocklist, &mut kernel, at(0));
        assert_eq!(kernel.names(at(19_000)), ["2001:db8:0:1::/64"]);
        assert_eq!(kernel.entries.len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A node names sources, each for some milliseconds.
        Picture(usize, Vec<(u8, u64)>),
        Pass(u64),
        /// The exporter is started again.
        Restart,
        /// Somebody removes all entries.
        Emptied,
    }

    fn step() -> impl Strategy<Value = Step> {
        let sources = prop::collection::vec((0_u8..12, 1_u64..200_000), 0..8);
        prop_oneof![
            4 => (0_usize..2, sources).prop_map(|(node, sources)| Step::Picture(node, sources)),
            6 => (1_u64..40_000).prop_map(Step::Pass),
            1 => Just(Step::Restart),
            1 => Just(Step::Emptied),
        ]
    }

    proptest! {
        /// Whatever happens: what a node names is in the kernel until its time is over, give or
        /// take a second, and nothing else is; what is allowed never is.
        #[test]
        fn the_kernel_holds_what_the_nodes_name(
            steps in prop::collection::vec(step(), 1..60),
        ) {
            const SECOND: Span = Span::from_secs(1);
            let new = || Blocklist::new(2, vec!["10.0.0.3/32".parse().unwrap()], 64, TIMEOUT);
            let (mut blocklist, mut kernel) = (new(), Kernel::default());
            let mut now = at(10_000);
            // What the nodes say, and the latest time that was ever named.
            let mut named: [BTreeMap<SourceNet, Monotonic>; 2] = Default::default();
            let mut latest: BTreeMap<SourceNet, Monotonic> = BTreeMap::new();
            let mut was_emptied = false;
            for step in steps {
                match step {
                    Step::Picture(node, sources) => {
                        let texts: Vec<(String, u64)> =
                            sources.iter().map(|(n, ms)| (format!("10.0.0.{n}"), *ms)).collect();
                        let texts: Vec<(&str, u64)> =
                            texts.iter().map(|(text, ms)| (&**text, *ms)).collect();
                        blocklist.take(node, report(&texts), None, now);
                        named[node].clear();
                        for (text, ms) in texts {
                            let until = now.plus(Span::from_millis(ms));
                            let of_node = named[node].entry(source(text)).or_default();
                            *of_node = until.max(*of_node);
                            let ever = latest.entry(source(text)).or_default();
                            *ever = until.max(*ever);
                        }
                    }
                    Step::Pass(millis) => {
                        let to = now.plus(Span::from_millis(millis));
                        pass(&mut blocklist, &mut kernel, now, to);
                        now = to;
                    }
                    Step::Restart => {
                        blocklist = new();
                        // It reads both streams at its start.
                        for (node, sources) in named.iter().enumerate() {
                            let texts: Vec<(String, u64)> = sources
                                .iter()
                                .map(|(source, until)| {
                                    (source.to_string(), until.since(now).as_nanos() / 1_000_000)
                                })
                                .collect();
                            let texts: Vec<(&str, u64)> =
                                texts.iter().map(|(text, ms)| (&**text, *ms)).collect();
                            blocklist.take(node, report(&texts), None, now);
                        }
                        // No stale entries.
                        settle(&mut blocklist, &mut kernel, now);
                        for name in kernel.names(now) {
                            let is_named = named.iter().any(|it| {
                                it.get(&source(&name)).is_some_and(|until| *until > now)
                            });
                            prop_assert!(is_named, "{name} is stale");
                        }
                        was_emptied = false;
                    }
                    Step::Emptied => {
                        kernel.entries.clear();
                        was_emptied = true;
                    }
                }
                settle(&mut blocklist, &mut kernel, now);
                let live: BTreeMap<SourceNet, Monotonic> = kernel
                    .entries
                    .iter()
                    .filter(|(_, ends)| **ends > now)
                    .map(|(source, ends)| (*source, *ends))
                    .collect();
                prop_assert!(!live.contains_key(&source("10.0.0.3")));
                for (source, ends) in &live {
                    let until = latest.get(source).copied().unwrap_or_default();
                    prop_assert!(*ends <= until.plus(SECOND), "{source} stays too long");
                }
                if !blocklist.has_table || was_emptied {
                    continue;
                }
                let allowed = source("10.0.0.3");
                for (source, until) in named.iter().flatten() {
                    let is_due = *until > now.plus(SECOND) && *source != allowed;
                    prop_assert!(!is_due || live.contains_key(source), "{source} is missing");
                }
            }
        }
    }
}
