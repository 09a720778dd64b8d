//! The keys of one mapping, read by name and by type.

use super::error::{Error, Reason, Warning, Warnings};
use super::keys::{self, Key, Section};
use super::yaml::{Kind, Mark, Meaning, Node, Scalar};

/// A mapping of a rule file, each key once.
pub(super) struct Fields<'a> {
    pub(super) file: &'a str,
    at: Mark,
    found: Vec<Field<'a>>,
}

struct Field<'a> {
    key: &'static Key,
    value: &'a Node,
}

impl<'a> Fields<'a> {
    /// Reads a mapping whose keys passed [`super::shape::check`].
    pub(super) fn read(
        file: &'a str,
        node: &'a Node,
        section: Section,
        warnings: &mut Warnings,
    ) -> Result<Self, Error> {
        let mut this = Self { file, at: node.at, found: Vec::new() };
        let Kind::Map(pairs) = &node.kind else {
            let reason = Reason::Type { expected: "a mapping", found: node.describe().into() };
            return Err(Error::new(file, Some(node.at), section.key(), reason));
        };
        for (name, value) in pairs.iter() {
            let key = name.as_scalar().and_then(|scalar| keys::find(&scalar.text));
            let Some(key) = key else { continue };
            let mut warn = |text: String| {
                let (file, at, key) = (file.into(), Some(name.at), Some(key.name));
                warnings.add(Warning { file, at, key, text: text.into() });
            };
            if !key.sections.contains(&section) {
                if !key.is_envoy {
                    let reason = Reason::Misplaced { key, section };
                    return Err(Error::new(file, Some(name.at), Some(key.name), reason));
                }
                warn(format!("has no effect in {section}; it belongs in {}", keys::sections(key)));
                continue;
            }
            match this.found.iter_mut().find(|field| field.key.name == key.name) {
                Some(first) => {
                    warn("is written twice; the last one counts".into());
                    first.value = value;
                }
                None => this.found.push(Field { key, value }),
            }
        }
        Ok(this)
    }

    /// The value of a key; `None` when it is missing or null.
    pub(super) fn node(&self, key: &str) -> Option<&'a Node> {
        let field = self.found.iter().find(|field| field.key.name == key);
        field.map(|field| field.value).filter(|node| !node.is_null())
    }

    /// Whether a key is present, even without a value.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.found.iter().any(|field| field.key.name == key)
    }

    /// A text as it was written: `0x10` stays `0x10`.
    pub(super) fn text(&self, key: &'static str) -> Result<Option<&'a str>, Error> {
        self.node(key)
            .map(|node| match node.as_scalar() {
                Some(scalar) => Ok(&*scalar.text),
                None => Err(self.wrong_type(key, "a text", node)),
            })
            .transpose()
    }

    /// A boolean; false when the key is missing.
    pub(super) fn flag(&self, key: &'static str) -> Result<bool, Error> {
        let Some(node) = self.node(key) else { return Ok(false) };
        match node.as_scalar().map(Scalar::meaning) {
            Some(Meaning::Bool(truth)) => Ok(truth),
            _ => Err(self.wrong_type(key, "true or false", node)),
        }
    }

    /// An integer from `min` to `max`.
    pub(super) fn integer<T>(&self, key: &'static str, min: T, max: T) -> Result<Option<T>, Error>
    where
        T: Copy + Into<i64> + TryFrom<i64> + PartialOrd,
    {
        let Some(node) = self.node(key) else { return Ok(None) };
        let Some(Meaning::Int(number)) = node.as_scalar().map(Scalar::meaning) else {
            return Err(self.wrong_type(key, "an integer", node));
        };
        match T::try_from(number) {
            Ok(fitting) if fitting >= min && fitting <= max => Ok(Some(fitting)),
            _ => Err(self.error(key, Reason::Range { number, min: min.into(), max: max.into() })),
        }
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Error> {
        let Some(word) = self.text(key)? else { return Ok(None) };
        if let Some(&(_, value)) = choices.iter().find(|(choice, _)| *choice == word) {
            return Ok(Some(value));
        }
        let choices: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
        let choices = choices.join(", ").into();
        Err(self.error(key, Reason::Choice { word: word.into(), choices }))
    }

    /// The elements of a list.
    pub(super) fn list(
        &self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<&'a [Node], Error> {
        match self.node(key) {
            None => Ok(&[]),
            Some(Node { kind: Kind::List(elements), .. }) => Ok(elements),
            Some(node) => Err(self.wrong_type(key, expected, node)),
        }
    }

    /// An error at a key's value, or at the mapping when the key is missing.
    pub(super) fn error(&self, key: &'static str, reason: Reason) -> Error {
        Error::new(self.file, Some(self.section(key)), Some(key), reason)
    }

    /// A warning at the same section.
    pub(super) fn warning(&self, key: &'static str, text: impl Into<Box<str>>) -> Warning {
        let at = Some(self.section(key));
        Warning { file: self.file.into(), at, key: Some(key), text: text.into() }
    }

    fn section(&self, key: &str) -> Mark {
        let field = self.found.iter().find(|field| field.key.name == key);
        field.map_or(self.at, |field| field.value.at)
    }

    fn wrong_type(&self, key: &'static str, expected: &'static str, node: &Node) -> Error {
        self.error(key, Reason::Type { expected, found: node.describe().into() })
    }
}
