//! A draining listener finishes the commands in progress, and ends.

use std::time::Duration;

use tidegate_limiter::units::Span;
use tokio::net::TcpStream;

use super::listener::{open, open_with};

#[tokio::test]
async fn connections_with_nothing_under_way_are_closed_and_begun_commands_answered() {
    let listener = open().await;
    let (mut idle, mut begun) = (listener.client().await, listener.client().await);
    idle.exchange("PING", "+PONG|").await;
    begun.exchange("PING", "+PONG|").await;
    begun.send("*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n0\r\n$1\r\n1\r\n").await;
    // What was sent has to be there before the drain is.
    tokio::time::sleep(Duration::from_millis(100)).await;
    listener.drain.cancel();
    assert_eq!(idle.rest().await, "");
    begun.send("$1\r\n1\r\n").await;
    assert_eq!(begun.rest().await, "*5|:0|:1|:0|:-1|:1|");
    tokio::time::timeout(Duration::from_secs(5), listener.served).await.unwrap().unwrap();
    assert_eq!((listener.stats.ended.get(), listener.stats.dropped.get()), (2, 0));
    assert!(TcpStream::connect(listener.addr).await.is_err());
}

#[tokio::test]
async fn a_drain_waits_no_longer_than_it_may() {
    let listener = open_with(|config| config.limits.drain_timeout = Span::from_millis(200)).await;
    let mut begun = listener.client().await;
    begun.exchange("PING", "+PONG|").await;
    begun.send("*5\r\n$11\r\nCL.THRO").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    listener.drain.cancel();
    tokio::time::timeout(Duration::from_secs(5), listener.served).await.unwrap().unwrap();
    assert_eq!((listener.stats.ended.get(), listener.stats.dropped.get()), (1, 1));
}
