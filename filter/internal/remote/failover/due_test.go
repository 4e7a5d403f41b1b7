package failover_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// While a worker has no answer all look at once; otherwise only the leader looks, now and then.
func TestNextDue(t *testing.T) {
	p := start(t, 2, 2)
	p.tick(10 * ms)
	due := func(i int) any {
		switch at := p.workers[i].NextDue(p.now, i == p.leader); at {
		case quota.Forever:
			return "never"
		default:
			return at - p.now
		}
	}
	for _, step := range []struct {
		name          string
		do            func()
		leader, other any
	}{
		{"all is well", func() {}, 250 * ms, "never"},
		{"the other one's calls fail", func() { p.fails(1); p.tick(20 * ms) }, 0 * ms, 0 * ms},
		{"they succeed", func() { p.isAnswered(1); p.tick(20 * ms) }, 250 * ms, "never"},
	} {
		if step.do(); due(p.leader) != step.leader || due(1-p.leader) != step.other {
			t.Errorf("%s: due in %v and %v", step.name, due(p.leader), due(1-p.leader))
		}
	}
}
