//! "Did you mean": the nearest known word.

use alloc::vec;
use alloc::vec::Vec;

/// The known word nearest to `word`, if it is near enough that a slip of the hand explains the difference: one change
/// in three letters, at most three.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|candidate| (edits(word, candidate), *candidate))
        .filter(|(edits, candidate)| *edits <= (candidate.len() / 3).clamp(1, 3))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance, two rows at a time. Words longer than any key are cut: only their being far away matters.
fn edits(word: &str, other: &str) -> usize {
    let word: Vec<char> = word.chars().take(40).collect();
    let other: Vec<char> = other.chars().take(40).collect();
    let mut previous: Vec<usize> = (0..=other.len()).collect();
    let mut current = vec![0; other.len() + 1];
    for (row, letter) in word.iter().enumerate() {
        current[0] = row + 1;
        for (column, other_letter) in other.iter().enumerate() {
            let replaced = previous[column] + usize::from(letter != other_letter);
            current[column + 1] = replaced.min(previous[column + 1] + 1).min(current[column] + 1);
        }
        core::mem::swap(&mut previous, &mut current);
    }
    previous[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_different_word_is_not() {
        let known = ["name", "memory", "autostart", "cpus"];
        assert_eq!(nearest("memroy", &known), Some("memory"));
        assert_eq!(nearest("cpu", &known), Some("cpus"));
        assert_eq!(nearest("auto_start", &known), Some("autostart"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("", &known), None);
    }

    #[test]
    fn the_distance_counts_insertions_deletions_and_replacements() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
    }
}
