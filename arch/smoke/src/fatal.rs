//! Things that must end in a fault report and not in a reset.

use crate::{checks, say};
use arch::addr::{PhysAddr, VirtAddr, phys_to_virt};
use arch::{boot, power};
use core::hint::black_box;

/// Does what `word` names, if it names something.
pub fn run(word: &str) {
    match word {
        "overflow" => say!("smoke: returned {}", recurse(1)),
        "overflow-task" => checks::on_a_task_stack(|| say!("smoke: returned {}", recurse(1))),
        "write-text" => write(boot::text_range().start as *mut u8),
        "write-text-alias" => write(alias(boot::text_range().start)),
        "write-rodata" => write(boot::rodata_range().start as *mut u8),
        "write-rodata-alias" => write(alias(boot::rodata_range().start)),
        "write-module" => write_module(false),
        "write-module-alias" => write_module(true),
        "null" => write(core::ptr::null_mut::<u8>().wrapping_add(black_box(8))),
        "execute-data" => execute_data(),
        "panic" => panic!("as asked"),
        "reboot" => power::reboot(),
        _ => return,
    }
    say!("smoke: nothing happened, which is wrong");
}

fn alias(address: usize) -> *mut u8 {
    let physical = arch::addr::virt_to_phys(address as *const u8);
    phys_to_virt(physical.unwrap_or(PhysAddr(0)))
}

/// Writes to a module's code, by its own address or where the direct map shows it.
fn write_module(by_alias: bool) {
    let Some((at, frames)) = checks::map_code(0) else { return };
    write(if by_alias { phys_to_virt(frames.start) } else { at.as_mut_ptr() });
}

fn write(target: *mut u8) {
    say!("smoke: writing to {}", VirtAddr::of(target));
    // SAFETY: none: the write must fault.
    unsafe { target.write_volatile(0) };
}

/// Uses stack until there is none.
#[allow(unconditional_recursion, reason = "that is the point")]
fn recurse(depth: usize) -> usize {
    let waste = black_box([depth; 64]);
    recurse(depth + 1) + waste[depth % 64]
}

fn execute_data() {
    let code = black_box([0xc3u8; 16]);
    say!("smoke: executing {}", VirtAddr::of(&raw const code));
    // SAFETY: none: the call must fault.
    let function: extern "C" fn() = unsafe { core::mem::transmute(code.as_ptr()) };
    function();
}
