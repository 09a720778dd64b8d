//! Parses the words of a command and validates its arguments.

use std::fmt::Write as _;

use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::{ParseReservationIdError, ReservationId};
use tidegate_limiter::units::{Hits, Span};

use super::limit::ThrottleLimit;
use super::read::{Words, integer};

/// One command, borrowed from the bytes that carried it.
#[derive(Clone, Debug, PartialEq)]
pub enum Command<'a> {
    /// `CL.THROTTLE key max_burst count period [quantity]`, or `THROTTLE`.
    Throttle {
        key: &'a [u8],
        limit: ThrottleLimit,
        /// Zero peeks, negative refunds.
        quantity: Hits,
    },
    /// `TG.CHECK domain key value [key value ...] [HITS n]`.
    Check { domain: &'a str, descriptor: Descriptor<'a>, hits: Hits },
    /// `TG.RESERVE domain key value [key value ...] AMOUNT n [TTL seconds] [ID id]`.
    Reserve {
        domain: &'a str,
        descriptor: Descriptor<'a>,
        amount: u64,
        ttl: Option<Span>,
        /// Of a reservation that is to last longer.
        id: Option<ReservationId>,
    },
    /// `TG.COMMIT domain key value [key value ...] COST n [ID id]`, and
    /// `TG.RELEASE domain key value [key value ...] ID id`, which costs nothing.
    Commit {
        domain: &'a str,
        descriptor: Descriptor<'a>,
        /// `None` reports a cost for which nothing was reserved.
        id: Option<ReservationId>,
        cost: u64,
    },
    /// A command about the connection or the server, with its arguments.
    Session(SessionCommand, Words<'a>),
    /// `POST` or `Host:`: an HTTP request. The connection is closed, as in Redis, because web pages
    /// can make a browser send such requests.
    Http,
}

/// Commands about the connection or the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionCommand {
    /// `AUTH [username] password`
    Auth,
    /// `CLIENT ...`
    Client,
    /// `COMMAND ...`
    Command,
    /// `CONFIG GET ...`
    Config,
    /// `ECHO text`
    Echo,
    /// `HELLO [version] [AUTH username password] [SETNAME name]`
    Hello,
    /// `INFO [section ...]`
    Info,
    /// `PING [text]`
    Ping,
    /// `QUIT`
    Quit,
    /// `RESET`
    Reset,
    /// `SELECT 0`
    Select,
}

/// Name, arity (negative: at least as many words), summary and meaning of every command; `None` for
/// those that charge a limit.
pub const COMMANDS: [(&str, i64, &str, Option<SessionCommand>); 17] = [
    ("auth", -2, "Authenticates the connection.", Some(SessionCommand::Auth)),
    ("cl.throttle", -5, "Charges a key against the limit in the arguments.", None),
    ("client", -2, "Names or describes the connection.", Some(SessionCommand::Client)),
    ("command", -1, "Lists and describes the commands.", Some(SessionCommand::Command)),
    ("config", -2, "Returns settings that clients read.", Some(SessionCommand::Config)),
    ("echo", 2, "Returns its argument.", Some(SessionCommand::Echo)),
    ("hello", -1, "Selects the protocol version and authenticates.", Some(SessionCommand::Hello)),
    ("info", -1, "Describes the server.", Some(SessionCommand::Info)),
    ("ping", -1, "Returns PONG or its argument.", Some(SessionCommand::Ping)),
    ("quit", -1, "Closes the connection.", Some(SessionCommand::Quit)),
    ("reset", 1, "Resets the connection to its initial state.", Some(SessionCommand::Reset)),
    ("select", 2, "Selects database 0, the only one.", Some(SessionCommand::Select)),
    ("tg.check", -4, "Charges a descriptor against the rules of a domain.", None),
    ("tg.commit", -6, "Counts what a reservation cost, and ends it.", None),
    ("tg.release", -6, "Ends a reservation that cost nothing.", None),
    ("tg.reserve", -6, "Keeps an amount of a descriptor's limits free.", None),
    ("throttle", -5, "Alias of CL.THROTTLE.", None),
];

/// Parses a command.
///
/// # Errors
///
/// The text of the error reply.
#[inline]
pub fn command<'a>(words: &mut Words<'a>) -> Result<Command<'a>, String> {
    let name = words.first().copied().unwrap_or_default();
    if name.eq_ignore_ascii_case(b"CL.THROTTLE") || name.eq_ignore_ascii_case(b"THROTTLE") {
        return throttle(words);
    }
    other(name, words)
}

#[inline]
fn throttle<'a>(words: &Words<'a>) -> Result<Command<'a>, String> {
    let (key, max_burst, count, period, quantity) = match words[..] {
        [_, key, max_burst, count, period] => (key, max_burst, count, period, 1),
        [_, key, max_burst, count, period, quantity] => {
            (key, max_burst, count, period, number(quantity)?)
        }
        _ => return Err(wrong_number(words.first().copied().unwrap_or_default())),
    };
    let limit = ThrottleLimit {
        max_burst: number(max_burst)?,
        count: number(count)?,
        period: number(period)?,
    };
    Ok(Command::Throttle { key, limit, quantity: Hits::new(quantity) })
}

#[inline]
fn number(text: &[u8]) -> Result<i64, String> {
    integer(text).ok_or_else(|| format!("Cell error: Couldn't parse as integer: {}", shown(text)))
}

fn other<'a>(name: &[u8], words: &mut Words<'a>) -> Result<Command<'a>, String> {
    if is(name, "POST") || is(name, "HOST:") {
        return Ok(Command::Http);
    }
    let known = COMMANDS.iter().find(|(known, ..)| is(name, known));
    let Some((_, arity, _, session_command)) = known else { return Err(unknown(words)) };
    let given = i64::try_from(words.len()).unwrap_or(i64::MAX);
    if if *arity < 0 { given < -arity } else { given != *arity } {
        return Err(wrong_number(name));
    }
    let Some(command) = *session_command else {
        return match &*name.to_ascii_lowercase() {
            b"tg.reserve" => reserve(words),
            b"tg.commit" => commit(words),
            b"tg.release" => release(words),
            _ => check(words),
        };
    };
    words.remove(0);
    Ok(Command::Session(command, std::mem::take(words)))
}

fn check<'a>(words: &Words<'a>) -> Result<Command<'a>, String> {
    let (domain, descriptor, [hits]) = descriptor(words, ["HITS"])?;
    let hits = hits.map_or(Ok(1), |hits| integer(hits).ok_or(NO_INTEGER))?;
    Ok(Command::Check { domain, descriptor, hits: Hits::new(hits) })
}

fn reserve<'a>(words: &Words<'a>) -> Result<Command<'a>, String> {
    let (domain, descriptor, [amount, ttl, id]) = descriptor(words, ["AMOUNT", "TTL", "ID"])?;
    let amount = amount.ok_or("ERR TG.RESERVE needs AMOUNT n behind the entries")?;
    let ttl = ttl.map(seconds);
    let (amount, ttl) = (number_from_zero(amount)?, ttl.transpose()?);
    Ok(Command::Reserve { domain, descriptor, amount, ttl, id: id.map(reservation).transpose()? })
}

fn commit<'a>(words: &Words<'a>) -> Result<Command<'a>, String> {
    let (domain, descriptor, [cost, id]) = descriptor(words, ["COST", "ID"])?;
    let cost = cost.ok_or("ERR TG.COMMIT needs COST n behind the entries")?;
    let (cost, id) = (number_from_zero(cost)?, id.map(reservation).transpose()?);
    Ok(Command::Commit { domain, descriptor, id, cost })
}

fn release<'a>(words: &Words<'a>) -> Result<Command<'a>, String> {
    let (domain, descriptor, [id]) = descriptor(words, ["ID"])?;
    let id = id.ok_or("ERR TG.RELEASE needs ID id behind the entries")?;
    Ok(Command::Commit { domain, descriptor, id: Some(reservation(id)?), cost: 0 })
}

const NO_INTEGER: &str = "ERR value is not an integer or out of range";

fn number_from_zero(word: &[u8]) -> Result<u64, String> {
    let digits = || std::str::from_utf8(word).ok().filter(|it| it.bytes().all(is_digit));
    digits().and_then(|it| it.parse().ok()).ok_or_else(|| NO_INTEGER.to_owned())
}

/// Seconds, with up to nine decimals: `30`, `0.5`.
fn seconds(word: &[u8]) -> Result<Span, String> {
    let error = || "ERR TTL is not a number of seconds, or out of range".to_owned();
    let text = std::str::from_utf8(word).map_err(|_| error())?;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(is_digit);
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 9 {
        return Err(error());
    }
    let whole: u64 = whole.parse().map_err(|_| error())?;
    let nanos: u64 = format!("{decimals:0<9}").parse().map_err(|_| error())?;
    // A reservation lasts an hour at most.
    let whole = Span::from_secs(whole.min(u64::from(u32::MAX)));
    Ok(Span::from_nanos(whole.as_nanos().saturating_add(nanos)))
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

fn reservation(word: &[u8]) -> Result<ReservationId, String> {
    let id = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    id.ok_or_else(|| format!("ERR {ParseReservationIdError}"))
}

/// Domain, descriptor, and the values of options.
type WithOptions<'a, const N: usize> = (&'a str, Descriptor<'a>, [Option<&'a [u8]>; N]);

/// `name domain key value [key value ...] [option value ...]`: domain, descriptor, and the value of
/// each of `options`. A trailing pair is an option, not an entry, when an entry precedes it.
fn descriptor<'a, const N: usize>(
    words: &Words<'a>,
    options: [&str; N],
) -> Result<WithOptions<'a, N>, String> {
    let name = words.first().copied().unwrap_or_default();
    let text = |word: &'a [u8]| {
        std::str::from_utf8(word).map_err(|_| format!("ERR {} is no UTF-8", shown(word)))
    };
    let [_, domain, pairs @ ..] = &words[..] else { return Err(wrong_number(name)) };
    let (mut pairs, mut values) = (pairs, [None; N]);
    while let [before @ .., option, value] = pairs
        && !before.is_empty()
        && let Some(at) = options.iter().position(|known| is(option, known))
        && let Some(place @ None) = values.get_mut(at)
    {
        *place = Some(*value);
        pairs = before;
    }
    if !pairs.len().is_multiple_of(2) {
        return Err(wrong_number(name));
    }
    let entry = |pair: &[&'a [u8]]| match pair {
        [key, value] => Ok(Entry { key: text(key)?, value: text(value)? }),
        _ => Err(wrong_number(name)),
    };
    let entries = pairs.chunks(2).map(entry).collect::<Result<Vec<_>, _>>()?;
    Ok((text(domain)?, Descriptor { entries, hits: None, limit: None }, values))
}

/// Whether a word from a client is this name or option.
pub(super) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// The error of Redis.
pub(super) fn wrong_number(name: &[u8]) -> String {
    let name = shown(name).to_ascii_lowercase();
    format!("ERR wrong number of arguments for '{name}' command")
}

/// The error of Redis.
pub(super) fn unknown_subcommand(command: &str, verb: &[u8]) -> String {
    format!("ERR unknown subcommand '{}'. Try {command} HELP.", shown(verb))
}

/// The error of Redis, with the first arguments.
fn unknown(words: &Words<'_>) -> String {
    let mut words = words.iter();
    let name = words.next().copied().unwrap_or_default();
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(name));
    for word in words {
        if text.len() > SHOWN_MAX * 2 {
            break;
        }
        let _ = write!(text, "'{}' ", shown(word));
    }
    text
}

/// Most bytes of a word that an error message repeats.
const SHOWN_MAX: usize = 128;

/// A word from a client, for an error message.
pub(super) fn shown(word: &[u8]) -> String {
    let word = word.get(..SHOWN_MAX).unwrap_or(word);
    String::from_utf8_lossy(word).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words<'_> {
        text.split(' ').map(str::as_bytes).collect()
    }

    #[test]
    fn limits_are_parsed() {
        let limit = ThrottleLimit { max_burst: 15, count: 30, period: 60 };
        for (text, quantity) in [
            ("CL.THROTTLE user 15 30 60", 1),
            ("cl.throttle user 15 30 60 0", 0),
            ("Throttle user 15 30 60 -3", -3),
        ] {
            let quantity = Hits::new(quantity);
            assert_eq!(
                command(&mut words(text)),
                Ok(Command::Throttle { key: b"user", limit, quantity })
            );
        }
    }

    #[test]
    fn a_check_is_a_descriptor_with_hits() {
        for (text, keys, hits) in [
            ("TG.CHECK edge user alice", vec![("user", "alice")], 1),
            ("tg.check edge user alice hits 5", vec![("user", "alice")], 5),
            ("TG.CHECK edge hits 5", vec![("hits", "5")], 1),
            ("TG.CHECK edge a b HITS c d e", vec![("a", "b"), ("HITS", "c"), ("d", "e")], 1),
        ] {
            let Ok(Command::Check { domain, descriptor, hits: found }) = command(&mut words(text))
            else {
                panic!("{text}");
            };
            let entries: Vec<_> = descriptor.entries.iter().map(|it| (it.key, it.value)).collect();
            assert_eq!((domain, entries, found.get()), ("edge", keys, hits), "{text}");
        }
    }

    #[test]
    fn options_follow_the_entries_in_any_order() {
        let id = "0123456789abcdef0123456789abcdef";
        let reserve = format!("TG.RESERVE llm tenant a ttl 30 ID {id} AMOUNT 500");
        let Ok(Command::Reserve { descriptor, amount, ttl, id: found, .. }) =
            command(&mut words(&reserve))
        else {
            panic!("{reserve}");
        };
        assert_eq!((descriptor.entries.len(), amount, ttl), (1, 500, Some(Span::from_secs(30))));
        assert_eq!(found.map(|id| id.to_string()).as_deref(), Some(id));
        for (text, expected) in [
            ("TG.COMMIT llm COST 1 COST 2".to_owned(), Ok((Some("COST"), 2, false))),
            (format!("TG.COMMIT llm a b ID {id} COST 7"), Ok((Some("a"), 7, true))),
            (format!("TG.RELEASE llm a b ID {id}"), Ok((Some("a"), 0, true))),
            ("TG.COMMIT llm a b c d".to_owned(), Err("needs COST n")),
            ("TG.COMMIT llm a b COST -1".to_owned(), Err("not an integer or out of range")),
            ("TG.RELEASE llm a b ID 12".to_owned(), Err("has 32 hexadecimal digits")),
            ("TG.RESERVE llm a b TTL 3".to_owned(), Err("needs AMOUNT n")),
        ] {
            match (command(&mut words(&text)), expected) {
                (Ok(Command::Commit { descriptor, id, cost, .. }), Ok(expected)) => {
                    let key = descriptor.entries.first().map(|entry| entry.key);
                    assert_eq!((key, cost, id.is_some()), expected, "{text}");
                }
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }

    /// As HTTP takes them.
    #[test]
    fn amounts_have_64_bits_and_times_to_live_fractions() {
        let read = |amount: &str, ttl: &str| {
            let text = format!("TG.RESERVE llm tenant a AMOUNT {amount} TTL {ttl}");
            match command(&mut words(&text)) {
                Ok(Command::Reserve { amount, ttl, .. }) => Ok((amount, ttl.map(Span::as_nanos))),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error),
            }
        };
        let most = u64::MAX.to_string();
        assert_eq!(read(&most, "0.5"), Ok((u64::MAX, Some(500_000_000))));
        assert_eq!(read("4294967296", "1.000000001"), Ok((1 << 32, Some(1_000_000_001))));
        assert!(read("1", &most).is_ok(), "an hour at most");
        for (amount, ttl) in [("1", "-1"), ("1", ".5"), ("1", "1."), ("1", "1e3"), ("1", "")] {
            assert!(read(amount, ttl).is_err(), "{amount} {ttl}");
        }
        for amount in ["18446744073709551616", "-1", "+1", "1.5", "x"] {
            assert!(read(amount, "1").is_err(), "{amount}");
        }
    }

    #[test]
    fn errors_are_those_of_redis_and_redis_cell() {
        for (text, error) in [
            ("CL.THROTTLE user 15 30", "ERR wrong number of arguments for 'cl.throttle' command"),
            ("THROTTLE user 15 30 60 1 2", "ERR wrong number of arguments for 'throttle' command"),
            ("CL.THROTTLE user a 30 60", "Cell error: Couldn't parse as integer: a"),
            ("CL.THROTTLE user 1 30 60 9e9", "Cell error: Couldn't parse as integer: 9e9"),
            ("TG.CHECK edge user", "ERR wrong number of arguments for 'tg.check' command"),
            ("TG.CHECK edge a b c", "ERR wrong number of arguments for 'tg.check' command"),
            ("TG.CHECK edge a b HITS x", "ERR value is not an integer or out of range"),
            ("PING", ""),
            ("ECHO", "ERR wrong number of arguments for 'echo' command"),
            ("GET a b", "ERR unknown command 'GET', with args beginning with: 'a' 'b' "),
        ] {
            let found = command(&mut words(text)).err().unwrap_or_default();
            assert_eq!(found, error, "{text}");
        }
        assert_eq!(command(&mut words("Host: example.org")), Ok(Command::Http));
    }

    #[test]
    fn an_error_repeats_little_of_the_input() {
        let long = "x".repeat(10_000);
        let many = format!("{long} {}", vec![long.as_str(); 20].join(" "));
        let error = command(&mut words(&many)).unwrap_err();
        assert!(error.len() < 600, "{}", error.len());
    }
}
