use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn one(client: Client, slot: u32) -> Queued {
    Queued { client, slot, datagrams: 1 }
}

#[test]
fn one_client_alone_is_served_in_its_order_as_deep_as_there_is_room() {
    let mut turns = Turns::new();
    (0..300).for_each(|slot| turns.push(one(3, slot)));
    let served: Vec<u32> = core::iter::from_fn(|| turns.take()).map(|request| request.slot).collect();
    assert_eq!(served, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_flood_does_not_keep_others_from_their_turn() {
    let mut turns = Turns::new();
    (0..200).for_each(|slot| turns.push(one(0, slot)));
    turns.push(one(1, 200));
    turns.push(one(2, 201));
    let served: Vec<Client> = (0..10).filter_map(|_| turns.take()).map(|request| request.client).collect();
    assert_eq!(served, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
}

#[test]
fn while_others_are_about_a_flood_has_its_part_of_the_disk() {
    let mut turns = Turns::new();
    (0..200).for_each(|slot| turns.push(one(0, slot)));
    turns.push(one(1, 200));
    let served: Vec<Queued> = core::iter::from_fn(|| turns.take()).collect();
    assert_eq!(served.iter().filter(|request| request.client == 0).count(), SHARED_DEPTH as usize / 2);
    // The other one has had its answer and thinks; the flood does not get the whole disk at once.
    turns.done(1, 1);
    turns.done(0, 1);
    assert_eq!(turns.take().map(|request| request.client), Some(0));
    assert_eq!(turns.take(), None);
}

#[test]
fn a_blocked_request_keeps_its_place_and_blocks_its_client_alone() {
    let mut turns = Turns::new();
    [one(0, 0), one(0, 1), one(1, 2)].into_iter().for_each(|request| turns.push(request));
    let blocked = turns.take().unwrap();
    turns.put_back(blocked);
    assert_eq!(turns.take(), Some(one(1, 2)));
    assert_eq!(turns.take(), None);
    turns.unblock();
    assert_eq!(turns.take(), Some(one(0, 0)));
    assert_eq!(turns.take(), Some(one(0, 1)));
}

#[test]
fn what_is_drained_is_everything() {
    let mut turns = Turns::new();
    (0..100).for_each(|slot| turns.push(one((slot % 3) as Client, slot)));
    let blocked = turns.take().unwrap();
    turns.put_back(blocked);
    let mut slots: Vec<u32> = turns.drain().map(|request| request.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..100).collect::<Vec<_>>());
    assert_eq!((turns.queued(), turns.take()), (0, None));
}

#[derive(Debug, Clone)]
enum Step {
    Push(Client, u32),
    Next,
    PutBack,
    Unblock,
    Done,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..6u8, 1..=QUANTUM).prop_map(|(client, datagrams)| Step::Push(client, datagrams)),
        3 => Just(Step::Next),
        1 => Just(Step::PutBack),
        1 => Just(Step::Unblock),
        2 => Just(Step::Done),
    ];
    proptest::collection::vec(step, 0..800)
}

proptest! {
    /// No request is lost, doubled or overtaken by a younger one of its client; nobody who waits, and is
    /// neither blocked nor at its depth, is passed over.
    #[test]
    fn each_client_has_a_queue_of_its_own(steps in steps()) {
        let mut turns = Turns::new();
        let mut queues: [VecDeque<Queued>; 6] = Default::default();
        let mut under_way: Vec<Queued> = Vec::new();
        let mut free: Vec<u32> = (0..ROOM).collect();
        for step in steps {
            match step {
                Step::Push(client, datagrams) => {
                    let Some(slot) = free.pop() else { continue };
                    let request = Queued { client, slot, datagrams };
                    turns.push(request);
                    queues[usize::from(client)].push_back(request);
                }
                Step::Next => {
                    if let Some(request) = turns.take() {
                        prop_assert_eq!(queues[usize::from(request.client)].pop_front(), Some(request));
                        under_way.push(request);
                    }
                }
                Step::PutBack => {
                    if let Some(request) = turns.take() {
                        prop_assert_eq!(queues[usize::from(request.client)].front(), Some(&request));
                        turns.put_back(request);
                    }
                }
                Step::Unblock => turns.unblock(),
                Step::Done => {
                    if let Some(request) = under_way.pop() {
                        turns.done(request.client, request.datagrams);
                        free.push(request.slot);
                    }
                }
            }
            prop_assert_eq!(turns.queued(), queues.iter().map(VecDeque::len).sum::<usize>());
        }
        // With everything under way done and nothing blocked, all that waits is served.
        for request in under_way.drain(..) {
            turns.done(request.client, request.datagrams);
        }
        while turns.queued() > 0 {
            turns.unblock();
            let Some(request) = turns.take() else { panic!("{} wait and nobody's turn it is", turns.queued()) };
            prop_assert_eq!(queues[usize::from(request.client)].pop_front(), Some(request));
            turns.done(request.client, request.datagrams);
        }
    }

    /// Of greedy clients none gets more than a turn ahead of another.
    #[test]
    fn greedy_clients_are_served_alike(clients in 2u8..6, worth in 1..=QUANTUM) {
        let mut turns = Turns::new();
        let mut served = vec![0u32; usize::from(clients)];
        let slots_each = ROOM / u32::from(clients);
        for client in 0..clients {
            (0..slots_each).for_each(|nth| {
                turns.push(Queued { client, slot: u32::from(client) * slots_each + nth, datagrams: worth });
            });
        }
        // While all have something queued.
        for _ in 0..slots_each {
            let Some(request) = turns.take() else { break };
            served[usize::from(request.client)] += request.datagrams;
            turns.done(request.client, request.datagrams);
        }
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        prop_assert!(most - least <= QUANTUM, "{:?}", served);
    }
}
