//! The stacks that there are, in the order in which they were started: the first is the uplink's.
//!
//! Whoever serves something on a card finds its stack here. A module that was loaded later than the
//! cards has no other way to them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use kcore::balance;
use kcore::sync::SpinLock;

use crate::stack::Stack;

static STACKS: SpinLock<Vec<Arc<Stack>>> = SpinLock::new(Vec::new());

pub(crate) fn add(stack: &Arc<Stack>) {
    STACKS.lock().push(stack.clone());
    // A stack is its card's.
    balance::register("stacks", |whose| all().iter().filter(|stack| whose.has(&**stack.card())).count());
    balance::register("UDP ports", |whose| all().iter().map(|stack| stack.handlers.count(whose)).sum());
    balance::register("forwarders", |whose| {
        let has =
            |stack: &&Arc<Stack>| stack.forwarder.lock().as_ref().is_some_and(|other| whose.has(&**other));
        all().iter().filter(has).count()
    });
}

pub(crate) fn remove(stack: &Stack) {
    let removed = {
        let mut stacks = STACKS.lock();
        let place = stacks.iter().position(|other| core::ptr::eq(&**other, stack));
        place.map(|place| stacks.remove(place))
    };
    drop(removed);
}

/// Every stack.
pub fn all() -> Vec<Arc<Stack>> {
    STACKS.lock().clone()
}

/// The stack that reaches `destination`: that of its own network, else the uplink's.
pub fn towards(destination: Ipv4Addr) -> Option<Arc<Stack>> {
    let stacks = all();
    let is_near = |stack: &&Arc<Stack>| stack.subnet().is_some_and(|subnet| subnet.contains(destination));
    stacks.iter().find(is_near).or(stacks.first()).cloned()
}
