//! Switching between kernel stacks.
//!
//! A context is a stack pointer: everything else lies on the stack it points to. Only the
//! registers that the C ABI calls callee-saved (System V AMD64 psABI section 3.2.1) are
//! saved, since a switch is a function call on both sides; an interrupted task's other
//! registers are in its trap frame. There is no vector state: the kernel has none of its
//! own, and a guest's is its vCPU's business. The interrupt flag is not part of a context:
//! switches happen with interrupts off, and a new context begins with them off.

use core::arch::naked_asm;

/// A context that is not running: where its stack ends.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    stack_pointer: usize,
}

/// What `switch` pops from the stack of the context it enters.
#[repr(C)]
struct SavedFrame {
    r15: usize,
    r14: usize,
    r13: usize,
    r12: usize,
    rbx: usize,
    rbp: usize,
    return_address: usize,
}

impl Context {
    /// A context for `switch` to store into: that of a stack that already runs.
    pub const fn empty() -> Self {
        Self { stack_pointer: 0 }
    }

    /// A context that will call `entry(arg)` on the stack that ends at `stack_top`.
    ///
    /// # Safety
    /// `stack_top` is 16-byte aligned, and the memory below it is a stack that is mapped,
    /// writable and nobody else's for as long as the context lives.
    pub unsafe fn new(stack_top: *mut u8, entry: extern "C" fn(usize) -> !, arg: usize) -> Self {
        let frame = SavedFrame {
            r15: 0,
            r14: 0,
            r13: arg,
            r12: entry as usize,
            rbx: 0,
            // Ends backtraces.
            rbp: 0,
            return_address: start as *const () as usize,
        };
        // `start` begins with a stack aligned to 16 bytes after the frame is popped.
        // SAFETY: the room below `stack_top` is ours by the caller's promise, and aligned.
        let stack_pointer = unsafe {
            let place = stack_top.sub(size_of::<SavedFrame>()).cast::<SavedFrame>();
            place.write(frame);
            place
        };
        Self { stack_pointer: stack_pointer.expose_provenance() }
    }
}

/// The first instructions of a new context.
#[unsafe(naked)]
extern "C" fn start() -> ! {
    naked_asm!("mov rdi, r13", "call r12", "ud2",)
}

/// Leaves the running context, storing it in `prev`, and continues `next`. Returns when
/// somebody switches to `prev`.
///
/// # Safety
/// Interrupts are off. `prev` is writable and stays so until it is continued; `next` was made
/// by [`Context::new`] or stored by this function, is not running anywhere, and is not
/// continued twice without being stored in between.
#[unsafe(naked)]
pub unsafe extern "C" fn switch(prev: *mut Context, next: *const Context) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, [rsi]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}
