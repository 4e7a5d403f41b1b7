// Package simulation runs whole fleets in virtual time: nodes with the filter's own decision code,
// the control plane's own lease service, a store that fails as stores do, and a network between
// them that loses, delays, doubles and reorders. A seed chooses the fleet, the policies, the
// callers and all that goes wrong; the same seed is the same run. Every token that is used is held
// against the bounds that the documentation states, with integers, over every interval. Every
// refusal is held against the other law: no failure refuses the tokens that a caller is surely due.
package simulation
