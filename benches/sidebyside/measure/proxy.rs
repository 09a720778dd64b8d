//! The proxy in front of an application, beside nginx with and without `auth_request`, with `wrk`.

use std::fs;
use std::path::Path;

use super::{Case, Plan, interleave, table};
use crate::peers::tidegate::Setting;
use crate::peers::{nginx, tidegate};
use crate::results::Table;
use crate::tools;

pub const BARE: &str = "nginx, proxy_pass";
pub const ASKING: &str = "nginx, auth_request to tidegate and proxy_pass";
pub const TIDEGATE: &str = "tidegate, proxy";
pub const COLUMNS: &[&str] = tools::COLUMNS.split_at(4).0;

pub fn measure(plan: &Plan, folder: &Path) -> Table {
    let mut table = table(
        "proxy",
        "Proxy in front of nginx, closed loop",
        "50 connections, one request in flight on each, to an application (nginx) that answers \
         with two bytes. The node of `auth_request` is that of the proxy; each of its decisions is \
         by one descriptor, the path. Application, proxy and client share the cores.",
        COLUMNS,
    );
    table.commands.push("wrk -t1 -c50 -d SECONDS -s SCRIPT http://ADDRESS/".into());
    let text = |error: std::io::Error| error.to_string();
    let application = nginx::application(folder).map_err(text);
    let node = application.clone().and_then(|(_, addr)| {
        Setting::new(folder).and_then(|setting| setting.with_proxy(addr).start()).map_err(text)
    });
    let gate = application
        .clone()
        .and_then(|(_, addr)| nginx::gate(folder, addr, node.clone()?.http).map_err(text));
    let own = node.clone().and_then(|tidegate::Node { proxy, .. }| {
        proxy.ok_or_else(|| "this build has no [proxy] listener".to_owned())
    });
    let listeners = [
        (BARE, gate.clone().map(|gate| gate.bare)),
        (ASKING, gate.clone().map(|gate| gate.asking)),
        (TIDEGATE, own),
    ];
    let script = &folder.join("proxy.lua");
    let cases = listeners.map(|(name, addr)| match addr {
        Ok(addr) => Case::new(name, move || {
            fs::write(script, tools::WRK_REPORT)?;
            let mut cells = tools::wrk(addr, &[], script, plan.span)?.cells();
            cells.truncate(COLUMNS.len());
            Ok(cells)
        }),
        Err(why) => Case::absent(name, why),
    });
    interleave(&mut table, plan.rounds, cases.into());
    table
}
