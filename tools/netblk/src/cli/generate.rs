//! What is made of the command line's definition: completions, and the manual page.

use std::io::{self, Write};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use netblk::Error;

use super::arguments::Arguments;

fn command() -> Command {
    let mut command = Arguments::command();
    // Names of subcommands in full, `netblk-read` and so on, are set when it is built.
    command.build();
    command
}

/// Completions for a shell.
///
/// # Errors
/// If standard output takes no more.
pub fn completions(shell: Shell) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "netblk", &mut text);
    io::stdout().write_all(&text).map_err(Error::local("writing the completions"))
}

/// The manual: one page with a section for each subcommand.
///
/// # Errors
/// If standard output takes no more.
pub fn manual() -> Result<(), Error> {
    let text = page().map_err(Error::local("making the manual page"))?;
    io::stdout().write_all(&text).map_err(Error::local("writing the manual page"))
}

fn page() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let command = command();
    let page = Man::new(command.clone()).section("1");
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        writeln!(text, ".SH \"NETBLK {}\"", subcommand.get_name().to_uppercase())?;
        let part = Man::new(subcommand.clone());
        let mut body = Vec::new();
        part.render_description_section(&mut body)?;
        part.render_options_section(&mut body)?;
        // The sections of a subcommand's own page are subsections of this one.
        for line in String::from_utf8_lossy(&body).lines().filter(|line| *line != ".SH DESCRIPTION") {
            match line.strip_prefix(".SH ") {
                Some(title) => writeln!(text, ".SS {title}")?,
                None => writeln!(text, "{line}")?,
            }
        }
    }
    text.extend_from_slice(FILES.as_bytes());
    Ok(text)
}

/// What clap does not know.
const FILES: &str = "\
.SH ENVIRONMENT
.TP
NETBLK_KEY_FILE
the file with the service's key, where there is no \\-\\-key\\-file
.SH \"SEE ALSO\"
docs/netblk.md (this command, with examples and the schema of its JSON) and docs/netblk\\-protocol.md, in nos' source
.SH EXAMPLES
.TP
netblk write 192.0.2.7:10809 disk.img
writes an image to the device, and makes it durable
.TP
netblk read 192.0.2.7:10809 \\- \\-\\-length 1M | sha256sum
reads the first MiB
.TP
netblk bench 192.0.2.7:10809 \\-\\-sweep 1,4,16,64 \\-\\-svg bench.svg \\-\\-json=bench.json
measures random reads at four windows, and draws them
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_subcommand_has_its_place_in_the_manual() {
        let text = String::from_utf8(page().unwrap()).unwrap();
        for subcommand in command().get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
            let title = format!(".SH \"NETBLK {}\"", subcommand.get_name().to_uppercase());
            assert!(text.contains(&title), "{title}");
        }
        assert!(text.contains(r"\-\-patience") && text.contains("NETBLK_KEY_FILE"), "{text}");
    }
}
