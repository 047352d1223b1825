//! Several takes of one quantity.

use serde::Serialize;

/// The middle one, and how far the others lie from it. Of an even number it is the upper of the two in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub count: usize,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len() / 2)?;
        Some(Self { median, least: *values.first()?, most: *values.last()?, count: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_does_not_depend_on_the_order() {
        let spread = Spread::of([5.0, 1.0, 9.0]).unwrap();
        assert_eq!(spread, Spread { median: 5.0, least: 1.0, most: 9.0, count: 3 });
        assert_eq!(Spread::of([2.0, 1.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of([]), None);
    }
}
