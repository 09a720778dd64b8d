//! The bounds of a client, and what happens at each.

use std::time::Duration;

use tidegate::config::Config;
use tidegate_limiter::units::Span;
use tidegate_testkit::wait::{HANGS_AFTER, eventually};

use super::listener::{array, open_with, open_within};

/// Short enough to wait for, long enough to be meant.
const SHORT_MS: u64 = 300;

#[tokio::test]
async fn a_listener_with_a_password_refuses_unauthenticated_clients() {
    let listener = open_with(|config| config.resp.password = Some("open sesame".into())).await;
    let mut client = listener.client().await;
    client.exchange("CL.THROTTLE a 1 1 1", "-NOAUTH Authentication required.|").await;
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.|";
    client.exchange("AUTH sesame", wrong).await;
    client.exchange("AUTH default \"open sesam\"", wrong).await;
    client.exchange("AUTH \"open sesame\"", "+OK|").await;
    client.throttles("a 0 1 1", [0, 1, 0, -1, 1]).await;
    // Before it, little is read.
    for (bytes, error) in [
        ("*11\r\n", "unauthenticated multibulk length"),
        ("*2\r\n$4\r\nAUTH\r\n$20000\r\n", "unauthenticated bulk length"),
    ] {
        let mut client = listener.client().await;
        client.send(bytes).await;
        assert_eq!(client.rest().await, format!("-ERR Protocol error: {error}|"));
    }
}

#[tokio::test]
async fn an_unauthenticated_connection_is_closed() {
    let listener = open_with(|config| {
        config.resp.password = Some("secret".into());
        config.limits.header_timeout = Span::from_millis(SHORT_MS);
    })
    .await;
    let (mut silent, mut talking) = (listener.client().await, listener.client().await);
    let mut known = listener.client().await;
    known.exchange("AUTH secret", "+OK|").await;
    talking.exchange("PING", "-NOAUTH Authentication required.|").await;
    assert_eq!(silent.rest().await, "");
    assert_eq!(talking.rest().await, "");
    assert_eq!(listener.stats.slow.get(), 2);
    known.exchange("PING", "+PONG|").await;
}

#[tokio::test]
async fn a_command_that_does_not_go_on_is_cut_off_and_silence_is_not() {
    let listener =
        open_with(|config| config.limits.header_timeout = Span::from_millis(SHORT_MS)).await;
    let (mut silent, mut slow) = (listener.client().await, listener.client().await);
    silent.exchange("PING", "+PONG|").await;
    slow.exchange("PING", "+PONG|").await;
    slow.send("*2\r\n$4\r\nECHO\r\n$100\r\nbegun").await;
    // Bytes that come drop by drop do not make it a command either.
    let drops = async {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(SHORT_MS / 5)).await;
            if tokio::io::AsyncWriteExt::write_all(&mut slow.stream, b".").await.is_err() {
                return;
            }
        }
        panic!("it was not cut off");
    };
    drops.await;
    assert_eq!(listener.stats.slow.get(), 1);
    silent.exchange("PING", "+PONG|").await;
}

#[tokio::test]
async fn a_stream_of_commands_that_never_pauses_at_an_end_is_not_slow() {
    let listener =
        open_with(|config| config.limits.header_timeout = Span::from_millis(SHORT_MS)).await;
    let mut client = listener.client().await;
    let ping = array(&["PING"]);
    let (first, rest) = ping.split_at(5);
    client.send(first).await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(SHORT_MS / 4)).await;
        // The rest of one command with the beginning of the next.
        client.send(format!("{rest}{first}")).await;
        client.expect("+PONG|").await;
    }
    assert_eq!(listener.stats.slow.get(), 0);
}

#[tokio::test]
async fn a_silent_connection_is_closed_at_last() {
    let listener = open_with(|config| config.resp.idle_timeout = Span::from_millis(SHORT_MS)).await;
    let mut client = listener.client().await;
    client.exchange("PING", "+PONG|").await;
    assert_eq!(client.rest().await, "");
    assert_eq!(listener.stats.idle.get(), 1);
}

#[tokio::test]
async fn what_is_too_long_is_refused() {
    let listener = open_with(|config| {
        config.limits.body_bytes_max = 4_096;
        config.limits.value_bytes_max = 10;
        config.limits.entries_max = 1;
    })
    .await;
    let mut client = listener.client().await;
    let key = "k".repeat(11);
    client.send(array(&["CL.THROTTLE", &key, "1", "1", "1"])).await;
    client
        .expect("-ERR the key has 11 bytes; at most 10 are allowed (limits.value_bytes_max)|")
        .await;
    client
        .exchange(
            "TG.CHECK edge a b c d",
            "-ERR descriptor 0 has 2 entries; at most 1 are allowed (limits.entries_max)|",
        )
        .await;
    client.throttles("kkkkkkkkkk 1 1 1", [0, 2, 1, -1, 1]).await;
    let half = "x".repeat(2_100);
    for (bytes, error) in [
        (format!("*2\r\n$4\r\nECHO\r\n$5000\r\n{half}"), "invalid bulk length"),
        (array(&["ECHO", &half, &half]), "too big request"),
        ("*1025\r\n".to_owned(), "invalid multibulk length"),
        ("x".repeat(4_096), "too big inline request"),
    ] {
        let mut client = listener.client().await;
        client.send(&bytes).await;
        assert_eq!(client.rest().await, format!("-ERR Protocol error: {error}|"));
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_not_read_and_cut_off_in_the_end() {
    let listener =
        open_with(|config| config.limits.header_timeout = Span::from_millis(SHORT_MS)).await;
    let mut client = listener.client().await;
    // Each reply is far larger than its command: replies that are not read must not pile up.
    let commands = "COMMAND\r\n".repeat(1_000);
    let flood = async {
        loop {
            if tokio::io::AsyncWriteExt::write_all(&mut client.stream, commands.as_bytes())
                .await
                .is_err()
            {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), flood).await.expect("it was not cut off");
    assert_eq!(listener.stats.slow.get(), 1);
}

#[tokio::test]
async fn a_full_listener_queues_the_next_connection() {
    let listener = open_with(|config| config.limits.connections_max = 2).await;
    let (mut first, mut second) = (listener.client().await, listener.client().await);
    first.exchange("PING", "+PONG|").await;
    second.exchange("PING", "+PONG|").await;
    let mut third = listener.client().await;
    third.send("PING\r\n").await;
    tokio::time::sleep(Duration::from_millis(SHORT_MS)).await;
    assert_eq!((listener.stats.accepted.get(), listener.stats.full.get()), (2, 1));
    first.exchange("QUIT", "+OK|").await;
    third.expect("+PONG|").await;
}

/// Loopback is exempt by default, and the clients of a test are there.
#[tokio::test]
async fn a_client_with_all_connections_of_its_address_gets_no_further_one() {
    let two = |config: &mut Config| config.limits.connections_per_address_max = 2;
    let listener = open_within(two, |bounds| bounds.exempt = Vec::new().into()).await;
    let (mut first, mut second) = (listener.client().await, listener.client().await);
    first.exchange("PING", "+PONG|").await;
    second.exchange("PING", "+PONG|").await;
    assert_eq!(listener.client().await.rest().await, "");
    assert_eq!((listener.stats.accepted.get(), listener.stats.address_full.get()), (2, 1));
    first.exchange("QUIT", "+OK|").await;
    eventually("the first ends", HANGS_AFTER, || listener.stats.ended.get() == 1).await;
    let mut third = listener.client().await;
    third.exchange("PING", "+PONG|").await;
    second.exchange("PING", "+PONG|").await;
}
