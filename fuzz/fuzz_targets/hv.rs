//! Any exit, registers and memory of a guest against the run loop and every device model.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| machine::fuzz::one_input(data));
