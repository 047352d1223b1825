use proptest::prelude::*;

use super::*;

const ALL: Features =
    SIZE_MAX.with(SEG_MAX).with(BLK_SIZE).with(FLUSH).with(MULTI_QUEUE).with(DISCARD).with(WRITE_ZEROES);

fn config() -> Config {
    Config {
        capacity: 8000,
        size_max: 1 << 20,
        seg_max: 254,
        blk_size: 512,
        num_queues: 4,
        max_discard_sectors: 4096,
        max_write_zeroes_sectors: 2048,
        write_zeroes_may_unmap: true,
    }
}

fn ask(operation: Operation, first_block: u64, blocks: u32, memory_bytes: u64) -> Request {
    Request { operation, first_block, blocks, force_unit_access: false, memory_bytes, segments: 1 }
}

#[test]
fn a_configuration_is_read_field_by_field() {
    let mut bytes = [0_u8; 60];
    bytes[..8].copy_from_slice(&0x1_0000_0008_u64.to_le_bytes());
    for (offset, value) in
        [(8, 65_536_u32), (12, 254), (20, 4096), (32, 0x0002_0001), (36, 77), (48, 88), (56, 1)]
    {
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
    let read = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
    let config = Config::read(ALL, read);
    assert_eq!((config.capacity, config.size_max, config.seg_max), (0x1_0000_0008, 65_536, 254));
    assert_eq!((config.blk_size, config.num_queues), (4096, 2));
    assert_eq!((config.max_discard_sectors, config.max_write_zeroes_sectors), (77, 88));
    assert!(config.write_zeroes_may_unmap);
    // What was not negotiated is not looked at.
    assert_eq!(Config::read(Features(0), read), Config { capacity: config.capacity, ..Config::default() });
    assert_eq!(Config::usable(ALL, 60), ALL);
    assert_eq!(Config::usable(ALL, 36), ALL.without(DISCARD).without(WRITE_ZEROES));
    assert_eq!(Config::usable(ALL, Config::LEAST_BYTES), FLUSH);
}

#[test]
fn a_shape_counts_in_its_own_blocks() {
    let shape = Shape::new(ALL, &config()).unwrap();
    assert_eq!((shape.blocks(), shape.block_bytes(), shape.max_segments()), (8000, 512, 6));
    assert_eq!((shape.max_discard_blocks(), shape.max_write_zeroes_blocks()), (4096, 2048));
    assert_eq!((shape.max_transfer_bytes(), shape.queues()), (131_072, 4));
    let large = Shape::new(ALL, &Config { blk_size: 4096, ..config() }).unwrap();
    assert_eq!((large.blocks(), large.block_bytes()), (1000, 4096));
    assert_eq!((large.max_discard_blocks(), large.max_write_zeroes_blocks()), (512, 256));
    let planned = large.plan(&ask(Operation::Read, 999, 1, 4096)).unwrap().unwrap();
    assert_eq!((planned.sector, planned.data_bytes), (7992, 4096));
    let range = large.plan(&ask(Operation::WriteZeroes, 2, 3, 0)).unwrap().unwrap().range;
    assert_eq!(range, Some(Range { sector: 16, sectors: 24, unmap: true }));
}

#[test]
fn a_device_that_cannot_be_served_says_why() {
    let shape = |config| Shape::new(ALL, &config);
    assert_eq!(shape(Config { capacity: 0, ..config() }), Err(ShapeError::Empty));
    assert_eq!(shape(Config { blk_size: 4096, capacity: 7, ..config() }), Err(ShapeError::Empty));
    assert_eq!(shape(Config { blk_size: 1024, ..config() }), Err(ShapeError::BlockSize { bytes: 1024 }));
    assert_eq!(shape(Config { size_max: 511, ..config() }), Err(ShapeError::SizeMax { bytes: 511 }));
    let capacity = 1 << 55;
    assert_eq!(shape(Config { capacity, ..config() }), Err(ShapeError::TooLarge { capacity }));
}

#[test]
fn a_device_that_says_little_is_asked_little() {
    let shape = Shape::new(Features(0), &Config { capacity: 8, ..Config::default() }).unwrap();
    assert_eq!((shape.max_segments(), shape.queues(), shape.has_cache()), (1, 1, false));
    assert_eq!(shape.plan(&ask(Operation::Flush, 0, 0, 0)), Ok(None));
    assert_eq!(shape.plan(&ask(Operation::Discard, 0, 1, 0)), Err(Refusal::Unsupported));
    assert_eq!(shape.plan(&ask(Operation::WriteZeroes, 0, 1, 0)), Err(Refusal::Unsupported));
    let forced = Request { force_unit_access: true, ..ask(Operation::Write, 0, 1, 512) };
    // Without a cache every write is durable.
    assert!(!shape.plan(&forced).unwrap().unwrap().flush_behind);
}

#[test]
fn forced_writes_are_flushed_and_reads_are_not() {
    let shape = Shape::new(ALL, &config()).unwrap();
    for (operation, flushed) in [
        (Operation::Write, true),
        (Operation::WriteZeroes, true),
        (Operation::Read, false),
        (Operation::Discard, false),
    ] {
        let forced = Request { force_unit_access: true, ..ask(operation, 0, 1, 512) };
        assert_eq!(shape.plan(&forced).unwrap().unwrap().flush_behind, flushed, "{operation:?}");
    }
}

#[test]
fn a_read_only_disk_is_read_and_flushed_only() {
    let shape = Shape::new(ALL.with(READ_ONLY), &config()).unwrap();
    assert!(shape.plan(&ask(Operation::Read, 0, 1, 512)).is_ok());
    assert_eq!(shape.plan(&ask(Operation::Flush, 0, 0, 0)), Ok(Some(Planned::FLUSH)));
    for operation in [Operation::Write, Operation::Discard, Operation::WriteZeroes] {
        assert_eq!(shape.plan(&ask(operation, 0, 1, 512)), Err(Refusal::ReadOnly));
    }
}

#[test]
fn memory_must_hold_what_is_moved() {
    let shape = Shape::new(ALL, &config()).unwrap().with_segments(4);
    let with = |memory_bytes, segments| {
        shape.plan(&Request { segments, ..ask(Operation::Write, 0, 2, memory_bytes) })
    };
    assert!(with(1024, 1).is_ok() && with(4096, 1).is_ok() && with(1024, 4).is_ok());
    for (bytes, segments) in [(1023, 1), (0, 0), (1024, 5), (1020, 2), (1028, 2)] {
        assert_eq!(with(bytes, segments), Err(Refusal::BadMemory), "{bytes} bytes in {segments}");
    }
}

proptest! {
    /// Any device and any request: what is planned lies on the disk and in the memory.
    #[test]
    fn a_plan_never_leaves_the_disk_or_the_memory(
        bits: u64, capacity: u64, size_max: u32, seg_max: u32, large: bool, max_sectors: u32, may_unmap: bool,
        which in 0_usize..5, first_block: u64, blocks: u32, near: bool, force_unit_access: bool,
        memory_bytes in 0_u64..1 << 18, segments in 0_usize..9,
    ) {
        let features = Features(bits);
        let config = Config {
            capacity: capacity >> (bits & 63),
            size_max,
            seg_max,
            blk_size: if large { 4096 } else { 512 },
            num_queues: 1,
            max_discard_sectors: max_sectors,
            max_write_zeroes_sectors: max_sectors,
            write_zeroes_may_unmap: may_unmap,
        };
        let Ok(shape) = Shape::new(features, &config) else { return Ok(()) };
        prop_assert!(shape.blocks().checked_mul(shape.block_bytes().into()).is_some());
        let (first_block, blocks) = match near {
            true => ((shape.blocks() + 4).saturating_sub(first_block % 300), blocks % 300),
            false => (first_block, blocks),
        };
        let all = [Operation::Read, Operation::Write, Operation::Flush, Operation::Discard, Operation::WriteZeroes];
        let operation = all[which];
        let request = Request { operation, first_block, blocks, force_unit_access, memory_bytes, segments };
        let Ok(Some(planned)) = shape.plan(&request) else { return Ok(()) };
        prop_assert_eq!(planned.flush_behind && !shape.has_cache(), false);
        if operation == Operation::Flush {
            prop_assert_eq!(planned, Planned::FLUSH);
            return Ok(());
        }
        let (sector, sectors) = match planned.range {
            Some(range) => (range.sector, u64::from(range.sectors)),
            None => (planned.sector, u64::from(planned.data_bytes >> 9)),
        };
        prop_assert_eq!(sectors << 9, u64::from(blocks) * u64::from(shape.block_bytes()));
        prop_assert!(sectors > 0 && sector.checked_add(sectors).unwrap() <= config.capacity);
        if planned.range.is_none() {
            prop_assert!(u64::from(planned.data_bytes) <= memory_bytes);
            prop_assert!(segments == 1 || u64::from(planned.data_bytes) == memory_bytes);
            prop_assert!(segments <= 6 && planned.data_bytes <= shape.max_transfer_bytes());
        } else {
            prop_assert!(sectors <= u64::from(max_sectors) && planned.data_bytes == 0);
        }
    }
}
