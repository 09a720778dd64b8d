//! What an operator orders through the admin listener.

/// The node behind `POST /bootstrap`, `POST /forget` and `POST /regions/lost`.
pub trait Operate: Send + Sync + 'static {
    /// Founds a cluster with this node as its only voter.
    ///
    /// # Errors
    ///
    /// It is in a cluster already, or there is one to join.
    fn bootstrap(&self) -> Result<(), Refusal>;

    /// Removes an evicted member from the cluster map before `cluster.forget_after` has passed.
    ///
    /// # Errors
    ///
    /// There is no such member, it is not evicted, or another node has to be asked.
    fn forget(&self, node: &str) -> Result<(), Refusal>;

    /// A region is lost: its global keys move to the others once none of its nodes is a member of
    /// the global map.
    ///
    /// # Errors
    ///
    /// It is no home of global keys, homes never change, or another node has to be asked.
    fn region_lost(&self, region: &str) -> Result<(), Refusal>;
}

/// Why an order was not carried out, in words for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is about something that does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The state of the node or of the cluster forbids it.
    #[error("{0}")]
    Conflict(String),
}
