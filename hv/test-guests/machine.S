# A guest that tries its machine, one thing at a time, and says on COM1 what came of each.
#
# It boots as a Linux kernel does (Linux Documentation/arch/x86/boot.rst, 64-bit protocol), prints
# `hv-test: ok: NAME` or `hv-test: FAILED: NAME: saw X, not Y` for each check, and gives the number of
# failed checks to the debug exit port (machine's chipset::power). A check returns what it saw in EAX and what
# had to be seen in EDX. There is no library below it, so what a check touches is what its lines say.

    .intel_syntax noprefix
    .code64
    .text

    .equ COM1, 0x3f8
    .equ EXIT, 0xf4
    .equ APIC, 0xfee00000
    .equ IOAPIC, 0xfec00000
    .equ PM_TIMER, 0x608
    .equ STACK, 0x180000
    .equ STACK_OF_SECOND, 0x190000
    .equ IDT, 0x1a0000
    .equ TRAMPOLINE, 0x4000
    .equ PATIENCE_TSC, 20000000000
    # Where a loader put page tables and GDT (machine's memory_map).
    .equ PAGE_TABLES, 0x9000
    .equ GDT, 0x500

# The setup header: only what a loader of the 64-bit protocol looks at.
header:
    .org 0x1f1
    .byte 1                         # setup_sects
    .word 0
    .long (end - loaded + 15) / 16  # syssize
    .org 0x1fe
    .word 0xaa55
    .byte 0xeb, 0x280 - 0x202       # a jump, whose length says where the header ends
    .ascii "HdrS"
    .word 0x20f                     # protocol 2.15
    .org 0x211
    .byte 1                         # LOADED_HIGH
    .org 0x22c
    .long 0x7fffffff                # initrd_addr_max
    .long 0x1000                    # kernel_alignment
    .byte 0, 12                     # not relocatable; min_alignment
    .word 1                         # XLF_KERNEL_64
    .long 2047                      # cmdline_size
    .org 0x258
    .quad 0x100000                  # pref_address
    .long 0x100000                  # init_size
    .org 0x400
loaded:
    .org 0x600
    jmp main

    .macro outb port, value
    mov dx, \port
    mov al, \value
    out dx, al
    .endm
    .macro apic_write register, value
    mov dword ptr [r15 + \register], \value
    .endm
    .macro count_of vector
    mov eax, [counts + 4 * \vector]
    .endm
    # Waits until the vector came so often; EAX says how often it did.
    .macro await vector, times
    mov edi, \vector
    mov esi, \times
    call await_vector
    .endm
    # What was seen may be more than what had to be.
    .macro at_least
    cmp eax, edx
    cmovae eax, edx
    .endm

main:
    cli
    mov esp, STACK
    mov r15d, APIC
    call make_idt
    call init_interrupt_controllers
    lea rbx, [checks]
1:  mov rax, [rbx]
    test rax, rax
    jz 3f
    push rbx
    call forget
    call [rbx]
    cli
    pop rbx
    push rax
    push rdx
    cmp eax, edx
    jne 2f
    lea rsi, [text_ok]
    call print
    mov rsi, [rbx + 8]
    call print
.ifdef MEASURE
    lea rsi, [text_ticks]
    call print
    mov rax, [rsp + 8]
    call print_hex
.endif
    lea rsi, [text_end]
    call print
    add rsp, 16
    inc dword ptr [passed]
    add rbx, 16
    jmp 1b
2:  inc dword ptr [failed]
    lea rsi, [text_failed]
    call print
    mov rsi, [rbx + 8]
    call print
    lea rsi, [text_saw]
    call print
    mov rax, [rsp + 8]
    call print_hex
    lea rsi, [text_not]
    call print
    mov rax, [rsp]
    call print_hex
    lea rsi, [text_end]
    call print
    add rsp, 16
    add rbx, 16
    jmp 1b
3:  lea rsi, [text_done]
    call print
    mov eax, [passed]
    call print_hex
    lea rsi, [text_passed]
    call print
    mov eax, [failed]
    call print_hex
    lea rsi, [text_of_failed]
    call print
    mov eax, [failed]
leave_with_al:
    mov dx, EXIT
    out dx, al
    # There was no such port.
1:  cli
    hlt
    jmp 1b

print:
    mov dx, COM1 + 5
1:  in al, dx
    test al, 0x20
    jz 1b
    lodsb
    test al, al
    jz 2f
    mov dx, COM1
    out dx, al
    jmp print
2:  ret

print_hex:
    mov r8, rax
    mov ecx, 32
    lea rsi, [text_0x]
    push rcx
    call print
    pop rcx
1:  sub ecx, 4
    mov rax, r8
    shr rax, cl
    and eax, 15
    mov al, [digits + rax]
    mov dx, COM1
    out dx, al
    test ecx, ecx
    jnz 1b
    ret

# Counters to zero.
forget:
    xor eax, eax
    mov ecx, 256
    lea rdi, [counts]
    rep stosd
    mov [error], eax
    mov [recovery], rax
    ret

# Until vector EDI came ESI times. Interrupts are off afterwards.
await_vector:
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov rcx, PATIENCE_TSC
    add rcx, rax
1:  sti
    nop
    cli
    cmp [counts + 4 * rdi], esi
    jae 2f
    rdtsc
    shl rdx, 32
    or rax, rdx
    cmp rax, rcx
    jb 1b
2:  mov eax, [counts + 4 * rdi]
    ret

# Some milliseconds with interrupts on, in which nothing more may come.
linger:
    mov dx, PM_TIMER
    in eax, dx
    mov ecx, eax
1:  sti
    nop
    in eax, dx
    sub eax, ecx
    cmp eax, 3580 * 5
    jb 1b
    cli
    ret

make_idt:
    mov edi, IDT
    lea rax, [stubs]
    mov ecx, 256
1:  mov [rdi], ax
    mov word ptr [rdi + 2], 0x10        # the loader's code segment
    mov word ptr [rdi + 4], 0x8e00      # present, an interrupt gate
    mov rdx, rax
    shr rdx, 16
    mov [rdi + 6], dx
    mov qword ptr [rdi + 8], 0
    add rax, 16
    add edi, 16
    loop 1b
    lidt [idt_register]
    ret

# The 8259s at 0x20 and 0x28, all masked; the local APIC on, its timer undivided.
init_interrupt_controllers:
    outb 0x20, 0x11
    outb 0xa0, 0x11
    outb 0x21, 0x20
    outb 0xa1, 0x28
    outb 0x21, 4
    outb 0xa1, 2
    outb 0x21, 1
    outb 0xa1, 1
mask_all:
    outb 0x21, 0xff
    outb 0xa1, 0xff
    apic_write 0xf0, 0x1ff
    apic_write 0x3e0, 0xb
    ret

    .balign 16
stubs:
    .set vector, 0
    .rept 256
    .balign 16
    .if (vector == 8) || (vector >= 10 && vector <= 14) || (vector == 17)
    .else
    push 0
    .endif
    push vector
    jmp interrupted
    .set vector, vector + 1
    .endr
    .balign 16

# Counts the vector and ends it. A fault goes on at `recovery`, or ends the guest.
interrupted:
    push rax
    push rdx
    mov rax, [rsp + 16]
    movzx eax, al
    lock inc dword ptr [counts + 4 * rax]
    cmp eax, 2
    je 3f
    cmp eax, 0x20
    jb 1f
    cmp eax, 0x30
    jae 2f
    cmp eax, 0x28
    mov al, 0x20
    jb 4f
    out 0xa0, al
4:  out 0x20, al
    jmp 3f
2:  rdtsc
    mov [came_tsc], eax
    mov [came_tsc + 4], edx
    mov eax, APIC
    mov dword ptr [rax + 0xb0], 0
3:  pop rdx
    pop rax
    add rsp, 16
    iretq
1:  mov edx, [rsp + 24]
    mov [error], edx
    mov rdx, [recovery]
    test rdx, rdx
    jz 5f
    mov [rsp + 32], rdx
    mov qword ptr [recovery], 0
    jmp 3b
5:  push rax
    lea rsi, [text_fault]
    call print
    pop rax
    call print_hex
    lea rsi, [text_at]
    call print
    mov rax, [rsp + 32]
    call print_hex
    lea rsi, [text_end]
    call print
    mov al, 0xff
    jmp leave_with_al

    .include "checks.S"
    .include "costs.S"

    .balign 8
idt_register:
    .word 0xfff
    .quad IDT
    .balign 8
recovery: .quad 0
came_tsc: .quad 0
error: .long 0
passed: .long 0
failed: .long 0
counts: .fill 256, 4, 0
digits: .ascii "0123456789abcdef"
text_0x: .asciz "0x"
text_ok: .asciz "hv-test: ok: "
text_failed: .asciz "hv-test: FAILED: "
text_saw: .asciz ": saw "
text_ticks: .asciz ": ticks "
text_not: .asciz ", not "
text_done: .asciz "hv-test: "
text_passed: .asciz " passed, "
text_of_failed: .asciz " failed\r\n"
text_end: .asciz "\r\n"
text_fault: .asciz "hv-test: FAILED: a fault that no check asked for, vector "
text_at: .asciz " at "
# Behind the names of the checks, which are subsection 1.
    .text 2
    .balign 16
end:
