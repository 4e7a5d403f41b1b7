package api_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// A policy whose path is misspelt looks like any other, but for that no request meets it.
func TestAPolicyThatNoRequestMeetsIsMarked(t *testing.T) {
	var ahead atomic.Int64
	var past *series.Service
	p := newPlaneWith(t, func(c *api.Config) {
		on := c.Series.Config
		on.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		past = series.New(on)
		c.Series = past
	})
	tick := func() {
		t.Helper()
		if err := past.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	unmet := func() string {
		t.Helper()
		var names []string
		_, pages := p.policies("")
		for _, one := range pages[0].Policies {
			if one.UnmetSince != nil {
				names = append(names, one.Name)
			}
		}
		return strings.Join(names, " ")
	}
	if w := p.put(`"0"`, several); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	tick()
	ahead.Store(int64(2 * time.Minute))
	past.Granted("login", 1, 0)
	past.Tried("login-slow", "node", false, false)
	if got := unmet(); got != "" {
		t.Errorf("before it would be known: %s", got)
	}
	ahead.Store(int64(20 * time.Minute))
	tick()
	if got := unmet(); got != "all part" { // The policy none is off.
		t.Errorf("after twenty minutes: %q", got)
	}
	past.Granted("all", 1, 0)
	tick()
	if got := unmet(); got != "part" {
		t.Errorf("once one was met: %q", got)
	}
}
