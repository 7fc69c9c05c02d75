//! Source lines of guest code, from the debug info that a component carries.
//!
//! Wasmtime can look them up itself, but then does so whenever an error passes a guest's stack, frame by frame:
//! also when an instance is given up or an attempt is cut off, where nobody reads them.

use std::ops::Range;
use std::sync::Arc;

use addr2line::Context;
use addr2line::gimli::{self, EndianSlice, LittleEndian};
use wasmparser::{Parser, Payload};

/// The component's bytes, read only when a guest was stopped at a place that people want to know.
#[derive(Clone)]
pub struct Sources(Arc<[u8]>);

/// A function at a place in its source; several where one was inlined into another, innermost first.
pub struct Located {
    pub function: Option<String>,
    /// `FILE:LINE`
    pub place: Option<String>,
}

/// A core module inside the component.
#[derive(Default)]
struct Module {
    range: Range<usize>,
    /// Where its code begins: what addresses in debug info count from.
    code: usize,
    debug: Vec<(String, Range<usize>)>,
}

/// Debug info made ready for questions.
pub struct Lookup<'a>(Vec<(Module, Context<EndianSlice<'a, LittleEndian>>)>);

impl Sources {
    pub fn new(component: Arc<[u8]>) -> Self {
        Self(component)
    }

    /// Damaged debug info is no debug info.
    pub fn lookup(&self) -> Lookup<'_> {
        let modules = modules(&self.0).unwrap_or_default().into_iter();
        let ready = modules.filter_map(|module| {
            let section = |id: gimli::SectionId| {
                let of_name = |(name, _): &&(String, _)| name == id.name();
                let range = module.debug.iter().find(of_name).map(|(_, range)| range.clone());
                Ok::<_, gimli::Error>(EndianSlice::new(&self.0[range.unwrap_or_default()], LittleEndian))
            };
            let dwarf = gimli::Dwarf::load(section).ok()?;
            let context = Context::from_dwarf(dwarf).ok()?;
            Some((module, context))
        });
        Lookup(ready.collect())
    }
}

impl Lookup<'_> {
    /// What lies at this position in the component.
    pub fn at(&self, position: usize) -> Vec<Located> {
        let of = |(module, _): &&(Module, _)| module.range.contains(&position) && module.code <= position;
        let Some((module, context)) = self.0.iter().find(of) else {
            return Vec::new();
        };
        let address = (position - module.code) as u64;
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let place = frame.location.and_then(|at| match (at.file, at.line) {
                (Some(file), Some(line)) => Some(format!("{file}:{line}")),
                (file, _) => file.map(str::to_owned),
            });
            all.push(Located {
                function: function.map(Into::into),
                place,
            });
        }
        all
    }
}

fn modules(component: &[u8]) -> wasmparser::Result<Vec<Module>> {
    let mut modules: Vec<Module> = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection {
                unchecked_range: range,
                ..
            } => {
                modules.push(Module {
                    range,
                    ..Module::default()
                });
            }
            Payload::CodeSectionStart { range, .. } => {
                if let Some(module) = modules.last_mut() {
                    module.code = range.start;
                }
            }
            Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                let (name, start) = (section.name().to_owned(), section.data_offset());
                if let Some(module) = modules.last_mut() {
                    module.debug.push((name, start..start + section.data().len()));
                }
            }
            _ => {}
        }
    }
    Ok(modules)
}
