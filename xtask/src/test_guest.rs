//! The guests in `hv/test-guests`: assembly, assembled and linked by the same tools that link this program.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace;

/// The bzImage of a test guest, by the name of its source, with these symbols set to 1.
pub fn image(name: &str, symbols: &[&str]) -> Result<Vec<u8>> {
    let sources = workspace::root().join("hv/test-guests");
    let folder = std::path::absolute(workspace::build_dir().join("test-guests"))?;
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    // Two stories may make the same guest at the same time.
    let own = format!("{name}{}.{}", symbols.concat(), std::process::id());
    let (object, image) = (folder.join(format!("{own}.o")), folder.join(own));
    let mut assembler = Command::new("as");
    assembler.arg("--64").arg("-o").arg(&object).arg(format!("{name}.S"));
    for symbol in symbols {
        assembler.arg("--defsym").arg(format!("{symbol}=1"));
    }
    let mut linker = Command::new("ld");
    linker.args(["-T", "guest.ld", "--oformat", "binary", "-o"]).arg(&image).arg(&object);
    for tool in [&mut assembler, &mut linker] {
        let program = tool.get_program().to_string_lossy().into_owned();
        let output = tool
            .current_dir(&sources)
            .output()
            .with_context(|| format!("running {program}, of Debian's package binutils"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} refuses the test guest {name}:\n{said}");
    }
    let bytes = workspace::read_bytes(&image)?;
    workspace::remove(&object);
    workspace::remove(&image);
    Ok(bytes)
}
