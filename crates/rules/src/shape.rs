//! The structural check of a file, before its content is read: every key is known, every list
//! contains mappings, every leaf is a text, an integer, a boolean or null.
//!
//! envoyproxy/ratelimit checks its files in the same two steps and reports errors of the first step
//! before those of the second.

use super::error::{Error, Reason};
use super::keys::{self, Section};
use super::yaml::{Kind, Meaning, Node};

/// Checks a whole file.
pub(super) fn check(file: &str, root: &Node) -> Result<(), Error> {
    let Kind::Map(_) = root.kind else {
        if root.is_null() {
            return Ok(());
        }
        let reason = Reason::Type { expected: "a mapping", found: root.describe().into() };
        return Err(Error::new(file, Some(root.at), None, reason));
    };
    check_mapping(file, root, Some(Section::File))
}

/// Checks a mapping. Recursion is bounded by the depth that the YAML reader allows.
fn check_mapping(file: &str, node: &Node, section: Option<Section>) -> Result<(), Error> {
    let Kind::Map(pairs) = &node.kind else {
        let found = if node.is_null() { "<nil>".into() } else { written(node) };
        return Err(Error::new(file, Some(node.at), None, Reason::ListOf(found)));
    };
    for (key, value) in pairs.iter() {
        let name = match key.as_scalar() {
            Some(scalar) if scalar.meaning() == Meaning::Text => &*scalar.text,
            _ => {
                let reason = Reason::KeyType(written(key));
                return Err(Error::new(file, Some(key.at), None, reason));
            }
        };
        let Some(known) = keys::find(name) else {
            let reason = Reason::UnknownKey { key: name.into(), section };
            return Err(Error::new(file, Some(key.at), None, reason));
        };
        // The content of metadata is free.
        if known.name == "metadata" {
            continue;
        }
        let inner = place_of(known.name);
        match &value.kind {
            Kind::List(elements) => {
                elements.iter().try_for_each(|element| check_mapping(file, element, inner))?;
            }
            Kind::Map(_) => check_mapping(file, value, inner)?,
            Kind::Scalar(scalar) => {
                if scalar.meaning() == Meaning::OtherNumber {
                    let reason = Reason::Fraction((&*scalar.text).into());
                    return Err(Error::new(file, Some(value.at), Some(known.name), reason));
                }
            }
        }
    }
    Ok(())
}

/// The kind of mapping that a key contains.
fn place_of(key: &str) -> Option<Section> {
    let mut inner = [Section::Descriptor, Section::RateLimit, Section::Replaces].into_iter();
    inner.find(|section| section.key() == Some(key))
}

fn written(node: &Node) -> Box<str> {
    match node.as_scalar() {
        Some(scalar) => match scalar.meaning() {
            Meaning::Bool(truth) => truth.to_string().into(),
            _ => (&*scalar.text).into(),
        },
        None => node.describe().into(),
    }
}
