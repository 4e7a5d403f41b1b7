package scenariotest

import (
	"fmt"
	"slices"
	"time"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// All are the scenarios.
func All() []Scenario {
	return slices.Concat(local, shadows(), figures(), central(), optimistic(), failures(), shares(), pushes(),
		queues(), settles(), unknown(), places)
}

// one is a policy set of a policy p for all requests.
func one(mode, fields string) string {
	return fmt.Sprintf(`{"name":"p","partition":[],"mode":%q,%s}`, mode, fields)
}

// each is a scenario for each of some words, as modes or algorithms.
func each(of func(word string) Scenario, words ...string) (all []Scenario) {
	for _, word := range words {
		s := of(word)
		s.Name += ", " + word
		all = append(all, s)
	}
	return all
}

// silent has a control plane answer no calls.
func silent(p *Plane) { p.Status = -1 }

// fails makes a control plane answer with a status.
func fails(status int) func(*Plane) { return func(p *Plane) { p.Status = status } }

// nodes makes a control plane report n nodes.
func nodes(n int64) func(*Plane) { return func(p *Plane) { p.Nodes = n } }

// elsewhere makes another node hold permits.
func elsewhere(permits int64) func(*Plane) { return func(p *Plane) { p.Elsewhere = permits } }

// holds checks that nodes hold the number of permits.
func holds(permits int64) func(*Plane) string {
	return func(p *Plane) string {
		if held := p.Held(); held != permits {
			return fmt.Sprintf("%d permits are held, want %d", held, permits)
		}
		return ""
	}
}

const costHeader = `,"cost":{"header":"x-cost","max":100}`
