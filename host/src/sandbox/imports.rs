//! What a component asks its host for.

use serde::Serialize;
use wasmparser::{Parser, Payload};

use super::component::{LoadError, check_header};

/// An interface that a component imports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Import {
    /// As the component has it, with its version.
    pub name: String,
    /// What the host gives; `None` for an interface that it does not know, with which no component loads.
    pub given: Option<&'static str>,
}

/// What the host gives, by the beginning of an interface's name. Toolchains import much that a guest never calls, so all
/// of it is there, and leads nowhere unless it says otherwise.
const GIVEN: [(&str, &str); 9] = [
    ("onemark:workflow/", "journaled calls, and what belongs to them"),
    ("wasi:http/", "steps: requests that the operator grants"),
    ("wasi:sockets/", "nothing"),
    ("wasi:filesystem/", "no folder"),
    ("wasi:cli/environment@", "no variable, no argument"),
    (
        "wasi:cli/",
        "no terminal, no input; what is printed goes to the run's log",
    ),
    (
        "wasi:clocks/",
        "workflows: the journal's time; steps: the machine's",
    ),
    (
        "wasi:random/",
        "workflows: seeded by the journal; steps: the machine's",
    ),
    ("wasi:io/", "streams of the other interfaces"),
];

/// The interfaces that a component imports, in its order.
///
/// # Errors
/// When the bytes are no component, or are cut off.
pub fn imports(component: &[u8]) -> Result<Vec<Import>, LoadError> {
    check_header(component)?;
    read(component).map_err(|error| LoadError::NotWasm(error.message().to_owned()))
}

fn read(component: &[u8]) -> wasmparser::Result<Vec<Import>> {
    let mut imports = Vec::new();
    // What lies inside is met by the component itself.
    let mut depth = 0_u32;
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    let name = import?.name.name.to_owned();
                    let given = GIVEN.iter().find(|(begin, _)| name.starts_with(begin));
                    imports.push(Import {
                        given: given.map(|(_, given)| *given),
                        name,
                    });
                }
            }
            _ => {}
        }
    }
    Ok(imports)
}
