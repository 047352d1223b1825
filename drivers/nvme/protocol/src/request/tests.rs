use proptest::prelude::*;

use super::*;

/// A controller that has everything and limits nothing.
const ALL: ControllerLimits = ControllerLimits {
    transfer_bytes: None,
    has_sgl: true,
    write_zeroes_bytes: Some(u64::MAX),
    discard_sectors: Some(u64::MAX),
};

fn namespace(sectors: u64, sector_shift: u8) -> Namespace {
    Namespace { sectors, sector_shift, write_protected: false, zeroes_by_deallocation: false }
}

fn limits(sectors: u64, sector_shift: u8) -> Limits {
    Limits::new(1, namespace(sectors, sector_shift), &ALL).unwrap()
}

const LARGE: &[Segment] = &[Segment { address: 0x1_0048, bytes: 0x4_0000 }];

fn read(first_sector: u64, sectors: u32) -> Request<'static> {
    let operation = Operation::Read;
    Request { operation, first_sector, sectors, force_unit_access: false, memory: LARGE }
}

fn without_data(operation: Operation, first_sector: u64, sectors: u32) -> Request<'static> {
    Request { operation, memory: &[], ..read(first_sector, sectors) }
}

#[test]
fn the_last_sector_is_the_last() {
    let limits = limits(1000, 9);
    for operation in [Operation::Read, Operation::Discard, Operation::WriteZeroes] {
        let plan = |first_sector, sectors| limits.plan(&Request { operation, ..read(first_sector, sectors) });
        assert!(plan(999, 1).is_ok());
        assert_eq!(plan(999, 2), Err(Refusal::OutOfRange));
        assert_eq!(plan(1000, 1), Err(Refusal::OutOfRange));
        assert_eq!(plan(u64::MAX, 1), Err(Refusal::OutOfRange));
        assert_eq!(plan(u64::MAX, u32::MAX), Err(Refusal::OutOfRange));
        assert_eq!(plan(0, 0), Err(Refusal::OutOfRange));
    }
}

#[test]
fn the_smaller_transfer_limit_counts() {
    let of = |transfer_bytes| {
        let controller = ControllerLimits { transfer_bytes, ..ALL };
        Limits::new(1, namespace(1000, 12), &controller)
    };
    let limits = of(Some(8192)).unwrap();
    assert_eq!(limits.max_transfer_bytes(), 8192);
    assert!(limits.plan(&read(0, 2)).is_ok());
    assert_eq!(limits.plan(&read(0, 3)), Err(Refusal::OutOfRange));
    assert_eq!(of(Some(1 << 40)).unwrap().max_transfer_bytes(), 131_072);
    assert_eq!(of(Some(2048)), None);
}

#[test]
fn memory_must_hold_what_is_moved() {
    let limits = limits(1000, 9);
    let with = |address, bytes| limits.plan(&Request { memory: &[Segment { address, bytes }], ..read(0, 2) });
    assert!(with(0x1048, 1024).is_ok());
    assert_eq!(with(0x1048, 1023), Err(Refusal::BadMemory));
    assert_eq!(with(0x104a, 1024), Err(Refusal::BadMemory));
    assert_eq!(limits.plan(&Request { memory: &[], ..read(0, 2) }), Err(Refusal::BadMemory));
}

#[test]
fn several_pieces_need_a_controller_with_sgl() {
    let half = Segment { address: 0x1048, bytes: 2048 };
    let request = Request { memory: &[half, half], ..read(0, 1) };
    let with_sgl = Limits::new(1, namespace(1000, 12), &ALL).unwrap();
    assert!(matches!(with_sgl.plan(&request).unwrap().attachment, Attachment::Scatter(_)));
    let without = Limits::new(1, namespace(1000, 12), &ControllerLimits { has_sgl: false, ..ALL }).unwrap();
    assert_eq!((with_sgl.max_segments(), without.max_segments()), (6, 1));
    assert_eq!(without.plan(&request), Err(Refusal::BadMemory));
    let whole = Request { memory: LARGE, ..request };
    assert_eq!(without.plan(&whole), with_sgl.plan(&whole));
}

#[test]
fn a_protected_namespace_is_read_and_flushed_only() {
    let protected = Namespace { write_protected: true, ..namespace(1000, 9) };
    let limits = Limits::new(1, protected, &ALL).unwrap();
    assert!(limits.plan(&read(0, 1)).is_ok());
    let write = Request { operation: Operation::Write, ..read(0, 1) };
    assert_eq!(limits.plan(&write), Err(Refusal::ReadOnly));
    for operation in [Operation::Discard, Operation::WriteZeroes] {
        assert_eq!(limits.plan(&without_data(operation, 0, 1)), Err(Refusal::ReadOnly));
    }
    let flush = without_data(Operation::Flush, 0, 0);
    assert_eq!(limits.plan(&flush), Ok(Planned::alone(Command::flush(1))));
}

#[test]
fn commands_that_the_controller_does_not_have_are_not_sent() {
    let none = ControllerLimits { write_zeroes_bytes: None, discard_sectors: None, ..ALL };
    let limits = Limits::new(1, namespace(1000, 9), &none).unwrap();
    assert_eq!((limits.max_discard_sectors(), limits.max_write_zeroes_sectors()), (0, 0));
    for operation in [Operation::Discard, Operation::WriteZeroes] {
        assert_eq!(limits.plan(&without_data(operation, 0, 1)), Err(Refusal::Unsupported));
    }
}

#[test]
fn what_the_controller_says_of_itself_becomes_limits() {
    let mut page = [0; crate::IDENTIFY_BYTES];
    // Entry sizes, a transfer limit of 2^5 pages, ONCS.
    (page[512], page[513], page[77], page[520]) = (0x66, 0x44, 5, 0b1100);
    let controller = Controller::parse(&page, 4096).unwrap();
    let of = |commands| {
        Limits::new(1, namespace(u64::MAX >> 12, 12), &ControllerLimits::new(&controller, commands))
    };
    // A controller without the structure.
    let limits = of(None).unwrap();
    assert_eq!((limits.max_write_zeroes_sectors(), limits.max_discard_sectors()), (32, 65_536));
    // One that sets no limits in it: the driver's own, in sectors of 4 KiB.
    let none = CommandLimits::default();
    let limits = of(Some(&none)).unwrap();
    assert_eq!((limits.max_write_zeroes_sectors(), limits.max_discard_sectors()), (65_536, 65_536));
    let commands = CommandLimits {
        write_zeroes_bytes: Some(1 << 20),
        range_sectors: Some(4096),
        deallocate_sectors: Some(1024),
    };
    let limits = of(Some(&commands)).unwrap();
    assert_eq!((limits.max_write_zeroes_sectors(), limits.max_discard_sectors()), (256, 1024));
    // ONCS says that there are no such commands, whatever their limits.
    page[520] = 0;
    let controller = Controller::parse(&page, 4096).unwrap();
    let limits =
        Limits::new(1, namespace(8, 9), &ControllerLimits::new(&controller, Some(&commands))).unwrap();
    assert_eq!((limits.max_write_zeroes_sectors(), limits.max_discard_sectors()), (0, 0));
}

/// Requests near the end of the disk in half of the cases, where the mistakes would be.
fn placed(size: u64, first_sector: u64, sectors: u32, near: bool) -> (u64, u32) {
    if near {
        ((size + 4).saturating_sub(first_sector % 300), sectors % 300)
    } else {
        (first_sector, sectors)
    }
}

proptest! {
    /// Any numbers: what is planned lies on the namespace and in the memory.
    #[test]
    fn a_plan_never_leaves_the_disk_or_the_memory(
        first_sector: u64, sectors: u32, size in 1_u64..1 << 50, large_sectors: bool, near: bool, write: bool,
        memory in proptest::collection::vec((any::<u64>(), 0_u64..1 << 19), 0..8), aligned: bool,
    ) {
        let shift = if large_sectors { 12 } else { 9 };
        let limits = limits(size, shift);
        let (first_sector, sectors) = placed(size, first_sector, sectors, near);
        let mask = if aligned { !0xfff } else { u64::MAX };
        let memory: Vec<_> = memory
            .into_iter()
            .map(|(address, bytes)| Segment { address: address & mask, bytes: bytes & mask })
            .collect();
        let operation = if write { Operation::Write } else { Operation::Read };
        let request = Request { operation, first_sector, sectors, force_unit_access: write, memory: &memory };
        if let Ok(planned) = limits.plan(&request) {
            prop_assert!(first_sector.checked_add(u64::from(sectors)).unwrap() <= size);
            let moved = u64::from(sectors) << shift;
            let available: u64 = memory.iter().map(|segment| segment.bytes).sum();
            prop_assert!(moved <= available && moved <= u64::from(limits.max_transfer_bytes()));
            prop_assert!(memory.len() == 1 || moved == available);
            let entry = planned.command.with_identifier(0);
            prop_assert_eq!(u64::from(entry[10]) | u64::from(entry[11]) << 32, first_sector);
            prop_assert_eq!((entry[12] & 0xffff) + 1, sectors);
        }
    }

    /// Discards and writes of zeroes stay on the namespace, and below every limit.
    #[test]
    fn sectors_are_never_given_up_beyond_the_disk(
        first_sector: u64, sectors: u32, size in 1_u64..1 << 50, large_sectors: bool, near: bool, zeroes: bool,
        write_zeroes_bytes: Option<u64>, discard_sectors: Option<u64>,
    ) {
        let controller = ControllerLimits { write_zeroes_bytes, discard_sectors, ..ALL };
        let shift = if large_sectors { 12 } else { 9 };
        let limits = Limits::new(1, namespace(size, shift), &controller).unwrap();
        let (first_sector, sectors) = placed(size, first_sector, sectors, near);
        let operation = if zeroes { Operation::WriteZeroes } else { Operation::Discard };
        if let Ok(planned) = limits.plan(&without_data(operation, first_sector, sectors)) {
            prop_assert!(sectors > 0 && first_sector.checked_add(u64::from(sectors)).unwrap() <= size);
            prop_assert!(u64::from(sectors) << shift <= MAX_COMMAND_BYTES);
            let entry = planned.command.with_identifier(0);
            if zeroes {
                prop_assert!(u64::from(sectors) << shift <= write_zeroes_bytes.unwrap());
                prop_assert_eq!((entry[12] & 0xffff) + 1, sectors);
                prop_assert_eq!(planned.attachment, Attachment::None);
            } else {
                prop_assert!(u64::from(sectors) <= discard_sectors.unwrap());
                prop_assert_eq!(planned.attachment, Attachment::Range(Range { first_sector, sectors }));
            }
        }
    }
}
