# From the boot loader to Rust.
#
# Both protocols hand over in 32-bit protected mode with flat segments, paging and
# interrupts off, and a pointer in EBX (Xen docs/misc/pvh.pandoc; Multiboot2 2.0 section
# 3.3). The stack pointer is undefined. This file builds page tables that map the first
# 4 GiB three times (at 0, in the direct map, and the first of them at the kernel's link
# address), enters long mode, and calls arch_entry. paging::init replaces these tables.

    .section .boot.header, "a"
    .balign 8
multiboot2_header:
    .long 0xe85250d6                    # magic
    .long 0                             # architecture: i386, 32-bit protected mode
    .long multiboot2_header_end - multiboot2_header
    .long -(0xe85250d6 + 0 + (multiboot2_header_end - multiboot2_header))
    # Information request: command line, modules, memory map. The two ACPI tags are
    # optional, since GRUB refuses a request it cannot fulfil and a machine may lack one.
    .balign 8
    .short 1, 0
    .long 20
    .long 1, 3, 6
    .balign 8
    .short 1, 1
    .long 16
    .long 14, 15
    # Modules on page boundaries.
    .balign 8
    .short 6, 0
    .long 8
    # End.
    .balign 8
    .short 0, 0
    .long 8
multiboot2_header_end:

    .section .note.pvh, "a", @note
    .balign 4
    .long 4                             # name size
    .long 8                             # descriptor size
    .long 18                            # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start

    .section .boot.text, "ax"
    .code32
    .global pvh_start
pvh_start:
    mov esi, {protocol_pvh}
    jmp 1f

    .global multiboot2_start
multiboot2_start:
    mov esi, {protocol_multiboot2}
    cmp eax, 0x36d76289
    je 1f
    mov esi, {protocol_unknown}
1:
    cli
    cld
    mov edi, ebx                        # the loader's information structure
    mov esp, offset boot_stack_top_phys
    rdtsc                               # when the kernel began
    push edx
    push eax

    # Long mode and no-execute are a must: without NX there is no W^X.
    mov eax, 0x80000000
    cpuid
    cmp eax, 0x80000001
    jb boot_refuse
    mov eax, 0x80000001
    cpuid
    and edx, (1 << 29) | (1 << 20)      # LM, NX (AMD APM vol. 3, Fn8000_0001_EDX)
    cmp edx, (1 << 29) | (1 << 20)
    jne boot_refuse

    # 2048 entries of 2 MiB: present, writable, large.
    mov ebx, offset boot_pd_phys
    mov eax, 0x83
    mov ecx, 2048
2:
    mov [ebx], eax
    mov dword ptr [ebx + 4], 0
    add eax, 0x200000
    add ebx, 8
    dec ecx
    jnz 2b

    # Four directories under the low table; the first one also at -2 GiB.
    mov eax, offset boot_pd_phys + 3
    mov ebx, offset boot_pdpt_low_phys
    mov [ebx], eax
    mov dword ptr [offset boot_pdpt_high_phys + 510 * 8], eax
    add eax, 0x1000
    mov [ebx + 8], eax
    add eax, 0x1000
    mov [ebx + 16], eax
    add eax, 0x1000
    mov [ebx + 24], eax

    mov ebx, offset boot_pml4_phys
    mov eax, offset boot_pdpt_low_phys + 3
    mov [ebx], eax
    mov [ebx + 256 * 8], eax
    mov eax, offset boot_pdpt_high_phys + 3
    mov [ebx + 511 * 8], eax

    mov eax, cr4
    or eax, 1 << 5                      # PAE
    mov cr4, eax
    mov cr3, ebx
    mov ecx, 0xc0000080                 # EFER
    rdmsr
    or eax, (1 << 8) | (1 << 11)        # LME, NXE
    wrmsr
    mov eax, 0x80010033                 # PG, WP, NE, ET, MP, PE
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    push 8
    mov eax, offset boot_long_mode
    push eax
    retf

# Says why on the serial port; nobody else could.
boot_refuse:
    mov esi, offset boot_refusal
    mov dx, 0x3f8
3:
    lodsb
    test al, al
    jz 4f
    out dx, al
    jmp 3b
4:
    hlt
    jmp 4b

    .code64
boot_long_mode:
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    pop rdx                             # the time-stamp counter at entry
    mov edi, edi                        # clears the upper halves
    mov esi, esi
    movabs rsp, offset boot_stack_top
    xor ebp, ebp                        # ends every backtrace
    movabs rax, offset arch_entry
    call rax
    ud2

    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff            # 64-bit code
    .quad 0x00cf92000000ffff            # data
boot_gdt_pointer:
    .short boot_gdt_pointer - boot_gdt - 1
    .long boot_gdt
boot_refusal:
    .asciz "nos: this CPU has no long mode or no NX; the kernel needs both\r\n"

    .section .bss.boot_tables, "aw", @nobits
    .balign 4096
    .global boot_pml4
boot_pml4:
    .skip 4096
boot_pdpt_low:
    .skip 4096
boot_pdpt_high:
    .skip 4096
boot_pd:
    .skip 4 * 4096
    .global boot_pdpt_low, boot_pdpt_high, boot_pd

    # The first CPU's stacks, each above a guard page: the one it boots on, then those of
    # NMI, double fault and machine check (boot::boot_ist_tops counts on the order).
    .section .boot_stacks, "aw", @nobits
    .balign 4096
    .skip 4096 + {boot_stack_bytes}
    .global boot_stack_top
boot_stack_top:
    .skip 3 * (4096 + {ist_stack_bytes})

    .text
