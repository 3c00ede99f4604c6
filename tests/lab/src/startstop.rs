//! Starting and stopping the agent again and again: nothing may be left behind.
