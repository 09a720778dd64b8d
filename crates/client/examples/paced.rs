//! Ten tasks that share a client, against a server that names its limits:
//!
//! ```text
//! cargo run -p tidegate-client --example paced -- URL [REQUESTS] [FIELD=VALUE]...
//! ```
//!
//! Each line is a response: when it arrived, its status, and what it said. The client speaks plain
//! HTTP; with a feature such as `rustls` of your own dependency on reqwest it speaks HTTPS.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest_middleware::{ClientBuilder, reqwest};
use tidegate_client::Pacing;
use tokio::task::JoinSet;
use tokio::time::Instant;

const TASKS: usize = 10;
const REQUESTS: u32 = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = env::args().skip(1);
    let url = args.next().ok_or("usage: paced URL [REQUESTS] [FIELD=VALUE]...")?;
    let requests = args.next().map_or(Ok(REQUESTS), |number| number.parse())?;
    let mut headers = reqwest::header::HeaderMap::new();
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or("a header field is FIELD=VALUE")?;
        headers.insert(reqwest::header::HeaderName::try_from(name)?, value.parse()?);
    }

    let client = reqwest::Client::builder().default_headers(headers).build()?;
    let client = ClientBuilder::new(client).with(Pacing::default()).build();
    let (start, begun) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (client, url, begun) = (client.clone(), url.clone(), begun.clone());
        tasks.spawn(async move {
            while begun.fetch_add(1, Ordering::Relaxed) < requests {
                let response = client.get(&url).send().await?;
                let (seconds, status) = (start.elapsed().as_secs_f64(), response.status());
                let said = response.headers().get("RateLimit");
                let said = said.and_then(|field| field.to_str().ok()).unwrap_or("-");
                writeln!(io::stdout(), "{seconds:7.3} s  {}  {said}", status.as_u16())?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
