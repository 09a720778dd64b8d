//! Arbitrary bytes from a Redis client. Invariants: no panic; parsing in one part and in two gives
//! the same commands; commands are within the limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::front::resp::command::{Command, command};
use tidegate::front::resp::read::{Limits, Malformed, Read, Words, read};
use tidegate_limiter::policy::Mode;

const LIMITS: Limits =
    Limits { bytes_max: 4_096, words_max: 32, word_bytes_max: 2_048, before_auth: false };

fuzz_target!(|bytes: &[u8]| {
    let Some((first, stream)) = bytes.split_first() else { return };
    // The first byte selects where the stream is split.
    let middle = stream.len() * usize::from(*first) / 256;
    let whole = commands(stream, stream.len());
    assert_eq!(whole, commands(stream, middle));
});

/// Parses a stream that arrives in two parts. Returns the commands, and the error if there is one.
fn commands(stream: &[u8], middle: usize) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
    let (mut found, mut at) = (Vec::new(), 0);
    for end in [middle, stream.len()] {
        loop {
            let mut words = Words::new();
            match read(&stream[at..end], &LIMITS, &mut words) {
                Ok(Read::Partial) => {
                    assert!(end - at <= LIMITS.bytes_max + 64);
                    break;
                }
                Ok(Read::Command(length)) => {
                    assert!(length > 0 && words.len() <= LIMITS.words_max);
                    found.push(words.iter().map(|word| word.to_vec()).collect());
                    parse(&mut words);
                    at += length;
                }
                Ok(Read::Quoted(length, words)) => {
                    assert!(length > 0 && words.len() <= LIMITS.words_max);
                    parse(&mut words.iter().map(Vec::as_slice).collect());
                    found.push(words);
                    at += length;
                }
                Err(malformed) => return (found, Some(malformed)),
            }
        }
    }
    (found, None)
}

fn parse(words: &mut Words<'_>) {
    match command(words) {
        Ok(Command::Throttle { limit, .. }) => {
            for mode in [Mode::Strict, Mode::Eventual] {
                if let Ok(quota) = limit.quota(mode) {
                    assert!(quota.limit() > 0 && quota.burst() > 0);
                }
            }
        }
        Ok(_) => {}
        Err(error) => assert!(!error.is_empty() && error.len() < 1_024),
    }
}
