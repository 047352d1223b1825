//! Random rings through both queues; the fuzz target `queues` looks further.

use proptest::prelude::*;
use queue_bench::compare::{Step, run};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn both_queues_see_the_same_rings_alike(
        event_index in any::<bool>(),
        indirect in any::<bool>(),
        entries_log2 in 0u8..6,
        steps in proptest::collection::vec(any::<Step>(), 0..80),
    ) {
        run(event_index, indirect, entries_log2, &steps);
    }
}

/// A driver that does nothing wrong, for as long as indices take to wrap.
#[test]
fn a_long_run_reaches_everything() {
    for event_index in [false, true] {
        let mut steps: Vec<Step> = Vec::new();
        for round in 0..400u16 {
            // Heads of their own for four chains at a time; the used event moves along.
            for place in 0..4 {
                steps.push((0, (place * 8) | ((round % 3) << 8) | (1 << 10), 0x1100_0010));
            }
            steps.push((6, 0, 0));
            steps.push((8, 3, u32::from(round)));
            if round % 3 == 0 {
                steps.push((5, round * 4, 32 + 2));
            }
            steps.push((10, 0, 0));
            steps.push((11, 0, u32::from(round % 2)));
        }
        let seen = run(event_index, true, 5, &steps);
        assert_eq!((seen.faults, seen.chains, seen.used), (0, 1600, 1600), "{seen:?}");
        assert!(seen.interrupts > 10 && seen.descriptors > seen.chains, "{seen:?}");
    }
}
