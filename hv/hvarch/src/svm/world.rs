//! The world switch: the only place where the guest's registers are the processor's.
//!
//! VMRUN exchanges RIP, RSP, RAX, RFLAGS, CS..DS, the tables and control registers
//! (AMD APM vol. 2 sec. 15.5); VMLOAD and VMSAVE the rest of the segment state and the
//! system-call registers; this code the general-purpose registers.
//!
//! Interrupts: CLGI holds everything back, then IF is set, because with V_INTR_MASKING
//! it is the host's IF at VMRUN that lets a physical interrupt end the guest's run
//! (sec. 15.21.1). #VMEXIT clears GIF; IF is cleared before STGI, so the interrupt that
//! ended the run stays pending until the caller lets interrupts in, on an ordinary
//! stack with the host's GS.

use core::arch::naked_asm;

use machine::backend::Gprs;

/// Runs the guest of a VMCB until its next exit. Returns the address of the
/// instruction after VMRUN: what the HOST's RIP was at the exit.
///
/// # Safety
/// - SVM is enabled on this CPU and VM_HSAVE_PA set; interrupts are off.
/// - `vmcb_pa` is the physical address of a VMCB whose permission maps and nested
///   tables exist and give the guest nothing but its own memory.
/// - `host_pa` is that of an area which VMSAVE filled on this CPU, and the state in it
///   (FS, GS, TR, LDTR, system-call registers) is still the host's.
/// - All debug breakpoints of the host are off.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn run(vmcb_pa: u64, registers: &mut Gprs, host_pa: u64) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "push rsi",
        "mov rax, rdi",
        "clgi",
        "sti",
        "vmload rax",
        // RAX and RSP (numbers 0 and 4) travel in the VMCB.
        "mov rcx, [rsi + 1*8]",
        "mov rdx, [rsi + 2*8]",
        "mov rbx, [rsi + 3*8]",
        "mov rbp, [rsi + 5*8]",
        "mov rdi, [rsi + 7*8]",
        "mov r8,  [rsi + 8*8]",
        "mov r9,  [rsi + 9*8]",
        "mov r10, [rsi + 10*8]",
        "mov r11, [rsi + 11*8]",
        "mov r12, [rsi + 12*8]",
        "mov r13, [rsi + 13*8]",
        "mov r14, [rsi + 14*8]",
        "mov r15, [rsi + 15*8]",
        "mov rsi, [rsi + 6*8]",
        "vmrun rax",
        "2:",
        // RAX is the host's again, the VMCB's address; RSP too.
        "vmsave rax",
        "mov rax, [rsp + 8]",
        "vmload rax",
        "mov rax, [rsp]",
        "mov [rax + 1*8], rcx",
        "mov [rax + 2*8], rdx",
        "mov [rax + 3*8], rbx",
        "mov [rax + 5*8], rbp",
        "mov [rax + 6*8], rsi",
        "mov [rax + 7*8], rdi",
        "mov [rax + 8*8], r8",
        "mov [rax + 9*8], r9",
        "mov [rax + 10*8], r10",
        "mov [rax + 11*8], r11",
        "mov [rax + 12*8], r12",
        "mov [rax + 13*8], r13",
        "mov [rax + 14*8], r14",
        "mov [rax + 15*8], r15",
        // No value of the guest stays behind for a mispredicted path to use.
        "xor ecx, ecx",
        "xor edx, edx",
        "xor esi, esi",
        "xor edi, edi",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "add rsp, 16",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "lea rax, [rip + 2b]",
        // From here on an NMI finds a host again.
        "cli",
        "stgi",
        "ret",
    )
}
