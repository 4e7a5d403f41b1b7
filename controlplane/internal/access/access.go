// Package access bounds the callers of the control plane: how many run at once (Places), in which
// order they wait (Turns, and Turn for people), how often each may call (Rates), and how many
// connections are open (Listener). The callers of this package write the refusals.
package access
