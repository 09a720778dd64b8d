//! The `--url` flag of commands that use the admin listener of a node.

/// The node to contact.
#[derive(Debug, clap::Args)]
pub(super) struct AdminDoor {
    /// URL of a node's admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:8082"
    )]
    url: String,
}

/// Advice when the answer is not from an admin listener.
pub(super) const FIX: &str = "set --url to the admin listener ([admin] listen) of a tidegate node";

impl AdminDoor {
    /// The URL of `path`, which begins with a slash.
    pub(super) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }
}
