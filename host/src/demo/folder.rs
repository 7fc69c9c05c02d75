//! The demo's temporary folder.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};
use uuid::Uuid;

/// A new folder that goes with this value, unless it is to be kept.
pub struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    pub fn new(keep: bool) -> Result<Self> {
        let path = env::temp_dir().join(format!("onemark-demo-{}", Uuid::new_v4().simple()));
        fs::create_dir(&path).with_context(|| format!("could not make the folder `{}`", path.display()))?;
        Ok(Self { path, keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            eprintln!("could not remove `{}`: {error}", self.path.display());
        }
    }
}
