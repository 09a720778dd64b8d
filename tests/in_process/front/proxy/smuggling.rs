//! Request smuggling: whatever a client sends, the application finds the requests that the proxy
//! has checked, one for each, and no others.
//!
//! Behind the proxy is a server on a plain socket that reads HTTP/1.1 by the letter: it accepts one
//! form of each message, counts the requests, and keeps what it could not read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::super::support::Table;
use super::support::{domain, proxy};

/// What a server that reads by the letter has received.
#[derive(Debug, Default)]
struct Seen {
    /// Request targets.
    targets: Vec<String>,
    /// What it could not read.
    unreadable: Vec<String>,
}

struct Strict {
    addr: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    _running: AbortOnDropHandle<()>,
}

impl Strict {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Seen>>::default();
        let all = seen.clone();
        let running = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tasks.spawn(serve(stream, all.clone()));
            }
        });
        Self { addr, seen, _running: AbortOnDropHandle::new(running) }
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        match message(&bytes) {
            Ok(Some((target, length))) => {
                bytes.drain(..length);
                seen.lock().targets.push(target);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
            Ok(None) => {
                let mut part = [0; 4096];
                match stream.read(&mut part).await {
                    Ok(n) if n > 0 => bytes.extend_from_slice(&part[..n]),
                    _ => return,
                }
            }
            Err(why) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                seen.lock().unreadable.push(format!("{why}: {text:?}"));
                return;
            }
        }
    }
}

/// The target and the length of the first request, if it is there as a whole.
fn message(bytes: &[u8]) -> Result<Option<(String, usize)>, &'static str> {
    let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "a head that is no text")?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(_method), Some(target), Some("HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("a request line that is none");
    };
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        if line.contains(['\r', '\n', '\0']) || line.starts_with([' ', '\t']) {
            return Err("a line that is two");
        }
        let (name, value) = line.split_once(": ").ok_or("a header that is none")?;
        match name {
            "content-length" => {
                let value: usize = value.parse().map_err(|_| "a length that is none")?;
                if length.replace(value).is_some() {
                    return Err("two lengths");
                }
            }
            "transfer-encoding" if value == "chunked" && !is_chunked => is_chunked = true,
            "transfer-encoding" => return Err("an unknown coding"),
            // A wish to switch is of this hop.
            "connection" if value == "upgrade" => {}
            "upgrade" if value == "websocket" => {}
            "connection" | "upgrade" | "keep-alive" => return Err("a header of one hop"),
            _ => {}
        }
    }
    let body = end + 4;
    let length = match (length, is_chunked) {
        (Some(_), true) => return Err("a length and chunks"),
        (length, false) => length.unwrap_or(0),
        (None, true) => match chunks(&bytes[body..])? {
            Some(length) => length,
            None => return Ok(None),
        },
    };
    let whole = body + length;
    Ok((bytes.len() >= whole).then(|| (target.to_owned(), whole)))
}

/// The length of a chunked body, if it is there as a whole.
fn chunks(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        let Some(end) = find(&bytes[at..], b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[at..at + end]).map_err(|_| "a size that is none")?;
        let size = usize::from_str_radix(size, 16).map_err(|_| "a size that is none")?;
        at += end + 2;
        if size == 0 {
            let Some(end) = find(&bytes[at..], b"\r\n") else { return Ok(None) };
            return if end == 0 { Ok(Some(at + 2)) } else { Err("trailers that were not sent") };
        }
        let Some(after) = bytes.get(at + size..at + size + 2) else { return Ok(None) };
        if after != b"\r\n" {
            return Err("a chunk that does not end");
        }
        at += size + 2;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n";

/// A request to `/a` with further header lines, and what follows its head.
fn post(lines: &str, rest: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: t\r\n{lines}\r\n{rest}")
}

/// Name, what the client sends, and the targets that may reach the application: the first as many
/// of them as the proxy chooses to pass on.
fn cases() -> Vec<(&'static str, String, &'static [&'static str])> {
    let te = "Transfer-Encoding: chunked\r\n";
    let smuggled = format!("0\r\n\r\n{HIDDEN}");
    let n = smuggled.len();
    let end = "0\r\n\r\n";
    let (a, none): (&[_], &[_]) = (&["/a"], &[]);
    let two: &[_] = &["/a", "/b"];
    let next = "GET /b HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    // Without the end of these sizes a body looks like a head, and what follows like its body.
    let (zeros, spaces) = ("0".repeat(127), " ".repeat(120));
    let head = "\r\nPOST /x HTTP/1.1\r\nContent-Length: 100000\r\n\r\n";
    let long_chunk = format!("{zeros}{:x}\r\n{head}\r\n{end}", head.len());
    let two_lengths = format!("POST /b HTTP/1.1\r\nHost: t\r\nContent-Length: 6\r\n{te}\r\n{end}");
    let bare_line_feeds = "GET /b HTTP/1.1\nHost: t\n\n";
    vec![
        // Two lengths.
        ("CL.TE", post(&format!("Content-Length: {n}\r\n{te}"), &smuggled), none),
        (
            "TE.CL",
            post(&format!("{te}Content-Length: 4\r\n"), &format!("5c\r\n{HIDDEN}\r\n{end}")),
            none,
        ),
        ("CL.TE of zero", post(&format!("Content-Length: 0\r\n{te}"), &smuggled), none),
        ("CL.CL that differ", post("Content-Length: 0\r\nContent-Length: 33\r\n", HIDDEN), none),
        ("CL.CL alike", post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), none),
        ("CL list", post("Content-Length: 0, 33\r\n", HIDDEN), none),
        ("CL with a sign", post("Content-Length: +0\r\n", HIDDEN), none),
        ("CL below zero", post("Content-Length: -1\r\n", HIDDEN), none),
        ("CL in hexadecimal", post("Content-Length: 0x21\r\n", HIDDEN), none),
        ("CL empty", post("Content-Length: \r\n", HIDDEN), none),
        ("CL too large", post("Content-Length: 18446744073709551616\r\n", HIDDEN), none),
        ("CL with a space before the colon", post("Content-Length : 33\r\n", HIDDEN), none),
        ("CL with a tab in it", post("Content-Length: 3\t3\r\n", HIDDEN), none),
        (
            "CL with many zeros",
            post(
                &format!("Content-Length: {zeros}{}\r\n", head.len()),
                &format!("{head}{two_lengths}"),
            ),
            none,
        ),
        // Codings that one side may not know.
        ("TE.TE", post(&format!("{te}Transfer-Encoding: identity\r\n"), &smuggled), none),
        ("TE.TE alike", post(&format!("{te}{te}"), &smuggled), none),
        ("TE unknown", post("Transfer-Encoding: xchunked\r\n", &smuggled), none),
        ("TE chunked last", post("Transfer-Encoding: gzip, chunked\r\n", &smuggled), none),
        ("TE chunked first", post("Transfer-Encoding: chunked, gzip\r\n", &smuggled), none),
        (
            "TE identity",
            post("Transfer-Encoding: identity\r\nContent-Length: 33\r\n", HIDDEN),
            none,
        ),
        (
            "TE.TE far apart",
            post(&format!("Transfer-Encoding: chunked{spaces}, chunked\r\n"), &smuggled),
            none,
        ),
        ("TE in quotes", post("Transfer-Encoding: \"chunked\"\r\n", &smuggled), none),
        ("TE with a vertical tab", post("Transfer-Encoding: \x0bchunked\r\n", &smuggled), none),
        (
            "TE with a space before the colon",
            post("Transfer-Encoding : chunked\r\n", &smuggled),
            none,
        ),
        ("TE with a NUL", post("Transfer-Encoding: chunked\0\r\n", &smuggled), none),
        (
            "TE hidden by an underscore",
            post(&format!("Transfer_Encoding: chunked\r\nContent-Length: {n}\r\n"), &smuggled),
            a,
        ),
        ("TE in HTTP/1.0", format!("POST /a HTTP/1.0\r\nHost: t\r\n{te}\r\n{smuggled}"), none),
        // Lines.
        ("obs-fold of a length", post("Content-Length:\r\n 33\r\n", HIDDEN), none),
        ("obs-fold of a coding", post("Transfer-Encoding:\r\n\tchunked\r\n", &smuggled), none),
        ("obs-fold of any header", post("X: a\r\n b\r\n", ""), none),
        ("bare LF between headers", post("X: a\nContent-Length: 33\r\n", HIDDEN), none),
        ("bare LF at the end", format!("GET /a HTTP/1.1\nHost: t\n\n{HIDDEN}"), none),
        ("bare CR in a value", post("X: a\rContent-Length: 33\r\n", HIDDEN), none),
        ("NUL in a name", post("X\0: a\r\n", ""), none),
        ("a header without a colon", post("Content-Length\r\n", HIDDEN), none),
        ("a header without a name", post(": 33\r\n", ""), none),
        // Request lines.
        ("two spaces", format!("GET  /a HTTP/1.1\r\nHost: t\r\n\r\n{HIDDEN}"), none),
        ("no version", format!("GET /a\r\nHost: t\r\n\r\n{HIDDEN}"), none),
        ("another version", format!("GET /a HTTP/1.2\r\nHost: t\r\n\r\n{HIDDEN}"), none),
        (
            "a second request in the target",
            "GET /a HTTP/1.1 /b HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
            none,
        ),
        ("two hosts", "GET /a HTTP/1.1\r\nHost: t\r\nHost: u\r\n\r\n".to_owned(), none),
        // Chunks.
        ("a size with a sign", post(te, &format!("+3\r\nabc\r\n{end}")), a),
        ("a size in 0x", post(te, &format!("0x3\r\nabc\r\n{end}")), a),
        ("a size too large", post(te, "10000000000000003\r\nabc\r\n"), a),
        ("a size that is none", post(te, &format!("x\r\nabc\r\n{end}")), a),
        ("a chunk longer than its size", post(te, &format!("3\r\nabcdef\r\n{end}")), a),
        ("a chunk with a bare LF", post(te, "3\nabc\n0\n\n"), a),
        ("an extension with a bare LF", post(te, &format!("3;a\nb\r\nabc\r\n{end}")), a),
        (
            "a request in an extension",
            post(te, &format!("3;{}\r\nabc\r\n{end}{next}", "a".repeat(300))),
            two,
        ),
        ("a size with many zeros, then CL.TE", post(te, &format!("{long_chunk}{two_lengths}")), a),
        (
            "a size with many zeros, then bare LF",
            post(te, &format!("{long_chunk}{bare_line_feeds}")),
            a,
        ),
        ("trailers that frame", post(te, &format!("0\r\nContent-Length: 33\r\n\r\n{next}")), two),
        // Bodies that are requests.
        ("a body is no request", post("Content-Length: 33\r\n", &format!("{HIDDEN}{next}")), two),
        ("chunks are no request", post(te, &format!("21\r\n{HIDDEN}\r\n{end}{next}")), two),
        (
            "a GET with a body",
            format!("GET /a HTTP/1.1\r\nHost: t\r\nContent-Length: 33\r\n\r\n{HIDDEN}{next}"),
            two,
        ),
        (
            "Connection names the length",
            post(
                "Connection: content-length\r\nContent-Length: 33\r\n",
                &format!("{HIDDEN}{next}"),
            ),
            two,
        ),
        (
            "Connection names the coding",
            post(
                &format!("Connection: transfer-encoding\r\n{te}"),
                &format!("21\r\n{HIDDEN}\r\n{end}{next}"),
            ),
            two,
        ),
        ("an empty line in front", format!("\r\n{}{next}", post("Content-Length: 0\r\n", "")), two),
        // Switches.
        (
            "a websocket that is not made",
            format!(
                "GET /a HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n{HIDDEN}"
            ),
            a,
        ),
        (
            "h2c",
            format!(
                "GET /a HTTP/1.1\r\nHost: t\r\nConnection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n{HIDDEN}"
            ),
            a,
        ),
        ("CONNECT", format!("CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n{HIDDEN}"), none),
        (
            "Expect without a body",
            post("Expect: 100-continue\r\nContent-Length: 33\r\n", &format!("{HIDDEN}{next}")),
            two,
        ),
    ]
}

/// How long nothing may come before a client gives up: what it sent is not complete.
const QUIET: Duration = Duration::from_millis(700);

/// Sends the bytes and reads until the proxy closes, or sends nothing more.
async fn send(addr: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    let _ = stream.write_all(bytes.as_bytes()).await;
    let mut reply = Vec::new();
    while let Ok(Ok(1..)) = tokio::time::timeout(QUIET, stream.read_buf(&mut reply)).await {}
    String::from_utf8_lossy(&reply).into_owned()
}

/// What is wrong with the outcome of a case, if anything is.
async fn outcome(name: &str, bytes: &str, allowed: &[&str], limit: &str) -> Option<String> {
    let (app, table) = (Strict::start().await, Table::usual());
    let proxy = proxy(&table, &[app.addr], &domain(limit)).await;
    let reply = send(proxy.addr(), bytes).await;
    let seen = app.seen.lock();
    let targets: Vec<&str> = seen.targets.iter().map(String::as_str).collect();
    // Two requests are valid, so both have to pass; one may be refused for its body.
    let is_as_allowed = match allowed {
        [_, _] => targets == allowed,
        _ => allowed.starts_with(&targets),
    };
    let is_refused = !allowed.is_empty() || !reply.contains("HTTP/1.1 2");
    let is_checked = table.checks().len() >= targets.len();
    let is_well = is_as_allowed && is_refused && is_checked && seen.unreadable.is_empty();
    (!is_well).then(|| format!("{name}: {seen:?}, {} checks, {reply:?}", table.checks().len()))
}

#[tokio::test]
async fn the_application_finds_the_requests_that_were_checked_and_no_others() {
    let cases = cases();
    assert!(cases.len() >= 30);
    let outcomes = cases.iter().map(|(name, bytes, allowed)| outcome(name, bytes, allowed, "open"));
    let wrong: Vec<String> = join_all(outcomes).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn of_refused_requests_the_application_finds_nothing() {
    let cases = cases();
    let outcomes = cases.iter().map(|(name, bytes, _)| outcome(name, bytes, &[], "limited"));
    let wrong: Vec<String> = join_all(outcomes).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
