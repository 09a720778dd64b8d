//! `tidegate check`: one check by the HTTP API of a node.

use std::io::Write;

use bytes::Bytes;
use http::{Method, Response, header};
use serde_json::{Value, json};
use tidegate_demo::output::Paint;

use super::entry::entry;
use super::{Failure, client};
use crate::admin::Reach;
use crate::config::UserError;

/// Check a descriptor against its limits and charge the hits.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Domain of the rules
    domain: String,
    /// Entries of the descriptor, outermost first
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
    /// Hits to charge; 0 only reads the counters
    #[arg(long, value_name = "N", default_value_t = 1)]
    hits: u32,
    /// URL of a node's HTTP listener
    #[arg(long, value_name = "URL", env = "TIDEGATE_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    #[command(flatten)]
    reach: Reach,
    /// Print the node's JSON answer
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit code: 0 allowed, 1 denied, 2 no answer.

Examples:
  tidegate check demo user=alice
  tidegate check demo user=alice --hits 5 --json
  tidegate check edge path=/login remote_address=10.0.0.7 --url http://10.1.0.4:8080";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    let url = format!("{}/v1/check", args.url.trim_end_matches('/'));
    let response = client::ask(Method::POST, &url, question(args).to_string(), &args.reach)?;
    let body: Option<Value> = serde_json::from_slice(response.body()).ok();
    // The status of a refusal is configurable, so the body decides.
    let code = body.as_ref().and_then(|body| body.get("overallCode")).and_then(Value::as_str);
    let allowed = match code {
        Some("OK") => true,
        Some("OVER_LIMIT") => false,
        _ => return Err(unexpected(&url, &response, body.as_ref())),
    };
    match body {
        Some(body) if args.json => writeln!(out, "{body}")?,
        _ => writeln!(out, "{}", sentence(allowed, &response, Paint { on: screen }))?,
    }
    Ok(allowed)
}

/// The proto3-JSON form of Envoy's `RateLimitRequest`. Zero hits of the whole request mean one
/// there, so zero hits are set in the descriptor, where zero means zero.
fn question(args: &Args) -> Value {
    let entries: Vec<Value> =
        args.entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    if args.hits == 0 {
        let descriptor = json!({ "entries": entries, "hitsAddend": "0" });
        return json!({ "domain": args.domain, "descriptors": [descriptor] });
    }
    json!({
        "domain": args.domain,
        "descriptors": [{ "entries": entries }],
        "hitsAddend": args.hits,
    })
}

/// `allowed: limit 10, remaining 9` or `denied: limit 10, remaining 0, retry after 43s`.
fn sentence(allowed: bool, response: &Response<Bytes>, paint: Paint) -> String {
    let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
    let verdict = if allowed { paint.green("allowed") } else { paint.red("denied") };
    let Some(limit) = header("x-ratelimit-limit") else {
        return format!("{verdict}: no limit applies");
    };
    let mut parts = vec![format!("limit {limit}")];
    if let Some(remaining) = header("x-ratelimit-remaining") {
        parts.push(format!("remaining {remaining}"));
    }
    if header("x-ratelimit-soft-breach").is_some() {
        parts.push("above a soft limit".to_owned());
    }
    if !allowed {
        parts.push(match header(header::RETRY_AFTER.as_str()) {
            Some(seconds) => format!("retry after {seconds}s"),
            None => "never admitted: more hits than the limit".to_owned(),
        });
    }
    format!("{verdict}: {}", parts.join(", "))
}

fn unexpected(url: &str, response: &Response<Bytes>, body: Option<&Value>) -> Failure {
    let status = response.status();
    let (verdict, fix) = match body.and_then(|body| body.get("error")).and_then(Value::as_str) {
        Some(error) => ("", error),
        None => (" without a verdict", "set --url to the HTTP listener of a tidegate node"),
    };
    UserError::new(format!("{url} answered {status}{verdict}"), fix).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_charges_nothing_and_everything_else_what_it_says() {
        let args = |hits| Args {
            domain: "d".to_owned(),
            entries: vec![("k".to_owned(), "v".to_owned())],
            hits,
            url: String::new(),
            reach: Reach::default(),
            json: false,
        };
        assert_eq!(
            question(&args(0)),
            json!({
                "domain": "d",
                "descriptors": [{ "entries": [{ "key": "k", "value": "v" }], "hitsAddend": "0" }],
            })
        );
        assert_eq!(question(&args(5))["hitsAddend"], json!(5));
    }

    #[test]
    fn an_answer_is_one_sentence() {
        let answer = |headers: &[(&'static str, &'static str)]| {
            let mut response = Response::new(Bytes::new());
            for (name, value) in headers {
                response.headers_mut().insert(*name, header::HeaderValue::from_static(value));
            }
            response
        };
        let counts = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "3")];
        let retry = [counts[0], counts[1], ("retry-after", "43")];
        let rows = [
            (true, &counts[..], "allowed: limit 10, remaining 3"),
            (false, &retry[..], "denied: limit 10, remaining 3, retry after 43s"),
            (
                false,
                &counts[..],
                "denied: limit 10, remaining 3, never admitted: more hits than the limit",
            ),
            (true, &[], "allowed: no limit applies"),
        ];
        for (allowed, headers, text) in rows {
            assert_eq!(sentence(allowed, &answer(headers), Paint { on: false }), text);
        }
    }
}
