//! The ring between real threads: nothing lost, nothing twice, each producer's order kept.
#![cfg(not(loom))]

use rings::Ring;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const PRODUCERS: u32 = 3;
const CONSUMERS: usize = 3;
const EACH: u32 = 100_000;

#[test]
fn many_producers_and_consumers() {
    let ring = Ring::<64>::new();
    let taken = AtomicUsize::new(0);
    let total = (PRODUCERS * EACH) as usize;
    let mut seen = vec![0u8; total];
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let ring = &ring;
            scope.spawn(move || {
                for value in 0..EACH {
                    while ring.push(producer * EACH + value).is_err() {
                        thread::yield_now();
                    }
                }
            });
        }
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    while taken.load(Ordering::Relaxed) < total {
                        match ring.pop() {
                            Some(value) => {
                                taken.fetch_add(1, Ordering::Relaxed);
                                mine.push(value);
                            }
                            None => thread::yield_now(),
                        }
                    }
                    mine
                })
            })
            .collect();
        for consumer in consumers {
            let mine = consumer.join().unwrap();
            let mut last = [None; PRODUCERS as usize];
            for value in mine {
                seen[value as usize] += 1;
                let last = &mut last[(value / EACH) as usize];
                assert!(last.is_none_or(|last| last < value), "a producer's order was lost");
                *last = Some(value);
            }
        }
    });
    assert!(seen.iter().all(|&times| times == 1));
}
