//! HTTP with `wrk`: `POST /v1/check`, compared with throttlecrab's `POST /throttle`.

use std::fs;
use std::path::Path;

use super::{Case, Plan, interleave, table};
use crate::peers::throttlecrab::{self, Setting, Throttlecrab};
use crate::peers::tidegate::{DOMAIN, Node, STRICT};
use crate::results::Table;
use crate::tools::{self, COLUMNS, WRK_REPORT};

/// Prepares 4,096 requests with random keys.
const SCRIPT: &str = r"
local requests, next = {}, 0
init = function()
  local headers = {['content-type'] = 'application/json'}
  for n = 1, 4096 do
    local body = string.gsub('BODY', 'KEY', string.format('user:%012d', math.random(0, 99999)))
    requests[n] = wrk.format('POST', 'PATH', headers, body)
  end
end
request = function()
  next = next % #requests + 1
  return requests[next]
end
";

pub fn measure(plan: &Plan, folder: &Path, node: &Result<Node, String>) -> Table {
    let mut table = table(
        "http",
        "HTTP, closed loop",
        "50 connections, one request in flight on each, 4,096 prepared requests with random keys.",
        &COLUMNS,
    );
    table.commands.push("wrk -t1 -c50 -d SECONDS -s SCRIPT http://ADDRESS/".into());
    let own = node.clone().map(|node| (node.server, node.http));
    let own_body = format!(
        "{{\"domain\":\"{DOMAIN}\",\"descriptors\":[{{\"entries\":[{{\"key\":\"{STRICT}\",\
         \"value\":\"KEY\"}}]}}]}}"
    );
    let crab = throttlecrab::start(folder, Setting::Default).map_err(|error| error.to_string());
    let crab = crab.map(|Throttlecrab { server, http, .. }| (server, http));
    let crab_body = "{\"key\":\"KEY\",\"max_burst\":100000,\"count_per_period\":100000,\
                     \"period\":86400}";
    let listeners = [
        ("tidegate, POST /v1/check", own, "/v1/check", own_body.as_str()),
        ("throttlecrab, POST /throttle", crab, "/throttle", crab_body),
    ];
    let cases = listeners.map(|(name, listener, path, body)| match listener {
        Ok((server, addr)) => Case::new(name, move || {
            let script = folder.join(format!("{}.lua", path.replace('/', "-")));
            let requests = SCRIPT.replace("BODY", body).replace("PATH", path);
            fs::write(&script, requests + WRK_REPORT)?;
            Ok(tools::wrk(addr, &[&server], &script, plan.span)?.cells())
        }),
        Err(why) => Case::absent(name, why),
    });
    interleave(&mut table, plan.rounds.min(3), cases.into());
    table
}
