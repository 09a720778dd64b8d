//! What is read does not depend on where the bytes were parted, and nothing makes it panic.

use proptest::prelude::*;
use tidegate::front::resp::command::command;
use tidegate::front::resp::read::{Limits, Malformed, Read, Words, read};

const LIMITS: Limits =
    Limits { bytes_max: 512, words_max: 8, word_bytes_max: 256, before_auth: false };

/// All commands of a stream that comes in parts of these sizes, and how it ended.
fn commands(bytes: &[u8], parts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
    let (mut found, mut held, mut rest) = (Vec::new(), Vec::new(), bytes);
    let mut sizes = parts.iter().copied().chain(std::iter::repeat(bytes.len().max(1)));
    while !rest.is_empty() {
        let (part, after) = rest.split_at(sizes.next().unwrap().clamp(1, rest.len()));
        held.extend_from_slice(part);
        rest = after;
        let mut at = 0;
        loop {
            let mut words = Words::new();
            match read(&held[at..], &LIMITS, &mut words) {
                Ok(Read::Partial) => break,
                Ok(Read::Command(length)) => {
                    assert!(length > 0 && at + length <= held.len());
                    found.push(words.iter().map(|word| word.to_vec()).collect());
                    let _ = command(&mut words);
                    at += length;
                }
                Ok(Read::Quoted(length, words)) => {
                    assert!(length > 0 && at + length <= held.len());
                    found.push(words);
                    at += length;
                }
                Err(malformed) => return (found, Some(malformed)),
            }
        }
        held.drain(..at);
        // What is held is one command at most.
        assert!(held.len() <= LIMITS.bytes_max + 64, "{} bytes are held", held.len());
    }
    (found, None)
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(vec!["CL.THROTTLE", "PING", "1", "-1", "60", "\r\n", "$1", "*2"])
            .prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

/// Whole commands, as arrays and inline, and now and then something else.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let array = prop::collection::vec(word(), 0..9).prop_map(|words| {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes().chain(word));
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    });
    let inline = "[ a-zA-Z0-9.'\"\\\\]{0,30}\r?\n".prop_map(String::into_bytes);
    let noise = prop::collection::vec(any::<u8>(), 0..20);
    let part = prop_oneof![6 => array, 3 => inline, 1 => noise];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn parting_changes_nothing(
        bytes in stream(),
        parts in prop::collection::vec(1_usize..40, 0..60),
    ) {
        prop_assert_eq!(commands(&bytes, &parts), commands(&bytes, &[]));
        prop_assert_eq!(commands(&bytes, &[1].repeat(bytes.len())), commands(&bytes, &[]));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        commands(&bytes, &[]);
    }

    #[test]
    fn what_is_written_as_an_array_is_read_again(
        words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..8),
    ) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in &words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        prop_assert_eq!(commands(&bytes, &[]), (vec![words], None));
    }
}
