//! The figures in docs/benchmarks.md: between two marks, so that the text around them is people's.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::workspace;

const DOCUMENT: &str = "docs/benchmarks.md";
const PLOTS: &str = "docs/benchmarks";
const BEGIN: &str = "<!-- netblk: written by `cargo xtask bench netblk --record` -->";
const END: &str = "<!-- end of netblk -->";

pub fn record(table: &str, plots: &[(String, String)]) -> Result<()> {
    let mut part = String::new();
    for (name, svg) in plots {
        workspace::write_if_changed(&Path::new(PLOTS).join(name), svg.as_bytes())?;
        part.push_str(&format!("![{name}](benchmarks/{name})\n\n"));
    }
    part.push_str(&table.replace("\n## ", "\n### "));
    let document = workspace::read_text(Path::new(DOCUMENT))?;
    let text = with_part(&document, &part)
        .with_context(|| format!("{DOCUMENT} has not the two marks between which the figures go"))?;
    workspace::write_if_changed(Path::new(DOCUMENT), text.as_bytes())?;
    println!("{DOCUMENT}, {PLOTS}/");
    Ok(())
}

fn with_part(document: &str, part: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", part.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_around_the_marks_stays() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let text = with_part(&document, "new\n").unwrap();
        assert_eq!(text, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert!(with_part("no marks", "new").is_none());
    }

    #[test]
    fn the_document_has_the_marks() {
        let document = workspace::read_text(&workspace::root().join(DOCUMENT)).unwrap();
        assert!(with_part(&document, "").is_some());
    }
}
