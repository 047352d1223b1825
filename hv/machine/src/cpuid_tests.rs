use super::*;

fn context(cpus: u32) -> CpuidContext {
    CpuidContext { cpus, apic_id: 1, tsc_hz: 2_445_404_000, cr4: 0, xcr0: 3, supported_xcr0: 0xe7 }
}

/// A host that has every feature there is.
fn generous(leaf: u32, subleaf: u32) -> Leaf {
    match (leaf, subleaf) {
        (0 | 0x8000_0000, _) => [0x8000_0021 & leaf | 0x20, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
        (0xd, 0) => [0xe7, 0xa88, 0xa88, 0],
        (0xd, 2) => [0x100, 0x240, 0, 0],
        (0xd, 5) => [0x40, 0x440, 0, 0],
        _ => [u32::MAX; 4],
    }
}

fn answer(context: &CpuidContext, leaf: u32, subleaf: u32) -> Leaf {
    context.answer(leaf, subleaf, &generous)
}

#[test]
fn what_is_not_virtualized_is_hidden() {
    let context = context(1);
    let [_, _, ecx, edx] = answer(&context, 1, 0);
    for (name, bit) in [("MONITOR", 3), ("VMX", 5), ("SMX", 6), ("PDCM", 15), ("x2APIC", 21)] {
        assert_eq!(ecx & 1 << bit != 0, name == "x2APIC", "{name}");
    }
    assert_eq!(edx & (1 << 7 | 1 << 14), 0, "machine check");
    let [_, ebx, ecx, edx] = answer(&context, 7, 0);
    assert_eq!(ebx & 1 << 16, 0, "AVX-512");
    assert_eq!(ecx & (1 << 3 | 1 << 16 | 1 << 22), 0, "protection keys, LA57, RDPID");
    assert_eq!(edx & 0xf800_0000, 0, "speculation control");
    let [_, _, ecx, edx] = answer(&context, 0x8000_0001, 0);
    assert_eq!(ecx & (1 << 2 | 1 << 9 | 1 << 22), 0, "SVM, OSVW, topology extensions");
    assert_eq!(edx & 1 << 27, 0, "RDTSCP");
    assert_eq!(answer(&context, 5, 0), [0; 4], "MONITOR's leaf");
    assert_eq!(answer(&context, 0xa, 0), [0; 4], "performance counters");
    assert_eq!(answer(&context, 0x8000_000a, 0), [0; 4], "SVM's leaf");
    assert_eq!(answer(&context, 0x8000_001f, 0), [0; 4], "memory encryption");
    assert_eq!(answer(&context, 0xffff_ffff, 0), [0; 4]);
}

#[test]
fn a_poor_host_is_not_made_rich() {
    let poor = |leaf: u32, subleaf: u32| if leaf == 0 { generous(0, subleaf) } else { [0; 4] };
    let context = CpuidContext { supported_xcr0: 0, ..context(1) };
    let [_, _, ecx, edx] = context.answer(1, 0, &poor);
    assert_eq!(ecx, leaf1_ecx::X2APIC | leaf1_ecx::TSC_DEADLINE | leaf1_ecx::HYPERVISOR);
    assert_eq!(edx, leaf1_edx::APIC | leaf1_edx::MTRR);
    assert_eq!(context.answer(0xd, 0, &poor), [0; 4]);
    assert_eq!(context.answer(7, 0, &poor), [0, leaf7::TSC_ADJUST, 0, 0]);
}

#[test]
fn xsave_is_consistent_with_xcr0() {
    let mut context = context(1);
    assert_eq!(answer(&context, 0xd, 0), [7, 576, 576 + 256, 0], "only x87 and SSE are on");
    context.xcr0 = 7;
    assert_eq!(answer(&context, 0xd, 0), [7, 832, 832, 0]);
    assert_eq!(answer(&context, 0xd, 1), [7, 832, 0, 0], "no supervisor states");
    assert_eq!(answer(&context, 0xd, 2), [0x100, 0x240, 0, 0]);
    assert_eq!(answer(&context, 0xd, 5), [0; 4], "the host has AVX-512's, the guest does not");
    assert_eq!(answer(&context, 1, 0)[2] & leaf1_ecx::OSXSAVE, 0);
    context.cr4 = CR4_OSXSAVE;
    assert_ne!(answer(&context, 1, 0)[2] & leaf1_ecx::OSXSAVE, 0);
    context.supported_xcr0 = 3;
    assert_eq!(answer(&context, 1, 0)[2] & leaf1_ecx::AVX, 0);
    assert_eq!(answer(&context, 7, 0)[1] & leaf7::EBX_AVX, 0);
}

#[test]
fn topology_is_told_in_every_form() {
    for (cpus, bits) in [(1, 0), (2, 1), (3, 2), (16, 4)] {
        let context = context(cpus);
        let [_, ebx, _, edx] = answer(&context, 1, 0);
        assert_eq!((ebx >> 24, ebx >> 16 & 0xff), (1, cpus));
        assert_eq!(edx & leaf1_edx::HYPERTHREADING != 0, cpus > 1);
        assert_eq!(answer(&context, 0xb, 0), [0, 1, 0x100, 1]);
        assert_eq!(answer(&context, 0xb, 1), [bits, cpus, 0x201, 1]);
        assert_eq!(answer(&context, 0xb, 2)[0..2], [0, 0]);
        let [_, _, ecx, _] = answer(&context, 0x8000_0008, 0);
        assert_eq!((ecx & 0xff, ecx >> 12 & 0xf), (cpus - 1, bits));
    }
}

#[test]
fn the_frequency_is_told_in_every_form() {
    let context = context(1);
    let [denominator, numerator, crystal, _] = answer(&context, 0x15, 0);
    let hz = u64::from(crystal) * u64::from(numerator) / u64::from(denominator);
    assert_eq!(hz, context.tsc_hz);
    assert_eq!(answer(&context, 0x4000_0010, 0), [2_445_404, 1_000_000, 0, 0]);
    assert_eq!(answer(&context, 0x8000_0007, 0)[3], INVARIANT_TSC);
    assert_eq!(answer(&context, 6, 0)[0], ALWAYS_RUNNING_APIC_TIMER);
}

#[test]
fn both_signatures_are_found() {
    let context = context(1);
    let text = |leaf: Leaf| [leaf[1].to_le_bytes(), leaf[2].to_le_bytes(), leaf[3].to_le_bytes()].concat();
    assert_eq!(text(answer(&context, HYPERVISOR_BASE, 0)), SIGNATURE);
    assert_eq!(text(answer(&context, KVM_BASE, 0)), KVM_SIGNATURE);
    assert_eq!(answer(&context, KVM_BASE + 1, 0)[0], KVM_FEATURES);
}

#[test]
fn vendor_and_family_are_the_hosts() {
    let context = context(1);
    assert_eq!(answer(&context, 0, 0), [LAST_BASIC, 0x6874_7541, 0x444d_4163, 0x6974_6e65]);
    assert_eq!(answer(&context, 1, 0)[0], u32::MAX);
    assert!(is_amd(&generous) && !is_amd(&|_, _| [0; 4]));
}
