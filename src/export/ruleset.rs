//! The table `inet tidegate`, and transactions on it, as `nft -j` takes them.
//!
//! ```text
//! table inet tidegate {
//!   set v4 { type ipv4_addr; flags timeout; size 65536 }
//!   set v6 { type ipv6_addr; flags timeout; size 65536 }
//!   chain prerouting {
//!     type filter hook prerouting priority raw; policy accept;
//!     ip saddr @v4 counter drop
//!     ip6 saddr & ffff:ffff:ffff:ffff:: == @v6 counter drop
//!   }
//! }
//! ```
//!
//! IPv6 prefixes are the elements of a plain set, and the rule masks the address: they all have one
//! length. A set with `flags interval` would hold them as well, but nft 1.0.6 takes more than 20 s
//! to renew 4,096 elements of one ([ADR 57](../../docs/adr/0057-nftables-export.md)).
//!
//! Nothing from outside is text here: elements are formatted from [`SourceNet`].

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use serde_json::{Value, json};

use super::blocklist::{SET_SIZE, Transaction};
use crate::decide::SourceNet;

pub(super) const TABLE: &str = "tidegate";

const FAMILY: &str = "inet";
const SETS: [&str; 2] = ["v4", "v6"];
const CHAIN: &str = "prerouting";
/// The priority `raw`: before connections are tracked.
const RAW: i32 = -300;

/// The document of `transaction`; IPv6 sources are prefixes of length `ipv6_prefix`.
pub(super) fn document(transaction: &Transaction, ipv6_prefix: u8) -> Value {
    let Transaction { takes_over, added, renewed, removed } = transaction;
    let mut commands = if *takes_over { table(ipv6_prefix) } else { Vec::new() };
    // An element that is added again keeps its time: it has to be deleted first.
    let deleted = removed.iter().chain(renewed.iter().map(|(source, _)| source));
    let deleted: Vec<(SourceNet, Value)> =
        deleted.map(|source| (*source, json!(element(*source)))).collect();
    let timed = renewed.iter().chain(added).map(|(source, secs)| {
        (*source, json!({ "elem": { "val": element(*source), "timeout": secs } }))
    });
    commands.extend(elements("delete", &deleted));
    commands.extend(elements("add", &timed.collect::<Vec<_>>()));
    json!({ "nftables": commands })
}

/// Removes the table, whether there is one or not.
pub(super) fn removal() -> Value {
    json!({ "nftables": [{ "add": the_table() }, { "delete": the_table() }] })
}

fn the_table() -> Value {
    json!({ "table": { "family": FAMILY, "name": TABLE } })
}

/// The table anew, without elements.
fn table(ipv6_prefix: u8) -> Vec<Value> {
    let set = |name: &str, kind: &str| {
        json!({ "add": { "set": {
            "family": FAMILY, "table": TABLE, "name": name, "type": kind,
            "flags": ["timeout"], "size": SET_SIZE,
        } } })
    };
    let rule = |left: Value, set: &str| {
        json!({ "add": { "rule": {
            "family": FAMILY, "table": TABLE, "chain": CHAIN,
            "expr": [
                { "match": { "op": "==", "left": left, "right": format!("@{set}") } },
                { "counter": null },
                { "drop": null },
            ],
        } } })
    };
    let source = |protocol: &str| json!({ "payload": { "protocol": protocol, "field": "saddr" } });
    let masked = match Ipv6Net::new(Ipv6Addr::UNSPECIFIED, ipv6_prefix) {
        Ok(net) if ipv6_prefix < 128 => json!({ "&": [source("ip6"), net.netmask()] }),
        _ => source("ip6"),
    };
    let [v4, v6] = SETS;
    vec![
        json!({ "add": the_table() }),
        json!({ "delete": the_table() }),
        json!({ "add": the_table() }),
        set(v4, "ipv4_addr"),
        set(v6, "ipv6_addr"),
        json!({ "add": { "chain": {
            "family": FAMILY, "table": TABLE, "name": CHAIN,
            "type": "filter", "hook": "prerouting", "prio": RAW, "policy": "accept",
        } } }),
        rule(source("ip"), v4),
        rule(masked, v6),
    ]
}

/// One command for each set that has elements.
fn elements(command: &str, elements: &[(SourceNet, Value)]) -> Vec<Value> {
    let in_set = |set: usize| {
        let is_in =
            move |source: &SourceNet| usize::from(matches!(source, SourceNet::V6(_))) == set;
        let elements = elements.iter().filter(move |(source, _)| is_in(source));
        let elements: Vec<&Value> = elements.map(|(_, element)| element).collect();
        (!elements.is_empty()).then(|| {
            json!({ command: { "element": {
                "family": FAMILY, "table": TABLE, "name": SETS[set], "elem": elements,
            } } })
        })
    };
    [in_set(0), in_set(1)].into_iter().flatten().collect()
}

/// An address: of an IPv6 prefix the first one.
fn element(source: SourceNet) -> String {
    match source {
        SourceNet::V4(v4) => v4.to_string(),
        SourceNet::V6(net) => net.network().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> SourceNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_transaction_deletes_before_it_adds() {
        let transaction = Transaction {
            takes_over: false,
            added: vec![(source("203.0.113.7"), 60)],
            renewed: vec![(source("2001:db8::/64"), 30)],
            removed: vec![source("203.0.113.8")],
        };
        let element = |name: &str, elem: Value| json!({ "element": { "family": "inet", "table": "tidegate", "name": name, "elem": elem } });
        let expected = json!({ "nftables": [
            { "delete": element("v4", json!(["203.0.113.8"])) },
            { "delete": element("v6", json!(["2001:db8::"])) },
            { "add": element("v4", json!([{ "elem": { "val": "203.0.113.7", "timeout": 60 } }])) },
            { "add": element("v6", json!([{ "elem": { "val": "2001:db8::", "timeout": 30 } }])) },
        ] });
        assert_eq!(document(&transaction, 64), expected);
    }

    #[test]
    fn the_table_is_replaced_in_the_transaction_that_fills_it() {
        let transaction = Transaction {
            takes_over: true,
            added: vec![(source("203.0.113.7"), 60)],
            ..Transaction::default()
        };
        let document = document(&transaction, 48);
        let commands = document["nftables"].as_array().unwrap();
        let names: Vec<String> = commands
            .iter()
            .map(|command| {
                let (verb, what) = command.as_object().unwrap().iter().next().unwrap();
                format!("{verb} {}", what.as_object().unwrap().keys().next().unwrap())
            })
            .collect();
        let expected = [
            "add table",
            "delete table",
            "add table",
            "add set",
            "add set",
            "add chain",
            "add rule",
            "add rule",
            "add element",
        ];
        assert_eq!(names, expected);
        let mask = &commands[7]["add"]["rule"]["expr"][0]["match"]["left"]["&"][1];
        assert_eq!(mask, "ffff:ffff:ffff::");
    }
}
