//! The instructions that the node's CPU executes for a request.
//!
//! The machine runs on a clock that counts (`-icount`): an instruction takes a fixed time, and a CPU that halts takes none, so
//! the time that a CPU was awake is the number of instructions that it executed, interrupt handlers and idle loop included.

use crate::Node;

/// 256 ns an instruction: the 50 us that a worker polls are 200 instructions, less than it takes to look once, so that it sleeps
/// after the first look in vain (with 128 ns it was just not enough for a second one, or just enough); and what the node does
/// once a second meets one row in ten.
pub const INSTRUCTION_NS_LOG2: u32 = 8;

/// Requests of one length in a row; before and behind a row the figures are read from the shell.
const ROW: u32 = 25;
/// Rows of each length, in turns, so that whatever drifts meets both.
const ROUNDS: usize = 160;

/// Instructions executed since the boot, by the only CPU.
fn instructions(node: &mut Node) -> f64 {
    let text = node.run("cpu");
    let line = text.lines().last().expect("a line for the only CPU");
    let awake_us: f64 = line.split_whitespace().nth(2).and_then(|word| word.parse().ok()).expect("AWAKE");
    awake_us * 1000.0 / f64::from(1_u32 << INSTRUCTION_NS_LOG2)
}

/// The figure that seven in ten rows do not exceed. Those above had something else to do as well. A host that is busy
/// lets the disk be done before the worker has looked twice, and such a request is shorter by a sleep and a wake-up, whatever
/// its length: rows with some of those are below.
fn undisturbed(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 7 / 10]
}

/// Instructions for a request of the first length, and how many more the second takes. `request` carries out one, by its
/// number in the row and its length.
pub fn compare(
    node: &mut Node,
    [short, long]: [u32; 2],
    mut request: impl FnMut(&mut Node, u32, u32),
) -> (f64, f64) {
    let mut cost = |length: u32| {
        let start = instructions(node);
        let before = instructions(node);
        (0..ROW).for_each(|number| request(node, number, length));
        // What it takes to read the figures is in the first difference, and in the second.
        (instructions(node) - before - (before - start)) / f64::from(ROW)
    };
    let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (cost(short), cost(long))).collect();
    let short = undisturbed(pairs.iter().map(|(short, _)| *short).collect());
    (short, undisturbed(pairs.iter().map(|(_, long)| *long).collect()) - short)
}
