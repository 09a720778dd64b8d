//! From a resource to the tree of a rule file with the same rules.
//!
//! What a message leaves out is left out of the tree too: an empty text, a false, an empty list. So
//! the compiler warns only of keys that the server has set. Example:
//!
//! ```text
//! domain: "d"                               domain: d
//! descriptors { key: "k"                    descriptors:
//!   rate_limit { unit: MINUTE          ──►    - key: k
//!     requests_per_unit: 5 } }                  rate_limit: {unit: MINUTE, requests_per_unit: 5}
//! ```
//!
//! In an unlimited limit the unit `UNKNOWN` stands for none, because an enum cannot be left out. In
//! any other limit it is the error `invalid rate limit unit 'UNKNOWN'`, as in envoyproxy/ratelimit.

use tidegate_proto::google::protobuf::value::Kind as ValueKind;
use tidegate_proto::google::protobuf::{Struct, Value};
use tidegate_proto::xds::rls_conf::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tidegate_rules::yaml::{Kind, Node, Scalar};

/// Most levels of descriptors. A rule file has no more: each takes two of the 64 levels that YAML
/// may be nested.
pub const DESCRIPTOR_DEPTH_MAX: usize = 31;

/// Descriptors are nested deeper than [`DESCRIPTOR_DEPTH_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep;

/// The tree of a resource.
///
/// # Errors
///
/// If its descriptors are nested too deep.
pub fn of(config: &RateLimitConfig) -> Result<Node, TooDeep> {
    let mut map = Map::default();
    map.text("domain", &config.domain);
    map.list("descriptors", descriptors(&config.descriptors, DESCRIPTOR_DEPTH_MAX)?);
    Ok(map.node())
}

fn descriptors(all: &[RateLimitDescriptor], levels_left: usize) -> Result<Vec<Node>, TooDeep> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let levels_left = levels_left.checked_sub(1).ok_or(TooDeep)?;
    all.iter().map(|one| descriptor(one, levels_left)).collect()
}

fn descriptor(descriptor: &RateLimitDescriptor, levels_left: usize) -> Result<Node, TooDeep> {
    let mut map = Map::default();
    map.text("key", &descriptor.key);
    map.text("value", &descriptor.value);
    if let Some(policy) = &descriptor.rate_limit {
        map.put("rate_limit", limit(policy));
    }
    map.flag("shadow_mode", descriptor.shadow_mode);
    map.flag("detailed_metric", descriptor.detailed_metric);
    map.flag("quota_mode", descriptor.quota_mode);
    if let Some(metadata) = descriptor.metadata.as_ref().filter(|it| !it.fields.is_empty()) {
        map.put("metadata", object(metadata));
    }
    map.list("descriptors", descriptors(&descriptor.descriptors, levels_left)?);
    Ok(map.node())
}

fn limit(policy: &RateLimitPolicy) -> Node {
    let mut map = Map::default();
    let unit = RateLimitUnit::try_from(policy.unit);
    let is_no_unit = matches!(unit, Ok(RateLimitUnit::Unknown) | Err(_));
    if !(policy.unlimited && is_no_unit) {
        // A number without a name is printed as a number, as protobuf does.
        let name =
            unit.map_or_else(|_| policy.unit.to_string(), |unit| unit.as_str_name().to_owned());
        map.text("unit", &name);
    }
    if !policy.unlimited {
        map.put("requests_per_unit", plain(policy.requests_per_unit.to_string()));
    }
    map.flag("unlimited", policy.unlimited);
    map.text("name", &policy.name);
    let replaces = policy.replaces.iter().map(|replaced| {
        let mut map = Map::default();
        map.text("name", &replaced.name);
        map.node()
    });
    map.list("replaces", replaces.collect());
    map.node()
}

// === metadata: the recursion limit of the protobuf decoder bounds the depth ===

fn object(object: &Struct) -> Node {
    let mut map = Map::default();
    for (name, value) in &object.fields {
        map.put(name, json(value));
    }
    map.node()
}

fn json(value: &Value) -> Node {
    match &value.kind {
        None | Some(ValueKind::NullValue(_)) => plain("null".to_owned()),
        Some(ValueKind::NumberValue(number)) => plain(yaml_number(*number)),
        Some(ValueKind::StringValue(string)) => text(string),
        Some(ValueKind::BoolValue(truth)) => plain(truth.to_string()),
        Some(ValueKind::StructValue(inner)) => object(inner),
        Some(ValueKind::ListValue(list)) => {
            Node::made(Kind::List(list.values.iter().map(json).collect()))
        }
    }
}

/// As YAML writes it: whole numbers without a fraction.
fn yaml_number(number: f64) -> String {
    if number.is_nan() {
        ".nan".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { ".inf".to_owned() } else { "-.inf".to_owned() }
    } else {
        number.to_string()
    }
}

// === building nodes ===

/// A mapping without empty values.
#[derive(Default)]
struct Map(Vec<(Node, Node)>);

impl Map {
    fn put(&mut self, key: &str, value: Node) {
        self.0.push((text(key), value));
    }

    fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.put(key, text(value));
        }
    }

    fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.put(key, plain(true.to_string()));
        }
    }

    fn list(&mut self, key: &str, nodes: Vec<Node>) {
        if !nodes.is_empty() {
            self.put(key, Node::made(Kind::List(nodes.into())));
        }
    }

    fn node(self) -> Node {
        Node::made(Kind::Map(self.0.into()))
    }
}

fn text(text: &str) -> Node {
    Node::made(Kind::Scalar(Scalar { text: text.into(), is_text: true }))
}

fn plain(text: String) -> Node {
    Node::made(Kind::Scalar(Scalar { text: text.into(), is_text: false }))
}

#[cfg(test)]
mod tests {
    use tidegate_proto::google::protobuf::ListValue;
    use tidegate_proto::xds::rls_conf::RateLimitReplace;
    use tidegate_rules::yaml::{Bounds, parse};

    use super::*;

    #[test]
    fn a_resource_is_the_tree_of_the_file_with_the_same_rules() {
        let value = |kind| Value { kind: Some(kind) };
        let metadata = Struct {
            fields: [
                ("tags", ValueKind::ListValue(ListValue { values: vec![Value { kind: None }] })),
                ("team", ValueKind::StringValue("7".into())),
                ("tier", ValueKind::NumberValue(3.0)),
                ("vip", ValueKind::BoolValue(true)),
                ("weight", ValueKind::NumberValue(0.5)),
            ]
            .map(|(name, kind)| (name.to_owned(), value(kind)))
            .into(),
        };
        let inner = RateLimitDescriptor {
            key: "path".into(),
            value: "/*".into(),
            rate_limit: Some(RateLimitPolicy {
                unit: RateLimitUnit::Hour.into(),
                requests_per_unit: 0,
                name: "paths".into(),
                replaces: vec![RateLimitReplace { name: "users".into() }],
                ..RateLimitPolicy::default()
            }),
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(metadata),
            ..RateLimitDescriptor::default()
        };
        let free = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
        let config = RateLimitConfig {
            name: "any".into(),
            domain: "shop".into(),
            descriptors: vec![RateLimitDescriptor {
                key: "user".into(),
                rate_limit: Some(free),
                descriptors: vec![inner],
                ..RateLimitDescriptor::default()
            }],
        };
        let file = r#"
            domain: "shop"
            descriptors:
              - key: "user"
                rate_limit: {unlimited: true}
                descriptors:
                  - key: "path"
                    value: "/*"
                    rate_limit:
                      unit: "HOUR"
                      requests_per_unit: 0
                      name: "paths"
                      replaces: [{name: "users"}]
                    shadow_mode: true
                    detailed_metric: true
                    quota_mode: true
                    metadata: {tags: [null], team: "7", tier: 3, vip: true, weight: 0.5}
        "#;
        let file = parse(file.as_bytes(), Bounds::RULE_FILE).unwrap().unwrap();
        assert_eq!(shown(&of(&config).unwrap()), shown(&file));
    }

    #[test]
    fn a_unit_without_a_name_is_its_number() {
        let policy = RateLimitPolicy { unit: 99, ..RateLimitPolicy::default() };
        assert!(shown(&limit(&policy)).contains("unit: 99 as text"));
    }

    #[test]
    fn descriptors_are_nested_as_deep_as_in_a_file() {
        let nested = |depth| {
            let leaf = RateLimitDescriptor { key: "k".into(), ..RateLimitDescriptor::default() };
            let outer = (1..depth).fold(leaf.clone(), |inner, _| RateLimitDescriptor {
                descriptors: vec![inner],
                ..leaf.clone()
            });
            RateLimitConfig { descriptors: vec![outer], ..RateLimitConfig::default() }
        };
        assert!(of(&nested(DESCRIPTOR_DEPTH_MAX)).is_ok());
        assert_eq!(of(&nested(DESCRIPTOR_DEPTH_MAX + 1)).unwrap_err(), TooDeep);

        let file = |depth: usize| {
            let inner = (1..depth).fold("{key: k}".to_owned(), |inner, _| {
                format!("{{key: k, descriptors: [{inner}]}}")
            });
            format!("{{domain: d, descriptors: [{inner}]}}")
        };
        let parses = |depth| parse(file(depth).as_bytes(), Bounds::RULE_FILE).is_ok();
        assert!(parses(DESCRIPTOR_DEPTH_MAX) && !parses(DESCRIPTOR_DEPTH_MAX + 1));
    }

    /// A tree without positions; keys are unmarked because files may quote them or not.
    fn shown(node: &Node) -> String {
        match &node.kind {
            Kind::Scalar(Scalar { text, is_text }) => {
                format!("{text} as {}", if *is_text { "text" } else { "plain" })
            }
            Kind::List(nodes) => {
                format!("[{}]", nodes.iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            Kind::Map(pairs) => {
                let key = |key: &Node| key.as_scalar().unwrap().text.to_string();
                let pairs = pairs.iter().map(|(k, v)| format!("{}: {}", key(k), shown(v)));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
        }
    }
}
