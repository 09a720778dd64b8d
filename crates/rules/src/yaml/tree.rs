//! Builds the tree from the parser's events, with an explicit stack instead of recursion.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::{Bounds, Error, Kind, Mark, Node, Scalar, Weight};

/// The first document of a text; `None` when the text has none.
///
/// ```
/// use tidegate_rules::yaml::{Bounds, Kind, parse};
///
/// let root = parse(b"limits: [1, 2]", Bounds::RULE_FILE)?.expect("a document");
/// let Kind::Map(pairs) = root.kind else { panic!("a mapping") };
/// assert_eq!((pairs[0].1.at.line, pairs[0].1.at.column), (1, 9));
/// # Ok::<(), (Option<tidegate_rules::yaml::Mark>, tidegate_rules::yaml::Error)>(())
/// ```
pub fn parse(bytes: &[u8], bounds: Bounds) -> Result<Option<Node>, (Option<Mark>, Error)> {
    if bytes.len() > bounds.text_bytes_max {
        return Err((None, Error::TooLong(bounds.text_bytes_max)));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| (None, Error::NotUtf8))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (open, anchors, spent) = (Vec::new(), BTreeMap::new(), Weight::default());
    let mut builder = Builder { bounds, open, anchors, spent, root: None };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        let at = mark(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = style != ScalarStyle::Plain || tag.is_some_and(|tag| is_str(&tag));
                builder.scalar(at, Scalar { text: text.into(), is_text }, anchor)
            }
            Event::SequenceStart(anchor, _) => builder.open(at, anchor, Open::List(Vec::new())),
            Event::MappingStart(anchor, _) => {
                builder.open(at, anchor, Open::Map { pairs: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => builder.close(),
            Event::Alias(anchor) => builder.alias(anchor),
            Event::DocumentEnd => break,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => {
                Ok(())
            }
        }
        .map_err(|error| (Some(at), error))?;
    }
    Ok(builder.root)
}

struct Builder {
    bounds: Bounds,
    /// The collections that are open, outermost first.
    open: Vec<Frame>,
    /// Complete anchored nodes; a clone of one shares its content.
    anchors: BTreeMap<usize, Node>,
    /// What was read so far, aliases expanded.
    spent: Weight,
    root: Option<Node>,
}

struct Frame {
    at: Mark,
    anchor: usize,
    open: Open,
    weight: Weight,
}

enum Open {
    List(Vec<Node>),
    Map { pairs: Vec<(Node, Node)>, key: Option<Node> },
}

impl Builder {
    fn scalar(&mut self, at: Mark, scalar: Scalar, anchor: usize) -> Result<(), Error> {
        let bytes = u32::try_from(scalar.text.len()).unwrap_or(u32::MAX);
        let weight = Weight { nodes: 1, bytes, depth: 0 };
        self.spend(weight)?;
        self.complete(Node { at, kind: Kind::Scalar(scalar), weight }, anchor);
        Ok(())
    }

    fn alias(&mut self, anchor: usize) -> Result<(), Error> {
        // The parser reports the name when the anchored node begins; the node exists once it has
        // ended.
        let node = self.anchors.get(&anchor).cloned().ok_or(Error::Cycle)?;
        self.check_depth(node.weight.depth)?;
        self.spend(node.weight)?;
        self.complete(node, 0);
        Ok(())
    }

    fn open(&mut self, at: Mark, anchor: usize, open: Open) -> Result<(), Error> {
        self.check_depth(1)?;
        let weight = Weight { nodes: 1, bytes: 0, depth: 1 };
        self.spend(weight)?;
        self.open.push(Frame { at, anchor, open, weight });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        // The parser balances its events, so there is always a frame to close.
        let Some(Frame { at, anchor, open, weight }) = self.open.pop() else { return Ok(()) };
        let kind = match open {
            Open::List(nodes) => Kind::List(nodes.into()),
            Open::Map { pairs, .. } => Kind::Map(merged(pairs)?.into()),
        };
        self.complete(Node { at, kind, weight }, anchor);
        Ok(())
    }

    /// Adds a complete node to the collection that contains it.
    fn complete(&mut self, node: Node, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        frame.weight = Weight {
            nodes: frame.weight.nodes.saturating_add(node.weight.nodes),
            bytes: frame.weight.bytes.saturating_add(node.weight.bytes),
            depth: frame.weight.depth.max(node.weight.depth.saturating_add(1)),
        };
        match &mut frame.open {
            Open::List(nodes) => nodes.push(node),
            Open::Map { pairs, key } => match key.take() {
                None => *key = Some(node),
                Some(key) => pairs.push((key, node)),
            },
        }
    }

    fn check_depth(&self, inner: u32) -> Result<(), Error> {
        let outer = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        if outer.saturating_add(inner) > self.bounds.depth_max {
            return Err(Error::TooDeep(self.bounds.depth_max));
        }
        Ok(())
    }

    fn spend(&mut self, weight: Weight) -> Result<(), Error> {
        self.spent.nodes = self.spent.nodes.saturating_add(weight.nodes);
        self.spent.bytes = self.spent.bytes.saturating_add(weight.bytes);
        if self.spent.nodes > self.bounds.nodes_max
            || self.spent.bytes > self.bounds.scalar_bytes_max
        {
            return Err(Error::TooMuch);
        }
        Ok(())
    }
}

/// Replaces `<<` with the mappings that it names. The first of several merged mappings takes
/// precedence; a key of the mapping itself takes precedence over all of them.
fn merged(pairs: Vec<(Node, Node)>) -> Result<Vec<(Node, Node)>, Error> {
    if !pairs.iter().any(|(key, _)| is_merge(key)) {
        return Ok(pairs);
    }
    let (merges, mut own): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(key, _)| is_merge(key));
    let text = |key: &Node| key.as_scalar().map(|scalar| Arc::clone(&scalar.text));
    let mut seen: HashSet<Arc<str>> = own.iter().filter_map(|(key, _)| text(key)).collect();
    for (_, source) in merges {
        let sources = match &source.kind {
            Kind::Map(_) => std::slice::from_ref(&source),
            Kind::List(sources) => sources,
            Kind::Scalar(_) => return Err(Error::Merge),
        };
        for source in sources {
            let Kind::Map(pairs) = &source.kind else { return Err(Error::Merge) };
            let from_here = own.len();
            for (key, value) in pairs.iter() {
                if text(key).is_none_or(|text| !seen.contains(&text)) {
                    own.push((key.clone(), value.clone()));
                }
            }
            seen.extend(own[from_here..].iter().filter_map(|(key, _)| text(key)));
        }
    }
    Ok(own)
}

fn is_merge(key: &Node) -> bool {
    key.as_scalar().is_some_and(|scalar| !scalar.is_text && &*scalar.text == "<<")
}

fn is_str(tag: &Tag) -> bool {
    (tag.is_yaml_core_schema() && tag.suffix == "str")
        || (tag.handle.is_empty() && tag.suffix == "!")
}

fn mark(marker: Marker) -> Mark {
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Mark { line: small(marker.line()), column: small(marker.col()).saturating_add(1) }
}

fn syntax(error: &ScanError) -> (Option<Mark>, Error) {
    (Some(mark(*error.marker())), Error::Syntax(error.info().into()))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_node_knows_where_it_begins() {
        let root = read("a: 1\nb:\n  - x\n  - {c: y}\n");
        let [(_, one), (_, list)] = pairs(&root) else { panic!("two pairs") };
        assert_eq!(one.at, Mark { line: 1, column: 4 });
        let Kind::List(items) = &list.kind else { panic!("a list") };
        assert_eq!(items[0].at, Mark { line: 3, column: 5 });
        assert_eq!(pairs(&items[1])[0].1.at, Mark { line: 4, column: 9 });
    }

    #[test]
    fn own_keys_win_over_merged_ones_wherever_they_stand() {
        let text = "one: &o {a: 1, b: 1}\ntwo: &t {b: 2, c: 2}\nall: {a: 0, <<: [*o, *t], d: 3}";
        let root = read(text);
        let all = pairs(&pairs(&root)[2].1);
        let found: Vec<_> = all.iter().map(|(k, v)| format!("{}{}", show(k), show(v))).collect();
        assert_eq!(found, ["a0", "d3", "b1", "c2"]);
    }

    #[test]
    fn only_the_first_document_is_read() {
        assert_eq!(pairs(&read("a: 1\n---\n'''")).len(), 1);
        assert!(parse(b"", Bounds::RULE_FILE).unwrap().is_none());
        assert!(parse(b"# nothing\n", Bounds::RULE_FILE).unwrap().is_none_or(|n| n.is_null()));
    }

    #[test]
    fn a_billion_laughs_is_refused_unexpanded() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..40 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            writeln!(text, "a{level}: &a{level} [{aliases}]").unwrap();
        }
        assert_eq!(refusal(text.as_bytes()), Error::TooMuch);
    }

    #[test]
    fn a_long_text_behind_many_aliases_is_refused() {
        let text = format!("a: &a {}\nb: [{}]", "x".repeat(1 << 20), "*a, ".repeat(20));
        assert_eq!(refusal(text.as_bytes()), Error::TooMuch);
    }

    #[test]
    fn nesting_is_bounded_in_every_form() {
        for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(60_000)] {
            assert!(matches!(refusal(text.as_bytes()), Error::TooDeep(_) | Error::Syntax(_)));
        }
        let mut chain = String::from("a0: &a0 [x]\n");
        for level in 1..100 {
            writeln!(chain, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
        }
        assert_eq!(refusal(chain.as_bytes()), Error::TooDeep(64));
    }

    #[test]
    fn an_alias_inside_its_own_anchor_is_refused() {
        assert_eq!(refusal(b"a: &a [*a]"), Error::Cycle);
    }

    #[test]
    fn what_is_no_text_or_too_long_is_refused() {
        assert_eq!(refusal(b"a: \xff"), Error::NotUtf8);
        assert_eq!(refusal(&vec![b' '; (4 << 20) + 1]), Error::TooLong(4 << 20));
        assert_eq!(refusal(b"a: {<<: 1}"), Error::Merge);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_bytes_end_in_a_tree_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = parse(&bytes, Bounds::RULE_FILE);
        }

        #[test]
        fn any_text_of_yaml_characters_ends_in_a_tree_or_an_error(
            text in r#"([-?:,\[\]{}#&*!|>'"%@ a0\n\t.~<]|<<: |- |\? |&a |\*a |--- ?|\r\n){0,120}"#,
        ) {
            let _ = parse(text.as_bytes(), Bounds::RULE_FILE);
        }
    }

    fn read(text: &str) -> Node {
        parse(text.as_bytes(), Bounds::RULE_FILE).unwrap().unwrap()
    }

    fn refusal(bytes: &[u8]) -> Error {
        parse(bytes, Bounds::RULE_FILE).unwrap_err().1
    }

    fn pairs(node: &Node) -> &[(Node, Node)] {
        let Kind::Map(pairs) = &node.kind else { panic!("{} is no mapping", node.describe()) };
        pairs
    }

    fn show(node: &Node) -> &str {
        &node.as_scalar().unwrap().text
    }
}
