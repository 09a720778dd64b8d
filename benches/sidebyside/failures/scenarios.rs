//! The scenarios: what is sent, what would be exact, and what is seen.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidegate_proto::gubernator::{RateLimitReq, RateLimitResp};
use tokio::time::{MissedTickBehavior, interval};

use super::client::{
    Client, GLOBAL, PER_MESSAGE, count, hits, is_admitted, is_error, key, looks, one_each,
};
use super::network::Network;
use super::servers::{Cluster, KeysMax, Kind, Places};

/// What happens, to which a server is put.
pub struct Scenario {
    pub name: String,
    pub sent: String,
    /// What a limiter that forgets nothing would show.
    pub exact: String,
    /// Both servers at the same time: it takes long and is no load.
    pub is_at_once: bool,
    pub run: Run,
}

/// Returns what was seen.
type Run = Box<dyn Fn(&Trial) -> io::Result<String> + Send + Sync>;

/// A scenario with one of the servers.
pub struct Trial {
    pub kind: Kind,
    /// For this trial alone.
    pub folder: PathBuf,
    pub is_quick: bool,
}

/// The node that is killed and paused. It is not the one by which the others found each other.
const VICTIM: usize = 2;

pub fn all(is_quick: bool) -> Vec<Scenario> {
    let mut all = Vec::new();
    for (limit, behavior, name) in
        [(100, 0, ""), (1_000, 0, ""), (100, GLOBAL, ", GLOBAL"), (1_000, GLOBAL, ", GLOBAL")]
    {
        all.push(Scenario {
            name: format!("burst at three nodes, L = {limit}{name}"),
            sent: format!("{} hits of one key within some 100 ms, a third at each", 3 * limit),
            exact: format!("{limit} admitted"),
            is_at_once: false,
            run: Box::new(move |trial| burst(trial, limit, behavior)),
        });
    }
    all.push(Scenario {
        name: "the owner is killed".into(),
        sent: "500 hits a second of 100 half-used keys and 500 of 50 used-up keys, of \
               L = 1,000, at the two others"
            .into(),
        exact: "no error; 0 admitted of a used-up key, no half-used key over its limit".into(),
        is_at_once: false,
        run: Box::new(owner_killed),
    });
    all.push(Scenario {
        name: "a node joins".into(),
        sent: "1,000 keys are used up, the fourth node joins, then one hit of each".into(),
        exact: "0 admitted".into(),
        is_at_once: false,
        run: Box::new(join),
    });
    for span in PAUSES {
        all.push(Scenario {
            name: format!("the owner is paused for {} ms", span.as_millis()),
            sent: "20 hits of one key meanwhile, at another node, in 20 calls at once with a \
                   deadline of 100 ms"
                .into(),
            exact: "20 counted at most".into(),
            is_at_once: false,
            run: Box::new(move |trial| pause(trial, span)),
        });
    }
    let Flood { keys_max, new_keys, .. } = Flood::of(is_quick);
    let bound = if keys_max == KeysMax::FiftyThousand { "50,000" } else { "300" };
    all.push(Scenario {
        name: "a flood of new keys".into(),
        sent: format!(
            "100 keys are used up, then one hit of each of {} new keys, L = 10, and one more of \
             the 100; a node holds {bound}",
            crate::render::number((new_keys * 3) as f64)
        ),
        exact: "0 of the 100 admitted, all new keys admitted".into(),
        is_at_once: false,
        run: Box::new(flood),
    });
    let cut = Partition::of(is_quick).cut.as_secs();
    all.push(Scenario {
        name: format!("a partition of {cut} s, one node and two"),
        sent: "100 hits of each of 10 new keys at one node on each side, L = 100".into(),
        exact:
            "100 of 200 admitted of each key; one cluster, and one count of a key, when it heals"
                .into(),
        is_at_once: true,
        run: Box::new(partition),
    });
    all
}

impl Trial {
    fn start(&self, keys_max: KeysMax) -> io::Result<Cluster> {
        Cluster::start(self.kind, &self.folder, Places::Loopback, keys_max)
    }

    fn full_or<T>(&self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }
}

/// Three times the limit at once, several times.
fn burst(trial: &Trial, limit: i64, behavior: i32) -> io::Result<String> {
    const HITS_PER_MESSAGE: i64 = 10;
    let cluster = trial.start(KeysMax::Ample)?;
    let client = cluster.client()?;
    // Opens the connections.
    ask_all(&client, &[hits("first", 1, limit, behavior)])?;
    let (mut admitted, mut took, mut errors) = (Vec::new(), Vec::new(), 0);
    for round in 0..trial.full_or(9, 1) {
        let request = hits(&key("burst", round), 1, limit, behavior);
        let message = vec![request; HITS_PER_MESSAGE as usize];
        let per_node = limit / HITS_PER_MESSAGE;
        let messages = (0..per_node).flat_map(|_| (0..3).map(|node| (node, message.clone())));
        let begin = Instant::now();
        let responses = client.ask_at_once(messages.collect());
        took.push(begin.elapsed().as_millis() as f64);
        admitted.push(count(&responses, is_admitted) as f64);
        errors += count(&responses, is_error);
    }
    Ok(format!("{} admitted, in {} ms{}", spread(&admitted), spread(&took), and_errors(errors)))
}

/// Kills the owner of some keys and goes on with a steady load until no error has come for a while.
fn owner_killed(trial: &Trial) -> io::Result<String> {
    const LIMIT: i64 = 1_000;
    const HALF_USED: usize = 100;
    const USED_UP: usize = 50;
    let most = trial.full_or(Duration::from_secs(60), Duration::from_secs(4));
    let quiet = trial.full_or(Duration::from_secs(10), Duration::from_secs(2));
    let mut cluster = trial.start(KeysMax::Ample)?;
    let client = cluster.client()?;
    let keys = owned_by(&client, &cluster.nodes[VICTIM].name, HALF_USED + USED_UP, LIMIT)?;
    let (half, full) = keys.split_at(HALF_USED);
    let half_hits = half.iter().map(|key| hits(key, LIMIT / 2, LIMIT, 0));
    let full_hits = full.iter().map(|key| hits(key, LIMIT, LIMIT, 0));
    // The owner counts its keys itself.
    refuse_errors(&client.ask(VICTIM, &half_hits.chain(full_hits).collect::<Vec<_>>()))?;

    let load = SteadyLoad { client: &client, half, full, limit: LIMIT };
    let before = load.run(Duration::from_secs(1), Duration::from_secs(1));
    drop(cluster.nodes.remove(VICTIM));
    let after = load.run(most, quiet);

    // Nothing of a key that is not answered.
    let left = |keys: &[String]| -> i64 {
        client.ask(0, &looks(keys, LIMIT)).iter().map(|response| response.remaining).sum()
    };
    let again = (after.admitted_full as i64 + left(full)) as f64 / USED_UP as f64;
    let half_admitted = (before.admitted_half + after.admitted_half) as i64;
    let over = half_admitted + left(half) - HALF_USED as i64 * LIMIT / 2;
    let over = over as f64 / HALF_USED as f64;
    let errors = match after.last_error {
        Some(last) => format!(
            "errors for {:.1} s, {} of {} hits",
            last.as_secs_f64(),
            crate::render::number(after.errors as f64),
            crate::render::number(after.sent as f64)
        ),
        None => "no error".into(),
    };
    Ok(format!(
        "{errors}; a used-up key admits {} more, a half-used key {} over its limit (mean)",
        crate::render::number(again),
        crate::render::number(over.max(0.0))
    ))
}

/// Fifty messages a second to two nodes, each with ten hits of half-used keys and ten of used-up
/// ones.
struct SteadyLoad<'a> {
    client: &'a Client,
    half: &'a [String],
    full: &'a [String],
    limit: i64,
}

#[derive(Debug, Default)]
struct LoadResult {
    sent: usize,
    errors: usize,
    last_error: Option<Duration>,
    admitted_half: usize,
    admitted_full: usize,
}

impl SteadyLoad<'_> {
    /// Ends after `most`, or when no error has come for `quiet`.
    fn run(&self, most: Duration, quiet: Duration) -> LoadResult {
        let [first, second] = self.client.runtime.block_on(async {
            let both = tokio::join!(self.ask(0, most, quiet), self.ask(1, most, quiet));
            [both.0, both.1]
        });
        LoadResult {
            sent: first.sent + second.sent,
            errors: first.errors + second.errors,
            last_error: first.last_error.max(second.last_error),
            admitted_half: first.admitted_half + second.admitted_half,
            admitted_full: first.admitted_full + second.admitted_full,
        }
    }

    async fn ask(&self, node: usize, most: Duration, quiet: Duration) -> LoadResult {
        const KEYS_PER_MESSAGE: usize = 10;
        let (begin, mut result) = (Instant::now(), LoadResult::default());
        let mut ticks = interval(Duration::from_millis(40));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut half = self.half.chunks(KEYS_PER_MESSAGE).cycle();
        let mut full = self.full.chunks(KEYS_PER_MESSAGE).cycle();
        let is_quiet =
            |result: &LoadResult| begin.elapsed() > result.last_error.unwrap_or_default() + quiet;
        while begin.elapsed() < most && !is_quiet(&result) {
            ticks.tick().await;
            let (half, full) = (half.next().unwrap_or_default(), full.next().unwrap_or_default());
            let keys = [half, full].concat();
            let responses = self.client.send(node, one_each(&keys, self.limit)).await;
            let errors = count(&responses, is_error);
            if errors > 0 {
                result.last_error = Some(begin.elapsed());
            }
            result.sent += responses.len();
            result.errors += errors;
            let (half, full) = responses.split_at(half.len().min(responses.len()));
            result.admitted_half += count(half, is_admitted);
            result.admitted_full += count(full, is_admitted);
        }
        result
    }
}

/// How many used-up keys are open again when a fourth node has joined.
fn join(trial: &Trial) -> io::Result<String> {
    const LIMIT: i64 = 10;
    const KEYS: usize = 1_000;
    let mut cluster = trial.start(KeysMax::Ample)?;
    let keys: Vec<String> = (0..KEYS).map(|number| key("join", number)).collect();
    let client = cluster.client()?;
    use_up(&client, &keys, LIMIT)?;
    cluster.join()?;
    // Each node knows the new one. Time to hand something over, if they do.
    sleep(trial.full_or(Duration::from_secs(5), Duration::from_secs(1)));
    let after = client.ask(1, &one_each(&keys, LIMIT));
    let (admitted, errors) = (count(&after, is_admitted), count(&after, is_error));
    let percent = crate::render::number(admitted as f64 * 100.0 / KEYS as f64);
    Ok(format!("{admitted} admitted, {percent} %{}", and_errors(errors)))
}

/// How long the owner is stopped: shorter and longer than a call between two nodes of Gubernator
/// may take, which is 500 ms.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1_200)];

/// How long a client waits for an answer of a paused owner's key.
const DEADLINE: Duration = Duration::from_millis(100);

/// What a key counts of the hits that were sent while its owner was stopped, several times.
fn pause(trial: &Trial, span: Duration) -> io::Result<String> {
    const LIMIT: i64 = 1_000;
    const HITS: usize = 20;
    let cluster = trial.start(KeysMax::Ample)?;
    let (mut client, owner) = (cluster.client()?, &cluster.nodes[VICTIM]);
    let patient = client.deadline;
    let keys = owned_by(&client, &owner.name, trial.full_or(5, 1), LIMIT)?;
    let (mut counted, mut admitted, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for key in &keys {
        ask_all(&client, &[hits(key, 0, LIMIT, 0)])?;
        let message = vec![hits(key, 1, LIMIT, 0)];
        client.deadline = DEADLINE;
        owner.server.pause();
        let resume = async {
            tokio::time::sleep(span).await;
            owner.server.resume();
        };
        let calls = client.send_at_once(vec![(0, message); HITS]);
        let (responses, ()) = client.runtime.block_on(async { tokio::join!(calls, resume) });
        client.deadline = patient;
        // Repeated calls arrive, and an owner that was taken for dead is back.
        sleep(trial.full_or(Duration::from_secs(3), Duration::from_secs(1)));
        let look = client.ask(0, &[hits(key, 0, LIMIT, 0)]);
        refuse_errors(&look)?;
        counted.push((LIMIT - look[0].remaining) as f64);
        admitted.push(count(&responses, is_admitted) as f64);
        errors.push(count(&responses, is_error) as f64);
    }
    Ok(format!(
        "{} counted; {} admitted, {} errors",
        spread(&counted),
        spread(&admitted),
        spread(&errors)
    ))
}

struct Flood {
    keys_max: KeysMax,
    /// For each node.
    new_keys: usize,
}

impl Flood {
    fn of(is_quick: bool) -> Self {
        if is_quick {
            Self { keys_max: KeysMax::Of(300), new_keys: 1_000 }
        } else {
            Self { keys_max: KeysMax::FiftyThousand, new_keys: 60_000 }
        }
    }
}

/// How many used-up keys are open again after more new keys than the nodes hold.
fn flood(trial: &Trial) -> io::Result<String> {
    const LIMIT: i64 = 10;
    const KEYS: usize = 100;
    let Flood { keys_max, new_keys } = Flood::of(trial.is_quick);
    let cluster = trial.start(keys_max)?;
    let client = cluster.client()?;
    let keys: Vec<String> = (0..KEYS).map(|number| key("limited", number)).collect();
    use_up(&client, &keys, LIMIT)?;
    let (mut admitted, mut errors) = (0, 0);
    for from in (0..new_keys).step_by(PER_MESSAGE) {
        let message = |node: usize| {
            let numbers = from..new_keys.min(from + PER_MESSAGE);
            let keys: Vec<_> = numbers.map(|number| key("new", number * 3 + node)).collect();
            (node, one_each(&keys, LIMIT))
        };
        let responses = client.ask_at_once((0..3).map(message).collect());
        admitted += count(&responses, is_admitted);
        errors += count(&responses, is_error);
    }
    let after = count(&client.ask(0, &one_each(&keys, LIMIT)), is_admitted);
    let refused = crate::render::number((new_keys * 3 - admitted - errors) as f64);
    Ok(format!("{after} of the {KEYS} admitted; {refused} new keys refused{}", and_errors(errors)))
}

struct Partition {
    cut: Duration,
    /// How long the nodes are watched after it heals.
    watch: Duration,
}

impl Partition {
    fn of(is_quick: bool) -> Self {
        let (cut, watch) = if is_quick { (3, 5) } else { (70, 60) };
        Self { cut: Duration::from_secs(cut), watch: Duration::from_secs(watch) }
    }
}

/// Cuts one node off, has both sides count the same keys, and sees whether they are one cluster
/// again after it heals.
fn partition(trial: &Trial) -> io::Result<String> {
    const LIMIT: i64 = 100;
    const KEYS: usize = 10;
    /// Of each key, at each side.
    const AT_ONCE: i64 = 20;
    /// Enough to see the owners of all parts of the ring.
    const PROBES: usize = 100;
    let Partition { cut, watch } = Partition::of(trial.is_quick);
    let network = Network::create()?;
    let cluster = Cluster::start(trial.kind, &trial.folder, network.places(), KeysMax::Ample)?;
    let client = cluster.client()?;
    let begin = Instant::now();
    network.split()?;
    // Both sides have noticed it by then.
    sleep(cut * 3 / 4);
    let keys: Vec<String> = (0..KEYS).map(|number| key("cut", number)).collect();
    let (mut admitted, mut errors) = (0, 0);
    for _ in 0..LIMIT / AT_ONCE {
        let both = (0..AT_ONCE).flat_map(|_| [0, 1].map(|node| (node, one_each(&keys, LIMIT))));
        let responses = client.ask_at_once(both.collect());
        admitted += count(&responses, is_admitted);
        errors += count(&responses, is_error);
    }
    let [admitted, errors] = [admitted, errors].map(|sum| sum as f64 / KEYS as f64);
    sleep(cut.saturating_sub(begin.elapsed()));
    network.heal()?;

    let begin = Instant::now();
    let probes: Vec<String> = (0..PROBES).map(|number| key("probe", number)).collect();
    let names: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    let view = || View {
        owners: (0..3)
            .map(|node| owners(&names, node, &client.ask(node, &looks(&probes, LIMIT))))
            .collect(),
        left: (0..3).map(|node| remaining(&client.ask(node, &looks(&keys, LIMIT)))).collect(),
    };
    let mut last = view();
    while !last.is_one() && begin.elapsed() < watch {
        sleep(Duration::from_millis(200));
        last = view();
    }
    let healed = if last.is_one() {
        format!("one cluster {:.1} s after it heals", begin.elapsed().as_secs_f64())
    } else {
        let nodes = |owners: &Vec<Option<String>>| {
            owners.iter().flatten().collect::<HashSet<_>>().len().to_string()
        };
        let used = last.owners.iter().map(nodes).collect::<Vec<_>>().join(", ");
        let agree = (0..KEYS).filter(|key| {
            last.left.iter().all(|left| left[*key].is_some() && left[*key] == last.left[0][*key])
        });
        format!(
            "not one cluster {} s after it heals: the nodes use {used} owners, and agree about {} \
             of {KEYS} keys",
            watch.as_secs(),
            agree.count()
        )
    };
    Ok(format!(
        "{} of 200 admitted, {} errors (mean); {healed}",
        crate::render::number(admitted),
        crate::render::number(errors)
    ))
}

/// What the nodes answer about some keys.
struct View {
    /// For each node, the owner of each probe.
    owners: Vec<Vec<Option<String>>>,
    /// For each node, what is left of each key.
    left: Vec<Vec<Option<i64>>>,
}

impl View {
    /// All name the same owners, which are all of them, and the same counts.
    fn is_one(&self) -> bool {
        let is_same = self.owners.iter().all(|owners| *owners == self.owners[0])
            && self.left.iter().all(|left| *left == self.left[0]);
        let owners: HashSet<_> = self.owners[0].iter().collect();
        is_same
            && owners.len() == self.owners.len()
            && !owners.contains(&None)
            && !self.left[0].contains(&None)
    }
}

fn owners(names: &[&str], node: usize, responses: &[RateLimitResp]) -> Vec<Option<String>> {
    // It names the owner if that is another one.
    let owner = |response: &RateLimitResp| {
        let other = response.metadata.get("owner").cloned();
        (!is_error(response)).then(|| other.unwrap_or_else(|| names[node].to_owned()))
    };
    responses.iter().map(owner).collect()
}

fn remaining(responses: &[RateLimitResp]) -> Vec<Option<i64>> {
    responses.iter().map(|response| (!is_error(response)).then_some(response.remaining)).collect()
}

/// New keys of which the first node says that this one owns them.
fn owned_by(client: &Client, owner: &str, keys: usize, limit: i64) -> io::Result<Vec<String>> {
    let candidates: Vec<String> = (0..keys * 30).map(|number| key("owned", number)).collect();
    let responses = client.ask(0, &looks(&candidates, limit));
    refuse_errors(&responses)?;
    let is_owned =
        |response: &RateLimitResp| response.metadata.get("owner").is_some_and(|name| name == owner);
    let owned = candidates.into_iter().zip(&responses).filter(|(_, response)| is_owned(response));
    let owned: Vec<String> = owned.map(|(key, _)| key).take(keys).collect();
    if owned.len() < keys {
        return Err(io::Error::other(format!("{owner} owns {} of the keys", owned.len())));
    }
    Ok(owned)
}

/// Uses up keys at every node, one of which is the owner of the key and counts in any case. Then
/// the nodes refuse each of them.
fn use_up(client: &Client, keys: &[String], limit: i64) -> io::Result<()> {
    const ATTEMPTS: usize = 10;
    let requests: Vec<_> = keys.iter().map(|key| hits(key, limit, limit, 0)).collect();
    for _ in 0..ATTEMPTS {
        for node in 0..3 {
            client.ask(node, &requests);
        }
        let refused = client.ask(1, &one_each(keys, limit));
        if count(&refused, is_admitted) + count(&refused, is_error) == 0 {
            return Ok(());
        }
    }
    Err(io::Error::other("the keys could not be used up"))
}

/// Asks every node.
fn ask_all(client: &Client, requests: &[RateLimitReq]) -> io::Result<()> {
    (0..3).try_for_each(|node| refuse_errors(&client.ask(node, requests)))
}

/// Where no errors are expected, one ends the scenario.
fn refuse_errors(responses: &[RateLimitResp]) -> io::Result<()> {
    match responses.iter().find(|response| is_error(response)) {
        Some(RateLimitResp { error, .. }) => Err(io::Error::other(error.clone())),
        None => Ok(()),
    }
}

fn and_errors(errors: usize) -> String {
    match errors {
        0 => String::new(),
        errors => format!(", {} errors", crate::render::number(errors as f64)),
    }
}

/// The median, and the least and the most in parentheses.
fn spread(numbers: &[f64]) -> String {
    crate::results::Spread::of(numbers.iter().copied())
        .map_or_else(String::new, crate::render::spread)
}
