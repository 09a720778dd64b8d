//! Any bytes as what a client of Redis sends: read whole and in two parts, which must be the same,
//! and each command taken apart. Nothing panics; what is read is within the limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_limiter::policy::Mode;
use tidegate::front::resp::command::{Command, command};
use tidegate::front::resp::read::{Limits, Malformed, Read, Words, read};

const LIMITS: Limits =
    Limits { bytes_max: 4_096, words_max: 32, word_bytes_max: 2_048, before_auth: false };

fuzz_target!(|bytes: &[u8]| {
    let Some((first, stream)) = bytes.split_first() else { return };
    // Where the stream is parted, as its first byte says.
    let middle = stream.len() * usize::from(*first) / 256;
    let whole = commands(stream, stream.len());
    assert_eq!(whole, commands(stream, middle));
});

/// The commands of a stream that comes in two parts, and how it ended.
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
                    take_apart(&mut words);
                    at += length;
                }
                Ok(Read::Quoted(length, words)) => {
                    assert!(length > 0 && words.len() <= LIMITS.words_max);
                    take_apart(&mut words.iter().map(Vec::as_slice).collect());
                    found.push(words);
                    at += length;
                }
                Err(malformed) => return (found, Some(malformed)),
            }
        }
    }
    (found, None)
}

fn take_apart(words: &mut Words<'_>) {
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
