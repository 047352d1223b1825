//! The node's disks: files that QEMU shows it as NVMe namespaces or virtio block devices.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// 1 GiB: room enough to try everything, and sparse, so that it takes what is written to it.
pub const DEFAULT_BYTES: u64 = 1 << 30;

/// Finds the image, or makes an empty one. An existing file is taken as it is: it may hold somebody's data.
pub fn ensure_image(path: &Path, bytes: u64) -> Result<()> {
    if path.exists() {
        let metadata = fs::metadata(path).with_context(|| format!("looking at {}", path.display()))?;
        ensure!(
            !metadata.is_file() || (metadata.len() > 0 && metadata.len() % 512 == 0),
            "{} has {} bytes: a disk is a whole number of 512-byte sectors",
            path.display(),
            metadata.len()
        );
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let file = File::create_new(path).with_context(|| format!("creating {}", path.display()))?;
    file.set_len(bytes).with_context(|| format!("making {} {bytes} bytes long", path.display()))
}
