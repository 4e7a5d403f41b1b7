package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// slowAudit is a list of changes that takes as long to read as the test wants.
type slowAudit struct {
	// away: it is the store that takes long; otherwise the processor.
	away         bool
	now, most    atomic.Int64
	began, goOn  chan struct{}
	notForPeople atomic.Int64
}

func (s *slowAudit) Audit(ctx context.Context, _ string, _ int) ([]audit.Entry, error) {
	if !access.IsForPeople(ctx) {
		s.notForPeople.Add(1)
	}
	if s.away {
		defer access.Pause(ctx)()
	}
	for now := s.now.Add(1); ; {
		most := s.most.Load()
		if now <= most || s.most.CompareAndSwap(most, now) {
			break
		}
	}
	defer s.now.Add(-1)
	s.began <- struct{}{}
	<-s.goOn
	return nil, nil
}

// read starts readers of the audit, and returns how to wait for them.
func (p *plane) read(readers int) (answered func()) {
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			if got := p.do(call{who: "eyes", method: "GET", path: "/v1/audit"}); got.Code != http.StatusOK {
				p.t.Errorf("a reader is answered %d %s", got.Code, got.Body)
			}
		})
	}
	return all.Wait
}

// Readers compute on half of the processors at once, and others make changes and ask for tokens
// meanwhile.
func TestReadersTakeTurns(t *testing.T) {
	slow := &slowAudit{began: make(chan struct{}, 100), goOn: make(chan struct{})}
	p := newPlaneWith(t, func(c *api.Config) { c.Audit = audit.NewHeld(slow, time.Now) })
	answered := p.read(20)
	<-slow.began
	if got := p.put("*", set); got.Code != http.StatusOK {
		t.Errorf("a change beside readers: %d %s", got.Code, got.Body)
	}
	if got := p.do(call{method: "GET", path: "/readyz"}); got.Code != http.StatusOK {
		t.Errorf("/readyz beside readers: %d", got.Code)
	}
	close(slow.goOn)
	answered()
	half := int64(max(1, runtime.GOMAXPROCS(0)/2))
	if most := slow.most.Load(); most < 1 || most > half || slow.notForPeople.Load() != 0 {
		t.Errorf("%d readers at once, at most %d may; %d not as people", most, half, slow.notForPeople.Load())
	}
}

// A reader that waits for the store holds up no other.
func TestReadersThatWaitTakeNoTurn(t *testing.T) {
	slow := &slowAudit{away: true, began: make(chan struct{}, 100), goOn: make(chan struct{})}
	p := newPlaneWith(t, func(c *api.Config) { c.Audit = audit.NewHeld(slow, time.Now) })
	answered := p.read(20)
	for range 20 {
		<-slow.began
	}
	if got := p.do(call{who: "eyes", method: "GET", path: "/v1/enforcement"}); got.Code != http.StatusOK {
		t.Errorf("another route: %d", got.Code)
	}
	close(slow.goOn)
	answered()
}

// stuckReader takes no answer until the test lets it.
type stuckReader struct {
	*recorder
	writing, goOn chan struct{}
}

func (s stuckReader) Write(b []byte) (int, error) {
	s.writing <- struct{}{}
	<-s.goOn
	return s.recorder.Write(b)
}

// Readers that are slow to take their answers hold up no caller, and get them whole.
func TestSlowReadersHoldUpNoCaller(t *testing.T) {
	p := newPlane(t)
	writing, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			r := httptest.NewRequest("GET", "/v1/enforcement", nil)
			r.Header.Set("Authorization", "Bearer token of eyes")
			w := stuckReader{&recorder{httptest.NewRecorder()}, writing, goOn}
			p.handler.ServeHTTP(w, r)
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"orders"`) {
				t.Errorf("a slow reader got %d %s", w.Code, w.Body)
			}
		})
	}
	for range 20 {
		<-writing
	}
	if got := p.do(call{who: "eyes", method: "GET", path: "/v1/enforcement"}); got.Code != http.StatusOK {
		t.Errorf("a quick reader beside slow ones: %d", got.Code)
	}
	close(goOn)
	all.Wait()
}
