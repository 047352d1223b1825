//! The device-side queue and rust-vmm's over the same rings: what one sees, the other sees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queue_bench::compare::{Step, run};

fuzz_target!(|input: (bool, bool, u8, Vec<Step>)| {
    let (event_index, indirect, entries_log2, steps) = input;
    run(event_index, indirect, entries_log2, &steps);
});
