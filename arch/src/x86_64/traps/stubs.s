# The 256 interrupt entries, 16 bytes apart, and what they share.
#
# The processor has pushed SS, RSP, RFLAGS, CS, RIP and for some exceptions an error code
# (AMD APM vol. 2 section 8.9). The frame built here is traps::TrapFrame. There is no
# SWAPGS: see cpu.rs.

    .text
    .balign 16
    .global trap_stubs
trap_stubs:
    trap_vector = 0
    .rept 256
    .balign 16
    # Exceptions 8, 10 to 14, 17, 21, 29 and 30 push an error code (APM vol. 2 table 8-1).
    .ifeq (trap_vector - 8) * (trap_vector - 10) * (trap_vector - 11) * (trap_vector - 12) * (trap_vector - 13) * (trap_vector - 14) * (trap_vector - 17) * (trap_vector - 21) * (trap_vector - 29) * (trap_vector - 30)
    .else
    push 0
    .endif
    .byte 0x6a, trap_vector             # push imm8; the low byte is the vector
    jmp trap_common
    trap_vector = trap_vector + 1
    .endr

    .balign 16
trap_common:
    cld
    push r15
    push r14
    push r13
    push r12
    push r11
    push r10
    push r9
    push r8
    push rdi
    push rsi
    push rbp
    push rdx
    push rcx
    push rbx
    push rax
    # A frame of its own for backtraces: the interrupted RIP as return address. It also
    # keeps the stack 16-byte aligned at the call, as the ABI wants.
    push [rsp + {frame_rip}]
    push rbp
    mov rbp, rsp
    lea rdi, [rsp + 16]
    call {dispatch}
    add rsp, 16
    pop rax
    pop rbx
    pop rcx
    pop rdx
    pop rbp
    pop rsi
    pop rdi
    pop r8
    pop r9
    pop r10
    pop r11
    pop r12
    pop r13
    pop r14
    pop r15
    add rsp, 16                         # vector, error code
    iretq
