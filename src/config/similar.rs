//! "Did you mean": the known word nearest to a mistyped one.

/// The candidate nearest to `word`, when one is near enough to be what was meant: at most a third
/// of the word wrong, and at least one edit allowed.
pub(super) fn nearest<'a>(
    word: &str,
    routing_attempts: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).max(1);
    routing_attempts
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance: the fewest insertions, deletions and replacements that make `a` into
/// `b`. One row of the classic table is kept.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, in_a) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        row[0] = left;
        for (j, in_b) in b.iter().enumerate() {
            let above = row[j + 1];
            left = (diagonal + usize::from(in_a != *in_b)).min(above + 1).min(left + 1);
            row[j + 1] = left;
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_textbook_ones() {
        for (a, b, edits) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("listen", "listne", 2)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn only_a_near_word_is_offered() {
        assert_eq!(nearest("lisen", ["name", "listen"]), Some("listen"));
        assert_eq!(nearest("idd", ["id", "zone"]), Some("id"));
        assert_eq!(nearest("colour", ["id", "zone"]), None);
    }
}
