//! Commands that describe the server: `HELLO`, `INFO`, `COMMAND`, `CONFIG GET`.
//!
//! Clients choose features by these replies. The fields that they read are those of a Redis 7 with
//! one database and no persistence.

use std::fmt::Write as _;

use super::command::{COMMANDS, is, unknown_subcommand, wrong_number};
use super::read::Words;
use super::reply::{Protocol, Replies};

/// The version of Redis whose behaviour clients can expect.
const REDIS_VERSION: &str = "7.0.15";

/// The settings of `CONFIG GET`: redis-benchmark prints them.
const SETTINGS: [(&str, &str); 3] = [("save", ""), ("appendonly", "no"), ("databases", "1")];

/// The reply to `HELLO`.
pub(super) fn hello(id: i64, protocol: Protocol, replies: &mut Replies) {
    replies.map(7, protocol);
    replies.pair("server", "tidegate");
    replies.pair("version", env!("CARGO_PKG_VERSION"));
    replies.pair("mode", "standalone");
    replies.pair("role", "master");
    for (key, value) in [("proto", protocol.number()), ("id", id)] {
        replies.bulk(key.as_bytes());
        replies.integer(value);
    }
    replies.bulk(b"modules");
    replies.array(0);
}

/// The reply to `INFO`, for all sections when `sections` is empty.
pub(super) fn info(sections: &Words<'_>, port: u16) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let all = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\ntidegate_version:{version}\r\n\
                 redis_mode:standalone\r\ntcp_port:{port}\r\n"
            ),
        ),
        ("Persistence", "loading:0\r\naof_enabled:0\r\n".to_owned()),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
        ("Cluster", "cluster_enabled:0\r\n".to_owned()),
    ];
    let is_requested = |name: &str| {
        let names = [name, "all", "default", "everything"];
        sections.is_empty() || sections.iter().any(|word| names.iter().any(|name| is(word, name)))
    };
    let mut text = String::new();
    for (name, lines) in all.iter().filter(|(name, _)| is_requested(name)) {
        let between = if text.is_empty() { "" } else { "\r\n" };
        let _ = write!(text, "{between}# {name}\r\n{lines}");
    }
    text
}

/// The reply to `CONFIG GET`; unknown settings are left out, as in Redis.
pub(super) fn config(
    args: &Words<'_>,
    protocol: Protocol,
    replies: &mut Replies,
) -> Result<(), String> {
    let [verb, names @ ..] = &args[..] else { return Err(wrong_number(b"config")) };
    if !is(verb, "GET") {
        return Err(unknown_subcommand("CONFIG", verb));
    }
    let is_requested = |key: &str| names.iter().any(|name| *name == b"*" || is(name, key));
    let found: Vec<_> = SETTINGS.iter().filter(|(key, _)| is_requested(key)).collect();
    replies.map(found.len(), protocol);
    for (key, value) in found {
        replies.pair(key, value);
    }
    Ok(())
}

/// The reply to `COMMAND`.
pub(super) fn commands(
    args: &Words<'_>,
    protocol: Protocol,
    replies: &mut Replies,
) -> Result<(), String> {
    let [verb, names @ ..] = &args[..] else {
        replies.array(COMMANDS.len());
        for (name, arity, ..) in &COMMANDS {
            entry(name, *arity, replies);
        }
        return Ok(());
    };
    match verb.to_ascii_lowercase().as_slice() {
        b"count" => replies.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX)),
        b"list" => {
            replies.array(COMMANDS.len());
            for (name, ..) in &COMMANDS {
                replies.bulk(name.as_bytes());
            }
        }
        b"info" => {
            replies.array(names.len());
            for name in names {
                match COMMANDS.iter().find(|(known, ..)| is(name, known)) {
                    Some((name, arity, ..)) => entry(name, *arity, replies),
                    None => replies.null(protocol),
                }
            }
        }
        b"docs" => {
            let is_requested =
                |name: &str| names.is_empty() || names.iter().any(|word| is(word, name));
            let found = COMMANDS.iter().filter(|(name, ..)| is_requested(name));
            replies.map(found.clone().count(), protocol);
            for (name, _, summary, _) in found {
                replies.bulk(name.as_bytes());
                replies.map(3, protocol);
                replies.pair("summary", summary);
                replies.pair("since", REDIS_VERSION);
                replies.pair("group", "generic");
            }
        }
        other => return Err(unknown_subcommand("COMMAND", other)),
    }
    Ok(())
}

/// Name, arity, flags, positions of the keys, and four lists that are empty here.
fn entry(name: &str, arity: i64, replies: &mut Replies) {
    let has_key = name.ends_with("throttle");
    replies.array(10);
    replies.bulk(name.as_bytes());
    replies.integer(arity);
    replies.array(1);
    replies.simple(if has_key { "write" } else { "fast" });
    let position = i64::from(has_key);
    for position in [position; 3] {
        replies.integer(position);
    }
    for _ in 0..4 {
        replies.array(0);
    }
}
