//! The possible next events of a world, within bounds.

use super::world::{HOLDERS, Message, World};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Move {
    Tick,
    /// One hit, or all that are held.
    Spend {
        at: usize,
        all: bool,
    },
    Ask(usize),
    TimeOut(usize),
    Look(usize),
    /// The owner admits or refuses a hit of a client of its own.
    Check,
    /// A message arrives; if it stays, it may arrive again.
    Deliver {
        index: usize,
        stays: bool,
    },
    Settle {
        former: bool,
        index: usize,
        is_confirmed: bool,
    },
    Restart(usize),
    Crash,
    HandOver,
    Reload(usize),
    /// A client gives hits back at a holder, which puts them into its grants.
    RefundGranted(usize),
    /// A client gives this number of hits back at the owner.
    Refund(u32),
}

impl World {
    pub(super) fn moves(&self) -> Vec<Move> {
        let left = self.left;
        let mut moves = Vec::new();
        let mut add = |is_possible: bool, next: Move| {
            if is_possible {
                moves.push(next);
            }
        };
        add(left.ticks > 0, Move::Tick);
        for at in 0..HOLDERS {
            add(true, Move::Spend { at, all: false });
            add(true, Move::Spend { at, all: true });
            // A slow call does not hold up the next one for ever.
            add(left.asks > 0 && self.calls(at) < 2, Move::Ask(at));
            add(left.time_outs > 0 && self.calls(at) > 0, Move::TimeOut(at));
            add(true, Move::Look(at));
            add(left.restarts > 0, Move::Restart(at));
            add(left.reloads > 0 && self.is_behind(at), Move::Reload(at));
            add(left.refunds > 0, Move::RefundGranted(at));
        }
        add(left.checks > 0, Move::Check);
        for hits in [1, 3] {
            add(left.refunds > 0, Move::Refund(hits));
        }
        for (index, message) in self.flying.iter().enumerate() {
            add(true, Move::Deliver { index, stays: false });
            let may_double = left.doubled > 0 && !matches!(message, Message::Reply { .. });
            add(may_double, Move::Deliver { index, stays: true });
        }
        for (pending, former) in self.pending().into_iter().zip([false, true]) {
            for index in 0..pending {
                add(true, Move::Settle { former, index, is_confirmed: true });
                let may_fail = left.unconfirmed > 0;
                add(may_fail, Move::Settle { former, index, is_confirmed: false });
            }
        }
        add(left.crashes > 0, Move::Crash);
        add(left.handovers > 0, Move::HandOver);
        moves
    }

    /// The world after a move; `None` if the move has no effect.
    pub(super) fn after(&self, next: Move) -> Option<Self> {
        let mut world = self.clone();
        let left = &mut world.left;
        match next {
            Move::Tick => {
                left.ticks -= 1;
                world.tick();
            }
            Move::Spend { at, all } => {
                if !world.spend(at, all) {
                    return None;
                }
            }
            Move::Ask(at) => {
                left.asks -= 1;
                world.ask(at);
            }
            Move::TimeOut(at) => {
                left.time_outs -= 1;
                world.time_out(at);
            }
            Move::Look(at) => world.look(at),
            Move::Check => {
                left.checks -= 1;
                world.check();
            }
            Move::Deliver { index, stays } => {
                left.doubled -= u8::from(stays);
                world.deliver(index, stays);
            }
            Move::Settle { former, index, is_confirmed } => {
                left.unconfirmed -= u8::from(!is_confirmed);
                world.settle(former, index, is_confirmed);
            }
            Move::Restart(at) => {
                left.restarts -= 1;
                world.restart(at);
            }
            Move::Crash => {
                left.crashes -= 1;
                world.crash();
            }
            Move::HandOver => {
                left.handovers -= 1;
                world.hand_over();
            }
            Move::Reload(at) => {
                left.reloads -= 1;
                world.reload(at);
            }
            Move::RefundGranted(at) => {
                left.refunds -= 1;
                world.refund_granted(at);
            }
            Move::Refund(hits) => {
                left.refunds -= 1;
                world.refund(hits);
            }
        }
        (world != *self).then_some(world)
    }
}
