//! The symbols file: how the kernel names the functions of a backtrace.
//!
//! It is text, a line for each function, sorted by address: the address in hexadecimal, a blank, the demangled name.
//! The kernel finds the line by bisection and needs no ELF or DWARF reader at the moment when least can be trusted.

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSymbol as _, SymbolKind};

/// Makes the file's text from the kernel's ELF.
pub fn table(elf: &[u8]) -> Result<String> {
    let file = object::File::parse(elf).context("reading the kernel's ELF")?;
    let mut functions: Vec<(u64, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| {
            let name = symbol.name().ok()?;
            // The alternate form leaves the hash out.
            Some((symbol.address(), format!("{:#}", rustc_demangle::demangle(name))))
        })
        .collect();
    functions.sort();
    // Functions that the linker folded into one: the first name is as good as the others.
    functions.dedup_by_key(|(address, _)| *address);
    Ok(functions.into_iter().map(|(address, name)| format!("{address:x} {name}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_programs_own_functions_are_found_sorted_and_demangled() {
        let elf = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let text = table(&elf).unwrap();
        let addresses: Vec<u64> = text
            .lines()
            .map(|line| u64::from_str_radix(line.split_once(' ').unwrap().0, 16).unwrap())
            .collect();
        assert!(addresses.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(text.lines().any(|line| line.ends_with(" xtask::symbols::table")));
    }

    #[test]
    fn what_is_no_elf_is_refused() {
        assert!(table(b"no ELF").is_err());
    }
}
