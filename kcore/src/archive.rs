//! The boot archive: a tar that the boot loader hands over, with configuration, symbols and guests.

use alloc::string::String;
use alloc::vec::Vec;

use tar_no_std::{ArchiveEntry, CorruptDataError, TarArchiveRef};

use crate::sync::Once;

static ARCHIVE: Once<TarArchiveRef<'static>> = Once::new();

/// Checks the archive's headers and keeps it for the lookups below.
pub(crate) fn init(bytes: &'static [u8]) -> Result<(), CorruptDataError> {
    let _ = ARCHIVE.set(TarArchiveRef::new(bytes)?);
    Ok(())
}

fn entries() -> impl Iterator<Item = ArchiveEntry<'static>> {
    ARCHIVE.get().into_iter().flat_map(TarArchiveRef::entries)
}

/// The bytes of the file `name`. Allocates nothing.
pub fn file(name: &str) -> Option<&'static [u8]> {
    entries().find(|entry| entry.filename().as_str() == Ok(name)).map(|entry| entry.data())
}

/// Every file's name and length in bytes.
pub fn list() -> Vec<(String, usize)> {
    entries()
        .filter_map(|entry| Some((String::from(entry.filename().as_str().ok()?), entry.data().len())))
        .collect()
}
