//! How much room one client may take.
//!
//! A service has room for so many datagrams at once: in slots, with the disk, waiting for parts, waiting
//! for the card. A client that asks faster than it is served would fill it all, and everybody else would
//! hear "busy". A fixed share for each would waste the room of those who are not there. So the limit moves
//! with what is left (Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet
//! switches, IEEE/ACM Transactions on Networking 6(2), 1998): **nobody may hold more than is still free**.
//! One client alone gets half of the room; two that ask for everything get a third each, n of them one part
//! in n + 1; and one part is always left for whoever comes next. No clock, no list of who is active.
//!
//! The same rule shares the node's pool of frames among services.

/// Datagrams that a service has room for.
pub const ROOM: u32 = 512;

/// What one client that is alone can have under way; INFO says so.
pub const ROOM_FOR_ONE: u32 = ROOM / 2;

/// Frames of the pool that services leave for the cards' receive rings and everybody else's packets: as
/// this part of all.
const RESERVE_DIVISOR: u32 = 8;

/// Whether a client that holds `own` datagrams may hold `more` besides, when all clients together hold `all`.
pub const fn admits(more: u32, own: u32, all: u32) -> bool {
    match ROOM.checked_sub(all.saturating_add(more)) {
        Some(left) => own.saturating_add(more) <= left,
        None => false,
    }
}

/// How many more frames a service may take that holds `own`, when `free` of `total` are left.
pub const fn frames_to_take(own: u32, free: u32, total: u32) -> u32 {
    let above_reserve = free.saturating_sub(total / RESERVE_DIVISOR);
    // Each frame taken makes one more held and one less free.
    let fair = free.saturating_sub(own) / 2;
    if above_reserve < fair { above_reserve } else { fair }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As much as the clients want, in turns, until nobody gets more.
    fn fill(held: &mut [u32], wants: &[bool]) {
        loop {
            let before = held.to_vec();
            for client in 0..held.len() {
                if wants[client] && admits(1, held[client], held.iter().sum()) {
                    held[client] += 1;
                }
            }
            if held == before {
                return;
            }
        }
    }

    #[test]
    fn one_alone_gets_half_and_no_more() {
        let mut held = [0];
        fill(&mut held, &[true]);
        assert_eq!(held, [ROOM_FOR_ONE]);
    }

    #[test]
    fn greedy_clients_get_equal_parts_and_leave_one() {
        for clients in 1..64 {
            let mut held = vec![0; clients];
            fill(&mut held, &vec![true; clients]);
            let part = ROOM / (clients as u32 + 1);
            assert!(held.iter().all(|&own| own == part || own + 1 == part || own == part + 1), "{held:?}");
            assert!(held.iter().sum::<u32>() < ROOM);
        }
    }

    #[test]
    fn frames_are_left_for_the_next_service_and_for_the_cards() {
        assert_eq!(frames_to_take(0, 4096, 4096), 2048);
        assert_eq!(frames_to_take(2048, 2048, 4096), 0);
        assert_eq!(frames_to_take(0, 512, 4096), 0);
        assert_eq!(frames_to_take(0, 600, 4096), 88);
        assert_eq!(frames_to_take(10, 0, 4096), 0);
    }

    proptest! {
        /// However the room was filled before, a newcomer is let in once the others have been served as
        /// often as there are datagrams, and hogs are not let in again before it.
        #[test]
        fn a_newcomer_is_let_in_however_greedy_the_others_are(
            start in proptest::collection::vec(0u32..200, 1..20), order in proptest::collection::vec(any::<u8>(), 600..601),
        ) {
            let mut held: Vec<u32> = start;
            while held.iter().sum::<u32>() > ROOM {
                held.iter_mut().for_each(|own| *own /= 2);
            }
            let mut admitted = false;
            for turn in order {
                // One datagram of anybody's is done; its owner asks again at once, before the newcomer.
                let busy: Vec<usize> = (0..held.len()).filter(|&client| held[client] > 0).collect();
                let Some(&done) = busy.get(usize::from(turn) % busy.len().max(1)) else { break };
                held[done] -= 1;
                if admits(1, held[done], held.iter().sum()) {
                    held[done] += 1;
                }
                if admits(1, 0, held.iter().sum()) {
                    admitted = true;
                    break;
                }
            }
            prop_assert!(admitted || held.iter().sum::<u32>() == 0, "{:?}", held);
        }

        #[test]
        fn the_room_is_never_overrun(steps in proptest::collection::vec((0usize..10, 1u32..17, any::<bool>()), 0..2000)) {
            let mut held = [0u32; 10];
            for (client, amount, takes) in steps {
                if !takes {
                    held[client] = held[client].saturating_sub(amount);
                } else if admits(amount, held[client], held.iter().sum()) {
                    held[client] += amount;
                }
                prop_assert!(held.iter().sum::<u32>() <= ROOM);
                prop_assert!(held[client] <= ROOM_FOR_ONE || !takes);
            }
        }
    }
}
