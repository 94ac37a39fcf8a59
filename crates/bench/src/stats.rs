//! Medians, spread and paired ratios of a few rounds.

/// The values of several rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub rounds: usize,
}

/// `None` where there is nothing to summarise.
pub fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    Some(Summary { median: share(&sorted, 0.5), min, max, rounds: sorted.len() })
}

/// The value that `at` (0 to 1) of the sorted values lie below, interpolated. The slice must not be
/// empty.
pub fn share(sorted: &[f64], at: f64) -> f64 {
    let position = at * (sorted.len() - 1) as f64;
    let (low, part) = (position.floor() as usize, position.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

/// Ratios of values of the same round: whatever slowed both of a pair cancels out. Only positive
/// values make a ratio: differences, as of memory before and after, may be a little below 0.
pub fn ratios(over: &[Option<f64>], under: &[Option<f64>]) -> Vec<f64> {
    let pairs = over.iter().zip(under);
    pairs
        .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
        .filter(|(a, b)| *a > 0.0 && *b > 0.0)
        .map(|(a, b)| a / b)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let s = summary([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(s, Summary { median: 2.5, min: 1.0, max: 4.0, rounds: 4 });
        assert_eq!(summary([7.0]).unwrap().median, 7.0);
        assert_eq!(summary([]), None);
        assert_eq!(summary([f64::NAN]), None);
    }

    #[test]
    fn shares_are_interpolated() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(share(&values, 0.99), 99.0);
        assert_eq!(share(&[1.0, 2.0], 0.25), 1.25);
    }

    #[test]
    fn only_rounds_that_both_have_make_a_ratio() {
        assert_eq!(ratios(&[Some(4.0), None, Some(9.0)], &[Some(2.0), Some(1.0), Some(3.0)]), [2.0, 3.0]);
        assert!(ratios(&[Some(4.0)], &[Some(0.0)]).is_empty());
        assert_eq!(ratios(&[Some(4.0), Some(1.0)], &[Some(1.0)]), [4.0]);
    }
}
