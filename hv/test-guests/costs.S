# What one exit costs: ticks of the power management timer (3.579545 MHz) for COST_LOOPS of each. In the table
# of checks if MEASURE is defined; nothing here can fail.

    .equ COST_LOOPS, 4000

    .macro cost_of body:vararg
    mov dx, PM_TIMER
    in eax, dx
    mov r14d, eax
    mov r13d, COST_LOOPS
1:  \body
    dec r13d
    jnz 1b
    jmp ticks
    .endm

    .macro cpuid_0
    xor eax, eax
    cpuid
    .endm

# Since R14D.
ticks:
    mov dx, PM_TIMER
    in eax, dx
    sub eax, r14d
    mov edx, eax
    ret

cost_of_nothing:
    cost_of nop

cost_of_cpuid:
    push rbx
    call 2f
    pop rbx
    ret
2:  cost_of cpuid_0

cost_of_port:
    cost_of out 0x80, al

cost_of_msr:
    mov ecx, 0x1b
    cost_of rdmsr

cost_of_mmio:
    cost_of mov eax, [r15 + 0x30]

# Sent, delivered and ended: two exits, and one for whatever else the interrupt needs.
cost_of_self_ipi:
    sti
    cost_of mov dword ptr [r15 + 0x300], 0x40043

# Until its handler has run. The second CPU sleeps in HLT before each.
cost_of_ipi:
    mov dx, PM_TIMER
    in eax, dx
    push rax
    mov r14d, COST_LOOPS
    call round_trips
    pop r14
    jmp ticks
