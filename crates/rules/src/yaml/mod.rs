//! YAML text as a tree in which every node knows its line and column.
//!
//! Rule files are read as YAML 1.1 (`yes` is a boolean, `0123` is octal), because existing rule
//! files were written for a YAML 1.1 reader. The difference only matters where a number or a
//! boolean is expected: a scalar keeps its original text, so `value: 0123` matches the request
//! value `0123` and not `83`.
//!
//! Only the first document of a file is read. Anchors, aliases and merge keys (`<<`) work; a key
//! beside a merge takes precedence over the merged one regardless of their order, as the YAML merge
//! type specifies.
//!
//! **Invariant:** no input makes the reader use more than a small multiple of the input's size, or
//! recurse: see [`Bounds`]. The content of an alias counts each time the alias is used, so ten
//! lines of nested aliases (a "billion laughs") are rejected without being expanded.

mod scalar;
mod tree;

use std::sync::Arc;

pub use scalar::{Meaning, Scalar};
pub use tree::parse;

/// Where a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
}

impl Mark {
    /// A node that is not part of a text. Messages omit it.
    pub const NONE: Self = Self { line: 0, column: 0 };
}

/// One node of the tree. Clones share their content.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it begins; for an alias, where the anchored node begins.
    pub at: Mark,
    pub kind: Kind,
    weight: Weight,
}

/// The three shapes of YAML.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A text, a number, a boolean or null.
    Scalar(Scalar),
    List(Arc<[Node]>),
    /// A mapping in file order, merges resolved. A key may occur twice: the last one counts.
    Map(Arc<[(Node, Node)]>),
}

/// The limits of one file.
#[expect(clippy::struct_field_names, reason = "a bound is named after what it bounds, then max")]
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most bytes of text.
    pub text_bytes_max: usize,
    /// Most nodes, aliases expanded.
    pub nodes_max: u32,
    /// Most bytes of all scalars, aliases expanded.
    pub scalar_bytes_max: u32,
    /// Deepest nesting of lists and mappings, aliases expanded.
    pub depth_max: u32,
}

impl Bounds {
    /// For rule files: far above any real file, far below what would harm a node.
    pub const RULE_FILE: Self = Self {
        text_bytes_max: 4 << 20,
        nodes_max: 1_000_000,
        scalar_bytes_max: 16 << 20,
        depth_max: 64,
    };
}

/// Why a text cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not UTF-8.
    #[error("the file is not UTF-8 text")]
    NotUtf8,
    /// The text is larger than [`Bounds::text_bytes_max`].
    #[error("the file is larger than {0} bytes")]
    TooLong(usize),
    /// [`Bounds::nodes_max`] or [`Bounds::scalar_bytes_max`] is exceeded.
    #[error("the file holds too much once its aliases are expanded")]
    TooMuch,
    /// [`Bounds::depth_max`] is exceeded.
    #[error("lists and mappings are nested more than {0} deep")]
    TooDeep(u32),
    /// An alias inside the node that it refers to.
    #[error("an alias is inside the node that it refers to")]
    Cycle,
    /// The value of `<<` is not a mapping or a list of mappings.
    #[error("`<<` takes a mapping or a list of mappings")]
    Merge,
    /// The text breaks YAML's grammar.
    #[error("{0}")]
    Syntax(Box<str>),
}

/// The size of a node after alias expansion.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    nodes: u32,
    bytes: u32,
    depth: u32,
}

impl Node {
    /// A node that is not part of a text, such as a field of a message.
    pub fn made(kind: Kind) -> Self {
        Self { at: Mark::NONE, kind, weight: Weight::default() }
    }

    /// The scalar, if it is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match &self.kind {
            Kind::Scalar(scalar) => Some(scalar),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Whether it is null: empty, `~` or `null`.
    pub fn is_null(&self) -> bool {
        self.as_scalar().is_some_and(|scalar| scalar.meaning() == Meaning::Null)
    }

    /// What it is, in words for an error message.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a mapping".into(),
            Kind::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => "nothing".into(),
                Meaning::Bool(_) => format!("the truth value {}", scalar.text),
                Meaning::Int(_) | Meaning::OtherNumber => format!("the number {}", scalar.text),
                Meaning::Text => format!("the text '{}'", scalar.text),
            },
        }
    }
}
