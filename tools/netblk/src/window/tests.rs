//! The rules one by one, and several windows at one narrow link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::pattern::Random;

#[test]
fn it_doubles_to_its_limit_and_no_further() {
    let mut window = Window::new(256);
    assert_eq!(window.allowed(), FIRST);
    for doubled in [32, 64, 128, 256, 256] {
        let full = window.allowed();
        (0..full).for_each(|_| window.answered(full));
        assert_eq!(window.allowed(), doubled);
    }
    assert_eq!(Window::new(4).allowed(), 4);
}

#[test]
fn what_was_lost_together_halves_it_once_and_then_it_grows_by_one() {
    let mut window = Window::new(16);
    window.lost(100, 40);
    // These left before it was halved.
    window.lost(120, 41);
    window.lost(150, 99);
    assert_eq!(window.allowed(), 8);
    window.lost(160, 100);
    assert_eq!(window.allowed(), 4);
    // Four and a bit more than a quarter: a round trip is five answers.
    (0..5).for_each(|_| window.answered(4));
    assert_eq!(window.allowed(), 5);
    (0..200).for_each(|_| window.answered(16));
    assert_eq!(window.allowed(), 16);
}

#[test]
fn a_late_answer_takes_back_what_was_done_for_it_and_no_more() {
    let mut window = Window::new(16);
    window.lost(100, 40);
    window.late(41);
    assert_eq!(window.allowed(), 8);
    window.late(40);
    assert_eq!(window.allowed(), 16);
    // A later, true loss is not forgiven for an earlier one's sake.
    window.lost(200, 150);
    window.lost(300, 250);
    window.late(150);
    assert_eq!(window.allowed(), 4);
    window.late(250);
    window.late(250);
    assert_eq!(window.allowed(), 8);
}

#[test]
fn it_does_not_grow_while_it_is_not_used() {
    let mut window = Window::new(256);
    (0..1000).for_each(|_| window.answered(7));
    assert_eq!(window.allowed(), FIRST);
}

#[test]
fn silence_leaves_one_request_and_the_way_back_is_short() {
    let mut window = Window::new(64);
    (0..100).for_each(|_| window.answered(64));
    window.silent(1000);
    assert_eq!(window.allowed(), 1);
    // A round trip of 1, 2, 4, 8, 16, 32 requests.
    (0..63).for_each(|_| window.answered(64));
    assert!(window.allowed() >= 32, "{}", window.allowed());
    let mut least = Window::new(0);
    for now_ns in 0..100 {
        least.lost(now_ns, now_ns);
        least.silent(now_ns);
    }
    assert_eq!(least.allowed(), 1);
}

/// A link that carries `rate` requests a second and holds `queue`, between several clients and a server.
struct Link {
    rate: u64,
    queue: u64,
    round_trip_ns: u64,
    /// Of a thousand, lost for no reason.
    noise: u64,
}

struct Flow {
    window: Window,
    starts_ns: u64,
    under_way: u32,
    /// Answers in the second half of the time.
    answers: u64,
    losses: u64,
    least_allowed: u32,
}

impl Link {
    fn run(&self, limits: &[(u32, u64)], end_ns: u64) -> Vec<Flow> {
        let mut flows: Vec<Flow> = limits
            .iter()
            .map(|&(limit, starts_ns)| Flow {
                window: Window::new(limit),
                starts_ns,
                under_way: 0,
                answers: 0,
                losses: 0,
                least_allowed: u32::MAX,
            })
            .collect();
        let service_ns = 1_000_000_000 / self.rate;
        let mut random = Random::new(7);
        let mut free_ns = 0_u64;
        // When, number, flow, sent when, whether it is an answer.
        let mut events = BinaryHeap::new();
        let mut number = 0_u64;
        for (index, flow) in flows.iter().enumerate() {
            events.push(Reverse((flow.starts_ns, u64::MAX, index, 0, false)));
        }
        while let Some(Reverse((now_ns, kind, index, sent_ns, is_answer))) = events.pop() {
            if now_ns >= end_ns {
                break;
            }
            let flow = &mut flows[index];
            if kind != u64::MAX {
                if is_answer {
                    flow.window.answered(flow.under_way);
                    flow.answers += u64::from(now_ns > end_ns / 2);
                } else {
                    flow.losses += 1;
                    flow.window.lost(now_ns, sent_ns);
                }
                flow.under_way -= 1;
            }
            if now_ns > end_ns / 2 {
                flow.least_allowed = flow.least_allowed.min(flow.window.allowed());
            }
            while flow.under_way < flow.window.allowed() {
                flow.under_way += 1;
                number += 1;
                let waiting = free_ns.saturating_sub(now_ns) / service_ns;
                if waiting >= self.queue || random.below(1000) < self.noise {
                    events.push(Reverse((now_ns + 3 * self.round_trip_ns, number, index, now_ns, false)));
                } else {
                    free_ns = free_ns.max(now_ns) + service_ns;
                    events.push(Reverse((free_ns + self.round_trip_ns, number, index, now_ns, true)));
                }
            }
        }
        flows
    }
}

const SECOND: u64 = 1_000_000_000;

fn link() -> Link {
    Link { rate: 20_000, queue: 64, round_trip_ns: 2_000_000, noise: 0 }
}

#[test]
fn a_link_is_used_and_shared_and_a_late_client_has_its_part() {
    let flows = link().run(&[(256, 0), (256, 0), (256, 5 * SECOND)], 20 * SECOND);
    let answers: Vec<f64> = flows.iter().map(|flow| flow.answers as f64).collect();
    let sum: f64 = answers.iter().sum();
    // Ten seconds' worth.
    assert!(sum > 0.85 * 200_000.0, "{answers:?} use {sum} of 200000");
    // Jain's index of fairness: 1 if all have the same, a third if one has everything.
    let jain = sum * sum / (3.0 * answers.iter().map(|one| one * one).sum::<f64>());
    assert!(jain > 0.95, "{answers:?}: {jain}");
    let losses: u64 = flows.iter().map(|flow| flow.losses).sum();
    assert!((losses as f64) < 0.03 * 2.0 * sum, "{losses} lost for {sum} answers");
}

#[test]
fn a_small_window_beside_a_large_one_keeps_what_it_needs() {
    let flows = link().run(&[(8, 0), (256, 0)], 20 * SECOND);
    // Eight requests in a round trip of at most 2 ms and a full queue: at least 1,500 a second.
    assert!(flows[0].answers > 10_000, "{}", flows[0].answers);
    assert!(flows[0].answers + flows[1].answers > 170_000);
}

#[test]
fn single_losses_do_not_bring_it_down() {
    let noisy = Link { noise: 1, queue: 1000, ..link() };
    let flows = noisy.run(&[(256, 0)], 20 * SECOND);
    assert!(flows[0].losses > 100);
    assert!(flows[0].answers > 120_000, "{}", flows[0].answers);
    assert!(flows[0].least_allowed >= 4, "{}", flows[0].least_allowed);
}
