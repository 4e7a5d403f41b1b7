package nodes_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/nodes"
)

type store struct {
	count   int64
	err     error
	asked   int
	touched nodes.Node
}

func (s *store) Touch(_ context.Context, n nodes.Node) error { s.touched = n; return s.err }

func (s *store) Nodes(context.Context) ([]nodes.Node, error) { return nil, s.err }

func (s *store) CountNodes(context.Context, time.Duration) (int64, error) {
	s.asked++
	return s.count, s.err
}

func TestCount(t *testing.T) {
	s, now := &store{}, time.Unix(1000, 0)
	r := nodes.New(s, func() time.Time { return now })
	for i, c := range []struct {
		pass  time.Duration
		count int64
		err   error
		want  int64
		asked int
	}{
		{0, 0, nil, 1, 1}, // nobody polls: who asks is one
		{0, 5, nil, 1, 1}, // within a second the last count holds
		{999 * time.Millisecond, 5, nil, 1, 1},
		{time.Millisecond, 5, nil, 5, 2},
		{time.Second, 0, errors.New("away"), 5, 3}, // the store is away: the last count holds
		{time.Second, 2, nil, 2, 4},
	} {
		now = now.Add(c.pass)
		s.count, s.err = c.count, c.err
		if got := r.Count(t.Context()); got != c.want || s.asked != c.asked {
			t.Errorf("step %d: %d nodes after %d questions, want %d after %d", i, got, s.asked, c.want, c.asked)
		}
	}
}

// What a node says of itself is bounded and printable before it is stored.
func TestTouchCleans(t *testing.T) {
	s := &store{}
	r := nodes.New(s, time.Now)
	long := strings.Repeat("ä", 300)
	if err := r.Touch(t.Context(), nodes.Node{ID: "a\x1b[31m\n\x00b\xff", Boot: long, Reason: long, Filter: long, State: long, Zone: long}); err != nil {
		t.Fatal(err)
	}
	n := s.touched
	if n.ID != "a?[31m??b?" {
		t.Errorf("id %q", n.ID)
	}
	for name, c := range map[string]struct {
		text string
		max  int
	}{"boot": {n.Boot, 16}, "reason": {n.Reason, 256}, "filter": {n.Filter, 64}, "state": {n.State, 32}, "zone": {n.Zone, 64}} {
		if c.text != long[:c.max] {
			t.Errorf("%s is %q", name, c.text)
		}
	}
}
