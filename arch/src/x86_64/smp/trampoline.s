# What an application processor runs first, in real mode, copied to a page below 1 MiB.
#
# A start-up IPI begins at offset 0 of the page with CS holding its number (SDM vol. 3A
# section 9.4.4). From real mode straight to long mode: PAE, the root table, LME and NXE, then
# PE and PG together (AMD APM vol. 2 section 14.7 describes each; the order is free). The
# data at the end is smp::StartData, filled in after the copy. AT&T syntax, for the 16-bit
# addresses.

    .section .rodata.trampoline, "a"
    .balign 16
    .global ap_trampoline_start
ap_trampoline_start:
    .code16
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    movl $0x20, %eax                    # PAE
    movl %eax, %cr4
    movl ap_page_table - ap_trampoline_start, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx              # EFER
    rdmsr
    orl $0x900, %eax                    # LME, NXE
    wrmsr
    lgdtl ap_gdt_limit - ap_trampoline_start
    movl $0x80010033, %eax              # PG, WP, NE, ET, MP, PE
    movl %eax, %cr0
    ljmpl *(ap_far_offset - ap_trampoline_start)

    .code64
    .global ap_long_mode
ap_long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    xorl %ebp, %ebp                     # ends every backtrace
    movq ap_stack(%rip), %rsp
    movq ap_cpu(%rip), %rdi
    callq *ap_entry(%rip)
    ud2

    .balign 16
    .global ap_start_data
ap_start_data:
ap_far_offset:
    .long 0
    .short 8
ap_gdt_limit:
    .short 23
    .long 0                             # the table's address
    .long 0
ap_page_table:
    .quad 0
ap_stack:
    .quad 0
ap_cpu:
    .quad 0
ap_entry:
    .quad 0
ap_gdt:
    .quad 0
    .skip 16
    .global ap_trampoline_end
ap_trampoline_end:
    .text
