//! A small HTTP client for commands that contact a node, and the `--url` flag of those that use its
//! admin listener.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tidegate_cluster::pki;
use tidegate_demo::output::Paint;
use tokio::runtime;
use tokio::time::timeout;

use super::Failure;
use crate::admin::key::Reached;
use crate::admin::tokens::MAKE_TOKEN;
use crate::admin::{NodeClient, Reach, innermost};
use crate::config::UserError;

/// Timeout of the whole request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest answer in bytes; the status of a thousand members is far smaller.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The node to contact.
#[derive(Debug, clap::Args)]
pub(super) struct AdminDoor {
    /// URL of a node's admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:8082"
    )]
    url: String,
    #[command(flatten)]
    reach: Reach,
    /// File with the token of the admin listener (`admin.token_file`)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_TOKEN_FILE", hide_env = true)]
    token_file: Option<PathBuf>,
}

/// Advice when the answer is not from an admin listener.
pub(super) const FIX: &str = "set --url to the admin listener ([admin] listen) of a tidegate node";

/// Everything but the unreserved characters of RFC 3986 is encoded in a query.
pub(super) const RESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl AdminDoor {
    /// The URL of `path`, which begins with a slash.
    pub(super) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// The response to a request without a body, whatever its status.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub(super) fn ask(&self, method: Method, path: &str) -> Result<Response<Bytes>, Failure> {
        let (url, token) = (self.at(path), self.token()?);
        let request = Outgoing { method, url: &url, body: String::new(), token };
        in_time(&url, ask_within(TIMEOUT, request, &self.reach)?)
    }

    pub(super) fn token(&self) -> Result<Option<String>, Failure> {
        self.token_file.as_deref().map(read_token).transpose()
    }

    /// Fetches the report at `path`, and writes it as JSON or by `text`.
    pub(super) fn report<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        as_json: bool,
        out: &mut dyn Write,
        text: impl FnOnce(&mut dyn Write, &T) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let url = self.at(path);
        let response = self.ask(Method::GET, path)?;
        let Some(report): Option<T> = reported(&response) else {
            return Err(unexpected(&url, &response, ", not a report"));
        };
        if !as_json {
            return Ok(text(out, &report)?);
        }
        Ok(write_json(out, &report)?)
    }

    /// Orders the node to do what `path` names.
    ///
    /// # Errors
    ///
    /// The node refused, with its text; or as [`ask`].
    pub(super) fn order(&self, path: &str) -> Result<(), Failure> {
        let url = self.at(path);
        let response = self.ask(Method::POST, path)?;
        if response.status() == StatusCode::ACCEPTED {
            return Ok(());
        }
        Err(unexpected(&url, &response, ""))
    }

    /// As [`AdminDoor::order`], for an order that is answered with a report at once.
    pub(super) fn order_report<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let response = self.ask(Method::POST, path)?;
        reported(&response).ok_or_else(|| unexpected(&self.at(path), &response, ""))
    }

    /// As [`AdminDoor::order`], for an order that is answered with a report once it is carried out.
    pub(super) fn order_and_wait<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<Waited<T>, Failure> {
        let url = self.at(path);
        let token = self.token()?;
        let request = Outgoing { method: Method::POST, url: &url, body: String::new(), token };
        let Some(response) = ask_within(timeout, request, &self.reach)? else {
            return Ok(Waited::TimedOut);
        };
        match response.status() {
            StatusCode::OK => Ok(Waited::Ended(serde_json::from_slice(response.body()).ok())),
            StatusCode::ACCEPTED => Ok(Waited::Ended(None)),
            _ => Err(unexpected(&url, &response, "")),
        }
    }
}

/// What became of an order.
pub(super) enum Waited<T> {
    /// With its report, if the node gives one.
    Ended(Option<T>),
    TimedOut,
}

pub(super) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Writes what became of an order that is for all nodes.
pub(super) fn write_reached(
    out: &mut dyn Write,
    paint: Paint,
    done: &str,
    reached: &Reached,
) -> io::Result<()> {
    let others = match &reached.confirmed[..] {
        [] => String::new(),
        [one] => format!(", confirmed by {one}"),
        more => format!(", confirmed by {} other nodes", more.len()),
    };
    writeln!(out, "{done}{others}")?;
    if reached.is_confirmed() {
        return Ok(());
    }
    let down = reached.down.iter().map(|node| format!("{node} (down)"));
    let others: Vec<String> = reached.missed.iter().cloned().chain(down).collect();
    let text = format!("not confirmed by {}: sent again until it is", others.join(", "));
    writeln!(out, "{}", paint.red(&text))
}

/// The report in a response that is one.
fn reported<T: DeserializeOwned>(response: &Response<Bytes>) -> Option<T> {
    let body = Some(response).filter(|response| response.status() == StatusCode::OK)?.body();
    serde_json::from_slice(body).ok()
}

/// The node's own words if it sent some, otherwise advice.
pub(super) fn unexpected(url: &str, response: &Response<Bytes>, what: &str) -> Failure {
    let body: Option<Value> = serde_json::from_slice(response.body()).ok();
    let error = body.as_ref().and_then(|body| body.get("error")).and_then(Value::as_str);
    let problem = format!("{url} answered {}{what}", response.status());
    UserError::new(problem, error.unwrap_or(FIX)).into()
}

struct Outgoing<'u> {
    method: Method,
    url: &'u str,
    body: String,
    token: Option<String>,
}

/// Sends a request and returns the whole response, whatever its status.
///
/// # Errors
///
/// `url` is not that of a node, a file of `reach` cannot be used, or the node did not answer in
/// time.
pub(super) fn ask(
    method: Method,
    url: &str,
    body: String,
    reach: &Reach,
) -> Result<Response<Bytes>, Failure> {
    let request = Outgoing { method, url, body, token: None };
    in_time(url, ask_within(TIMEOUT, request, reach)?)
}

fn in_time(url: &str, answer: Option<Response<Bytes>>) -> Result<Response<Bytes>, Failure> {
    answer.ok_or_else(|| no_answer(url, &format!("no answer within {TIMEOUT:?}")))
}

/// The token in a file that only this user and its group can read.
pub(super) fn read_token(path: &Path) -> Result<String, Failure> {
    if !path.exists() {
        let problem = format!("{}: no such file", path.display());
        return Err(UserError::new(problem, "copy the node's admin.token_file to there").into());
    }
    let text = pki::read_secret_argument(path, || MAKE_TOKEN.to_owned())?;
    Ok(text.trim().to_owned())
}

/// As [`ask`]; none if there is no response within `most`.
fn ask_within(
    most: Duration,
    Outgoing { method, url, body, token }: Outgoing<'_>,
    reach: &Reach,
) -> Result<Option<Response<Bytes>>, Failure> {
    let uri = parse(url)?;
    let client = reach.client(&uri, HttpConnector::new())?;
    let run = || -> io::Result<_> {
        let request = Request::builder().method(method).uri(uri);
        let mut request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(async { timeout(most, exchange(&client, request)).await }))
    };
    let problem = match run() {
        Ok(Ok(Ok(response))) => return Ok(Some(response)),
        Ok(Ok(Err(NoResponse { problem, was_sent: true }))) => {
            let fix = "see with `tidegate status` and in its log whether the node runs; it may have \
                       done what it was asked for";
            return Err(UserError::new(format!("{url}: no response: {problem}"), fix).into());
        }
        Ok(Ok(Err(NoResponse { problem, was_sent: false }))) => problem,
        Ok(Err(_)) => return Ok(None),
        Err(error) => error.to_string(),
    };
    Err(no_answer(url, &problem))
}

/// The failure of a request to the node at `url`.
pub(super) fn no_answer(url: &str, problem: &str) -> Failure {
    let fix = "start a node with `tidegate serve`, or set --url to the address of one, with https, \
               --ca and --client-cert where its listener has TLS";
    UserError::new(format!("{url}: {problem}"), fix).into()
}

/// The URL of a listener.
pub(super) fn parse(url: &str) -> Result<Uri, Failure> {
    let uri = url.parse::<Uri>().ok();
    uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
        .ok_or_else(|| {
            let fix = if url.contains(',') {
                "give the URL of one node: `tidegate top` alone takes several"
            } else {
                "set --url to http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:8080"
            };
            UserError::new(format!("{url}: not the URL of a node"), fix).into()
        })
}

struct NoResponse {
    /// What the system says.
    problem: String,
    /// Whether there was a connection.
    was_sent: bool,
}

async fn exchange(
    client: &NodeClient<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, NoResponse> {
    let response = client.request(request).await.map_err(|error| NoResponse {
        problem: innermost(&error),
        was_sent: !error.is_connect(),
    })?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| NoResponse { problem: innermost(&*error), was_sent: true })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
