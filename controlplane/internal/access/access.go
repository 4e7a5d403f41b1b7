// Package access bounds callers at the doors of the control plane: how many may be in at once
// (Places), in which order those wait who may wait (Turns, and the Turn of people), how often each
// may come (Rates), and how many connections may be open (Listener). The doors say no in their own
// words.
package access
