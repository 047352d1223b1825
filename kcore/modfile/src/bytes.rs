//! Little-endian numbers out of bytes that nobody has checked.

/// `bytes` bytes from `offset` on, if they are all there.
pub fn piece(from: &[u8], offset: u64, bytes: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(bytes).ok()?)?;
    from.get(start..end)
}

fn array<const N: usize>(from: &[u8], offset: usize) -> Option<[u8; N]> {
    from.get(offset..)?.first_chunk().copied()
}

pub fn u16_at(from: &[u8], offset: usize) -> Option<u16> {
    array(from, offset).map(u16::from_le_bytes)
}

pub fn u32_at(from: &[u8], offset: usize) -> Option<u32> {
    array(from, offset).map(u32::from_le_bytes)
}

pub fn u64_at(from: &[u8], offset: usize) -> Option<u64> {
    array(from, offset).map(u64::from_le_bytes)
}

/// The text up to the zero byte that must end it.
pub fn text_at(from: &[u8], offset: usize) -> Option<&str> {
    let rest = from.get(offset..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    core::str::from_utf8(&rest[..end]).ok()
}
