//! Compiles the trees of rule files to a rule book.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::book::Book;
use super::error::{Error, Reason, Warnings};
use super::fields::Fields;
use super::keys::Section;
use super::level::{Branch, Naming, Open};
use super::rule::{Defaults, Rule};
use super::yaml::{Mark, Node};
use super::{limits, metadata, shape};

/// Longest domain, key, value or name, in bytes. Listeners accept no longer ones by default.
pub(super) const TEXT_BYTES_MAX: usize = 1024;
/// Most descriptors of all files.
pub(super) const DESCRIPTORS_MAX: usize = 500_000;
/// Most bytes of the ids of all rules. An id repeats the keys above it, so a small file could
/// otherwise produce a large book.
pub(super) const ID_BYTES_MAX: usize = 64 << 20;
/// Collects files into a book.
pub(super) struct Compiler<'o> {
    defaults: &'o Defaults,
    merge_domains: bool,
    domains: BTreeMap<Box<str>, Open>,
    descriptors: usize,
    id_bytes: usize,
    warnings: Warnings,
}

impl<'o> Compiler<'o> {
    /// An empty book. `merge_domains` allows a domain in several files.
    pub(super) fn new(defaults: &'o Defaults, merge_domains: bool) -> Self {
        Self {
            defaults,
            merge_domains,
            domains: BTreeMap::new(),
            descriptors: 0,
            id_bytes: 0,
            warnings: Warnings::default(),
        }
    }

    /// Adds a file.
    pub(super) fn add(&mut self, file: &str, root: Option<&Node>) -> Result<(), Error> {
        let fault = |at, key, reason| Error { file: file.into(), at, key, reason };
        let no_domain = |at: Option<Mark>| fault(at, Some("domain"), Reason::EmptyDomain);
        let root = root.ok_or_else(|| no_domain(None))?;
        shape::check(file, root)?;
        if root.is_null() {
            return Err(no_domain(None));
        }
        let fields = Fields::read(file, root, Section::File, &mut self.warnings)?;
        let descriptors = fields.list("descriptors", "a list of descriptors")?;
        let domain = bounded(&fields, "domain")?;
        if domain.is_empty() {
            return Err(fields.error("domain", Reason::EmptyDomain));
        }
        if self.domains.contains_key(domain) && !self.merge_domains {
            return Err(fields.error("domain", Reason::DuplicateDomain(domain.into())));
        }
        let mut level = self.domains.remove(domain).unwrap_or_default();
        self.add_level(file, &format!("{domain}."), descriptors, &mut level)?;
        self.domains.insert(domain.into(), level);
        Ok(())
    }

    /// Completes the book.
    pub(super) fn finish(self) -> Book {
        let mut domains: BTreeMap<_, _> =
            self.domains.into_iter().map(|(name, level)| (name, level.seal())).collect();
        // Keys are structured, ids are not: (a, b_c) and (a_b, c) are two rules with the same
        // natural id. The order is by key and value, so that all nodes assign the same numbers.
        let mut taken = HashSet::new();
        for level in domains.values_mut() {
            level.rules_mut(&mut |rule| {
                let natural = Arc::clone(&rule.id);
                let mut number = 1u32;
                while !taken.insert(Arc::clone(&rule.id)) {
                    number = number.saturating_add(1);
                    rule.id = format!("{natural}#{number}").into();
                }
            });
        }
        Book::new(domains, self.warnings)
    }

    /// Recursion is bounded by the depth that the YAML reader allows.
    fn add_level(
        &mut self,
        file: &str,
        parent: &str,
        nodes: &[Node],
        level: &mut Open,
    ) -> Result<(), Error> {
        for node in nodes {
            let fields = Fields::read(file, node, Section::Descriptor, &mut self.warnings)?;
            let key = bounded(&fields, "key")?;
            if key.is_empty() {
                return Err(fields.error("key", Reason::EmptyKey));
            }
            let value = bounded(&fields, "value")?;
            let name = if value.is_empty() { key.into() } else { format!("{key}_{value}") };
            let id = format!("{parent}{name}");
            if level.has(key, value) {
                return Err(fields.error("key", Reason::DuplicateDescriptor(id.into())));
            }
            self.count(&fields, id.len())?;
            let naming = Self::naming(&fields, &name)?;
            let rule = self.rule(&fields, &id)?;
            let mut children = Open::default();
            let below = fields.list("descriptors", "a list of descriptors")?;
            self.add_level(file, &format!("{id}."), below, &mut children)?;
            let (key, value) = (key.into(), value.into());
            level.add(Branch { key, value, rule, children: children.seal(), naming });
        }
        Ok(())
    }

    fn rule(&mut self, fields: &Fields<'_>, id: &str) -> Result<Option<Arc<Rule>>, Error> {
        // Read even where it has no effect, so that errors in it are reported.
        let read = |node| metadata::read(node).map_err(|reason| fields.error("metadata", reason));
        let metadata = fields.node("metadata").map(read).transpose()?.flatten().map(Arc::new);
        let shadow = fields.flag("shadow_mode")?;
        let quota_mode = fields.flag("quota_mode")?;
        let rule = limits::read(id, fields, self.defaults, &mut self.warnings)?;
        Ok(rule.map(|rule| Arc::new(Rule { shadow, quota_mode, metadata, ..rule })))
    }

    fn naming(fields: &Fields<'_>, name: &str) -> Result<Naming, Error> {
        let naming = Naming {
            detailed: fields.flag("detailed_metric")?,
            value: fields.flag("value_to_metric")?,
            shared: fields.flag("share_threshold")?,
        };
        if naming.shared && !name.contains('*') {
            let reason = Reason::ShareWithoutWildcard(name.into());
            return Err(fields.error("share_threshold", reason));
        }
        Ok(naming)
    }

    fn count(&mut self, fields: &Fields<'_>, id_bytes: usize) -> Result<(), Error> {
        self.descriptors += 1;
        self.id_bytes += id_bytes;
        if self.descriptors > DESCRIPTORS_MAX {
            return Err(fields.error("key", Reason::BookFull("more than 500,000 descriptors")));
        }
        if self.id_bytes > ID_BYTES_MAX {
            return Err(fields.error("key", Reason::BookFull("names of more than 64 MiB")));
        }
        Ok(())
    }
}

/// A text within [`TEXT_BYTES_MAX`]; empty when the key is missing.
fn bounded<'a>(fields: &Fields<'a>, key: &'static str) -> Result<&'a str, Error> {
    let text = fields.text(key)?.unwrap_or_default();
    if text.len() > TEXT_BYTES_MAX {
        return Err(fields.error(key, Reason::LongText));
    }
    Ok(text)
}
