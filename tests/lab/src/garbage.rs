//! Garbage on the wire: nothing may change but counters, and no advert may be late for it.
