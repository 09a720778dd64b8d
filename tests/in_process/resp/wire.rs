//! Replies to pipelines are in order however the bytes are split, and bytes of other protocols get
//! an error.

use super::listener::{array, open};

/// Commands of all kinds, with what must come back.
fn mixed() -> (String, String) {
    let commands = [
        (array(&["CL.THROTTLE", "k", "2", "30", "60"]), "*5|:0|:3|:2|:-1|:2|"),
        (array(&["CL.THROTTLE", "k", "2", "30", "60"]), "*5|:0|:3|:1|:-1|:4|"),
        // Each names a limit of its own.
        (array(&["CL.THROTTLE", "l", "4", "30", "60"]), "*5|:0|:5|:4|:-1|:2|"),
        (array(&["CL.THROTTLE", "m", "4", "60", "60"]), "*5|:0|:5|:4|:-1|:1|"),
        (array(&["PING"]), "+PONG|"),
        (array(&["THROTTLE", "k", "2", "30", "60"]), "*5|:0|:3|:0|:-1|:6|"),
        (
            array(&["CL.THROTTLE", "k", "2", "x", "60"]),
            "-Cell error: Couldn't parse as integer: x|",
        ),
        (array(&["cl.throttle", "k", "2", "30", "60"]), "*5|:1|:3|:0|:2|:6|"),
        (array(&["TG.CHECK", "edge", "user", "u"]), "*5|:0|:3|:2|:-1|:2800|"),
        (array(&["ECHO", "a\r\nb"]), "$4|a|b|"),
        ("CL.THROTTLE \"k\" 2 30 60 0\r\n".to_owned(), "*5|:0|:3|:0|:-1|:6|"),
        ("\r\n".to_owned(), ""),
        ("*0\r\n".to_owned(), ""),
        (array(&["GET", "k"]), "-ERR unknown command 'GET', with args beginning with: 'k' |"),
        (array(&["CL.THROTTLE", "", "2", "30", "60"]), "*5|:0|:3|:2|:-1|:2|"),
        (array(&["PING", "end"]), "$3|end|"),
    ];
    (
        commands.iter().map(|(command, _)| command.as_str()).collect(),
        commands.iter().map(|(_, reply)| *reply).collect(),
    )
}

#[tokio::test]
async fn a_pipeline_is_answered_in_order() {
    let listener = open().await;
    let mut client = listener.client().await;
    let (commands, replies) = mixed();
    client.send(commands).await;
    client.expect(&replies).await;
}

#[tokio::test]
async fn it_does_not_matter_where_bytes_are_parted() {
    for size in [1, 2, 3, 7, 50, 200] {
        let listener = open().await;
        let mut client = listener.client().await;
        client.stream.set_nodelay(true).unwrap();
        let (commands, replies) = mixed();
        for part in commands.as_bytes().chunks(size) {
            client.send(part).await;
            tokio::task::yield_now().await;
        }
        client.expect(&replies).await;
    }
}

#[tokio::test]
async fn a_long_pipeline_is_answered_whole() {
    let listener = open().await;
    let mut client = listener.client().await;
    let commands: String = (0..20_000)
        .map(|i| array(&["CL.THROTTLE", &format!("key-{i}"), "15", "30", "60"]))
        .collect();
    let (mut from, mut to) = client.stream.split();
    let send = async { tokio::io::AsyncWriteExt::write_all(&mut to, commands.as_bytes()).await };
    let mut replies = vec![0; 20_000 * "*5|:0|:16|:15|:-1|:2|".replace('|', "\r\n").len()];
    let read = tokio::io::AsyncReadExt::read_exact(&mut from, &mut replies);
    let (sent, read) = tokio::join!(send, read);
    assert!(sent.is_ok() && read.is_ok());
    let one = "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";
    assert_eq!(String::from_utf8(replies).unwrap(), one.repeat(20_000));
}

#[tokio::test]
async fn resp3_is_spoken_after_hello() {
    let listener = open().await;
    let mut client = listener.client().await;
    client.send("HELLO 3\r\n").await;
    client.expect("%7|$6|server|$8|tidegate|$7|version|$").await;
    let mut client = listener.client().await;
    client.exchange("CLIENT GETNAME", "$-1|").await;
    client.send("HELLO 3\r\nCLIENT GETNAME\r\nCONFIG GET save\r\nQUIT\r\n").await;
    let rest = client.rest().await;
    assert!(rest.ends_with("|*0|_|%1|$4|save|$0||+OK|"), "{rest}");
}

#[tokio::test]
async fn what_is_no_command_ends_the_connection_after_what_was_right() {
    let listener = open().await;
    for (bytes, expected) in [
        ("PING\r\n*1\r\n+OK\r\n", "+PONG|-ERR Protocol error: expected '$', got '+'|"),
        ("*x\r\n", "-ERR Protocol error: invalid multibulk length|"),
        ("PING\r\nQUIT\r\nPING\r\n", "+PONG|+OK|"),
        // A browser.
        (
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "-ERR unknown command 'GET', with args beginning with: '/' 'HTTP/1.1' |",
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\nCL.THROTTLE a 1 1 1\r\n", ""),
    ] {
        let mut client = listener.client().await;
        client.send(bytes).await;
        assert_eq!(client.rest().await, expected, "{bytes:?}");
    }
}
