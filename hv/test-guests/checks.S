# The checks, and the table of them. See machine.S for what a check is.

    .macro check function, name
    .quad \function
    .quad 9f
    .pushsection .text, 1
9:  .asciz "\name"
    .popsection
    .endm

    .balign 8
checks:
.ifdef MEASURE
    check cost_of_nothing, "an empty loop"
    check cost_of_cpuid, "CPUID"
    check cost_of_port, "a port"
    check cost_of_msr, "an MSR"
    check cost_of_mmio, "memory of a device"
    check cost_of_self_ipi, "an IPI to oneself"
    check second_starts, "(the second CPU starts)"
    check cost_of_ipi, "an IPI to a CPU that halts"
    .quad 0
.endif
.ifdef MUST_FAIL
    # For the story, to see that a failure is seen.
    check cpuid_says_hypervisor, "CPUID shows a hypervisor"
    check must_fail, "one and one is three"
    .quad 0
must_fail:
    mov eax, 2
    mov edx, 3
    ret
.endif
    check cpuid_says_hypervisor, "CPUID shows a hypervisor"
    check msr_of_the_apic, "an MSR reads as what it is"
    check msr_that_is_not, "an MSR that is not there faults"
    check port_that_is_not, "a port that is not there floats"
    check memory_that_is_not, "memory that is not there floats"
    check apic_version, "the local APIC answers in memory"
    check pit_one_shot, "8254 counts down once"
    check pit_periodic, "8254 comes every millisecond, not faster"
    check pit_through_ioapic, "8254 through the I/O APIC"
    check rtc_periodic, "the RTC's periodic interrupt"
    check uart_empty, "the UART's interrupt when it has sent"
    check apic_one_shot, "the local APIC's timer, once"
    check apic_periodic, "the local APIC's timer, periodic"
    check tsc_deadline, "a TSC deadline, never early"
    check self_ipi, "an IPI to oneself"
    check nmi_to_oneself, "an NMI to oneself"
    check pending_at_halt, "what is pending wakes from HLT at once"
    check halt_edges, "an interrupt at every step between check and HLT"
    check fault_in_delivery, "a fault while an interrupt is delivered"
    check second_starts, "INIT and start-up bring the second CPU"
    check ipi_round_trips, "a thousand IPIs to a CPU that halts"
    check ipi_under_timer, "a thousand IPIs while a timer ticks"
    check ipi_logical, "an IPI to a logical destination"
    check ipi_others, "an IPI to all others"
    check ipi_all, "an IPI to all"
    check nmi_to_second, "an NMI to the second CPU"
    .quad 0

cpuid_says_hypervisor:
    push rbx
    mov eax, 1
    cpuid
    pop rbx
    shr ecx, 31
    mov eax, ecx
    mov edx, 1
    ret

msr_of_the_apic:
    mov ecx, 0x1b
    rdmsr
    and eax, 0xfffff000
    mov edx, APIC
    ret

msr_that_is_not:
    lea rax, [1f]
    mov [recovery], rax
    mov ecx, 0xdead0000
    rdmsr
1:  count_of 13
    mov edx, 1
    ret

port_that_is_not:
    mov dx, 0x1234
    xor eax, eax
    in eax, dx
    mov edx, -1
    ret

memory_that_is_not:
    mov ecx, 0xd0000000
    mov eax, [rcx]
    mov edx, -1
    ret

apic_version:
    # 0x1X: integrated (SDM vol. 3 sec. 11.4.8)
    mov eax, [r15 + 0x30]
    and eax, 0xf0
    mov edx, 0x10
    ret

# Channel 0 counts CX down in mode AL.
pit_program:
    out 0x43, al
    mov al, cl
    out 0x40, al
    mov al, ch
    out 0x40, al
    ret

# Mode 0 and no count: it stands.
pit_stop:
    mov al, 0x30
    out 0x43, al
    ret

pit_one_shot:
    outb 0x21, 0xfe
    mov al, 0x30
    mov ecx, 2000
    call pit_program
    await 0x20, 1
    call linger
    call pit_stop
    call mask_all
    count_of 0x20
    mov edx, 1
    ret

pit_periodic:
    outb 0x21, 0xfe
    mov dx, PM_TIMER
    in eax, dx
    mov r14d, eax
    mov al, 0x34
    mov ecx, 1193
    call pit_program
    await 0x20, 20
    mov r13d, eax
    mov dx, PM_TIMER
    in eax, dx
    sub eax, r14d
    mov r14d, eax
    call pit_stop
    call mask_all
    mov eax, r13d
    mov edx, 20
    at_least
    jne 1f
    # Twenty edges need 20 ms less the first's share; 3580 ticks are a millisecond.
    mov eax, r14d
    mov edx, 3580 * 19
    at_least
1:  ret

pit_through_ioapic:
    mov r14d, IOAPIC
    mov dword ptr [r14], 0x15
    mov dword ptr [r14 + 0x10], 0
    mov dword ptr [r14], 0x14
    mov dword ptr [r14 + 0x10], 0x60
    mov al, 0x30
    mov ecx, 2000
    call pit_program
    await 0x60, 1
    call pit_stop
    mov dword ptr [r14 + 0x10], 0x10060
    count_of 0x60
    mov edx, 1
    ret

rtc_periodic:
    outb 0x70, 0x0a
    outb 0x71, 0x26
    outb 0x70, 0x0b
    outb 0x71, 0x42
    outb 0x21, 0xfb
    outb 0xa1, 0xfe
    xor r14d, r14d
1:  inc r14d
    # Register C lets the next one come.
    outb 0x70, 0x0c
    in al, 0x71
    await 0x28, r14d
    cmp eax, r14d
    jb 2f
    cmp r14d, 5
    jb 1b
2:  mov r14d, eax
    outb 0x70, 0x0b
    outb 0x71, 0x02
    outb 0x70, 0x0c
    in al, 0x71
    call mask_all
    mov eax, r14d
    mov edx, 5
    at_least
    ret

uart_empty:
    outb 0x21, 0xef
    outb COM1+4, 8
    outb COM1+1, 2
    await 0x24, 1
    mov r14d, eax
    outb COM1+1, 0
    call mask_all
    mov eax, r14d
    mov edx, 1
    at_least
    ret

apic_one_shot:
    apic_write 0x320, 0x40
    apic_write 0x380, 1000000
    await 0x40, 1
    call linger
    count_of 0x40
    mov edx, 1
    ret

apic_periodic:
    apic_write 0x320, 0x20041
    apic_write 0x380, 1000000
    await 0x41, 10
    apic_write 0x320, 0x10041
    apic_write 0x380, 0
    mov edx, 10
    at_least
    ret

tsc_deadline:
    apic_write 0x320, 0x40042
    rdtsc
    shl rdx, 32
    or rax, rdx
    lea r14, [rax + 3000000]
    mov rax, r14
    mov rdx, r14
    shr rdx, 32
    mov ecx, 0x6e0
    wrmsr
    await 0x42, 1
    mov r13d, eax
    mov ecx, 0x6e0
    rdmsr
    # A deadline that has come reads as zero.
    or r13d, eax
    apic_write 0x320, 0x10042
    cmp [came_tsc], r14
    mov ecx, 0xea71
    cmovb r13d, ecx
    mov eax, r13d
    mov edx, 1
    ret

self_ipi:
    apic_write 0x300, 0x40043
    await 0x43, 1
    mov edx, 1
    ret

nmi_to_oneself:
    apic_write 0x310, 0
    apic_write 0x300, 0x400
    await 2, 1
    mov edx, 1
    ret

# A tick each 20 ms, so that a lost wake-up is a finding and not a silence.
watchdog_on:
    outb 0x21, 0xfe
    mov al, 0x34
    mov ecx, 23864
    jmp pit_program

watchdog_off:
    call pit_stop
    jmp mask_all

pending_at_halt:
    call watchdog_on
    mov r14d, 200
1:  call forget
    apic_write 0x300, 0x40044
    sti
    hlt
    cli
    cmp dword ptr [counts + 4 * 0x44], 1
    jne 2f
    dec r14d
    jnz 1b
2:  call watchdog_off
    mov eax, r14d
    xor edx, edx
    ret

# What everybody writes who waits: look, and halt if it has not come. The timer's edge is moved over all of it
# in steps, from before the look until long after HLT. Each miss would last until the fourth tick of the watchdog.
halt_edges:
    call watchdog_on
    mov r14d, 1
1:  call forget
    apic_write 0x320, 0x45
    mov eax, r14d
    imul eax, eax, 150
    mov [r15 + 0x380], eax
2:  cli
    cmp dword ptr [counts + 4 * 0x45], 0
    jne 3f
    cmp dword ptr [counts + 4 * 0x20], 4
    jae 4f
    sti
    hlt
    jmp 2b
3:  inc r14d
    cmp r14d, 1000
    jbe 1b
4:  cli
    call watchdog_off
    mov eax, r14d
    mov edx, 1001
    ret

# The gate is not present: #NP with the gate's number (SDM vol. 3 sec. 6.15). Bit 0 says whether it was an outside
# event; QEMU's TCG leaves it out, so it is not compared.
fault_in_delivery:
    mov ecx, IDT
    mov word ptr [rcx + 16 * 0x50 + 4], 0x0e00
    lea rax, [1f]
    mov [recovery], rax
    apic_write 0x300, 0x40050
    sti
    nop
    mov ecx, 10000000
2:  loop 2b
1:  cli
    apic_write 0xb0, 0
    mov ecx, IDT
    mov word ptr [rcx + 16 * 0x50 + 4], 0x8e00
    mov eax, [error]
    and eax, -2
    mov edx, 0x50 * 8 + 2
    ret

    .code16
trampoline:
    jmp 1f
    .word 0x1f                      # the GDT's register, two bytes from the trampoline's start
    .long GDT
1:  cli
    xor ax, ax
    mov ds, ax
    lgdt [TRAMPOLINE + 2]
    mov eax, 0x20
    mov cr4, eax
    mov eax, PAGE_TABLES
    mov cr3, eax
    mov ecx, 0xc0000080
    xor edx, edx
    mov eax, 0x100
    wrmsr
    mov eax, 0x80010033
    mov cr0, eax
    .byte 0x66, 0xea
    .long second_main
    .word 0x10
trampoline_end:
    .code64

second_main:
    mov ax, 0x18
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov esp, STACK_OF_SECOND
    lidt [idt_register]
    mov r15d, APIC
    apic_write 0xf0, 0x1ff
    # Flat model, the second bit.
    apic_write 0xe0, -1
    apic_write 0xd0, 0x02000000
    lock inc dword ptr [counts]
1:  sti
    hlt
    jmp 1b

second_starts:
    lea rsi, [trampoline]
    mov edi, TRAMPOLINE
    lea rcx, [trampoline_end]
    sub rcx, rsi
    rep movsb
    apic_write 0x310, 0x01000000
    apic_write 0x300, 0x4500
    call linger
    apic_write 0x310, 0x01000000
    apic_write 0x300, 0x4604
    await 0, 1
    mov edx, 1
    ret

# R14D times vector 0x61 to the second CPU, each after the last was seen.
round_trips:
    mov r13d, 0
1:  inc r13d
    apic_write 0x310, 0x01000000
    apic_write 0x300, 0x61
    await 0x61, r13d
    cmp eax, r13d
    jb 2f
    cmp r13d, r14d
    jb 1b
2:  ret

ipi_round_trips:
    mov r14d, 1000
    call round_trips
    mov edx, 1000
    ret

# The sender is taken out of the guest, and comes back with events of its own, all the time.
ipi_under_timer:
    apic_write 0x320, 0x20041
    apic_write 0x380, 200000
    mov r14d, 1000
    call round_trips
    apic_write 0x320, 0x10041
    apic_write 0x380, 0
    mov edx, 1000
    ret

ipi_logical:
    apic_write 0x310, 0x02000000
    apic_write 0x300, 0x862
    await 0x62, 1
    mov edx, 1
    ret

ipi_others:
    apic_write 0x300, 0xc0063
    await 0x63, 1
    call linger
    count_of 0x63
    mov edx, 1
    ret

ipi_all:
    apic_write 0x300, 0x80064
    await 0x64, 2
    mov edx, 2
    ret

nmi_to_second:
    apic_write 0x310, 0x01000000
    apic_write 0x300, 0x400
    await 2, 1
    mov edx, 1
    ret
