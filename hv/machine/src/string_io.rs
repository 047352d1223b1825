//! INS and OUTS: ports on one side, memory by the guest's page tables on the other.

use virtio_device::GuestRam;

use crate::backend::{Gpr, IoDirection, IoExit, SegmentName, Vcpu};
use crate::chipset::BoardLock;
use crate::cpu::{Action, Cpu, power_action};
use crate::mmio::strings::PORTION;
use crate::mmio::{Context, Failure};

pub(crate) fn run<B: BoardLock>(
    cpu: &mut Cpu,
    vcpu: &mut dyn Vcpu,
    ram: &dyn GuestRam,
    board: &B,
    io: IoExit,
    now_ns: u64,
) -> Action {
    let Some(string) = io.string else { return Action::Continue };
    let (bytes, address, index) = (io.bytes.count(), string.address_bytes, cpu.index);
    let mut context = Context { cpu, vcpu, ram, board, now_ns };
    let total = context.repetitions(string.repeat, address);
    for _ in 0..total.min(PORTION) {
        let outcome = match io.direction {
            IoDirection::In => {
                // A page fault must come before the port is read, since a read may take something
                // out of a device.
                let to = context.index_linear(SegmentName::Es, Gpr::RDI, address);
                context.check_writable(to, bytes).and_then(|()| {
                    let value = board.with(|board| board.read_port(io.port, bytes, now_ns, index));
                    context.write_linear(to, bytes, u64::from(value))?;
                    context.step_index(Gpr::RDI, bytes, address);
                    Ok(None)
                })
            }
            IoDirection::Out { .. } => {
                let from = context.index_linear(string.segment, Gpr::RSI, address);
                context.read_linear(from, bytes).map(|value| {
                    context.step_index(Gpr::RSI, bytes, address);
                    let value = (value & 0xffff_ffff) as u32;
                    board.with(|board| board.write_port(io.port, bytes, value, now_ns, index))
                })
            }
        };
        match outcome {
            Ok(request) => {
                context.count_down(string.repeat, address);
                if request.is_some() {
                    return power_action(request);
                }
            }
            Err(Failure::Fault(exception)) => {
                context.cpu.raise(exception);
                return Action::Continue;
            }
            Err(Failure::Unsupported) => return Action::Continue,
        }
    }
    if total <= PORTION {
        context.vcpu.advance_rip(io.length);
    }
    Action::Continue
}
