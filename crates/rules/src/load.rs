//! Loads a rule book from a folder of rule files.
//!
//! [`parse`] is pure and takes the files as bytes; [`read`] is the only function that accesses the
//! disk.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::book::Book;
use super::compile::Compiler;
use super::error::{Error, Reason};
use super::rule::Defaults;
use super::yaml::{self, Bounds, Node};

/// Most rule files.
pub const FILES_MAX: usize = 1_000;
/// Deepest nesting of folders.
pub const FOLDER_DEPTH_MAX: usize = 16;
/// Most entries of a folder, rule files or not.
pub const FOLDER_ENTRIES_MAX: usize = 20_000;

/// Settings that are not part of the files.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Defaults of rules.
    pub defaults: Defaults,
    /// Whether a domain may be spread over several files. Their descriptors must differ.
    pub merge_domains: bool,
}

/// A rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name used in messages.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// The book of some files, in their order.
///
/// # Errors
///
/// The first error in the files.
pub fn parse(sources: &[Source], options: &Options) -> Result<Book, Error> {
    let mut compiler = Compiler::new(&options.defaults, options.merge_domains);
    for Source { name, bytes } in sources {
        let root = yaml::parse(bytes, Bounds::RULE_FILE)
            .map_err(|(at, error)| Error::new(name, at, None, Reason::Yaml(error)))?;
        compiler.add(name, root.as_ref())?;
    }
    Ok(compiler.finish())
}

/// The book of trees from another source, with their names in messages. It uses the same compiler
/// as rule files, so a rule has the same meaning in both.
pub fn assemble(trees: &[(String, Node)], options: &Options) -> Result<Book, Error> {
    let mut compiler = Compiler::new(&options.defaults, options.merge_domains);
    for (name, root) in trees {
        compiler.add(name, Some(root))?;
    }
    Ok(compiler.finish())
}

/// Reads and parses a folder.
pub fn load(path: &Path, options: &Options) -> Result<Book, Error> {
    parse(&read(path)?, options)
}

/// The `.yaml` and `.yml` files in and below a folder, sorted by path; or the one file that `path`
/// is.
///
/// Names that begin with a dot are skipped: in a mounted `ConfigMap` each file is a link into
/// `..data`, and is read once, through that link. Links are followed; a folder that is reached
/// twice is read once.
pub fn read(path: &Path) -> Result<Vec<Source>, Error> {
    let mut walk = Walk { files: Vec::new(), folders_seen: HashSet::new(), entries_seen: 0 };
    let metadata = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if metadata.is_dir() {
        walk.folder(path, 0)?;
        walk.files.sort();
    } else {
        walk.files.push(path.to_path_buf());
    }
    walk.files.iter().map(|file| read_file(file)).collect()
}

struct Walk {
    files: Vec<PathBuf>,
    folders_seen: HashSet<PathBuf>,
    entries_seen: usize,
}

impl Walk {
    fn folder(&mut self, folder: &Path, depth: usize) -> Result<(), Error> {
        if depth > FOLDER_DEPTH_MAX {
            return Err(too_many(folder, "its folders are nested more than 16 deep"));
        }
        let real = fs::canonicalize(folder).map_err(|error| unreadable(folder, &error))?;
        if !self.folders_seen.insert(real) {
            return Ok(());
        }
        // Sorted, so that a folder that is reached twice is always read under the same name.
        for path in self.entries(folder)? {
            let is_rule_file = path.extension().is_some_and(|ext| ext == "yaml" || ext == "yml");
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.folder(&path, depth + 1)?,
                Ok(metadata) if metadata.is_file() && is_rule_file => self.files.push(path),
                Err(error) if is_rule_file => return Err(unreadable(&path, &error)),
                Ok(_) | Err(_) => {}
            }
            if self.files.len() > FILES_MAX {
                return Err(too_many(folder, "it holds more than 1,000 rule files"));
            }
        }
        Ok(())
    }

    /// The entries of a folder whose names do not begin with a dot, sorted.
    fn entries(&mut self, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
            let entry = entry.map_err(|error| unreadable(folder, &error))?;
            self.entries_seen += 1;
            if self.entries_seen > FOLDER_ENTRIES_MAX {
                return Err(too_many(folder, "it holds more than 20,000 entries"));
            }
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }
}

/// Reads one byte more than the YAML reader allows, so that the YAML reader can reject the file.
fn read_file(path: &Path) -> Result<Source, Error> {
    let most = Bounds::RULE_FILE.text_bytes_max as u64 + 1;
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most).read_to_end(&mut bytes))
        .map_err(|error| unreadable(path, &error))?;
    Ok(Source { name: path.display().to_string(), bytes })
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    fault(path, Reason::Unreadable(error.to_string().into()))
}

fn too_many(path: &Path, what: &'static str) -> Error {
    fault(path, Reason::TooManyFiles(what))
}

fn fault(path: &Path, reason: Reason) -> Error {
    Error::new(&path.display().to_string(), None, None, reason)
}
