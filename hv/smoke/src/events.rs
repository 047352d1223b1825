//! Injection, windows, and what takes a guest out that does not come by itself.

use alloc::string::{String, ToString};

use kcore::task::{self, Placement, Priority};
use kcore::time;
use machine::backend::{EntryRequest, Exit, Injection, InjectionKind};

use crate::guest::{CODE, Guest};
use crate::{Outcome, ensure};

const MILLISECOND_NS: u64 = 1_000_000;
/// An emulator on a busy host may be late, but not by this much.
const PATIENCE_NS: u64 = 5_000 * MILLISECOND_NS;

const RFLAGS_IF: u64 = 1 << 9;

fn pending() -> EntryRequest {
    EntryRequest { more_pending: true, ..EntryRequest::default() }
}

fn injecting(event: Injection) -> EntryRequest {
    EntryRequest { inject: Some(event), ..EntryRequest::default() }
}

pub fn interrupt_window() -> Outcome {
    let mut guest = Guest::new(&[
        0xfa, // cli
        0xe6, 0x80, // out 0x80, al
        0xfb, // sti
        0x90, // nop
        0xe6, 0x81, // out 0x81, al
    ])?;
    guest.handle(0x20, &[0xe6, 0x82, 0xcf])?; // out 0x82, al; iret
    let exit = guest.run_with(pending())?;
    guest.complete_out(exit, 0x80, 0)?;
    ensure!(!guest.vcpu.accepts_interrupt(), "IF is clear, yet an interrupt is accepted");
    let exit = guest.run_with(pending())?;
    ensure!(exit == Exit::InterruptWindow, "{exit:?}, not the window");
    ensure!(guest.vcpu.accepts_interrupt(), "the window is open, yet no interrupt is accepted");
    let exit = guest.run_with(injecting(Injection::interrupt(0x20)))?;
    guest.complete_out(exit, 0x82, 0)?;
    // The window is closed by itself: no announcement took it back.
    guest.expect_out(0x81, 0)
}

pub fn interrupt_shadow() -> Outcome {
    let mut guest = Guest::new(&[
        0xfb, // sti
        0xf4, // hlt, in its shadow
        0xe6, 0x80, // out 0x80, al
    ])?;
    guest.handle(0x21, &[0xe6, 0x82, 0xcf])?;
    let exit = guest.run_with(pending())?;
    ensure!(exit == Exit::Hlt { length: 1 }, "{exit:?}: the interrupt came in before HLT");
    ensure!(!guest.vcpu.accepts_interrupt(), "an interrupt is accepted in the shadow");
    guest.vcpu.advance_rip(1);
    ensure!(guest.vcpu.accepts_interrupt(), "the shadow does not end with its instruction");
    let exit = guest.run_with(injecting(Injection::interrupt(0x21)))?;
    guest.complete_out(exit, 0x82, 0)?;
    guest.expect_out(0x80, 0)
}

pub fn nmi_masking() -> Outcome {
    let mut guest = Guest::new(&[0xe6, 0x80, 0xeb, 0xfc])?; // 1: out 0x80, al; jmp 1b
    guest.vcpu.set_rflags(RFLAGS_IF);
    guest.handle(2, &[0xe6, 0x82, 0xcf])?; // out 0x82, al; iret
    ensure!(guest.vcpu.accepts_nmi(), "a fresh CPU accepts no NMI");
    let exit = guest.run_with(injecting(Injection::nmi()))?;
    guest.complete_out(exit, 0x82, 0)?;
    ensure!(!guest.vcpu.accepts_nmi(), "an NMI is accepted in an NMI's handler");
    let exit = guest.run_with(pending())?;
    ensure!(exit == Exit::InterruptWindow, "{exit:?}, not the IRET");
    ensure!(!guest.vcpu.accepts_nmi(), "an NMI is accepted before the IRET has run");
    let exit = guest.run_with(pending())?;
    ensure!(exit == Exit::InterruptWindow, "{exit:?}, not the window after the IRET");
    ensure!(guest.vcpu.accepts_nmi(), "no NMI is accepted after the IRET");
    guest.expect_out(0x80, 0)
}

pub fn exception_with_error() -> Outcome {
    // Real mode has no error codes on the stack, so this is 32-bit code: flat segments, an
    // interrupt table with one gate.
    use machine::backend::{Segment, SegmentAttributes};
    let mut guest = Guest::new(&[0xf4])?; // hlt
    let flat = |selector, attributes| Segment { selector, attributes, limit_bytes: u32::MAX, base: 0 };
    let mut state = crate::guest::real_mode();
    state.cr0 |= 1;
    state.cs = flat(8, SegmentAttributes::CODE_32);
    for segment in [&mut state.ss, &mut state.ds, &mut state.es] {
        *segment = flat(16, SegmentAttributes::DATA_32);
    }
    let code_descriptor = 0x00cf_9b00_0000_ffff_u64;
    let data_descriptor = 0x00cf_9300_0000_ffff_u64;
    guest.put(0x508, &code_descriptor.to_le_bytes())?;
    guest.put(0x510, &data_descriptor.to_le_bytes())?;
    (state.gdtr.base, state.gdtr.limit_bytes) = (0x500, 0x17);
    // A 32-bit interrupt gate for vector 13, at 0x2000.
    let gate = 0x0000_8e00_0008_2000_u64;
    guest.put(0x600 + 13 * 8, &gate.to_le_bytes())?;
    (state.idtr.base, state.idtr.limit_bytes) = (0x600, 0xff);
    guest.put(0x2000, &[0x58, 0xe7, 0x80])?; // pop eax; out 0x80, eax
    guest.restart(&state);
    let event = Injection { vector: 13, kind: InjectionKind::Exception { error: Some(0x1234) } };
    let exit = guest.run_with(injecting(event))?;
    guest.complete_out(exit, 0x80, 0x1234)
}

pub fn single_step() -> Outcome {
    let mut guest = Guest::new(&[
        0x9c, // pushf
        0x58, // pop ax
        0x80, 0xcc, 0x01, // or ah, TF
        0x50, // push ax
        0x9d, // popf
        0x90, // nop, then the trap
        0xe6, 0x80, // out 0x80, al
    ])?;
    guest.handle(1, &[0xe6, 0x82, 0xcf])?; // out 0x82, al; iret
    let exit = guest.run()?;
    ensure!(exit == Exit::Reflected { vector: 1 }, "{exit:?}, not #DB");
    let exit = guest.run()?;
    let Exit::Io(io) = exit else { return Err(alloc::format!("{exit:?}, not the handler")) };
    ensure!(io.port == 0x82, "{io:x?}, not the handler");
    Ok(())
}

pub fn deadline() -> Outcome {
    let mut guest = Guest::new(&[0xeb, 0xfe])?; // jmp $
    let begin_ns = time::now_ns();
    let deadline_ns = begin_ns + 3 * MILLISECOND_NS;
    let entry = EntryRequest { deadline_ns: Some(deadline_ns), ..EntryRequest::default() };
    let mut exits = 0;
    while time::now_ns() < deadline_ns {
        let exit = guest.vcpu.run(&entry);
        ensure!(exit == Exit::HostInterrupt, "{exit:?}");
        exits += 1;
    }
    let late_ns = time::now_ns() - deadline_ns;
    ensure!(late_ns < PATIENCE_NS, "taken out {late_ns} ns after the deadline");
    ensure!(exits < 100, "{exits} exits in 3 ms: the guest was hardly let in");
    // A deadline that has passed is refused: the guest gets nowhere.
    guest.put(CODE, &[0xe6, 0x80])?;
    guest.vcpu.set_rip(CODE);
    let exit = guest.vcpu.run(&entry);
    ensure!(exit == Exit::HostInterrupt && guest.vcpu.rip() == CODE, "{exit:?} with a passed deadline");
    Ok(())
}

pub fn doorbell() -> Outcome {
    let mut guest = Guest::new(&[0xeb, 0xfe])?; // jmp $
    if kcore::cpu::count() > 1 {
        let bell = guest.doorbell.clone();
        let ringer = task::spawn("ringer", Placement::Cpu(0), Priority::Normal, move || {
            task::sleep_ns(5 * MILLISECOND_NS);
            bell.ring();
        });
        let ringer = ringer.map_err(|error| error.to_string())?;
        let give_up_ns = time::now_ns() + PATIENCE_NS;
        while !guest.doorbell.has_rung() {
            let exit = guest.vcpu.run(&EntryRequest::default());
            ensure!(exit == Exit::HostInterrupt, "{exit:?}");
            ensure!(time::now_ns() < give_up_ns, "the bell did not ring");
        }
        ringer.join();
    }
    guest.doorbell.ring();
    let before = guest.vcpu.rip();
    let exit = guest.vcpu.run(&EntryRequest::default());
    ensure!(exit == Exit::HostInterrupt && guest.vcpu.rip() == before, "{exit:?} while the bell rings");
    ensure!(guest.doorbell.take() && !guest.doorbell.take(), "a ring is taken once");
    Ok(())
}

pub fn refused_entry_keeps_the_event() -> Outcome {
    let mut guest = Guest::new(&[0xfb, 0x90, 0xe6, 0x80, 0xeb, 0xfc])?; // sti; nop; 1: out; jmp 1b
    guest.handle(0x22, &[0xe6, 0x82, 0xcf])?;
    guest.expect_out(0x80, 0)?;
    guest.doorbell.ring();
    let exit = guest.vcpu.run(&injecting(Injection::interrupt(0x22)));
    ensure!(exit == Exit::HostInterrupt, "{exit:?} while the bell rings");
    ensure!(!guest.vcpu.accepts_interrupt(), "another interrupt would overwrite the one that is kept");
    guest.doorbell.take();
    let handled = guest.expect_out(0x82, 0);
    handled.map_err(|why| String::from("the kept interrupt is lost: ") + &why)
}
