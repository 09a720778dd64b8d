//! Which node a command asks: the same flag for every one that asks an operator's door.

/// Where the door is.
#[derive(Debug, clap::Args)]
pub(super) struct AdminDoor {
    /// The admin door of a node
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:8082"
    )]
    url: String,
}

/// What to do when something else answered.
pub(super) const FIX: &str = "give the admin door ([admin] listen) of a tidegate node with --url";

impl AdminDoor {
    /// The URL of `path`, which begins with a slash.
    pub(super) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }
}
