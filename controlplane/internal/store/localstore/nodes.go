package localstore

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
)

// maxNodes bounds the number of nodes in the store: a faulty node may invent ids.
const maxNodes = 10_000

// nodeMap keeps nodes in memory: after a restart they poll again within 30 seconds.
type nodeMap struct {
	now func() time.Time

	mu  sync.Mutex
	all map[string]nodes.Node
}

func (m *nodeMap) init(now func() time.Time) { m.now, m.all = now, map[string]nodes.Node{} }

// Touch implements nodes.Store.
func (s *Store) Touch(_ context.Context, n nodes.Node) error {
	m := &s.nodes
	n.Seen = m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	n.Reported = m.all[n.Key()].Reported
	m.all[n.Key()] = n
	if len(m.all) > maxNodes {
		oldest := n
		for _, other := range m.all {
			if other.Seen.Before(oldest.Seen) {
				oldest = other
			}
		}
		delete(m.all, oldest.Key())
	}
	return nil
}

// Report implements nodes.Store.
func (s *Store) Report(_ context.Context, key string, r nodes.Reported) (known bool, err error) {
	m := &s.nodes
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.all[key]
	if known {
		n.Reported = r
		m.all[key] = n
	}
	return known, nil
}

// Nodes implements nodes.Store.
func (s *Store) Nodes(context.Context) ([]nodes.Node, error) {
	m := &s.nodes
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]nodes.Node, 0, len(m.all))
	for key, n := range m.all {
		if now.Sub(n.Seen) >= nodes.Forgotten {
			delete(m.all, key)
			continue
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b nodes.Node) int { return strings.Compare(a.Key(), b.Key()) })
	return out, nil
}

// CountNodes implements nodes.Store.
func (s *Store) CountNodes(_ context.Context, within time.Duration) (int64, error) {
	m := &s.nodes
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	var count int64
	for _, n := range m.all {
		if now.Sub(n.Seen) < within {
			count++
		}
	}
	return count, nil
}
