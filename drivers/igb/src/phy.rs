//! The PHY on the chip, which negotiates the link (IEEE 802.3 clause 28).
//!
//! A reset of the card leaves its link alone on real ones, and a negotiation takes seconds, so it is
//! begun only where there is no link. The PHY is shared with firmware (a server's management
//! controller may use the same port), so it is reached under the semaphore of both.

use igb_protocol::register::{self, phy, phy_access, shared, software_semaphore, status};

use crate::device::StartError;
use crate::registers::{Registers, wait_for};

/// Firmware holds the semaphore for microseconds, the PHY perhaps for longer.
const SEMAPHORE_LIMIT_NS: u64 = 10_000_000;
/// An access takes 64 us at most (64 cycles of 2.5 MHz, and some more on the way).
const ACCESS_LIMIT_NS: u64 = 2_000_000;

/// Has the link negotiated, unless there is one.
pub(crate) fn start_link(registers: &Registers) -> Result<(), StartError> {
    let port = (registers.read(register::STATUS) & status::PORT) >> status::PORT_SHIFT;
    let own = shared::phy_of_port(port);
    if !wait_for(SEMAPHORE_LIMIT_NS, || try_to_take(registers, own)) {
        return Err(StartError::PhyBusy);
    }
    let outcome = negotiate(registers);
    give_back(registers, own);
    outcome
}

fn negotiate(registers: &Registers) -> Result<(), StartError> {
    // The link's loss is kept until it was read once, so the second answer is today's.
    read(registers, phy::STATUS)?;
    if phy::has_link(read(registers, phy::STATUS)?) {
        return Ok(());
    }
    let control = read(registers, phy::CONTROL)?;
    access(registers, phy_access::WRITE | u32::from(phy::restart_negotiation(control)), phy::CONTROL)?;
    Ok(())
}

fn read(registers: &Registers, number: u32) -> Result<u16, StartError> {
    access(registers, phy_access::READ, number)
}

fn access(registers: &Registers, command: u32, number: u32) -> Result<u16, StartError> {
    let command = command | number << phy_access::REGISTER_SHIFT | phy_access::INTERNAL_PHY;
    registers.write(register::PHY_ACCESS, command);
    let mut answer = 0;
    let answered = wait_for(ACCESS_LIMIT_NS, || {
        answer = registers.read(register::PHY_ACCESS);
        answer & phy_access::READY != 0
    });
    match answered && answer & phy_access::ERROR == 0 {
        true => Ok((answer & phy_access::DATA) as u16),
        false => Err(StartError::PhySilent),
    }
}

/// Takes the PHY: with the semaphore held, notes that software has it, unless anyone has.
fn try_to_take(registers: &Registers, own: u32) -> bool {
    if !take_semaphore(registers) {
        return false;
    }
    let holders = registers.read(register::SHARED);
    let is_free = holders & (own | own << shared::FIRMWARE_SHIFT) == 0;
    if is_free {
        registers.write(register::SHARED, holders | own);
    }
    free_semaphore(registers);
    is_free
}

fn give_back(registers: &Registers, own: u32) {
    // If firmware holds on to the semaphore, the note is taken back without it: it is our own bit.
    let _ = wait_for(SEMAPHORE_LIMIT_NS, || take_semaphore(registers));
    registers.write(register::SHARED, registers.read(register::SHARED) & !own);
    free_semaphore(registers);
}

fn take_semaphore(registers: &Registers) -> bool {
    use software_semaphore::{AGAINST_FIRMWARE, TAKEN};
    // Reading takes it from other software, if it was free.
    if registers.read(register::SOFTWARE_SEMAPHORE) & TAKEN != 0 {
        return false;
    }
    registers.write(register::SOFTWARE_SEMAPHORE, TAKEN | AGAINST_FIRMWARE);
    let granted = registers.read(register::SOFTWARE_SEMAPHORE) & AGAINST_FIRMWARE != 0;
    if !granted {
        free_semaphore(registers);
    }
    granted
}

fn free_semaphore(registers: &Registers) {
    use software_semaphore::{AGAINST_FIRMWARE, TAKEN};
    let value = registers.read(register::SOFTWARE_SEMAPHORE);
    registers.write(register::SOFTWARE_SEMAPHORE, value & !(TAKEN | AGAINST_FIRMWARE));
}
